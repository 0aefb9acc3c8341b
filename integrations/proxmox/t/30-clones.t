# Templates, linked clones, clones of snapshots, full clones, renaming.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need('qemu-io', 'qemu-img');
my $pond = Pond->new();
my $cfg = $pond->config();

sub ids {
    return map { $_->{volid} } PVE::Storage::vdisk_list($cfg, 'pond', @_)->{pond}->@*;
}

# A template and its linked clones

my $disk = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 32 << 10);
PVE::Storage::activate_volumes($cfg, [$disk]);
writes($cfg, $disk, '0x41 0 16M');
ok(!PVE::Storage::volume_has_feature($cfg, 'clone', $disk), 'a disk has no linked clones');
ok(PVE::Storage::volume_has_feature($cfg, 'template', $disk), 'it can become a template');
dies_like(sub { PVE::Storage::vdisk_clone($cfg, $disk, 101) }, qr/not a template/, 'no clone of a disk');

my $base = PVE::Storage::vdisk_create_base($cfg, $disk);
is($base, 'pond:base-100-disk-0', 'a template');
is_deeply([ids()], [$base], 'in the place of the disk');
is(scalar($pond->sockets()), 0, "the disk's export has ended");
dies_like(sub { PVE::Storage::vdisk_create_base($cfg, $base) }, qr/template already/, 'once');
ok(PVE::Storage::volume_has_feature($cfg, 'clone', $base), 'it has linked clones');
ok(!PVE::Storage::volume_has_feature($cfg, 'template', $base), 'and is one already');
ok(!PVE::Storage::volume_has_feature($cfg, 'rename', $base), 'and keeps its name');
PVE::Storage::activate_volumes($cfg, [$base]);
ok(!io(address($cfg, $base), 'write -P 9 0 4k'), 'it takes no writes');
ok(io(address($cfg, $base), 'read -P 0x41 0 16M'), 'and is read');
PVE::Storage::deactivate_volumes($cfg, [$base]);

my $clone = PVE::Storage::vdisk_clone($cfg, $base, 101);
is($clone, 'pond:base-100-disk-0/vm-101-disk-0', 'a linked clone');
my $second = PVE::Storage::vdisk_clone($cfg, $base, 101);
is($second, 'pond:base-100-disk-0/vm-101-disk-1', 'another one');
is_deeply([ids(101)], [$clone, $second], 'they are listed');
my ($entry) = grep { $_->{volid} eq $clone } PVE::Storage::vdisk_list($cfg, 'pond', 101)->{pond}->@*;
is($entry->{parent}, 'base-100-disk-0@__base__', 'with their origin');
is((PVE::Storage::volume_size_info($cfg, $clone))[3], $entry->{parent}, 'which the size names, too');
ok(PVE::Storage::volume_is_base_and_used($cfg, $base), 'the template is in use');

PVE::Storage::activate_volumes($cfg, [$clone]);
writes($cfg, $clone, '0x42 0 1M', '0x43 20M 1M');
reads($cfg, $clone, undef, '0x42 0 1M', '0x41 1M 15M', '0 16M 4M', '0x43 20M 1M');
reads($cfg, $second, undef, '0x41 0 16M', '0 16M 16M');
reads($cfg, $base, undef, '0x41 0 16M', '0 16M 16M');
dies_like(
    sub { PVE::Storage::vdisk_free($cfg, $base) },
    qr/still in use by linked clones/,
    'a template with clones stays',
);

# A clone has snapshots, is rolled back, and becomes a template itself

PVE::Storage::volume_snapshot($cfg, $clone, 'early');
PVE::Storage::activate_volumes($cfg, [$clone]);
writes($cfg, $clone, '0x44 0 2M');
PVE::Storage::deactivate_volumes($cfg, [$clone]);
PVE::Storage::volume_snapshot_rollback($cfg, $clone, 'early');
reads($cfg, $clone, undef, '0x42 0 1M', '0x41 1M 15M');
is_deeply([ids(101)], [$clone, $second], 'a clone that was rolled back is a clone still');
my $inner = PVE::Storage::vdisk_create_base($cfg, $second);
is($inner, 'pond:base-100-disk-0/base-101-disk-1', 'a template that is a clone');
my $grandchild = PVE::Storage::vdisk_clone($cfg, $inner, 102);
is($grandchild, 'pond:base-101-disk-1/vm-102-disk-0', 'and its clone');
reads($cfg, $grandchild, undef, '0x41 0 16M');

# A clone of a snapshot is an ordinary disk

