# A QEMU that uses a disk: snapshots, growth and restarts of the daemon meanwhile.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use PVE::QemuServer::Monitor;
use Qmp;
use Test::More;

Pond::need('qemu-io', 'qemu-system-x86_64', 'stdbuf');
my $pond = Pond->new();
my $cfg = $pond->config();

# Tells whether I/O of the guest succeeded, by what QEMU prints.
sub guest {
    my ($qemu, @commands) = @_;

    for my $command (@commands) {
        my $said = $qemu->io($command);
        my $good = $said =~ m/^(?:wrote|read) /m && $said !~ m/failed|rror/;
        ok($good, "guest: $command") or diag($said);
    }
}

my $disk = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 32 << 10);
PVE::Storage::activate_volumes($cfg, [$disk]);
my $blockdev = PVE::Storage::qemu_blockdev_options($cfg, $disk, '10.0+pve1', {});
my $qemu = Qmp->start($pond->{dir}, $blockdev);
is($qemu->size(), 32 << 20, 'QEMU opens the disk with the options of the plugin');
guest($qemu, 'write -P 0x81 0 4M', 'read -P 0x81 0 4M');

# Snapshots while it runs

PVE::Storage::volume_snapshot($cfg, $disk, 'live');
guest($qemu, 'write -P 0x82 1M 4M');
reads($cfg, $disk, 'live', '0x81 0 4M', '0 4M 28M');
is(scalar($pond->sockets()), 1, 'the disk stays active');
$qemu->io('aio_write -P 0x83 8M 1M');
PVE::Storage::volume_snapshot($cfg, $disk, 'flight');
$qemu->io('aio_flush');
PVE::Storage::volume_snapshot_delete($cfg, $disk, 'flight', 1);
guest($qemu, 'read -P 0x83 8M 1M');
dies_like(
    sub { PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'live') },
    qr/clients are connected/,
    'no rollback while it runs',
);

# What others do with the disk does not disturb it

PVE::Storage::activate_volumes($cfg, [$disk]);
PVE::Storage::deactivate_volumes($cfg, [$disk]);
guest($qemu, 'read -P 0x81 0 1M');
dies_like(sub { PVE::Storage::vdisk_free($cfg, $disk) }, qr/clients are connected/, 'it cannot be freed');
guest($qemu, 'read -P 0x82 1M 4M');

# Growth while it runs: an idle guest is asked to read something

$PVE::QemuServer::Monitor::qmp = $qemu;
PVE::Storage::volume_resize($cfg, $disk, 48 << 20, 1);
$qemu->command('block_resize', 'node-name' => 'format', size => 48 << 20);
is($qemu->size(), 48 << 20, 'the guest sees the new size');
guest($qemu, 'write -P 0x84 47M 1M', 'read -P 0x84 47M 1M', 'read -P 0x82 1M 4M');

# Without a monitor and without I/O the guest does not learn of it, which a second attempt mends

{
    local $PVE::QemuServer::Monitor::qmp;
    no warnings 'once';
    local $PVE::Storage::Custom::MillpondPlugin::COMING_BACK = 1;
    dies_like(
        sub { PVE::Storage::volume_resize($cfg, $disk, 64 << 20, 1) },
        qr/has its new size, but its guest has not connected .*repeat the resize/,
        'a guest that is idle and has no monitor',
    );
    my $grow = sub { $qemu->command('block_resize', 'node-name' => 'format', size => 64 << 20) };
    dies_like($grow, qr/grow/, 'keeps its size');
}
PVE::Storage::volume_resize($cfg, $disk, 64 << 20, 1);
$qemu->command('block_resize', 'node-name' => 'format', size => 64 << 20);
is($qemu->size(), 64 << 20, 'the second attempt');

# The daemon restarts: between requests, and with requests in flight

for my $signal ('TERM', 'KILL') {
    $pond->restart($signal);
    guest($qemu, 'read -P 0x84 47M 1M', 'write -P 0x85 16M 4M');
    $pond->stop($signal);
    $qemu->io("aio_write -P 0x86 20M 1M");
    $qemu->io("aio_read -P 0x81 0 1M");
    $pond->start();
    my $said = $qemu->io('aio_flush');
    my $all = $qemu->output();
    unlike($all, qr/failed|rror/, "$signal: requests in flight succeed");
    guest($qemu, 'read -P 0x86 20M 1M', 'read -P 0x85 16M 4M');
    PVE::Storage::volume_snapshot($cfg, $disk, "after$signal");
}

