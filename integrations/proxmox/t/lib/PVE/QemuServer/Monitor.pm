package PVE::QemuServer::Monitor;

# Stand-in for the module of this name of qemu-server: commands go to the QEMU of a test.

use strict;
use warnings;

# Connection to the monitor; undef: there is none.
our $qmp;

sub mon_cmd {
    my ($vmid, $execute, %arguments) = @_;

    die "VM $vmid has no monitor\n" if !$qmp;
    return $qmp->command($execute, %arguments);
}

1;
