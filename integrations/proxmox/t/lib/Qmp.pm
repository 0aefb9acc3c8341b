package Qmp;

# A QEMU without a guest's system, and a client of its monitor.

use strict;
use warnings;

use IO::Socket::UNIX;
use JSON qw(decode_json encode_json);
use POSIX ();
use Time::HiRes qw(sleep time);

# Starts a QEMU that has a disk: the options `$blockdev` below a format node, as Proxmox builds it
# now, or an address, as for older machine versions. Its processor is stopped, so all I/O of the disk
# comes from the monitor.
sub start {
    my ($class, $dir, $blockdev, %with) = @_;

    unlink("$dir/qmp.sock");
    my $read_only = $with{read_only} ? JSON::true : JSON::false;
    my $self = bless { socket => "$dir/qmp.sock", log => "$dir/qemu.log" }, $class;
    my @disk = ('-drive', "file=$blockdev,if=none,id=format,format=raw,discard=on");
    @disk = (
        '-blockdev',
        JSON->new->canonical->encode({
            driver => 'raw',
            'node-name' => 'format',
            'read-only' => $read_only,
            file => {
                %$blockdev,
                'node-name' => 'disk',
                'read-only' => $read_only,
                discard => 'unmap',
            },
        }),
    ) if ref($blockdev);
    my @command = (
        # each line of output at once, though it goes to a file
        'stdbuf', '-oL', 'qemu-system-x86_64', '-S', '-machine', 'q35,accel=tcg', '-m', '32',
        '-nodefaults', '-display', 'none', '-qmp', "unix:$self->{socket},server=on,wait=off",
        @disk, '-device', 'virtio-scsi-pci', '-device', 'scsi-hd,id=sd,drive=format',
    );
    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>', $self->{log});
        open(STDERR, '>&', \*STDOUT);
        exec(@command) or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    my $end = time() + 30;
    until ($self->{fh} = IO::Socket::UNIX->new(Peer => $self->{socket})) {
        die "QEMU does not run: " . $self->output() . "\n"
            if time() > $end || waitpid($pid, POSIX::WNOHANG()) == $pid;
        sleep(0.05);
    }
    readline($self->{fh});
    $self->command('qmp_capabilities');
    return $self;
}

sub output {
    my ($self) = @_;

    open(my $fh, '<', $self->{log}) or return '';
    local $/;
    return readline($fh) // '';
}

# Runs a command of the monitor, and returns its result.
sub command {
    my ($self, $execute, %arguments) = @_;

    my $command = { execute => $execute, arguments => \%arguments };
    $self->{fh}->syswrite(encode_json($command) . "\n");
    while (defined(my $line = readline($self->{fh}))) {
        my $answer = decode_json($line);
        die "$execute: $answer->{error}->{desc}\n" if $answer->{error};
        return $answer->{return} if exists($answer->{return});
    }
    die "$execute: the monitor has gone\n";
}

# Runs a command of qemu-io on the disk, such as `write -P 7 0 1M`. Returns what QEMU prints; of an
# asynchronous command, what it has printed so far.
sub io {
    my ($self, $command) = @_;

    my $before = length($self->output());
    $self->command('human-monitor-command', 'command-line' => "qemu-io -d sd \"$command\"");
    return substr($self->output(), $before);
}

# Returns the size of the disk in bytes, as QEMU has it.
sub size {
    my ($self) = @_;

    my ($disk) = $self->command('query-block')->@*;
    return $disk->{inserted}->{image}->{'virtual-size'};
}

sub quit {
    my ($self) = @_;

    my $pid = delete $self->{pid} // return;
    eval { $self->command('quit') };
    kill('KILL', $pid) if $@ && $@ !~ m/monitor has gone/;
    waitpid($pid, 0);
}

sub DESTROY {
    my ($self) = @_;

    local ($?, $@);
    kill('KILL', $self->{pid}) if $self->{pid};
    waitpid($self->{pid}, 0) if $self->{pid};
}

1;
