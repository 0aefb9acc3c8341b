package PVE::Storage::Custom::MillpondPlugin;

# Storage plugin of Proxmox VE: virtual disks of guests are volumes of a Millpond pool.
#
# The plugin is a client of the command line `millpond`, whose words, exit codes and JSON keys are
# stable. Every call is a list of arguments, never a line for a shell. QEMU reads and writes a
# volume over NBD on a unix socket; the export exists while the volume is active.
#
# A volume of the storage (`vm-100-disk-0`) is the volume of this name in the pool. A linked clone
# of a template is `base-100-disk-0/vm-101-disk-0`: the volume `vm-101-disk-0`, whose origin is the
# snapshot `__base__` of `base-100-disk-0`.
#
# See docs/proxmox.md in Millpond's sources.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use File::Basename qw(dirname);
use IO::Socket::UNIX;
use JSON qw(decode_json);
use Socket qw(SOCK_STREAM);
use Time::HiRes;
use Time::Local qw(timegm);

use PVE::INotify;
use PVE::Storage::Plugin;
use PVE::Tools qw(run_command);

use base qw(PVE::Storage::Plugin);

# Versions of Proxmox's storage API that the plugin was written for.
use constant { API_OLDEST => 11, API_NEWEST => 15 };

# Default path of the daemon's control socket.
use constant CONTROL => '/run/millpond/control.sock';
# Longest path of a unix socket in bytes: `sun_path` without its NUL.
use constant SOCKET_PATH_MAX => 107;
# Volumes consist of whole blocks of this many bytes.
use constant BLOCK => 4096;
# Snapshot of a template from which linked clones start.
use constant BASE => '__base__';

# How long QEMU lets requests of a guest wait for a daemon that restarts, and how long it waits for
# the daemon when it opens a disk; in seconds.
use constant { RECONNECT_DELAY => 300, OPEN_TIMEOUT => 30 };
# Time limits of the program in seconds: queries, and changes (which write to the pool's devices).
use constant { QUERY_TIMEOUT => 10, CHANGE_TIMEOUT => 120 };
# How long clients that are about to disconnect may take, in seconds.
use constant LEAVING => 5;
# How long a running guest may take to connect again after its disk grew, in seconds.
our $COMING_BACK = 15;

# Characters of the name of a volume. Millpond allows ':', too, which separates storage and volume
# in Proxmox's volume ids.
my $VOLUME_CHARS_RE = qr/[A-Za-z0-9_.-]+/;
my $SNAPSHOT_RE = qr/[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}/;
my $POOL_RE = qr/[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,63}/;
# The path becomes part of a URI and of option lists of QEMU.
my $PATH_RE = qr{/[A-Za-z0-9_./:\@~-]+};

# Directory of notes and protections of volumes, which Millpond has no properties for: a file for
# each pool.
our $STATE_DIR = '/var/lib/pve-millpond';
# Directory where qemu-server keeps a file with the process of each running guest.
our $GUEST_DIR = '/var/run/qemu-server';

# Registration

sub api {
    my $host = host_api();
    # A newer host takes API_NEWEST as long as it is within its APIAGE; an older host refuses
    # API_OLDEST, because it is newer than the host.
    return API_NEWEST if $host > API_NEWEST;
    return API_OLDEST if $host < API_OLDEST;
    return $host;
}

# Returns the version of the host's storage interface.
sub host_api {
    return eval { PVE::Storage::APIVER() } // API_NEWEST;
}

sub type {
    return 'millpond';
}

sub plugindata {
    return {
        # Containers need a mounted block device, which NBD gives only with the kernel's nbd module.
        content => [{ images => 1, none => 1 }, { images => 1 }],
        format => [{ raw => 1 }, 'raw'],
        'sensitive-properties' => {},
    };
}

sub properties {
    return {
        socket => {
            description => "Path of the control socket of the Millpond daemon.",
            type => 'string',
            format => 'pve-storage-path',
            default => CONTROL,
        },
    };
}

sub options {
    return {
        pool => { fixed => 1 },
        socket => { optional => 1 },
        nodes => { optional => 1 },
        disable => { optional => 1 },
        content => { optional => 1 },
        bwlimit => { optional => 1 },
    };
}

sub on_add_hook {
    my ($class, $storeid, $scfg, %sensitive) = @_;

    check_settings($storeid, $scfg);
    return undef;
}

