# A daemon that restarts, is killed, or does not run.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need('qemu-io');
my $pond = Pond->new();
my $cfg = $pond->config();

my $disk = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 16 << 10);
PVE::Storage::activate_volumes($cfg, [$disk]);
writes($cfg, $disk, '0x71 0 4M');
PVE::Storage::volume_snapshot($cfg, $disk, 'one');

for my $signal ('TERM', 'KILL') {
    $pond->restart($signal);
    is(scalar($pond->sockets()), 1, "$signal: the export is there again");
    PVE::Storage::activate_volumes($cfg, [$disk]);
    is(scalar($pond->sockets()), 1, "$signal: activation finds it");
    ok(io(address($cfg, $disk), 'read -P 0x71 0 4M', 'write -P 0x72 8M 1M'), "$signal: data");
    reads($cfg, $disk, 'one', '0x71 0 4M', '0 4M 12M');
}
PVE::Storage::deactivate_volumes($cfg, [$disk]);
PVE::Storage::volume_snapshot_rollback($cfg, $disk, 'one');
$pond->restart('KILL');
reads($cfg, $disk, undef, '0x71 0 4M', '0 4M 12M');

# A guest without I/O since a restart is not connected, and keeps its disk

mkdir "$pond->{dir}/guests";
{
    no warnings 'once';
    $PVE::Storage::Custom::MillpondPlugin::GUEST_DIR = "$pond->{dir}/guests";
}
PVE::Storage::activate_volumes($cfg, [$disk]);
PVE::Tools::file_set_contents("$pond->{dir}/guests/100.pid", "$$\n");
PVE::Storage::deactivate_volumes($cfg, [$disk]);
is(scalar($pond->sockets()), 1, 'the disk of a running guest stays active');
my $ended = fork() // die "fork: $!\n";
POSIX::_exit(0) if $ended == 0;
waitpid($ended, 0);
PVE::Tools::file_set_contents("$pond->{dir}/guests/100.pid", "$ended\n");
PVE::Storage::deactivate_volumes($cfg, [$disk]);
is(scalar($pond->sockets()), 0, 'and not that of one that has ended');

# Two disks active, then one volume is destroyed behind Proxmox's back

my $other = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 1 << 10);
PVE::Storage::activate_volumes($cfg, [$disk, $other]);
$pond->cli('destroy', '-y', '-r', '--unexport', 'tank/vm-100-disk-1');
dies_like(sub { PVE::Storage::activate_volumes($cfg, [$other]) }, qr/no volume/, 'a disk that is gone');
PVE::Storage::deactivate_volumes($cfg, [$disk, $other]);
pass('deactivation of a disk that is gone');

# A pool out of service

$pond->cli('pool', 'export', 'tank');
{
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    my $info = PVE::Storage::storage_info($cfg, 'images')->{pond};
    is($info->{active}, 0, 'a storage without its pool is not active');
    like("@warnings", qr/no pool 'tank'.*millpond pool import tank/, 'the reason');
}
dies_like(
    sub { PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 1024) },
    qr/no pool 'tank'.*millpond pool import tank/,
    'no allocation then',
);
$pond->cli('pool', 'import', '-d', $pond->{dir}, 'tank');
reads($cfg, $disk, undef, '0x71 0 4M');

# No daemon

$pond->stop('TERM');
{
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    my $info = PVE::Storage::storage_info($cfg, 'images')->{pond};
    is($info->{active}, 0, 'a storage without daemon is not active');
    like("@warnings", qr/systemctl start millpond/, 'the reason');
}
for my $call (
    ['activation', sub { PVE::Storage::activate_volumes($cfg, [$disk]) }],
    ['a list', sub { PVE::Storage::vdisk_list($cfg, 'pond') }],
    ['a snapshot', sub { PVE::Storage::volume_snapshot($cfg, $disk, 'x') }],
    ['a size', sub { PVE::Storage::volume_size_info($cfg, $disk) }],
    ['freeing', sub { PVE::Storage::vdisk_free($cfg, $disk) }],
) {
    my ($about, $code) = @$call;
    dies_like($code, qr/does not answer on .*systemctl start millpond/, "without daemon: $about");
}
$pond->start();
reads($cfg, $disk, undef, '0x71 0 4M');

done_testing();
