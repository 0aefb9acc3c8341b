# Proxmox's daemons run Perl with taint checks: every call works under them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need();
my $pond = Pond->new();

my $script = <<'END';
$ENV{PATH} = "BIN:/usr/sbin:/usr/bin:/sbin:/bin";
delete @ENV{qw(IFS CDPATH ENV BASH_ENV MILLPOND_SOCKET)};
require PVE::Storage::Plugin;
require "PLUGIN";
PVE::Storage::Custom::MillpondPlugin->register();
require PVE::Cluster;
require PVE::Storage;
die "no taint checks\n" if !${^TAINT};
$PVE::Storage::Custom::MillpondPlugin::STATE_DIR = "STATE";
PVE::Cluster::cfs_update();
my $cfg = PVE::Storage::config();
my $tainted = substr($^X, 0, 0); # names from requests are tainted
my $disk = PVE::Storage::vdisk_alloc($cfg, 'pond', 100, 'raw', undef, 8 << 10) . $tainted;
PVE::Storage::activate_volumes($cfg, [$disk]);
PVE::Storage::path($cfg, $disk);
PVE::Storage::volume_snapshot($cfg, $disk, "one$tainted");
PVE::Storage::volume_resize($cfg, $disk, (16 << 20) . $tainted, 0);
PVE::Storage::volume_snapshot_info($cfg, $disk);
PVE::Storage::activate_volumes($cfg, [$disk], "one$tainted");
PVE::Storage::deactivate_volumes($cfg, [$disk], "one$tainted");
PVE::Storage::deactivate_volumes($cfg, [$disk]);
PVE::Storage::volume_snapshot_rollback($cfg, $disk, "one$tainted");
PVE::Storage::rename_snapshot($cfg, $disk, "one$tainted", "two$tainted");
my $plugin = PVE::Storage::Plugin->lookup('millpond');
my $scfg = PVE::Storage::storage_config($cfg, 'pond');
my ($name) = $disk =~ m/:(.*)/s;
$plugin->update_volume_attribute($scfg, 'pond', $name, 'notes', "x$tainted");
$plugin->update_volume_attribute($scfg, 'pond', "$name$tainted", 'notes', "y$tainted");
open(my $out, '>', "STREAM") or die;
PVE::Storage::volume_export($cfg, $out, $disk, 'raw+size', undef, undef, 0);
close($out);
open(my $in, '<', "STREAM") or die;
PVE::Storage::volume_import($cfg, $in, "pond:vm-101-disk-0$tainted", 'raw+size', undef, undef, 0, 0);
PVE::Storage::volume_snapshot_delete($cfg, $disk, "two$tainted", 0);
my $base = PVE::Storage::vdisk_create_base($cfg, $disk);
my $clone = PVE::Storage::vdisk_clone($cfg, "$base$tainted", 102);
my $moved = PVE::Storage::rename_volume($cfg, "$clone$tainted", 103, undef);
PVE::Storage::storage_info($cfg, 'images');
PVE::Storage::volume_list($cfg, 'pond', undef, 'images');
PVE::Storage::vdisk_free($cfg, "$_$tainted") for $moved, $base, 'pond:vm-101-disk-0';
PVE::Storage::deactivate_storage($cfg, 'pond');
print "all of it\n";
END
my %places = (
    BIN => "$pond->{dir}/bin",
    PLUGIN => "$FindBin::Bin/../MillpondPlugin.pm",
    STATE => "$pond->{dir}/taint",
    STREAM => "$pond->{dir}/taint-stream",
);
$script =~ s/\b(BIN|PLUGIN|STATE|STREAM)\b/$places{$1}/g;
my @command = ($^X, '-T', '-w', (map {"-I$_"} Pond::module_dirs()), '-e', $script);
my $pid = open(my $fh, '-|') // die "fork: $!\n";
if ($pid == 0) {
    open(STDERR, '>&', \*STDOUT);
    exec(@command) or POSIX::_exit(127);
}
my $said = do { local $/; <$fh> } // '';
close($fh);
is($?, 0, 'it ends well') or diag($said);
like($said, qr/^all of it$/m, 'after all calls');
unlike($said, qr/MillpondPlugin\.pm line/, 'without warnings of the plugin') or diag($said);

done_testing();