sub on_update_hook_full {
    my ($class, $storeid, $scfg, $update, $delete, $sensitive) = @_;

    my $new = { %$scfg, %$update };
    delete $new->@{ @{ $delete // [] } };
    my $changed = grep { ($new->{$_} // '') ne ($scfg->{$_} // '') } qw(pool socket);
    check_settings($storeid, $new) if $changed && !$new->{disable};
    return undef;
}

# Hosts of version 11 and 12 call this one, with the changed properties alone.
sub on_update_hook {
    my ($class, $storeid, $update, %sensitive) = @_;

    control_socket($update) if defined($update->{socket});
    return undef;
}

sub on_delete_hook {
    my ($class, $storeid, $scfg) = @_;

    # The pool and its volumes stay; idle exports end.
    eval { $class->deactivate_storage($storeid, $scfg) };
    warn "storage '$storeid' is removed, but its exports may stay: $@" if $@;
    return undef;
}

# Dies if the daemon does not answer or has no such pool. A storage for other nodes is not checked.
sub check_settings {
    my ($storeid, $scfg) = @_;

    pool_name($scfg);
    control_socket($scfg);
    my $nodes = $scfg->{nodes};
    return if ref($nodes) eq 'HASH' && !$nodes->{ PVE::INotify::nodename() };

    connect_control($scfg);
    my $pool = pool_in_service($scfg);
    die "pool '$pool->{name}' is imported read-only; run 'millpond pool export $pool->{name}' and"
        . " 'millpond pool import $pool->{name}' to write to it\n"
        if $pool->{health} eq 'readonly';
}

# Names

# Returns type, name, guest, base, guest of the base, whether it is a base, format.
sub parse_volname {
    my ($class, $volname) = @_;

    if (
        $volname =~ m!^(?:(base-([0-9]+)-$VOLUME_CHARS_RE)/)?((vm|base)-([0-9]+)-$VOLUME_CHARS_RE)\z!
    ) {
        return ('images', $3, $5, $1, $2, $4 eq 'base' ? 1 : undef, 'raw');
    }

    die "'$volname' is not the name of a Millpond volume: it is vm-ID-NAME or base-ID-NAME, after"
        . " BASE/ for a linked clone; NAME has letters, digits and _ . -\n";
}

# Returns the untainted name of a volume in its pool.
sub name_of {
    my ($class, $volname) = @_;

    return ($class->parse_volname($volname))[1];
}

sub pool_name {
    my ($scfg) = @_;

    my $pool = $scfg->{pool} // die "the storage has no property 'pool'; name a pool of Millpond\n";
    $pool =~ m/^($POOL_RE)\z/
        or die "'$pool' is not the name of a Millpond pool; 'millpond pool list' has the names\n";
    return $1;
}

# Returns POOL/VOLUME or POOL/VOLUME@SNAPSHOT, untainted.
sub full_name {
    my ($scfg, $name, $snap) = @_;

    my $full = pool_name($scfg) . "/$name";
    return $full if !defined($snap);
    $snap =~ m/^($SNAPSHOT_RE)\z/
        or die "'$snap' is not the name of a snapshot: it has letters, digits and _ . : -\n";
    return "$full\@$1";
}

sub control_socket {
    my ($scfg) = @_;

    my $path = $scfg->{socket} // CONTROL;
    $path =~ m/^($PATH_RE)\z/
        or die "'$path' cannot be the path of a control socket: give an absolute path of letters,"
        . " digits and _ . / : \@ ~ -\n";
    return $1;
}

# Returns the path of the unix socket over which QEMU reaches a volume or snapshot: beside the
# control socket, the same at every activation. '~' is in no name, so paths are unique.
sub export_socket {
    my ($scfg, $name, $snap) = @_;

    my $full = full_name($scfg, $name, $snap);
    (my $file = $full) =~ s!/!~!;
    my $dir = dirname(control_socket($scfg));
    my $path = "$dir/pve-$file.sock";
    $path = "$dir/pve-" . substr(sha256_hex($full), 0, 40) . '.sock'
        if length($path) > SOCKET_PATH_MAX;
    return $path;
}

sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;

    my ($vtype, $name, $vmid) = $class->parse_volname($volname);
    my $path = 'nbd+unix:///?socket=' . export_socket($scfg, $name, $snapname);
    return wantarray ? ($path, $vmid, $vtype) : $path;
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;

    return $class->filesystem_path($scfg, $volname, $snapname);
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $machine_version, $options) = @_;

    my $socket = export_socket($scfg, $class->name_of($volname), $options->{'snapshot-name'});
    return {
        driver => 'nbd',
        server => { type => 'unix', path => "$socket" },
        # A daemon that restarts is a pause for the guest, without an error.
        'reconnect-delay' => int(RECONNECT_DELAY),
        'open-timeout' => int(OPEN_TIMEOUT),
    };
}

# The command line

# Returns the path of the program, untainted.
sub program {
    for my $dir (split(/:/, $ENV{PATH} // ''), '/usr/local/bin', '/usr/bin') {
        return $1 if $dir =~ m!^(/.*)\z! && -x "$dir/millpond" && "$1/millpond" =~ m!^(/.+)\z!;
    }
    die "the program 'millpond' is not installed; put it into /usr/local/bin\n";
}

# Runs `millpond ARGUMENTS`, returns its output. Dies with the program's own line.
sub millpond {
    my ($scfg, $timeout, @arguments) = @_;

    my ($out, $err) = ('', '');
    my $socket = control_socket($scfg);
    my $code = eval {
        run_command(
            [program(), '--socket', $socket, @arguments],
            outfunc => sub { $out .= "$_[0]\n" },
            errfunc => sub { $err .= "$_[0]\n" },
            timeout => $timeout,
            noerr => 1,
            quiet => 1,
        );
    };
    if (my $failure = $@) {
        die "Millpond has not answered for $timeout s; see 'millpond status'\n"
            if $failure =~ m/got timeout/;
        die $failure;
    }
    return $out if $code == 0;

    die "the daemon of Millpond does not answer on $socket; run 'systemctl start millpond', or see"
        . " 'journalctl -u millpond'\n"
        if $code == 3;
    my ($line) = grep { m/^millpond: / } reverse split(/\n/, $err);
    ($line) = reverse split(/\n/, $err) if !defined($line);
    die(($line // "'millpond $arguments[0]' failed with code $code; see 'millpond status'") . "\n");
}

sub change {
    my ($scfg, @arguments) = @_;

    return millpond($scfg, CHANGE_TIMEOUT, @arguments);
}

# Runs a command that prints JSON; of a list, the columns that are named.
sub query {
    my ($scfg, $columns, @arguments) = @_;

    my @columns = defined($columns) ? ('-o', $columns) : ();
    my $text = millpond($scfg, QUERY_TIMEOUT, @arguments, '--format', 'json', @columns);
    my $answer = eval { decode_json($text) };
    die "cannot read the answer to 'millpond $arguments[0]': $@" if $@;
    return $answer;
}

# Dies if nothing listens on the control socket.
sub connect_control {
    my ($scfg) = @_;

    my $path = control_socket($scfg);
    return if IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $path);
    die "the daemon of Millpond does not answer on $path ($!); run 'systemctl start millpond', or"
        . " set the property 'socket' of the storage\n";
}

# Returns the pool as `pool list` shows it.
sub pool_info {
    my ($scfg) = @_;

    my $name = pool_name($scfg);
    my $pools = query($scfg, 'name,id,size,free,health,reason', 'pool', 'list');
    my ($pool) = grep { $_->{name} eq $name } @$pools;
    return $pool
        // die "Millpond has no pool '$name' on this node; see 'millpond pool list', and create the"
        . " pool or run 'millpond pool import $name'\n";
}

sub is_in_service {
    my ($pool) = @_;

    return $pool->{health} =~ m/^(?:online|degraded|readonly)$/;
}

sub pool_in_service {
    my ($scfg) = @_;

    my $pool = pool_info($scfg);
    return $pool if is_in_service($pool);
    my $reason = defined($pool->{reason}) ? ": $pool->{reason}" : '';
    die "pool '$pool->{name}' is not in service ($pool->{health})$reason; see"
        . " 'millpond pool status $pool->{name}'\n";
}

# Returns the volumes of the pool, by name without the pool.
sub volumes {
    my ($scfg) = @_;

    my $columns = 'name,size,unique_bytes,origin,created,id';
    my $list = query($scfg, $columns, 'list', '-t', 'volume', pool_name($scfg));
    return { map { short_name($_->{name}) => $_ } @$list };
}

sub short_name {
    my ($full) = @_;

    return $full =~ s!^[^/]*/!!r;
}

# Returns a volume; undef if it does not exist.
sub find_volume {
    my ($scfg, $name) = @_;

    return volumes($scfg)->{$name};
}

sub get_volume {
    my ($scfg, $name) = @_;

    return find_volume($scfg, $name)
        // die "volume '" . full_name($scfg, $name) . "' does not exist; see 'millpond list'\n";
}

# Returns the snapshots of a volume, oldest first, with their names without pool and volume in
# `snapshot`.
sub snapshots {
    my ($scfg, $name) = @_;

    my @scope = ('list', '-t', 'snapshot', full_name($scfg, $name));
    my $list = query($scfg, 'name,size,created,id', @scope);
    ($_->{snapshot}) = $_->{name} =~ m/\@($SNAPSHOT_RE)\z/ for @$list;
    return $list;
}

# Converts a time of Millpond's JSON (RFC 3339, UTC) to seconds since 1970.
sub seconds {
    my ($time) = @_;

    return undef if ($time // '') !~ m/^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?Z$/;
    return timegm($6, $5, $4, $3, $2 - 1, $1);
}

# Exports

# Returns the export on a socket; undef if there is none.
sub find_export {
    my ($scfg, $socket) = @_;

    my ($export) = grep { ($_->{unix} // '') eq $socket } query($scfg, undef, 'exports')->@*;
    return $export;
}

sub export_id {
    my ($export) = @_;

    return "$export->{id}" =~ m/^([0-9]+)\z/ ? $1 : die "Millpond has an export without a number\n";
}

# Waits until `$is_so` returns true, at most `$seconds`. Returns its last result.
sub wait_until {
    my ($seconds, $is_so) = @_;

    my $end = Time::HiRes::time() + $seconds;
    while (1) {
        my $result = $is_so->();
        return $result if $result || Time::HiRes::time() >= $end;
        Time::HiRes::sleep(0.1);
    }
}

# Ends the export on a socket. Returns false if clients are connected and stay so: whoever uses the
# disk keeps it, and ends the export later.
sub end_export {
    my ($scfg, $socket) = @_;

    return wait_until(
        LEAVING,
        sub {
            my $export = find_export($scfg, $socket) // return 1;
            return 0 if $export->{clients};
            # A client that connects meanwhile is a reason to refuse.
            eval { change($scfg, 'unexport', export_id($export)) };
            my $failure = $@ || return 1;
            my $left = find_export($scfg, $socket) // return 1;
            die $failure if !$left->{clients};
            return 0;
        },
    );
}

# Ends the export of a volume or snapshot before a change of its name. Dies if clients are
# connected.
sub end_idle_export {
    my ($scfg, $name, $snap) = @_;

    return if end_export($scfg, export_socket($scfg, $name, $snap));
    die "'" . full_name($scfg, $name, $snap) . "' is in use: shut its guest down first, and see"
        . " 'millpond exports'\n";
}

sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;

    my ($name, $is_base) = ($class->parse_volname($volname))[1, 5];
    my $target = full_name($scfg, $name, $snapname);
    my $socket = export_socket($scfg, $name, $snapname);
    my @command = ('export', 'nbd', $target, '--unix', $socket, '--if-missing', '--format', 'json');
    push @command, '--readonly' if $is_base || defined($snapname);

    # Another activation may have created the export between the program's look and its request, or
    # ended it: the second attempt finds it.
    my $export = eval { decode_json(change($scfg, @command)) };
    $export //= decode_json(change($scfg, @command));
    if ($export->{state} eq 'unavailable') {
        # it was restored without its socket
        change($scfg, 'unexport', export_id($export));
        $export = decode_json(change($scfg, @command));
    }
    die "'$target' is not served: " . ($export->{reason} // 'unknown reason') . "\n"
        if $export->{state} ne 'online';
    return 1;
}

sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache) = @_;

    my ($name, $vmid) = ($class->parse_volname($volname))[1, 2];
    # A QEMU without I/O since the daemon restarted is not connected, and needs its disk all the same.
    return 1 if !defined($snapname) && guest_runs($vmid);
    end_export($scfg, export_socket($scfg, $name, $snapname));
    return 1;
}

sub guest_runs {
    my ($vmid) = @_;

    my $line = PVE::Tools::file_read_firstline("$GUEST_DIR/$vmid.pid") // '';
    return $line =~ m/^([0-9]+)$/ && -d "/proc/$1";
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $hints) = @_;

    # The emulator of a TPM, whose state has 4 MiB, takes a file or a device only.
    die "'$storeid:$volname' looks like the state of a TPM, which needs a file or a block device:"
        . " move it to another storage\n"
        if $class->name_of($volname) =~ m/-disk-[0-9]+\z/
        && get_volume($scfg, $class->name_of($volname))->{size} == 4 << 20;

    $class->activate_volume($storeid, $scfg, $volname, $snapname, {}, $hints);
    my ($path) = $class->path($scfg, $volname, $storeid, $snapname);
    return $path;
}

sub unmap_volume {
    my ($class, $storeid, $scfg, $volname, $snapname) = @_;

    return $class->deactivate_volume($storeid, $scfg, $volname, $snapname, {});
}

# The storage

sub check_connection {
    my ($class, $storeid, $scfg) = @_;

    connect_control($scfg);
    return 1;
}

sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    $cache->{millpond}->{$storeid} = pool_in_service($scfg);
    return 1;
}

sub deactivate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    my $pool = pool_name($scfg);
    for my $export (query($scfg, undef, 'exports')->@*) {
        my ($name, $snap) = $export->{name} =~ m!^\Q$pool\E/($VOLUME_CHARS_RE)(?:\@($SNAPSHOT_RE))?\z!
            or next;
        my $socket = export_socket($scfg, $name, $snap);
        next if ($export->{unix} // '') ne $socket || $export->{clients};
        end_export($scfg, $socket);
    }
    return 1;
}

sub status {
    my ($class, $storeid, $scfg, $cache) = @_;

    my $pool = $cache->{millpond}->{$storeid} // pool_info($scfg);
    return (0, 0, 0, 0) if !is_in_service($pool);
    my ($total, $free) = ($pool->{size}, $pool->{free});
    return ($total, $free, $total - $free, 1);
}

sub get_identity {
    my ($class, $scfg, $storeid) = @_;

    return pool_info($scfg)->{id};
}

sub storage_can_replicate {
    my ($class, $scfg, $storeid, $format) = @_;

    return 0;
}

sub new_backup_provider {
    my ($class, $scfg, $storeid, $log_function) = @_;

    die "a Millpond storage holds no backups: choose a storage of type 'pbs' or 'dir' for them\n";
}

# Volumes

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $fmt, $name, $size) = @_;

    die "a Millpond volume has the format 'raw', not '$fmt'\n" if $fmt ne 'raw';
    $name //= $class->find_free_diskname($storeid, $scfg, $vmid, $fmt);
    my ($parsed, $owner, $base, $is_base) = ($class->parse_volname($name))[1, 2, 3, 5];
    die "illegal name '$name': a new disk of guest $vmid is called vm-$vmid-NAME\n"
        if $is_base || $base || $owner ne $vmid;

    # `$size` is in KiB
    my $bytes = whole_blocks($size * 1024);
    change($scfg, 'create', full_name($scfg, $parsed), '-L', "$bytes");
    return $parsed;
}

sub whole_blocks {
    my ($bytes) = @_;

    "$bytes" =~ m/^([0-9]+)\z/ or die "'$bytes' is not a size in bytes\n";
    # integers alone: beyond 2^53 a quotient is not exact
    my $rounded = $1 + (-$1 % BLOCK);
    return $rounded || BLOCK;
}

sub free_image {
    my ($class, $storeid, $scfg, $volname, $is_base, $format) = @_;

    my $name = $class->name_of($volname);
    my $volume = find_volume($scfg, $name);
    if (!$volume) {
        warn "volume '" . full_name($scfg, $name) . "' does not exist any more\n";
        return undef;
    }
    die "volume '$storeid:$volname' is protected: remove the protection first\n"
        if attributes($scfg, $volume)->{protected};

    # The daemon refuses while clients are connected, or while a linked clone needs a snapshot.
    change($scfg, 'destroy', '-y', '-r', '--unexport', full_name($scfg, $name));
    set_attributes($scfg, $volume, undef);
    return undef;
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;

    my %wanted = map { $_ => 1 } @{ $vollist // [] };
    my $volumes = volumes($scfg);
    my $attributes = all_attributes($scfg, $volumes);
    my $list = [];
    for my $name (sort keys %$volumes) {
        my $volume = $volumes->{$name};
        my $owner = eval { ($class->parse_volname($name))[2] } // next;
        next if $name =~ m/\.copying-/; # a full copy that is not complete

        my $volname = $name;
        my $parent;
        if (defined($volume->{origin})) {
            $parent = short_name($volume->{origin});
            my ($base) = $parent =~ m/^(base-[0-9]+-$VOLUME_CHARS_RE)\@${\BASE}\z/;
            $volname = "$base/$name" if defined($base);
        }
        my $volid = "$storeid:$volname";
        next if $vollist ? !$wanted{$volid} : defined($vmid) && $owner ne $vmid;

        my $entry = {
            volid => $volid,
            format => 'raw',
            size => $volume->{size},
            used => $volume->{unique_bytes},
            vmid => $owner,
            name => $name,
            %{ $attributes->{ $volume->{id} } // {} },
        };
        $entry->{parent} = $parent if defined($parent);
        my $ctime = seconds($volume->{created});
        $entry->{ctime} = $ctime if defined($ctime);
        push @$list, $entry;
    }
    return $list;
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;

    my $volume = get_volume($scfg, $class->name_of($volname));
    my $size = int($volume->{size});
    return $size if !wantarray;
    my $parent = defined($volume->{origin}) ? short_name($volume->{origin}) : undef;
    return ($size, 'raw', int($volume->{unique_bytes}), $parent, seconds($volume->{created}));
}

sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running, $snapname) = @_;

    die "a snapshot of Millpond cannot be resized\n" if defined($snapname);
    my ($name, $vmid) = ($class->parse_volname($volname))[1, 2];
    my $bytes = whole_blocks($size);
    my $now = get_volume($scfg, $name)->{size};
    die "volume '$storeid:$volname' has $now bytes and cannot shrink to $bytes; to cut it, shut the"
        . " guest down and run 'millpond resize --allow-shrink'\n"
        if $bytes < $now;

    # QEMU learns the size of an NBD disk when it connects. The daemon ends the connection without
    # refusing a request, and QEMU connects again with its next request.
    check_reconnects($scfg, $vmid, $name) if $running;
    change($scfg, 'resize', full_name($scfg, $name), "$bytes", $running ? '--reconnect' : ());
    wait_for_guest($scfg, $vmid, $name) if $running;
    return undef;
}

# Dies if the QEMU of a guest would answer the end of its connection with an I/O error: it has the
# option `reconnect-delay` only if it was started with the options of the plugin.
sub check_reconnects {
    my ($scfg, $vmid, $name) = @_;

    my $socket = export_socket($scfg, $name);
    my $nodes = eval { disk_nodes($vmid, $socket) } // [];
    # QEMU itself names the nodes of the older option `-drive`, which Proxmox uses for machine
    # versions before 10.0
    return if host_api() >= 12 && !grep { m/^#/ } @$nodes;
    die "the disk '$name' of a running guest can grow only if the guest has machine version 10.0 or"
        . " later, on Proxmox VE 9: shut the guest down for it\n"
        if find_export($scfg, $socket);
}

# Waits until the guest is connected to its volume again, so that QEMU knows the new size. The disk
# of an idle guest makes no request: after a second, QEMU is asked to read a sector.
sub wait_for_guest {
    my ($scfg, $vmid, $name) = @_;

    my $socket = export_socket($scfg, $name);
    find_export($scfg, $socket) // return; # the guest does not use this volume
    my $is_back = sub {
        my $export = find_export($scfg, $socket) // return 1;
        return $export->{clients} > 0;
    };
    return if wait_until(1, $is_back);
    my $failure = eval { read_a_sector($vmid, $socket); 1 } ? '' : " ($@)";
    $failure =~ s/\s*\n/ /g;
    return if wait_until($COMING_BACK, $is_back);
    die "volume '$name' has its new size, but its guest has not connected to it again$failure: read"
        . " something from the disk within the guest, then repeat the resize\n";
}

# Returns the names of the nodes by which the QEMU of a guest uses a socket. Dies if the guest's
# monitor cannot be reached.
sub disk_nodes {
    my ($vmid, $socket) = @_;

    require PVE::QemuServer::Monitor;
    my $nodes = PVE::QemuServer::Monitor::mon_cmd($vmid, 'query-named-block-nodes');
    my @disk = grep { $_->{drv} eq 'nbd' && index($_->{file} // '', $socket) >= 0 } @$nodes;
    return [map { $_->{'node-name'} =~ m/^([A-Za-z0-9_.#-]+)\z/ } @disk];
}

# Has the QEMU of a guest read the first sector of its disk on a socket.
sub read_a_sector {
    my ($vmid, $socket) = @_;

    for my $node (disk_nodes($vmid, $socket)->@*) {
        PVE::QemuServer::Monitor::mon_cmd(
            $vmid,
            'human-monitor-command',
            'command-line' => "qemu-io $node \"read 0 512\"",
        );
    }
}

# Renames a volume for another guest.
sub rename_volume {
    my ($class, $scfg, $storeid, $source_volname, $target_vmid, $target_volname) = @_;

    my (undef, $name, $vmid, $base, undef, $is_base) = $class->parse_volname($source_volname);
    die "'$source_volname' is a template and cannot be renamed\n" if $is_base;
    $target_vmid //= $vmid;
    $target_volname //= $class->find_free_diskname($storeid, $scfg, $target_vmid, 'raw');
    my ($target, $owner, $target_base, $target_is_base) =
        ($class->parse_volname($target_volname))[1, 2, 3, 5];
    die "illegal name '$target_volname': a disk of guest $target_vmid is called vm-$target_vmid-NAME\n"
        if $target_base || $target_is_base || $owner ne $target_vmid;
    die "target volume '$target_volname' already exists\n" if find_volume($scfg, $target);

    end_idle_export($scfg, $name);
    change($scfg, 'rename', full_name($scfg, $name), full_name($scfg, $target));
    return "$storeid:" . (defined($base) ? "$base/" : '') . $target;
}

# Snapshots

# The daemon takes a snapshot between two requests of the guest, whether it runs or not.
sub volume_qemu_snapshot_method {
    my ($class, $storeid, $scfg, $volname) = @_;

    return 'storage';
}

# A file system that this host has mounted from a disk (containers) has data in memory that Millpond
# does not know. A guest has its agent for that.
sub volume_snapshot_needs_fsfreeze {
    return 1;
}

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    change($scfg, 'snapshot', full_name($scfg, $class->name_of($volname), $snap));
    return undef;
}

sub volume_snapshot_info {
    my ($class, $scfg, $storeid, $volname) = @_;

    my $name = $class->name_of($volname);
    return {} if !find_volume($scfg, $name);
    my $info = {};
    for my $snapshot (snapshots($scfg, $name)->@*) {
        $info->{ $snapshot->{snapshot} } = {
            id => "$snapshot->{id}",
            timestamp => seconds($snapshot->{created}),
            'virtual-size' => $snapshot->{size},
        };
    }
    return $info;
}

# Newer snapshots are kept, so none prevents a rollback.
sub volume_rollback_is_possible {
    my ($class, $scfg, $storeid, $volname, $snap, $blockers) = @_;

    my $name = $class->name_of($volname);
    return 1 if grep { $_->{snapshot} eq $snap } snapshots($scfg, $name)->@*;
    die "cannot roll back: '$storeid:$volname' has no snapshot '$snap'\n";
}

sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    my $name = $class->name_of($volname);
    my %before = map { $_->{snapshot} => 1 } snapshots($scfg, $name)->@*;
    change($scfg, 'rollback', full_name($scfg, $name, $snap));

    # Millpond keeps the state before the rollback as a snapshot. Proxmox neither shows it nor
    # removes it, and has asked the user whether it may be lost.
    for my $kept (map { $_->{snapshot} } snapshots($scfg, $name)->@*) {
        next if $before{$kept} || $kept !~ m/^pre-rollback-/;
        eval { change($scfg, 'destroy', '-y', full_name($scfg, $name, $kept)) };
        warn "the state before the rollback is kept as '$name\@$kept': $@" if $@;
    }
    return undef;
}

sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;

    my $full = full_name($scfg, $class->name_of($volname), $snap);
    change($scfg, 'destroy', '-y', '--unexport', $full);
    return undef;
}

sub rename_snapshot {
    my ($class, $scfg, $storeid, $volname, $source_snap, $target_snap) = @_;

    my $name = $class->name_of($volname);
    for my $snap ($source_snap, $target_snap) {
        die "'current' is the state of the volume, not a snapshot that can be renamed\n"
            if $snap eq 'current';
    }
    end_idle_export($scfg, $name, $source_snap);
    my ($old, $new) = map { full_name($scfg, $name, $_) } $source_snap, $target_snap;
    change($scfg, 'rename', $old, $new);
    return undef;
}

# Templates and clones

sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;

    my (undef, $name, undef, $base, undef, $is_base) = $class->parse_volname($volname);
    die "'$volname' is a template already\n" if $is_base;
    (my $new = $name) =~ s/^vm-/base-/;

    end_idle_export($scfg, $name);
    change($scfg, 'rename', full_name($scfg, $name), full_name($scfg, $new));
    eval {
        change($scfg, 'snapshot', full_name($scfg, $new, BASE));
        change($scfg, 'set', 'readonly=on', full_name($scfg, $new));
    };
    if (my $failure = $@) {
        eval { change($scfg, 'destroy', '-y', full_name($scfg, $new, BASE)) };
        eval { change($scfg, 'rename', full_name($scfg, $new), full_name($scfg, $name)) };
        warn "'$new' keeps its name: $@" if $@;
        die $failure;
    }
    return defined($base) ? "$base/$new" : $new;
}

# Creates a linked clone, of a template or of a snapshot of any volume. A clone of a snapshot is an
# ordinary volume for Proxmox: the name of its origin is not part of its volume id.
sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snap) = @_;

    my (undef, $base, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    my $of_snapshot = defined($snap) && $snap ne '' && !($is_base && $snap eq BASE);
    die "'$volname' is not a template: give a snapshot to clone, or make a full clone\n"
        if !$of_snapshot && !$is_base;

    my $name = $class->find_free_diskname($storeid, $scfg, $vmid, 'raw');
    $name = $class->name_of($name);
    my $origin = full_name($scfg, $base, $of_snapshot ? $snap : BASE);
    change($scfg, 'clone', $origin, full_name($scfg, $name));
    return $of_snapshot ? $name : "$base/$name";
}

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $opts) = @_;

    my $features = {
        snapshot => { current => 1, snap => 1 },
        clone => { base => 1, snap => 1 },
        template => { current => 1 },
        copy => { base => 1, current => 1, snap => 1 },
        sparseinit => { base => 1, current => 1 },
        rename => { current => 1 },
    };
    my $is_base = ($class->parse_volname($volname))[5];
    my $state = $snapname ? 'snap' : $is_base ? 'base' : 'current';
    return $features->{$feature}->{$state} ? 1 : undef;
}

# Streams

sub volume_export_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    # No format that Proxmox knows carries the snapshots of a raw disk.
    return () if $with_snapshots || defined($base_snapshot);
    return ('raw+size');
}

