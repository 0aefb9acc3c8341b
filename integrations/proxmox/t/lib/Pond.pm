package Pond;

# A daemon of Millpond with a pool in a file, and Proxmox's storage layer with the plugin.
#
# Environment: MILLPOND_BIN is the program (default: the one in PATH), MILLPOND_PVE a directory with
# Proxmox's modules below `upstream` and stand-ins for a cluster below `stand-ins`.

use strict;
use warnings;

use File::Basename qw(dirname);
use File::Spec;
use File::Temp;
use JSON qw(decode_json);
use POSIX qw(:sys_wait_h);
use Test::More;
use Time::HiRes qw(sleep time);

our @ISA = ('Exporter');
require Exporter;
our @EXPORT = qw(address dies_like io reads writes);

# Modules of PVE that the tests load, and the packages of Debian with what they need.
use constant PACKAGES => 'libjson-perl libnet-ip-perl libhttp-message-perl libwww-perl'
    . ' libfile-chdir-perl libxml-libxml-perl libclone-perl liblinux-inotify2-perl'
    . ' libfilesys-df-perl libuuid-perl libanyevent-perl libnetaddr-ip-perl'
    . ' libstring-shellquote-perl libdevel-cycle-perl libnet-dbus-perl libposix-strptime-perl';

my $HERE = dirname(__FILE__);

# Returns the path of the program `millpond`.
sub program {
    return File::Spec->rel2abs($ENV{MILLPOND_BIN}) if $ENV{MILLPOND_BIN};
    for my $dir (split(/:/, $ENV{PATH})) {
        return "$dir/millpond" if -x "$dir/millpond";
    }
    return undef;
}

# Directories with modules, first ones first.
sub module_dirs {
    my $pve = File::Spec->rel2abs($ENV{MILLPOND_PVE});
    return ("$pve/stand-ins", map { "$pve/upstream/$_" } qw(pve-storage pve-common pve-cluster));
}

# Skips the whole test, visibly, unless everything is there that it needs.
sub need {
    my (@tools) = @_;

    plan skip_all => 'MILLPOND_PVE does not name the storage layer of Proxmox VE'
        if !$ENV{MILLPOND_PVE} || !-d "$ENV{MILLPOND_PVE}/upstream";
    my $program = program();
    plan skip_all => 'neither is MILLPOND_BIN set nor millpond in PATH' if !defined($program);
    plan skip_all => "MILLPOND_BIN is $program, which is no program" if !-x $program;
    for my $tool (@tools) {
        plan skip_all => "$tool is not installed"
            if !grep { -x "$_/$tool" } split(/:/, $ENV{PATH});
    }
}

# Loads Proxmox's storage layer with the plugin, as a host with the plugin in its directory of
# third-party plugins does.
sub load {
    unshift @INC, module_dirs();
    eval {
        require PVE::Storage::Plugin;
        require "$HERE/../../MillpondPlugin.pm";
        PVE::Storage::Custom::MillpondPlugin->register();
        require PVE::Cluster;
        require PVE::Storage;
    };
    if (my $failure = $@) {
        my ($module) = $failure =~ m/^Can't locate (\S+)/;
        plan skip_all => "Perl has no $module; install " . PACKAGES
            if defined($module) && $module !~ m/^PVE/;
        die $failure;
    }
    # the stand-ins have no users: root asks
    no warnings 'once';
    *PVE::RPCEnvironment::get = sub { return bless({}, 'Pond::Root') }
        if !defined(&PVE::RPCEnvironment::get);
}

