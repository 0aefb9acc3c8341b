//! The devices of pools: caches, discard, wear; of pool files, the disk below their file system.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::files::{mount_checks, mount_of};
use super::smart::{self, Health};
use super::{Check, CheckState, Host};

pub fn checks(host: &Host, path: &Path) -> Vec<Check> {
    let name = path.display().to_string();
    let real = host.at(path);
    let meta = match fs::metadata(&real) {
        Ok(meta) => meta,
        Err(error) => {
            let remedy = "bring the device back; 'millpond pool status' says what the pool lacks";
            return vec![Check::new("device", name, CheckState::Fail, format!("cannot be examined: {error}"), remedy)];
        }
    };
    if meta.file_type().is_block_device() {
        return disk(host, &name, meta.rdev());
    }
    let mut found = Vec::new();
    let dev = meta.dev();
    match mount_of(host, &format!("{}:{}", major(dev), minor(dev))) {
        Some(mount) => found.extend(mount_checks(path, &mount)),
        // btrfs and overlay give files another number than the mount
        None => found.push(Check::unknown("mount", name.clone(), "its filesystem is not in the table of mounts")),
    }
    found.extend(disk(host, &name, dev));
    found
}

/// Returns the checks of the disk with a device number. Devices without a disk of their own, such as
/// those of network file systems, have none.
fn disk(host: &Host, name: &str, number: u64) -> Vec<Check> {
    match disk_of(&host.root, number) {
        Some(disk) => of_disk(host, name, &disk),
        None => vec![Check::unknown("disk", name, "no block device is below it: caches and wear are not readable")],
    }
}

/// Returns the directory in sysfs of a disk; of a partition, that of its disk.
pub fn disk_of(root: &Path, number: u64) -> Option<PathBuf> {
    let link = root.join(format!("sys/dev/block/{}:{}", major(number), minor(number)));
    let dir = fs::canonicalize(link).ok()?;
    if dir.join("partition").exists() { dir.parent().map(Path::to_owned) } else { Some(dir) }
}

/// Returns the name of a disk with this directory in sysfs.
pub fn name_of(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the number of a block device, or of the device of the file system of a file.
pub fn number_of(device: &Path) -> Option<u64> {
    let meta = fs::metadata(device).ok()?;
    Some(if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() })
}

/// Returns the checks of a disk with this directory in sysfs.
pub fn of_disk(host: &Host, name: &str, dir: &Path) -> Vec<Check> {
    let disk = name_of(dir);
    let read = |file: &str| fs::read_to_string(dir.join(file)).ok().map(|text| text.trim().to_owned());
    let number = |file: &str| read(file)?.parse::<u64>().ok();
    let mut found = vec![write_cache(name, &disk, read("queue/write_cache").as_deref())];
    let rotates = number("queue/rotational") == Some(1);
    found.push(match (number("queue/discard_max_bytes"), rotates) {
        (Some(0), true) => Check::ok("discard", name, format!("{disk} is a hard disk, and needs none")),
        (Some(0), false) => Check::new(
            "discard",
            name,
            CheckState::Warn,
            format!("{disk} takes no discards: freed space is not returned to it"),
            "enable discard where the device is defined (the virtual disk, the LUN, 'issue_discards'); a disk without it wears faster",
        ),
        (Some(_), _) => Check::ok("discard", name, format!("{disk} takes discards")),
        (None, _) => Check::unknown("discard", name, format!("{disk} does not say")),
    });
    if number("ro") == Some(1) {
        let remedy = "see the kernel's messages; 'blockdev --setrw' if it was set by hand";
        found.push(Check::new("read-only", name, CheckState::Fail, format!("{disk} is read-only"), remedy));
    }
    found.push(wear(host, name, &disk));
    found
}

fn write_cache(name: &str, disk: &str, mode: Option<&str>) -> Check {
    match mode {
        // no volatile cache, or one with power-loss protection that needs no flush
        Some("write through") => {
            Check::ok("write-cache", name, format!("{disk} needs no flush: it has no volatile cache, or protects it against power loss"))
        }
        Some("write back") => Check::new(
            "write-cache",
            name,
            CheckState::Ok,
            format!("{disk} has a volatile cache: flushes reach the medium, and cost time; power-loss protection is not readable"),
            "for faster flushes use disks with power-loss protection",
        ),
        Some(other) => Check::unknown("write-cache", name, format!("{disk}: {other}")),
        None => Check::unknown("write-cache", name, format!("{disk} does not say")),
    }
}

fn wear(host: &Host, name: &str, disk: &str) -> Check {
    let health = smart::read(&host.root, disk);
    match &health {
        Health::Good(facts) => Check::ok("wear", name, facts.clone()),
        Health::Bad { failing, facts } => {
            let state = if *failing { CheckState::Fail } else { CheckState::Warn };
            Check::new("wear", name, state, facts.clone(), "replace it: 'millpond pool replace POOL DEVICE NEW'")
        }
        Health::NotReadable(why) => Check::unknown("wear", name, format!("not readable: {why}")),
    }
}
