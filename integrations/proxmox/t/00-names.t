# Versions of the interface, names, addresses: what needs no daemon.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need();
Pond::load();
my $plugin = 'PVE::Storage::Custom::MillpondPlugin';

is($plugin->type(), 'millpond', 'type');
isa_ok($plugin, 'PVE::Storage::Plugin');

{
    no warnings qw(redefine once);
    my ($host, $age) = (PVE::Storage::APIVER(), PVE::Storage::APIAGE());
    is($plugin->api(), $host, "this host has version $host");
    my %answers = (10 => 11, 11 => 11, 12 => 12, 13 => 13, 14 => 14, 15 => 15, 16 => 15, 40 => 15);
    for my $version (sort { $a <=> $b } keys %answers) {
        local *PVE::Storage::APIVER = sub () { $version };
        my $answer = eval q{$plugin->api()};
        is($answer, $answers{$version}, "answer to a host of version $version");
        my $is_taken = $answer <= $version && $answer >= $version - $age;
        is($is_taken, $version >= 11 && $version <= 15 + $age, "a host of $version takes it or not");
    }
}

my @names = (
    # name, guest, base, guest of the base, is a base
    ['vm-100-disk-0', 'vm-100-disk-0', 100, undef, undef, undef],
    ['vm-100-cloudinit', 'vm-100-cloudinit', 100, undef, undef, undef],
    ['vm-100-state-before_upgrade', 'vm-100-state-before_upgrade', 100, undef, undef, undef],
    ['base-9000-disk-1', 'base-9000-disk-1', 9000, undef, undef, 1],
    ['base-100-disk-0/vm-101-disk-0', 'vm-101-disk-0', 101, 'base-100-disk-0', 100, undef],
    ['base-100-disk-0/base-101-disk-0', 'base-101-disk-0', 101, 'base-100-disk-0', 100, 1],
);
for my $case (@names) {
    my ($volname, $name, $vmid, $base, $basevmid, $is_base) = @$case;
    my @parts = $plugin->parse_volname($volname);
    is_deeply(\@parts, ['images', $name, $vmid, $base, $basevmid, $is_base, 'raw'], $volname);
}
for my $bad (
    'disk', 'vm-100', 'vm--disk', 'subvol-100-disk-0', 'vm-100-a b', 'vm-100-a/b', "vm-100-a\n",
    'vm-100-a@b', 'vm-100-a;b', 'vm-100-$(id)', '../vm-100-disk-0', 'vm-100-disk-0/vm-101-disk-0',
    'vm-100-a:b', 'vm-100-a%b', '',
) {
    (my $shown = $bad) =~ s/\n/\\n/;
    dies_like(sub { $plugin->parse_volname($bad) }, qr/not the name of a Millpond volume/, "'$shown'")
        if $bad !~ m/\n/;
    ok(!eval { $plugin->parse_volname($bad); 1 }, "'$shown' is refused");
}

my $scfg = { type => 'millpond', pool => 'tank', socket => '/run/millpond/control.sock' };
my $path = 'nbd+unix:///?socket=/run/millpond/pve-tank~vm-100-disk-0.sock';
is_deeply([$plugin->path($scfg, 'vm-100-disk-0', 'pond')], [$path, 100, 'images'], 'path');
is(scalar($plugin->filesystem_path($scfg, 'vm-100-disk-0')), $path, 'filesystem_path');
is(
    scalar($plugin->path($scfg, 'base-1-d/vm-100-disk-0', 'pond', 'snap1')),
    'nbd+unix:///?socket=/run/millpond/pve-tank~vm-100-disk-0@snap1.sock',
    'path of a snapshot of a clone',
);
my ($long) = $plugin->path($scfg, 'vm-100-' . ('x' x 90), 'pond');
my ($other) = $plugin->path($scfg, 'vm-100-' . ('x' x 91), 'pond');
like($long, qr!socket=/run/millpond/pve-[0-9a-f]{40}\.sock$!, 'a long name has a short socket');
isnt($long, $other, 'of its own');
is(
    scalar($plugin->path({ pool => 'tank' }, 'vm-100-disk-0', 'pond')),
    $path,
    'the default of the socket',
);

my $options = $plugin->qemu_blockdev_options($scfg, 'pond', 'vm-100-disk-0', '10.0+pve1', {});
is_deeply(
    $options,
    {
        driver => 'nbd',
        server => { type => 'unix', path => '/run/millpond/pve-tank~vm-100-disk-0.sock' },
        'reconnect-delay' => 300,
        'open-timeout' => 30,
    },
    'options for QEMU',
);
unlike(JSON::encode_json($options), qr/"(?:300|30)"/, 'numbers are numbers in JSON');

for my $bad ('tank;id', 'tank/vm', '-n', '', "tank\n", 'a b', '$(id)') {
    dies_like(
        sub { $plugin->path({ pool => $bad }, 'vm-100-disk-0', 'pond') },
        qr/not the name of a Millpond pool/,
        'a pool of a strange name',
    ) if $bad !~ m/\n/;
    ok(!eval { $plugin->path({ pool => $bad }, 'vm-100-disk-0', 'pond'); 1 }, 'it is refused');
}
for my $bad ('control.sock', '/run/a b', '/run/a?b', '/run/a,b', '/run/$(id)', '/run/a&b=c') {
    dies_like(
        sub { $plugin->path({ pool => 'tank', socket => $bad }, 'vm-100-disk-0', 'pond') },
        qr/cannot be the path of a control socket/,
        "socket '$bad'",
    );
}
for my $bad ('a b', '-y', 'a@b', 'a%b', 'a/b', '') {
    dies_like(
        sub { $plugin->path($scfg, 'vm-100-disk-0', 'pond', $bad) },
        qr/not the name of a snapshot/,
        "snapshot '$bad'",
    );
}

ok(!$plugin->storage_can_replicate($scfg, 'pond', 'raw'), 'no replication');
is($plugin->volume_qemu_snapshot_method('pond', $scfg, 'vm-100-disk-0'), 'storage', 'who takes snapshots');
dies_like(sub { $plugin->new_backup_provider($scfg, 'pond', sub { }) }, qr/holds no backups/, 'no backups');
ok(!PVE::Storage::Plugin::storage_has_feature('millpond', 'backup-provider'), 'nor is it said');

done_testing();