# Starts a daemon in a new directory, with the pool `tank`, and configures the storages `pond`
# (Millpond), `files` (a directory) and `chain` (a directory with snapshots as volume chains).
sub new {
    my ($class, %with) = @_;

    load();
    my $dir = File::Temp->newdir('pond-XXXXXX', TMPDIR => 1);
    my $self = bless { dir => "$dir", keep => $dir, socket => "$dir/run/control.sock" }, $class;
    mkdir "$dir/$_" for qw(run state pve files bin);
    symlink(program(), "$dir/bin/millpond") or die "link of the program: $!\n";
    $ENV{PATH} = "$dir/bin:$ENV{PATH}";
    delete $ENV{MILLPOND_SOCKET};
    $ENV{PVE_TEST_DIR} = "$dir/pve";
    $self->start();
    $self->cli('pool', 'create', 'tank', "$dir/tank.img:" . ($with{size} // '2G'));
    $PVE::Storage::Custom::MillpondPlugin::STATE_DIR = "$dir/attributes";
    $self->configure("\tsocket $self->{socket}\n");
    return $self;
}

# Writes the configuration of the storages.
sub configure {
    my ($self, $more) = @_;

    open(my $fh, '>', "$self->{dir}/pve/storage.cfg") or die "storage.cfg: $!\n";
    print $fh "dir: local\n\tpath $self->{dir}/local\n\tcontent images\n\tdisable 1\n\n";
    print $fh "dir: files\n\tpath $self->{dir}/files\n\tcontent images\n\n";
    print $fh "dir: chain\n\tpath $self->{dir}/chain\n\tcontent images\n\tsnapshot-as-volume-chain 1\n\n";
    print $fh "lvm: lvm\n\tvgname $self->{vg}\n\tcontent images\n\n" if $self->{vg};
    print $fh "millpond: pond\n\tpool tank\n\tcontent images\n$more";
    close($fh) or die "storage.cfg: $!\n";
    PVE::Cluster::cfs_update();
}

# Adds a storage `lvm`, with a logical volume of this name. It is a loop device of a file with a link
# below /dev, as LVM makes one. Returns false if that is not possible here.
sub logical_volume {
    my ($self, $name, $file) = @_;

    return if $> != 0 || !-e '/dev/loop-control';
    my $loop = `losetup --find --show $file 2>/dev/null`;
    chomp($loop);
    return if $loop eq '';
    push @{ $self->{loops} }, $loop;
    $self->{vg} = "millpond-$$";
    mkdir("/dev/$self->{vg}");
    symlink($loop =~ s!^/dev!..!r, "/dev/$self->{vg}/$name") or die "link of a device: $!\n";
    $self->configure("\tsocket $self->{socket}\n");
    return 1;
}

# Returns the configuration of all storages, as a host reads it.
sub config {
    return PVE::Storage::config();
}

# Starts the daemon, and waits until it answers.
sub start {
    my ($self) = @_;

    my $log = "$self->{dir}/daemon.log";
    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>>', $log);
        open(STDERR, '>>', $log);
        exec(program(), 'serve', '--socket', $self->{socket}, '--state', "$self->{dir}/state")
            or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    $self->cli('status', '--wait', '60');
}

# Ends the daemon by a signal: TERM is a clean end.
sub stop {
    my ($self, $signal) = @_;

    my $pid = delete $self->{pid} // return;
    kill($signal // 'TERM', $pid);
    waitpid($pid, 0);
}

sub restart {
    my ($self, $signal) = @_;

    $self->stop($signal);
    $self->start();
}

# Runs the command line, and returns what it prints.
sub cli {
    my ($self, @words) = @_;

    my @command = (program(), '--socket', $self->{socket}, @words);
    my $pid = open(my $fh, '-|', @command) // die "cannot run @command: $!\n";
    my $out = do { local $/; <$fh> };
    close($fh) or die "@command failed with status $?\n";
    return $out // '';
}

sub json {
    my ($self, @words) = @_;

    return decode_json($self->cli(@words, '--format', 'json'));
}

# Returns the sockets of exports that exist now.
sub sockets {
    my ($self) = @_;

    my @sockets = sort map { $_->{unix} } $self->json('exports')->@*;
    return @sockets;
}

# Returns the names of the snapshots of a volume.
sub snapshots {
    my ($self, $name) = @_;

    return map { $_->{name} =~ s/.*\@//r } $self->json('list', '-t', 'snapshot', "tank/$name")->@*;
}

# Returns the address of a volume or snapshot for QEMU's programs.
sub address {
    my ($cfg, $volid, $snap) = @_;

    return scalar(PVE::Storage::path($cfg, $volid, $snap));
}

# Tells whether code dies with a message of one line that matches.
sub dies_like {
    my ($code, $pattern, $about) = @_;

    my $lived = eval { $code->(); 1 };
    my $failure = $@;
    return fail("$about: it did not die") if $lived;
    like($failure, $pattern, $about);
    my @lines = grep { $_ ne '' } split(/\n/, $failure);
    is(scalar(@lines), 1, "$about: one line") or diag($failure);
}

# Runs commands of qemu-io on an address, such as `write -P 7 0 1M`. Returns whether all succeeded.
# An address is opened for reading only, unless a command writes.
sub io {
    my ($path, @commands) = @_;

    my @mode = (grep { !m/^read/ } @commands) ? () : ('-r');
    my @command = ('qemu-io', '-f', 'raw', @mode, (map { ('-c', $_) } @commands), $path);
    my $pid = open(my $fh, '-|') // die "fork: $!\n";
    if ($pid == 0) {
        open(STDERR, '>&', \*STDOUT);
        exec(@command) or POSIX::_exit(127);
    }
    my $said = do { local $/; <$fh> } // '';
    close($fh);
    my $good = $? == 0 && $said !~ m/failed|error|can't/i;
    note("@command: $said") if !$good;
    return $good;
}

# Writes a pattern, `PATTERN OFFSET LENGTH`, to an active volume.
sub writes {
    my ($cfg, $volid, @patterns) = @_;

    my $path = address($cfg, $volid);
    ok(io($path, (map {"write -P $_"} @patterns), 'flush'), "write to $volid: @patterns");
}

# Compares patterns of a volume or snapshot, which is activated meanwhile.
sub reads {
    my ($cfg, $volid, $snap, @patterns) = @_;

    PVE::Storage::activate_volumes($cfg, [$volid], $snap);
    my $path = address($cfg, $volid, $snap);
    my $about = defined($snap) ? "$volid\@$snap" : $volid;
    my $good = io($path, map {"read -P $_"} @patterns);
    PVE::Storage::deactivate_volumes($cfg, [$volid], $snap);
    ok($good, "$about has: @patterns");
}

sub DESTROY {
    my ($self) = @_;

    local ($?, $@);
    $self->stop('TERM') if $self->{pid};
    system('losetup', '--detach', $_) for @{ $self->{loops} // [] };
    system('rm', '-r', "/dev/$self->{vg}") if $self->{vg};
}

package Pond::Root;

sub get_user { return 'root\@pam' }
sub check { return 1 }

1;