sub volume_import_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return $class->volume_export_formats(
        $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots,
    );
}

sub check_stream {
    my ($format, $base_snapshot, $with_snapshots) = @_;

    die "a Millpond volume is transferred in the format 'raw+size', not '$format'\n"
        if $format ne 'raw+size';
    die "a Millpond volume cannot be transferred together with its snapshots: delete them first\n"
        if $with_snapshots;
    die "a Millpond volume is transferred as a whole, not from snapshot '$base_snapshot' on\n"
        if defined($base_snapshot);
}

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots)
        = @_;

    check_stream($format, $base_snapshot, $with_snapshots);
    with_disk(
        $class, $scfg, $storeid, $volname, $snapshot,
        sub {
            my ($disk) = @_;
            write_all($fh, pack('Q<', $disk->size()));
            $disk->copy_to(sub { write_all($fh, $_[0]) });
        },
    );
    return;
}

sub volume_import {
    my (
        $class,
        $scfg,
        $storeid,
        $fh,
        $volname,
        $format,
        $snapshot,
        $base_snapshot,
        $with_snapshots,
        $allow_rename,
    ) = @_;

    check_stream($format, $base_snapshot, $with_snapshots);
    my (undef, $name, $vmid, undef, undef, $is_base) = $class->parse_volname($volname);
    # A template is written as an ordinary volume first.
    (my $new = $name) =~ s/^base-/vm-/;
    my $volumes = volumes($scfg);
    if ($volumes->{$name} || $volumes->{$new}) {
        die "volume '$name' already exists\n" if !$allow_rename;
        warn "volume '$name' already exists - importing with a different name\n";
        $new = undef;
    }

    my $header = read_all($fh, 8);
    die "the stream ends before the size of the volume\n" if length($header) != 8;
    my $size = unpack('Q<', $header);
    die "the stream gives a volume of 0 bytes\n" if !$size;

    my $kib = int(($size + 1023) / 1024);
    my $made = $class->alloc_image($storeid, $scfg, $vmid, 'raw', $new, $kib);
    eval {
        with_disk($class, $scfg, $storeid, $made, undef, sub { $_[0]->copy_from($fh, $size) });
        $made = $class->create_base($storeid, $scfg, $made) if $is_base;
    };
    if (my $failure = $@) {
        eval { $class->free_image($storeid, $scfg, $made, 0, 'raw') };
        warn "the incomplete volume '$made' stays: $@" if $@;
        die $failure;
    }
    return "$storeid:$made";
}

