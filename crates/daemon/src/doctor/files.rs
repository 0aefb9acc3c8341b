//! Permissions of the daemon's files, and mounts below pool files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::{Check, CheckState, Host};

pub fn permissions(host: &Host) -> Vec<Check> {
    [state_directory(host), control_socket(host), apparmor(host)].into_iter().flatten().collect()
}

fn state_directory(host: &Host) -> Option<Check> {
    let name = host.state.display().to_string();
    let meta = match fs::metadata(&host.state) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Some(Check::unknown("state-directory", name, "it does not exist: no daemon has used it yet"));
        }
        Err(error) => {
            let remedy = "run this as the daemon's user or as root";
            return Some(Check::new("state-directory", name, CheckState::Warn, format!("cannot be read: {error}"), remedy));
        }
    };
    let mode = meta.permissions().mode() & 0o7777;
    Some(match mode & 0o022 {
        0 if mode & 0o055 == 0 => Check::ok("state-directory", name, format!("mode {mode:04o}, uid {}", meta.uid())),
        0 => {
            let found = format!("mode {mode:04o}: other users can read its events and names of devices");
            Check::new("state-directory", name.clone(), CheckState::Warn, found, &format!("chmod 0700 {name}"))
        }
        _ => {
            let found = format!("mode {mode:04o}: other users can replace its files, and so choose the daemon's devices");
            Check::new("state-directory", name.clone(), CheckState::Fail, found, &format!("chmod 0700 {name}"))
        }
    })
}

fn control_socket(host: &Host) -> Option<Check> {
    let meta = fs::metadata(&host.socket).ok()?;
    let name = host.socket.display().to_string();
    let mode = meta.permissions().mode() & 0o777;
    Some(match mode & 0o006 {
        0 => Check::ok("control-socket", name, format!("mode {mode:04o}, uid {}, gid {}", meta.uid(), meta.gid())),
        _ => {
            let found = format!("mode {mode:04o}: every user of this host can destroy pools");
            Check::new("control-socket", name, CheckState::Fail, found, "set socket_mode to 0600 or 0660, with a group in socket_owner")
        }
    })
}

/// Rules for QEMU in guests of libvirt, in `/etc/apparmor.d`.
const CONFINED: &str = "abstractions/libvirt-qemu";
/// File and directory with further rules. Debian 12 includes the file, Debian 13 both.
const LOCAL: &str = "local/abstractions/libvirt-qemu";
const MORE: &str = "abstractions/libvirt-qemu.d";

/// Checks whether AppArmor lets guests of libvirt use sockets beside the control socket. libvirt has
/// no rule for sockets of NBD and vhost-user disks. `None` where it confines no guests.
fn apparmor(host: &Host) -> Option<Check> {
    let place = Path::new("/etc/apparmor.d");
    let rules = host.read(place.join(CONFINED)).ok()?;
    let enabled = host.read("/sys/module/apparmor/parameters/enabled").is_ok_and(|enabled| enabled == "Y");
    let sockets = format!("{}/", host.socket.parent()?.display());
    let mut texts = vec![rules];
    if texts[0].contains(LOCAL) {
        texts.extend(host.read(place.join(LOCAL)));
    }
    if texts[0].contains(MORE) {
        let files = fs::read_dir(host.at(place.join(MORE))).into_iter().flatten().flatten();
        texts.extend(files.filter_map(|entry| host.read(place.join(MORE).join(entry.file_name())).ok()));
    }
    let permits = |line: &str| line.trim_start().starts_with(&sockets);
    let name = "guests of libvirt";
    if !enabled || texts.iter().flat_map(|text| text.lines()).any(permits) {
        return Some(Check::ok("apparmor", name, format!("may use sockets below {sockets}")));
    }
    let remedy = format!("echo '{sockets}*.sock rw,' >> /etc/apparmor.d/{LOCAL}; without guests of libvirt, ignore this");
    Some(Check::new("apparmor", name, CheckState::Warn, format!("may not use sockets below {sockets}"), &remedy))
}

/// A line of the table of mounts.
pub struct Mount {
    pub kind: String,
    pub options: Vec<String>,
}

/// Returns the mount with this device number, `major:minor`: the last one, which is visible.
pub fn mount_of(host: &Host, number: &str) -> Option<Mount> {
    let table = host.read("/proc/self/mountinfo").ok()?;
    let entry = |line: &str| {
        // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS
        let words: Vec<&str> = line.split(' ').collect();
        let dash = words.iter().position(|word| *word == "-")?;
        if words.get(2) != Some(&number) {
            return None;
        }
        let options = [words.get(5), words.get(dash + 3)].into_iter().flatten().flat_map(|words| words.split(','));
        Some(Mount { kind: (*words.get(dash + 1)?).to_owned(), options: options.map(str::to_owned).collect() })
    };
    table.lines().filter_map(entry).next_back()
}

/// Returns the checks of the file system below a pool file.
pub fn mount_checks(path: &Path, mount: &Mount) -> Vec<Check> {
    let name = path.display().to_string();
    let has = |option: &str| mount.options.iter().any(|given| given == option);
    let fail = |found: String, remedy: &str| Check::new("mount", name.clone(), CheckState::Fail, found, remedy);
    let warn = |found: String, remedy: &str| Check::new("mount", name.clone(), CheckState::Warn, found, remedy);
    let kind = &mount.kind;
    let mut checks = Vec::new();
    match kind.as_str() {
        "tmpfs" | "ramfs" | "devtmpfs" => {
            checks.push(fail(format!("{kind} is memory: the pool is gone at the next boot"), "move the file to a filesystem on a disk"));
        }
        "overlay" => {
            checks.push(warn("overlay: the file may be gone with its container".to_owned(), "put the file on a volume of the container"))
        }
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" => checks.push(warn(
            format!("{kind} is a network filesystem: claims may be read from a cache, so two hosts could use the pool"),
            "use block devices, or make sure that one host alone has the pool",
        )),
        _ if kind.starts_with("fuse") => {
            checks.push(warn(format!("{kind}: flushes depend on another program"), "use a filesystem of the kernel, or block devices"));
        }
        "btrfs" | "zfs" | "bcachefs" => checks.push(warn(
            format!("{kind} writes each block elsewhere, which a pool does as well: writes are slower and take more space"),
            "use block devices, or ext4 or XFS; on btrfs, 'chattr +C' on the empty directory before the file is made",
        )),
        _ => {}
    }
    if has("ro") {
        checks.push(fail(
            "the filesystem is mounted read-only".to_owned(),
            "see the kernel's messages, check the filesystem, mount it again",
        ));
    }
    if ["nobarrier", "barrier=0"].into_iter().any(has) {
        let found = "barriers are off: a flush does not reach the medium, and a power cut can damage the pool";
        checks.push(fail(found.to_owned(), "remove nobarrier or barrier=0 from the mount options"));
    }
    if has("data=journal") {
        let found = "data=journal: data is written twice, and O_DIRECT is not used";
        checks.push(warn(found.to_owned(), "mount it with data=ordered"));
    }
    if checks.is_empty() {
        checks.push(Check::ok("mount", name, kind.clone()));
    }
    checks
}
