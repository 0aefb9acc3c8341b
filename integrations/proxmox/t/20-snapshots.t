# Snapshots: taking, listing, reading, rolling back in any order, renaming, deleting.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need('qemu-io');
my $pond = Pond->new();
my $cfg = $pond->config();

my $disk = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 32 << 10);
is(PVE::Storage::volume_qemu_snapshot_method($cfg, $disk), 'storage', 'the storage takes snapshots');
ok(PVE::Storage::volume_has_feature($cfg, 'snapshot', $disk, undef, $_), 'it can') for 0, 1;

# Three states

PVE::Storage::activate_volumes($cfg, [$disk]);
writes($cfg, $disk, '0x01 0 8M');
PVE::Storage::volume_snapshot($cfg, $disk, 'one');
writes($cfg, $disk, '0x02 4M 8M');
PVE::Storage::volume_snapshot($cfg, $disk, 'two');
PVE::Storage::volume_resize($cfg, $disk, 48 << 20, 0);
writes($cfg, $disk, '0x03 8M 8M', '0x13 47M 1M');
PVE::Storage::volume_snapshot($cfg, $disk, 'three');
writes($cfg, $disk, '0x04 0 48M');

my @one = ('0x01 0 8M', '0 8M 24M');
my @two = ('0x01 0 4M', '0x02 4M 8M', '0 12M 20M');
my @three = ('0x01 0 4M', '0x02 4M 4M', '0x03 8M 8M', '0 16M 31M', '0x13 47M 1M');
reads($cfg, $disk, 'one', @one);
reads($cfg, $disk, 'two', @two);
reads($cfg, $disk, 'three', @three);
reads($cfg, $disk, undef, '0x04 0 48M');

my $info = PVE::Storage::volume_snapshot_info($cfg, $disk);
is_deeply([sort keys %$info], [qw(one three two)], 'the list');
is_deeply(
    [map { $info->{$_}->{'virtual-size'} >> 20 } qw(one two three)],
    [32, 32, 48],
    'the sizes of the disk',
);
my %ids = map { $_->{id} => 1 } values %$info;
is(scalar(keys %ids), 3, 'ids');
cmp_ok(abs(time() - $info->{one}->{timestamp}), '<', 600, 'times');
is_deeply(PVE::Storage::volume_snapshot_info($cfg, 'pond:vm-100-disk-7'), {}, 'no volume, no snapshots');
is_deeply(
    PVE::Storage::qemu_blockdev_options($cfg, $disk, '10.0', { 'snapshot-name' => 'one' })->{server}->{path},
    address($cfg, $disk, 'one') =~ s/.*socket=//r,
    "options of QEMU name the snapshot's socket",
);

dies_like(
    sub { PVE::Storage::volume_snapshot($cfg, $disk, 'one') },
    qr/'one' exists/,
    'a name that exists',
);
dies_like(
    sub { PVE::Storage::volume_snapshot($cfg, $disk, 'a b') },
    qr/not the name of a snapshot/,
    'a name that is none',
);

# A snapshot is read-only

PVE::Storage::activate_volumes($cfg, [$disk], 'one');
ok(!io(address($cfg, $disk, 'one'), 'write -P 9 0 4k'), 'a snapshot takes no writes');
PVE::Storage::deactivate_volumes($cfg, [$disk], 'one');

# Rollback, older and newer ones in turn

PVE::Storage::deactivate_volumes($cfg, [$disk]);
my $blockers = [];
ok(PVE::Storage::volume_rollback_is_possible($cfg, $disk, 'one', $blockers), 'to the oldest');
is_deeply($blockers, [], 'newer ones block nothing');
dies_like(
    sub { PVE::Storage::volume_rollback_is_possible($cfg, $disk, 'none', $blockers) },
    qr/no snapshot 'none'/,
    'not to none',
);
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'one');
reads($cfg, $disk, undef, @one);
is(scalar(PVE::Storage::volume_size_info($cfg, $disk)), 32 << 20, 'with the size of then');
is_deeply([sort $pond->snapshots('vm-100-disk-0')], [qw(one three two)], 'all stay, and no other');
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'three');
reads($cfg, $disk, undef, @three);
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'two');
reads($cfg, $disk, undef, @two);
reads($cfg, $disk, 'one', @one);
reads($cfg, $disk, 'three', @three);

# Writes after a rollback, and a new snapshot

PVE::Storage::activate_volumes($cfg, [$disk]);
writes($cfg, $disk, '0x05 0 1M');
PVE::Storage::volume_snapshot($cfg, $disk, 'four');
writes($cfg, $disk, '0x06 0 1M');
PVE::Storage::deactivate_volumes($cfg, [$disk]);
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'four');
reads($cfg, $disk, undef, '0x05 0 1M', '0x01 1M 3M', '0x02 4M 8M');

# Renaming and deleting

PVE::Storage::activate_volumes($cfg, [$disk], 'two');
PVE::Storage::rename_snapshot($cfg, $disk, 'two', 'zwei');
reads($cfg, $disk, 'zwei', @two);
is(scalar($pond->sockets()), 0, 'its export has ended before');
dies_like(
    sub { PVE::Storage::rename_snapshot($cfg, $disk, 'zwei', 'one') },
    qr/exists/,
    'a name that is in use',
);
dies_like(
    sub { PVE::Storage::rename_snapshot($cfg, $disk, 'current', 'now') },
    qr/'current' is the state of the volume/,
    'the present state is no snapshot',
);
PVE::Storage::activate_volumes($cfg, [$disk], 'zwei');
PVE::Storage::volume_snapshot_delete($cfg, $disk, 'zwei', 0);
PVE::Storage::volume_snapshot_delete($cfg, $disk, 'one', 1);
is_deeply([sort $pond->snapshots('vm-100-disk-0')], [qw(four three)], 'two are left');
is(scalar($pond->sockets()), 0, 'without exports');
reads($cfg, $disk, 'three', @three);
reads($cfg, $disk, 'four', '0x05 0 1M', '0x01 1M 3M', '0x02 4M 8M');
dies_like(
    sub { PVE::Storage::volume_snapshot_delete($cfg, $disk, 'one', 0) },
    qr/no snapshot/,
    'one that is gone',
);

# A rollback under a client is refused

PVE::Storage::activate_volumes($cfg, [$disk]);
my $path = address($cfg, $disk);
my $client = PVE::Storage::Custom::MillpondPlugin::Disk->connect($path =~ s/.*socket=//r);
dies_like(
    sub { PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'four') },
    qr/clients are connected/,
    'a rollback under a client',
);
dies_like(sub { PVE::Storage::vdisk_free($cfg, $disk) }, qr/clients are connected/, 'its end, too');
PVE::Storage::deactivate_volumes($cfg, [$disk]);
is(scalar($pond->sockets()), 1, 'an export that is in use stays');
$client->close();
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'four');
PVE::Storage::vdisk_free($cfg, $disk);
is(scalar(PVE::Storage::vdisk_list($cfg, 'pond')->{pond}->@*), 0, 'the disk goes with its snapshots');

done_testing();