ok(PVE::Storage::volume_has_feature($cfg, 'clone', $clone, 'early'), 'a snapshot has clones');
my $of_snapshot = PVE::Storage::vdisk_clone($cfg, $clone, 103, 'early');
is($of_snapshot, 'pond:vm-103-disk-0', 'a clone of a snapshot');
reads($cfg, $of_snapshot, undef, '0x42 0 1M', '0x41 1M 15M');
is((PVE::Storage::volume_size_info($cfg, $of_snapshot))[3], 'vm-101-disk-0@early', 'with its origin');
dies_like(
    sub { PVE::Storage::volume_snapshot_delete($cfg, $clone, 'early', 0) },
    qr/vm-103-disk-0/,
    'a snapshot with a clone stays, and the clone is named',
);
dies_like(sub { PVE::Storage::vdisk_free($cfg, $clone) }, qr/vm-103-disk-0/, 'and so does its disk');
PVE::Storage::vdisk_free($cfg, $of_snapshot);
PVE::Storage::volume_snapshot_delete($cfg, $clone, 'early', 0);

# A full clone: Proxmox copies with qemu-img, from and to the addresses of volumes

for my $from ([$clone, undef], [$base, undef], [$grandchild, 'state']) {
    my ($source, $snap) = @$from;
    PVE::Storage::volume_snapshot($cfg, $source, $snap) if defined($snap);
    ok(PVE::Storage::volume_has_feature($cfg, 'copy', $source, $snap), "$source can be copied");
    my $size = PVE::Storage::volume_size_info($cfg, $source);
    my $copy = PVE::Storage::vdisk_alloc($cfg, 'pond', 104, 'raw', undef, $size >> 10);
    ok(PVE::Storage::volume_has_feature($cfg, 'sparseinit', $copy), 'a new disk is all zeroes');
    PVE::Storage::activate_volumes($cfg, [$source], $snap);
    PVE::Storage::activate_volumes($cfg, [$copy]);
    my ($read, $write) = (address($cfg, $source, $snap), address($cfg, $copy));
    is(
        system('qemu-img', 'convert', '-n', '-f', 'raw', '-O', 'raw', $read, $write),
        0,
        'a full clone',
    );
    is(system('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', $read, $write), 0, 'has the same data');
    PVE::Storage::deactivate_volumes($cfg, [$source], $snap);
    PVE::Storage::deactivate_volumes($cfg, [$copy]);
}
is(scalar(ids(104)), 3, 'three full clones');
is(scalar($pond->sockets()), 0, 'nothing stays active');

# Renaming, as for a disk that moves to another guest

my ($mine) = ids(104);
ok(PVE::Storage::volume_has_feature($cfg, 'rename', $mine), 'a disk can be renamed');
my $theirs = PVE::Storage::rename_volume($cfg, $mine, 105, undef);
is($theirs, 'pond:vm-105-disk-0', 'a disk of another guest');
reads($cfg, $theirs, undef, '0x42 0 1M');
is(PVE::Storage::rename_volume($cfg, $theirs, 105, 'vm-105-data'), 'pond:vm-105-data', 'another name');
is(
    PVE::Storage::rename_volume($cfg, $clone, 105, undef),
    'pond:base-100-disk-0/vm-105-disk-0',
    'a linked clone keeps its template',
);
PVE::Storage::activate_volumes($cfg, ['pond:vm-105-data']);
is(PVE::Storage::rename_volume($cfg, 'pond:vm-105-data', 104, 'vm-104-data'), 'pond:vm-104-data', 'an active one');
is(scalar($pond->sockets()), 0, 'is active no more');
dies_like(
    sub { PVE::Storage::rename_volume($cfg, 'pond:vm-104-data', 105, 'vm-105-disk-0') },
    qr/already exists/,
    'a name that is in use',
);
dies_like(
    sub { PVE::Storage::rename_volume($cfg, 'pond:vm-104-data', 105, 'vm-106-x') },
    qr/illegal name/,
    'a name of a third guest',
);
dies_like(sub { PVE::Storage::rename_volume($cfg, $base, 105, undef) }, qr/template/, 'a template');
PVE::Storage::activate_volumes($cfg, ['pond:vm-104-data']);
my $socket = address($cfg, 'pond:vm-104-data') =~ s/.*socket=//r;
my $client = PVE::Storage::Custom::MillpondPlugin::Disk->connect($socket);
dies_like(
    sub { PVE::Storage::rename_volume($cfg, 'pond:vm-104-data', 105, undef) },
    qr/in use: shut its guest down/,
    'a disk in use',
);
$client->close();

# In order, all of it can be freed

PVE::Storage::vdisk_free($cfg, $_) for ids(104), ids(105), $grandchild, $inner, $base;
is_deeply([ids()], [], 'nothing is left');

done_testing();
