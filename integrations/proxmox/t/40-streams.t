# Streams between storages, notes and protections.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use IO::File;
use Pond;
use Test::More;

Pond::need('qemu-io', 'qemu-img');
my $pond = Pond->new();
my $cfg = $pond->config();
my $scfg = PVE::Storage::storage_config($cfg, 'pond');

my $streams = 0;

# Writes a stream to a new file, and returns its path.
sub to_file {
    my ($volid, $snap) = @_;

    my $file = "$pond->{dir}/stream-" . $streams++;
    # a pipe, as in Proxmox: `qemu-img convert` would empty a file that it opens as /dev/stdout
    open(my $fh, '|-', "cat > $file") or die "$file: $!\n";
    PVE::Storage::volume_export($cfg, $fh, $volid, 'raw+size', $snap, undef, 0);
    close($fh) or die "$file: $!\n";
    return $file;
}

sub from_file {
    my ($file, $volid, %with) = @_;

    my $fh = IO::File->new($file, O_RDONLY) or die "$file: $!\n";
    local $SIG{__WARN__} = sub { note(@_) };
    return PVE::Storage::volume_import($cfg, $fh, $volid, 'raw+size', undef, undef, 0, $with{rename});
}

# From the pool and back

my $disk = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 34 << 10);
PVE::Storage::activate_volumes($cfg, [$disk]);
writes($cfg, $disk, '0x51 0 1M', '0x52 10M 4k', '0x53 33M 1M');
PVE::Storage::deactivate_volumes($cfg, [$disk]);
PVE::Storage::volume_snapshot($cfg, $disk, 'then');
PVE::Storage::activate_volumes($cfg, [$disk]);
writes($cfg, $disk, '0x54 0 1M');
PVE::Storage::deactivate_volumes($cfg, [$disk]);

is_deeply([PVE::Storage::volume_export_formats($cfg, $disk, undef, undef, 0)], ['raw+size'], 'format');
is_deeply([PVE::Storage::volume_export_formats($cfg, $disk, 'then', undef, 0)], ['raw+size'], 'of a snapshot');
is_deeply([PVE::Storage::volume_export_formats($cfg, $disk, undef, undef, 1)], [], 'none with snapshots');
is_deeply([PVE::Storage::volume_import_formats($cfg, $disk, undef, 'then', 0)], [], 'none from a snapshot on');
is_deeply(
    [PVE::Storage::volume_transfer_formats($cfg, $disk, 'files:100/vm-100-disk-0.raw', undef, undef, 0)],
    ['raw+size'],
    'to a directory',
);

my $file = to_file($disk);
is(-s $file, (34 << 20) + 8, 'a stream has the size and all bytes');
is(from_file($file, 'pond:vm-101-disk-0'), 'pond:vm-101-disk-0', 'it becomes a disk');
my @now = ('0x54 0 1M', '0 1M 9M', '0x52 10M 4k', '0 11M 22M', '0x53 33M 1M');
reads($cfg, 'pond:vm-101-disk-0', undef, @now);
my ($size, undef, $used) = PVE::Storage::volume_size_info($cfg, 'pond:vm-101-disk-0');
is($size, 34 << 20, 'of the same size');
cmp_ok($used, '<', 4 << 20, 'zeroes take no space');
from_file(to_file($disk, 'then'), 'pond:vm-102-disk-0');
reads($cfg, 'pond:vm-102-disk-0', undef, '0x51 0 1M', '0 1M 9M', '0x52 10M 4k');
is(scalar($pond->sockets()), 0, 'nothing stays active');

# Names

dies_like(sub { from_file($file, 'pond:vm-101-disk-0') }, qr/already exists/, 'a name that is in use');
is(from_file($file, 'pond:vm-101-disk-0', rename => 1), 'pond:vm-101-disk-1', 'another one, if it may be');
is(from_file($file, 'pond:base-103-disk-0'), 'pond:base-103-disk-0', 'a template');
my $clone = PVE::Storage::vdisk_clone($cfg, 'pond:base-103-disk-0', 104);
reads($cfg, $clone, undef, @now);
is(
    from_file(to_file($clone), 'pond:base-103-disk-0/vm-105-disk-0'),
    'pond:vm-105-disk-0',
    'a linked clone arrives as a disk of its own',
);

# Between kinds of storages

{
    my $fh = IO::File->new($file, O_RDONLY);
    my $there = PVE::Storage::volume_import($cfg, $fh, 'files:101/vm-101-disk-0.raw', 'raw+size', undef, undef, 0, 0);
    is($there, 'files:101/vm-101-disk-0.raw', 'into a directory');
    my $path = address($cfg, $there);
    ok(io($path, map {"read -P $_"} @now), 'with the same data');
    my $out = IO::File->new("$pond->{dir}/from-files", O_WRONLY | O_CREAT | O_TRUNC);
    PVE::Storage::volume_export($cfg, $out, $there, 'raw+size', undef, undef, 0);
    close($out);
    is(from_file("$pond->{dir}/from-files", 'pond:vm-106-disk-0'), 'pond:vm-106-disk-0', 'and back');
    reads($cfg, 'pond:vm-106-disk-0', undef, @now);
}