# And growth just after a restart

$pond->restart('TERM');
PVE::Storage::volume_resize($cfg, $disk, 80 << 20, 1);
$qemu->command('block_resize', 'node-name' => 'format', size => 80 << 20);
is($qemu->size(), 80 << 20, 'growth after a restart');

# The guest ends

$qemu->quit();
PVE::Storage::deactivate_volumes($cfg, [$disk]);
is(scalar($pond->sockets()), 0, 'its disk is not active any more');
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'live');
reads($cfg, $disk, undef, '0x81 0 4M', '0 4M 28M');
reads($cfg, $disk, 'afterTERM', '0x81 0 1M', '0x82 1M 4M', '0x83 8M 1M', '0x85 16M 4M', '0x86 20M 1M', '0x84 47M 1M');

# A snapshot as a disk for reading

PVE::Storage::activate_volumes($cfg, [$disk], 'live');
my $options = { 'snapshot-name' => 'live' };
$blockdev = PVE::Storage::qemu_blockdev_options($cfg, $disk, '10.0+pve1', $options);
my $reader = Qmp->start($pond->{dir}, $blockdev, read_only => 1);
guest($reader, 'read -P 0x81 0 4M');
$reader->quit();

# A guest with an older machine version, whose QEMU gets the address of its disk alone

PVE::Storage::activate_volumes($cfg, [$disk]);
my $old = Qmp->start($pond->{dir}, address($cfg, $disk));
guest($old, 'read -P 0x81 0 4M', 'write -P 0x87 0 1M');
PVE::Storage::volume_snapshot($cfg, $disk, 'old');
{
    local $PVE::QemuServer::Monitor::qmp = $old;
    my $size = PVE::Storage::volume_size_info($cfg, $disk);
    dies_like(
        sub { PVE::Storage::volume_resize($cfg, $disk, 128 << 20, 1) },
        qr/machine version 10\.0 or later.*shut the guest down/,
        'it would have an I/O error when its connection ends',
    );
    is(scalar(PVE::Storage::volume_size_info($cfg, $disk)), $size, 'so nothing is changed');
}
guest($old, 'read -P 0x87 0 1M');
$old->quit();

# A disk that moves from a directory to the pool while its guest writes, as `qm disk move` does

my $there = PVE::Storage::vdisk_alloc($cfg, 'files', 120, 'raw', undef, 40 << 10);
my $here = PVE::Storage::vdisk_alloc($cfg, 'pond', 120, 'raw', undef, 40 << 10);
my $mover = Qmp->start($pond->{dir}, { driver => 'file', filename => address($cfg, $there) });
guest($mover, 'write -P 0x91 0 8M', 'write -P 0x92 30M 2M');
PVE::Storage::activate_volumes($cfg, [$here]);
$blockdev = PVE::Storage::qemu_blockdev_options($cfg, $here, '10.0+pve1', {});
my $lower = { %$blockdev, 'node-name' => 'lower', discard => 'unmap' };
$mover->command('blockdev-add', driver => 'raw', 'node-name' => 'moved', file => $lower);
my %mirror = ('job-id' => 'move', device => 'format', target => 'moved', sync => 'full');
$mover->command('blockdev-mirror', %mirror, speed => 4 << 20);
guest($mover, 'write -P 0x93 31M 2M', 'write -P 0x94 1M 1M');
$mover->command('block-job-set-speed', device => 'move', speed => 0);
my $job = sub { return ($mover->command('query-block-jobs')->@*)[0] };
my $end = time() + 60;
sleep(1) until !$job->() || $job->()->{ready} || time() > $end;
ok(($job->() // {})->{ready}, 'the mirror is complete');
$mover->command('block-job-complete', device => 'move');
sleep(1) until !$job->() || time() > $end;
ok(!$job->(), 'the guest uses the disk in the pool');
guest($mover, 'read -P 0x93 31M 2M', 'write -P 0x95 36M 1M');
$mover->quit();
PVE::Storage::deactivate_volumes($cfg, [$here]);
reads($cfg, $here, undef, '0x91 0 1M', '0x94 1M 1M', '0x91 2M 6M', '0 8M 22M', '0x92 30M 1M', '0x93 31M 2M', '0x95 36M 1M');
ok(io(address($cfg, $there), 'read -P 0x93 31M 2M', 'read -P 0 36M 1M'), 'the old disk is as it was when the guest left it');

done_testing();