# Calls `$use` with a connection to a volume or snapshot, which is active meanwhile.
sub with_disk {
    my ($class, $scfg, $storeid, $volname, $snap, $use) = @_;

    my $socket = export_socket($scfg, $class->name_of($volname), $snap);
    my $was_active = find_export($scfg, $socket);
    $class->activate_volume($storeid, $scfg, $volname, $snap, {});
    eval {
        my $disk = PVE::Storage::Custom::MillpondPlugin::Disk->connect($socket);
        $use->($disk);
        $disk->close();
    };
    my $failure = $@;
    eval { $class->deactivate_volume($storeid, $scfg, $volname, $snap, {}) } if !$was_active;
    die $failure if $failure;
    die $@ if $@;
}

sub write_all {
    my ($fh, $bytes) = @_;

    my $done = 0;
    while ($done < length($bytes)) {
        my $n = syswrite($fh, $bytes, length($bytes) - $done, $done);
        next if !defined($n) && $!{EINTR};
        die "cannot write to the stream: $!\n" if !defined($n);
        $done += $n;
    }
}

# Reads `$length` bytes, or fewer at the end of the stream.
sub read_all {
    my ($fh, $length) = @_;

    my $bytes = '';
    while (length($bytes) < $length) {
        my $n = sysread($fh, $bytes, $length - length($bytes), length($bytes));
        next if !defined($n) && $!{EINTR};
        die "cannot read the stream: $!\n" if !defined($n);
        last if $n == 0;
    }
    return $bytes;
}

