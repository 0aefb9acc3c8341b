# The plugin in its place on a host: Proxmox finds it, takes its version, and registers it. The
# place is made in a mount namespace of its own, which needs root.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Pond;
use Test::More;

Pond::need();
plan skip_all => 'only root may make a mount namespace' if $> != 0;
plan skip_all => 'mount namespaces are not allowed here'
    if system('unshare -m true 2>/dev/null') != 0;

my $script = <<'END';
set -eu
tmp=$(mktemp -d)
mkdir "$tmp/perl5"
mount --bind /usr/share/perl5 "$tmp/perl5"
mount -t tmpfs none /usr/share/perl5
for entry in "$tmp"/perl5/*; do ln -s "$entry" /usr/share/perl5/; done
test ! -L /usr/share/perl5/PVE || rm /usr/share/perl5/PVE
mkdir -p /usr/share/perl5/PVE/Storage/Custom
ln -s "$PLUGIN" /usr/share/perl5/PVE/Storage/Custom/MillpondPlugin.pm
export PVE_TEST_DIR="$tmp"
printf 'millpond: pond\n\tpool tank\n\tsocket /run/x/control.sock\n' > "$tmp/storage.cfg"
perl -e 'use PVE::Cluster; use PVE::Storage; PVE::Cluster::cfs_update();
    my $scfg = PVE::Storage::config()->{ids}->{pond};
    print "$scfg->{type} $scfg->{pool} $scfg->{socket} ", join(",", keys $scfg->{content}->%*), "\n";
    print scalar(PVE::Storage::path(PVE::Storage::config(), "pond:vm-1-disk-0")), "\n"'
umount /usr/share/perl5
umount "$tmp/perl5"
rm -r "$tmp"
END
local $ENV{PLUGIN} = "$FindBin::RealBin/../MillpondPlugin.pm";
local $ENV{PERL5LIB} = join(':', Pond::module_dirs());
my $pid = open(my $fh, '-|') // die "fork: $!\n";
if ($pid == 0) {
    open(STDERR, '>&', \*STDOUT);
    exec('unshare', '-m', 'sh', '-c', $script) or POSIX::_exit(127);
}
my @lines = <$fh>;
close($fh);
plan skip_all => "the place cannot be made here: $lines[-1]"
    if $? != 0 && grep { m/^mount: / } @lines;
is($?, 0, 'it ends well') or diag(@lines);
is($lines[0], "millpond tank /run/x/control.sock images\n", 'the storage is read, without a warning')
    or diag(@lines);
is($lines[1], "nbd+unix:///?socket=/run/x/pve-tank~vm-1-disk-0.sock\n", 'and answers');

done_testing();