# From a qcow2 file, which can have no snapshots then

my $qcow2 = PVE::Storage::vdisk_alloc($cfg, 'files', 113, 'qcow2', undef, 18 << 10);
ok(io_qcow2(address($cfg, $qcow2), 'write -P 0x57 5M 2M'), 'a qcow2 file in a directory');
is_deeply([PVE::Storage::volume_transfer_formats($cfg, $qcow2, 'pond:vm-113-disk-0')], ['raw+size'], 'its format');
is_deeply([PVE::Storage::volume_transfer_formats($cfg, $qcow2, 'pond:vm-113-disk-0', undef, undef, 1)], [], 'snapshots');
SKIP: {
    my $qcow2_path = address($cfg, $qcow2);
    skip('qemu-img of this host cannot write to a pipe, as volume_export of a qcow2 file does', 2)
        if system("qemu-img convert -f qcow2 -O raw $qcow2_path /dev/stdout 2>/dev/null | cat >$pond->{dir}/piped") != 0
        || -s "$pond->{dir}/piped" != 18 << 20;
    is(from_file(to_file($qcow2), 'pond:vm-113-disk-0'), 'pond:vm-113-disk-0', 'it moves');
    reads($cfg, 'pond:vm-113-disk-0', undef, '0 0 5M', '0x57 5M 2M', '0 7M 11M');
}

# From a logical volume

SKIP: {
    my $device = "$pond->{dir}/lv";
    open(my $fh, '>', $device) or die "$device: $!\n";
    truncate($fh, 24 << 20);
    close($fh);
    skip('no loop devices here, which stand for logical volumes', 4)
        if !$pond->logical_volume('vm-114-disk-0', $device);
    my $with_lvm = $pond->config();
    my $path = PVE::Storage::path($with_lvm, 'lvm:vm-114-disk-0');
    ok(io($path, 'write -P 0x58 1M 3M', 'flush'), "a logical volume, $path");
    my @formats = PVE::Storage::volume_transfer_formats($with_lvm, 'lvm:vm-114-disk-0', 'pond:vm-114-disk-0');
    is_deeply(\@formats, ['raw+size'], 'its format');
    my $out = IO::File->new("$pond->{dir}/from-lvm", O_WRONLY | O_CREAT | O_TRUNC);
    PVE::Storage::volume_export($with_lvm, $out, 'lvm:vm-114-disk-0', 'raw+size', undef, undef, 0);
    close($out);
    is(from_file("$pond->{dir}/from-lvm", 'pond:vm-114-disk-0'), 'pond:vm-114-disk-0', 'it moves');
    reads($cfg, 'pond:vm-114-disk-0', undef, '0 0 1M', '0x58 1M 3M', '0 4M 20M');
}

# A stream that breaks off leaves nothing