# Notes and protection

# A volume has a number that its pool never uses again, and keeps it when it is renamed: this is the
# key in the file of its pool.

sub attribute_file {
    my ($scfg) = @_;

    my $id = pool_info($scfg)->{id};
    $id =~ m/^([A-Za-z0-9-]+)\z/ or die "the pool has the strange id '$id'\n";
    return "$STATE_DIR/$1.json";
}

sub read_attributes {
    my ($file) = @_;

    return {} if !-e $file;
    my $all = eval { decode_json(PVE::Tools::file_get_contents($file)) };
    die "cannot read notes and protections of volumes in $file: $@" if $@;
    return $all;
}

# Returns the attributes of all volumes, by the number of the volume.
sub all_attributes {
    my ($scfg, $volumes) = @_;

    return {} if !-d $STATE_DIR || !%$volumes;
    return read_attributes(attribute_file($scfg));
}

sub attributes {
    my ($scfg, $volume) = @_;

    return all_attributes($scfg, { volume => $volume })->{ $volume->{id} } // {};
}

# Replaces the attributes of a volume; without any, forgets the volume.
sub set_attributes {
    my ($scfg, $volume, $attributes) = @_;

    return if !defined($attributes) && !-d $STATE_DIR;
    mkdir $STATE_DIR, 0755;
    my $file = attribute_file($scfg);
    PVE::Tools::lock_file(
        "$file.lock",
        10,
        sub {
            my $all = read_attributes($file);
            delete $all->{ $volume->{id} };
            $all->{ $volume->{id} } = $attributes if $attributes && %$attributes;
            PVE::Tools::file_set_contents($file, JSON->new->utf8->canonical->encode($all));
        },
    );
    die "cannot change notes and protections in $file: $@" if $@;
}

