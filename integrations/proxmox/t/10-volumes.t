# Storages and volumes: adding, status, allocation, lists, sizes, freeing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need('qemu-io');
my $pond = Pond->new();
my $cfg = $pond->config();
my $scfg = PVE::Storage::storage_config($cfg, 'pond');
my $plugin = PVE::Storage::Plugin->lookup('millpond');

# The storage

is_deeply([sort keys $scfg->{content}->%*], ['images'], 'content');
my $info = PVE::Storage::storage_info($cfg, 'images', 1)->{pond};
is_deeply([@$info{qw(type active enabled shared)}], ['millpond', 1, 1, 0], 'active, not shared');
is_deeply($info->{formats}, { default => 'raw', supported => ['raw'] }, 'raw alone');
my ($pool) = $pond->json('pool', 'list', '-o', 'name,id,size')->@*;
is($info->{total}, $pool->{size}, 'total');
is($info->{total}, $info->{used} + $info->{avail}, 'used and available are all');
cmp_ok($info->{avail}, '>', 1 << 30, 'available');
is($plugin->get_identity($scfg, 'pond'), $pool->{id}, 'the identity is the id of the pool');
ok($plugin->check_connection('pond', $scfg), 'connection');

is($plugin->on_add_hook('pond', $scfg), undef, 'the storage can be added');
dies_like(
    sub { $plugin->on_add_hook('x', { %$scfg, pool => 'none' }) },
    qr/no pool 'none'.*millpond pool import none/,
    'a pool that does not exist',
);
dies_like(
    sub { $plugin->on_add_hook('x', { %$scfg, socket => "$pond->{dir}/none.sock" }) },
    qr/does not answer on .*none\.sock.*systemctl start millpond/,
    'no daemon on the socket',
);
is(
    $plugin->on_add_hook('x', { %$scfg, pool => 'none', nodes => { elsewhere => 1 } }),
    undef,
    'a storage of other nodes is not looked for here',
);
dies_like(
    sub { $plugin->on_update_hook_full('pond', $scfg, { socket => '/none' }, [], {}) },
    qr/does not answer on \/none/,
    'an update to a socket without daemon',
);
is($plugin->on_update_hook_full('pond', $scfg, { disable => 1 }, [], {}), undef, 'other updates');

# Allocation

my $first = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 64 << 10);
is($first, 'pond:vm-100-disk-0', 'the first disk');
my $second = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, undef, undef, 32 << 10);
is($second, 'pond:vm-100-disk-1', 'the second one, of the default format');
my $other = PVE::Storage::vdisk_alloc($cfg, 'pond', 101, 'raw', undef, 1 << 10);
is($other, 'pond:vm-101-disk-0', 'a disk of another guest');
my $cloudinit = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', 'vm-100-cloudinit', 4 << 10);
is($cloudinit, 'pond:vm-100-cloudinit', 'a name of its own');
my $odd = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', 'vm-100-odd', 1025);
is(PVE::Storage::volume_size_info($cfg, $odd), 1028 << 10, 'an odd size is rounded up to blocks');