truncate($file, 20 << 20);
dies_like(sub { from_file($file, 'pond:vm-107-disk-0') }, qr/ends after \d+ of \d+ bytes/, 'half a stream');
truncate($file, 3);
dies_like(sub { from_file($file, 'pond:vm-107-disk-0') }, qr/ends before the size/, 'none at all');
is_deeply(PVE::Storage::vdisk_list($cfg, 'pond', 107)->{pond}, [], 'no disk is left of them');
my $null = IO::File->new('/dev/null', O_WRONLY);
for my $case (['qcow2+size', undef, undef, 0], ['raw+size', undef, undef, 1], ['raw+size', undef, 'then', 0]) {
    dies_like(
        sub { PVE::Storage::volume_export($cfg, $null, $disk, @$case) },
        qr/is transferred|cannot be transferred/,
        join(' ', map { $_ // '-' } @$case),
    );
}

# A disk of 1 KiB more than blocks

open(my $odd, '>', "$pond->{dir}/odd") or die;
print $odd pack('Q<', 5 * 1024), 'x' x (5 * 1024);
close($odd);
from_file("$pond->{dir}/odd", 'pond:vm-108-disk-0');
reads($cfg, 'pond:vm-108-disk-0', undef, '0x78 0 5k', '0 5k 3k');

# An image with snapshots, by Millpond's own command

my $chain = "$pond->{dir}/files/images/109";
system('mkdir', '-p', $chain);
my @qemu_img = ('qemu-img', 'create', '-q', '-f', 'qcow2');
system(@qemu_img, "$chain/snap-first-vm-109-disk-0.qcow2", '16M');
ok(io_qcow2("$chain/snap-first-vm-109-disk-0.qcow2", 'write -P 0x61 0 1M'), 'the lower layer');
system(@qemu_img, '-b', 'snap-first-vm-109-disk-0.qcow2', '-F', 'qcow2', "$chain/vm-109-disk-0.qcow2");
ok(io_qcow2("$chain/vm-109-disk-0.qcow2", 'write -P 0x62 512k 1M'), 'the upper layer');
$pond->cli('import-image', "$chain/vm-109-disk-0.qcow2", 'tank/vm-109-disk-0');
reads($cfg, 'pond:vm-109-disk-0', undef, '0x61 0 512k', '0x62 512k 1M');
is_deeply([$pond->snapshots('vm-109-disk-0')], ['first'], "a chain's layer is a snapshot of its name");
reads($cfg, 'pond:vm-109-disk-0', 'first', '0x61 0 1M', '0 1M 1M');
PVE::Storage::volume_snapshot_rollback($cfg, 'pond:vm-109-disk-0', 'first');
reads($cfg, 'pond:vm-109-disk-0', undef, '0x61 0 1M', '0 1M 1M');

# A volume chain that Proxmox's own storage made, with all its snapshots

my $chained = PVE::Storage::vdisk_alloc($cfg, 'chain', 112, 'qcow2', undef, 20 << 10);
my $path = address($cfg, $chained);
for my $step (['one', 'write -P 0x71 0 3M'], ['two', 'write -P 0x72 1M 1M'], ['three', 'write -z 0 512k']) {
    my ($snap, $command) = @$step;
    ok(io_qcow2($path, $command), "$command before $snap");
    PVE::Storage::volume_snapshot($cfg, $chained, $snap);
}
ok(io_qcow2($path, 'write -P 0x73 9M 64k'), 'and after the last one');
my $planned = $pond->cli('import-image', '-n', $path, 'tank/vm-112-disk-0');
like($planned, qr/\@one .*\@two .*\@three .* 3 snapshots; nothing is changed/s, 'a dry run lists its snapshots');
$pond->cli('import-image', $path, 'tank/vm-112-disk-0', '--verify');
is_deeply([$pond->snapshots('vm-112-disk-0')], [qw(one two three)], 'they keep their names');
for my $snap ('one', 'two', 'three', undef) {
    PVE::Storage::activate_volumes($cfg, ['pond:vm-112-disk-0'], $snap);
    my @compare = ('qemu-img', 'compare', '-q', '-f', 'qcow2', '-F', 'raw');
    my $there = PVE::Storage::path($cfg, $chained, $snap);
    my $same = system(@compare, $there, address($cfg, 'pond:vm-112-disk-0', $snap)) == 0;
    ok($same, 'the same content: ' . ($snap // 'now'));
    PVE::Storage::deactivate_volumes($cfg, ['pond:vm-112-disk-0'], $snap);
}
my $info = PVE::Storage::volume_snapshot_info($cfg, 'pond:vm-112-disk-0');
is_deeply([sort grep { $_ ne 'current' } keys %$info], [qw(one three two)], 'Proxmox finds them');
PVE::Storage::volume_snapshot_rollback($cfg, 'pond:vm-112-disk-0', 'one');
reads($cfg, 'pond:vm-112-disk-0', undef, '0x71 0 3M', '0 3M 17M');

sub io_qcow2 {
    my ($image, $command) = @_;

    return system("qemu-io -f qcow2 -c '$command' $image >/dev/null") == 0;
}

# Notes and protection

my ($notes, $protected) = map { my $name = $_; sub { PVE::Storage::get_volume_attribute($cfg, $_[0], $name) } }
    qw(notes protected);
is($notes->($disk), '', 'no notes');
is($protected->($disk), 0, 'not protected');
is(PVE::Storage::get_volume_attribute($cfg, $disk, 'colour'), undef, 'no other attribute');
PVE::Storage::update_volume_attribute($cfg, $disk, 'notes', "mail's disk\nline \"two\"");
PVE::Storage::update_volume_attribute($cfg, $disk, 'protected', 1);
is($notes->($disk), "mail's disk\nline \"two\"", 'notes');
is($protected->($disk), 1, 'protected');
is($protected->('pond:vm-101-disk-0'), 0, 'others are not');
dies_like(sub { PVE::Storage::vdisk_free($cfg, $disk) }, qr/is protected/, 'a protected disk stays');
my ($listed) = PVE::Storage::vdisk_list($cfg, 'pond', 100)->{pond}->@*;
is_deeply([@$listed{qw(notes protected)}], ["mail's disk\nline \"two\"", 1], 'the list has both');
my $renamed = PVE::Storage::rename_volume($cfg, $disk, 110, undef);
is($protected->($renamed), 1, 'they stay with a renamed disk');
dies_like(
    sub { PVE::Storage::update_volume_attribute($cfg, $renamed, 'colour', 'red') },
    qr/no attribute 'colour'/,
    'no other attribute can be set',
);
PVE::Storage::update_volume_attribute($cfg, $renamed, 'protected', 0);
PVE::Storage::vdisk_free($cfg, $renamed);
my $next = PVE::Storage::vdisk_alloc($cfg, 'pond', 110, 'raw', undef, 1024);
is($next, $renamed, 'a new disk of the same name');
is($notes->($next), '', 'has not the notes of the old one');

done_testing();