sub get_volume_attribute {
    my ($class, $scfg, $storeid, $volname, $attribute) = @_;

    return undef if $attribute ne 'notes' && $attribute ne 'protected';
    my $attributes = attributes($scfg, get_volume($scfg, $class->name_of($volname)));
    return $attributes->{notes} // '' if $attribute eq 'notes';
    return $attributes->{protected} ? 1 : 0;
}

sub update_volume_attribute {
    my ($class, $scfg, $storeid, $volname, $attribute, $value) = @_;

    die "a Millpond volume has no attribute '$attribute': it has 'notes' and 'protected'\n"
        if $attribute ne 'notes' && $attribute ne 'protected';
    my $volume = get_volume($scfg, $class->name_of($volname));
    my $attributes = { attributes($scfg, $volume)->%* };
    delete $attributes->{$attribute};
    if ($attribute eq 'protected') {
        $attributes->{protected} = 1 if $value;
    } else {
        $attributes->{notes} = "$value" if defined($value) && $value ne '';
    }
    set_attributes($scfg, $volume, $attributes);
    return undef;
}

# A connection to an NBD export over a unix socket, with one request in flight. The protocol is
# doc/proto.md of the NetworkBlockDevice project: fixed newstyle negotiation, simple replies.
package PVE::Storage::Custom::MillpondPlugin::Disk;

