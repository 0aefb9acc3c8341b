//! The serial number of a block device, which is also printed on the disk that a user has to pull.
//!
//! Sources: `Documentation/ABI/testing/sysfs-block` and `sysfs-class-nvme` of Linux, SPC-4 7.7.13
//! (VPD page 80h), and the database of udev (`/run/udev/data/bMAJOR:MINOR`, one `E:KEY=VALUE` a
//! line). Reading these sends no command to the device.

use std::fs::{read, read_to_string};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, major, minor};

/// Files in a device's sysfs directory that have its serial number as text: virtio, NVMe and MMC.
const TEXT: [&str; 2] = ["serial", "device/serial"];
/// The VPD page with the serial number of a SCSI or SATA device: a header of four bytes, then text.
const PAGE: &str = "device/vpd_pg80";
/// Bytes of the page's header.
const PAGE_HEADER: usize = 4;
/// Keys in the database of udev, best first.
const KEYS: [&str; 2] = ["E:ID_SCSI_SERIAL=", "E:ID_SERIAL_SHORT="];
/// World-wide names, used if nothing else is known.
const NAMES: [&str; 2] = ["wwid", "device/wwid"];
/// Maximum characters of a serial number that are kept: twice what NVMe has.
const MAX_CHARS: usize = 40;

/// Returns the serial number of the block device that `stat` is of; `None` for files, and for
/// devices without one.
pub(crate) fn serial_of(stat: &Stat) -> Option<String> {
    let block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let device = (major(stat.st_rdev), minor(stat.st_rdev));
    block.then(|| find(Path::new("/sys/dev/block"), Path::new("/run/udev/data"), device)).flatten()
}

/// Looks in sysfs, then in the database of udev.
fn find(sys: &Path, udev: &Path, (major, minor): (u32, u32)) -> Option<String> {
    let own = sys.join(format!("{major}:{minor}"));
    // a partition has the serial number of its disk, one directory up
    let disk: PathBuf = if own.join("partition").exists() { own.canonicalize().ok()?.parent()?.to_owned() } else { own };
    let text = |names: &[&str]| names.iter().find_map(|name| tidy(&read_to_string(disk.join(name)).ok()?));
    let page = || tidy(&String::from_utf8_lossy(read(disk.join(PAGE)).ok()?.get(PAGE_HEADER..)?));
    let database = || {
        let known = read_to_string(udev.join(format!("b{major}:{minor}"))).ok()?;
        KEYS.iter().find_map(|key| tidy(known.lines().find_map(|line| line.strip_prefix(key))?))
    };
    text(&TEXT).or_else(page).or_else(database).or_else(|| text(&NAMES))
}

/// Makes a serial number printable and one word, as udev writes it; `None` when nothing remains.
fn tidy(text: &str) -> Option<String> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let word = text.chars().map(|c| if c == ' ' { '_' } else { c }).filter(char::is_ascii_graphic);
    let kept: String = word.take(MAX_CHARS).collect();
    (!kept.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests {
    //! Trees like those of the host.

    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::find;

    #[test]
    fn the_serial_number_is_found_where_each_kind_of_device_has_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sys, udev, real) = (dir.path().join("dev"), dir.path().join("udev"), dir.path().join("devices"));
        for made in [
            &sys,
            &udev,
            &real.join("nvme0n1/nvme0n1p1"),
            &real.join("nvme0"),
            &real.join("sda/device"),
            &real.join("vda"),
            &real.join("loop0"),
        ] {
            create_dir_all(made).expect("directories");
        }
        let link = |name: &str, to: &str| symlink(real.join(to), sys.join(name)).expect("a link");
        symlink(real.join("nvme0"), real.join("nvme0n1/device")).expect("a link");
        write(real.join("nvme0/serial"), "S4EVNF0M123456      \n").expect("nvme");
        write(real.join("nvme0n1/nvme0n1p1/partition"), "1\n").expect("a partition");
        write(real.join("sda/device/vpd_pg80"), b"\0\x80\0\x0c    ZL2ABCDE").expect("a page");
        write(real.join("vda/serial"), "disk 7\n").expect("virtio");
        write(udev.join("b8:16"), "S:disk/by-id/x\nE:ID_SERIAL=WDC_WD40_WX11\nE:ID_SERIAL_SHORT=WX11\n").expect("udev");
        for (name, to) in [("259:0", "nvme0n1"), ("259:1", "nvme0n1/nvme0n1p1"), ("8:0", "sda"), ("254:0", "vda"), ("7:0", "loop0")] {
            link(name, to);
        }
        let of = |major, minor| find(&sys, &udev, (major, minor));
        assert_eq!(of(259, 0).as_deref(), Some("S4EVNF0M123456"));
        assert_eq!(of(259, 1).as_deref(), Some("S4EVNF0M123456"), "a partition has the number of its disk");
        assert_eq!(of(8, 0).as_deref(), Some("ZL2ABCDE"));
        assert_eq!(of(254, 0).as_deref(), Some("disk_7"));
        assert_eq!(of(8, 16).as_deref(), Some("WX11"), "not in sysfs, but known to udev");
        assert_eq!(of(7, 0), None);
        assert_eq!(of(1, 1), None);
    }
}