for my $bad ('vm-101-disk-5', 'disk', 'base-100-disk-7', 'vm-100-a/b', 'base-1-a/vm-100-b', '-y') {
    dies_like(
        sub { PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', $bad, 1024) },
        qr/illegal name|not the name/,
        "name '$bad'",
    );
}
dies_like(
    sub { PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'qcow2', undef, 1024) },
    qr/format 'raw', not 'qcow2'/,
    'another format',
);
dies_like(
    sub { PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', 'vm-100-disk-0', 1024) },
    qr/vm-100-disk-0.*exists/,
    'a name that exists',
);

# Lists and sizes

my $list = PVE::Storage::vdisk_list($cfg, 'pond', 100)->{pond};
my @ids = map { $_->{volid} } @$list;
is_deeply(\@ids, [$cloudinit, $first, $second, $odd], 'the list of a guest');
my ($entry) = grep { $_->{volid} eq $first } @$list;
is_deeply([@$entry{qw(format size vmid parent)}], ['raw', 64 << 20, 100, undef], 'its first disk');
cmp_ok(abs(time() - $entry->{ctime}), '<', 600, 'the time when it was created');
my $all = PVE::Storage::vdisk_list($cfg, 'pond')->{pond};
is(scalar(@$all), 5, 'the list of all guests');
my $chosen = PVE::Storage::vdisk_list($cfg, undef, undef, [$second, $other])->{pond};
is_deeply([map { $_->{volid} } @$chosen], [$second, $other], 'a list by ids');
my $content = PVE::Storage::volume_list($cfg, 'pond', 101, 'images');
is_deeply([map { "$_->{volid} $_->{content}" } @$content], ["$other images"], 'the content');
$pond->cli('create', 'tank/private', '-L', '1M');
$pond->cli('create', 'tank/vm-100-a:b', '-L', '1M');
is(scalar(PVE::Storage::vdisk_list($cfg, 'pond')->{pond}->@*), 5, 'other volumes are not listed');

my ($size, $format, $used, $parent) = PVE::Storage::volume_size_info($cfg, $first);
is_deeply([$size, $format, $used, $parent], [64 << 20, 'raw', 0, undef], 'the size of an empty disk');
is(scalar(PVE::Storage::volume_size_info($cfg, $second)), 32 << 20, 'the size alone');
dies_like(
    sub { PVE::Storage::volume_size_info($cfg, 'pond:vm-100-disk-9') },
    qr!'tank/vm-100-disk-9' does not exist!,
    'the size of no volume',
);

# Activation and data

PVE::Storage::activate_volumes($cfg, [$first, $second]);
is(scalar($pond->sockets()), 2, 'an export each');
PVE::Storage::activate_volumes($cfg, [$first, $second]);
is(scalar($pond->sockets()), 2, 'once');
like(address($cfg, $first), qr!^nbd\+unix:///\?socket=/\S+$!, 'its address');
is_deeply(
    PVE::Storage::qemu_blockdev_options($cfg, $first, '10.0+pve0', {})->{server},
    { type => 'unix', path => ($pond->sockets())[0] },
    "it is the export's",
);
writes($cfg, $first, '0x11 0 1M', '0x12 63M 1M');
writes($cfg, $second, '0x21 0 1M');
(undef, undef, $used) = PVE::Storage::volume_size_info($cfg, $first);
cmp_ok($used, '>=', 2 << 20, 'space that the disk takes');
PVE::Storage::deactivate_volumes($cfg, [$first, $second]);
is(scalar($pond->sockets()), 0, 'no export is left');
PVE::Storage::deactivate_volumes($cfg, [$first, $second]);
is(scalar($pond->sockets()), 0, 'which can be said twice');
reads($cfg, $first, undef, '0x11 0 1M', '0 1M 62M', '0x12 63M 1M');
reads($cfg, $second, undef, '0x21 0 1M', '0 1M 31M');
dies_like(
    sub { PVE::Storage::activate_volumes($cfg, ['pond:vm-100-disk-9']) },
    qr!no volume 'tank/vm-100-disk-9'!,
    'activation of no volume',
);

# Two at a time

my @children = map {
    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        eval { PVE::Storage::activate_volumes($cfg, [$first]) };
        print STDERR $@ if $@;
        POSIX::_exit($@ ? 1 : 0);
    }
    $pid;
} 1 .. 4;
my $failed = grep { waitpid($_, 0); $? != 0 } @children;
is($failed, 0, 'four activations at once');
is(scalar($pond->sockets()), 1, 'make one export');

# Growth

is(PVE::Storage::volume_resize($cfg, $first, 96 << 20, 0), undef, 'growth');
is(scalar(PVE::Storage::volume_size_info($cfg, $first)), 96 << 20, 'the new size');
PVE::Storage::volume_resize($cfg, $first, (96 << 20) + 1024, 0);
is(scalar(PVE::Storage::volume_size_info($cfg, $first)), (96 << 20) + 4096, 'is rounded up');
reads($cfg, $first, undef, '0x11 0 1M', '0x12 63M 1M', '0 64M 32M');
dies_like(
    sub { PVE::Storage::volume_resize($cfg, $first, 1 << 20, 0) },
    qr/cannot shrink to 1048576.*--allow-shrink/,
    'a disk does not shrink',
);
dies_like(
    sub { PVE::Storage::volume_resize($cfg, $first, 1 << 30, 0, 'snap') },
    qr/snapshot .* cannot be resized/,
    'a snapshot has its size',
);

# A path for a program that is not QEMU

my $tpm = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 4 << 10);
dies_like(
    sub { PVE::Storage::map_volume($cfg, $tpm) },
    qr/TPM, which needs a file or a block device: move it/,
    'the state of a TPM',
);
is(PVE::Storage::map_volume($cfg, $second), address($cfg, $second), 'the address of others');
PVE::Storage::unmap_volume($cfg, $second);

# Freeing

PVE::Storage::activate_volumes($cfg, [$first]);
PVE::Storage::vdisk_free($cfg, $_) for $first, $second, $odd, $cloudinit, $tpm;
is_deeply(
    [map { $_->{volid} } PVE::Storage::vdisk_list($cfg, 'pond')->{pond}->@*],
    [$other],
    'the disks are gone, though one was active',
);
is(scalar($pond->sockets()), 0, 'their exports, too');
{
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    PVE::Storage::vdisk_free($cfg, $first);
    like("@warnings", qr/does not exist any more/, 'one that is gone already');
}
my $again = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 1 << 10);
is($again, 'pond:vm-100-disk-0', 'the name is free again');
reads($cfg, $again, undef, '0 0 1M');

# The end of a storage

PVE::Storage::activate_volumes($cfg, [$again, $other]);
PVE::Storage::deactivate_storage($cfg, 'pond');
is(scalar($pond->sockets()), 0, 'idle exports end with the storage');
PVE::Storage::activate_volumes($cfg, [$again, $other]);
$plugin->on_delete_hook('pond', $scfg);
is(scalar($pond->sockets()), 0, 'and when it is removed from the configuration');

done_testing();