use strict;
use warnings;

use IO::Socket::UNIX;
use Socket qw(SOCK_STREAM);

use constant {
    GREETING => 'NBDMAGIC' . 'IHAVEOPT',
    # fixed newstyle, and no padding after the size of the export
    HANDSHAKE_FLAGS => 3,
    OPTION_EXPORT_NAME => 1,
    REQUEST => 0x25609513,
    REPLY => 0x67446698,
    READ => 0,
    WRITE => 1,
    DISCONNECT => 2,
    FLUSH => 3,
};
# Bytes of a request, below the 32 MiB that servers accept; and bytes that are left out of an import
# if all of them are zero.
use constant { CHUNK => 4 << 20, GAP => 64 << 10 };
# Connects to the default export of a socket.
sub connect {
    my ($class, $path) = @_;

    my $socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $path)
        or die "cannot connect to $path: $!\n";
    my $self = bless { path => $path, socket => $socket, cookie => 0 }, $class;
    die "$path is not a server of NBD\n" if $self->receive(16) ne GREETING;
    $self->receive(2);
    $self->transmit(pack('N a8 N N', HANDSHAKE_FLAGS, 'IHAVEOPT', OPTION_EXPORT_NAME, 0));
    @$self{qw(size flags)} = unpack('Q> n', $self->receive(10));
    return $self;
}

sub size {
    my ($self) = @_;

    return $self->{size};
}

sub transmit {
    my ($self, $bytes) = @_;

    PVE::Storage::Custom::MillpondPlugin::write_all($self->{socket}, $bytes);
}

sub receive {
    my ($self, $length) = @_;

    my $bytes = PVE::Storage::Custom::MillpondPlugin::read_all($self->{socket}, $length);
    die "the connection to $self->{path} has ended; is the daemon of Millpond running?\n"
        if length($bytes) != $length;
    return $bytes;
}

# Sends a request and receives its reply, without the data of a read.
sub request {
    my ($self, $type, $offset, $length, $payload) = @_;

    my $cookie = ++$self->{cookie};
    local $SIG{PIPE} = 'IGNORE';
    $self->transmit(
        pack('N n n Q> Q> N', REQUEST, 0, $type, $cookie, $offset, $length) . ($payload // ''));
    my ($magic, $error, $of) = unpack('N N Q>', $self->receive(16));
    die "the server on $self->{path} does not follow the protocol\n"
        if $magic != REPLY || $of != $cookie;
    return if !$error;
    local $! = $error;
    die "request at byte $offset failed: $!; see 'millpond status'\n";
}

# Passes the content to `$write`, from start to end.
sub copy_to {
    my ($self, $write) = @_;

    my $progress = PVE::Storage::Custom::MillpondPlugin::Progress->new($self->{size});
    for (my $offset = 0; $offset < $self->{size}; $offset += CHUNK) {
        my $left = $self->{size} - $offset;
        my $length = $left < CHUNK ? $left : CHUNK;
        $self->request(READ, $offset, $length);
        $write->($self->receive($length));
        $progress->at($offset + $length);
    }
}

# Writes `$size` bytes of a stream. The disk is new: what is zero in the stream is not written.
sub copy_from {
    my ($self, $fh, $size) = @_;

    my $progress = PVE::Storage::Custom::MillpondPlugin::Progress->new($size);
    for (my $offset = 0; $offset < $size; $offset += CHUNK) {
        my $left = $size - $offset;
        my $length = $left < CHUNK ? $left : CHUNK;
        my $bytes = PVE::Storage::Custom::MillpondPlugin::read_all($fh, $length);
        die "the stream ends after " . ($offset + length($bytes)) . " of $size bytes\n"
            if length($bytes) != $length;
        # the volume has whole blocks
        $bytes .= "\0" x (-$length % 4096);
        $self->write_data($offset, $bytes);
        $progress->at($offset + $length);
    }
    $self->request(FLUSH, 0, 0);
}

# Writes runs of data between zeroes.
sub write_data {
    my ($self, $offset, $bytes) = @_;

    my $start;
    for (my $at = 0; $at < length($bytes); $at += GAP) {
        my $is_zero = substr($bytes, $at, GAP) !~ m/[^\0]/;
        if ($is_zero && defined($start)) {
            $self->write($offset + $start, substr($bytes, $start, $at - $start));
            $start = undef;
        }
        $start = $at if !$is_zero && !defined($start);
    }
    $self->write($offset + $start, substr($bytes, $start)) if defined($start);
}

sub write {
    my ($self, $offset, $bytes) = @_;

    $self->request(WRITE, $offset, length($bytes), $bytes);
}

sub close {
    my ($self) = @_;

    local $SIG{PIPE} = 'IGNORE';
    eval { $self->transmit(pack('N n n Q> Q> N', REQUEST, 0, DISCONNECT, 0, 0, 0)) };
    $self->{socket}->close();
}

# Lines about the progress, for the log of a task.
package PVE::Storage::Custom::MillpondPlugin::Progress;

use strict;
use warnings;

# Seconds between two lines.
use constant PAUSE => 10;

sub new {
    my ($class, $size) = @_;

    return bless { size => $size, next => time() + PAUSE }, $class;
}

sub at {
    my ($self, $done) = @_;

    return if time() < $self->{next};
    $self->{next} = time() + PAUSE;
    printf STDERR "transferred %d of %d MiB (%d%%)\n", $done >> 20, $self->{size} >> 20,
        100 * $done / $self->{size};
}

1;
