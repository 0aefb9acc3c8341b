//! Places of pool files: warnings about files that the next boot deletes, and about files that
//! outgrow their file system.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{statfs, statvfs};

use millpond_api::size::Size;
use millpond_api::{ApiError, DeviceSpec};

/// Magic numbers of tmpfs with devtmpfs, and of ramfs, in statfs(2).
const MEMORY_MAGICS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A file of a pool, existing or still to be made, and its file system.
pub(super) struct PoolFile {
    path: PathBuf,
    /// Directory of the file.
    parent: PathBuf,
    /// Device number of its file system.
    filesystem: u64,
    /// Bytes that the file system still has to allocate for it.
    wanted: u64,
    /// Free bytes of the file system.
    room: Option<u64>,
    /// True when the file system is in memory.
    in_memory: bool,
}

/// Examines a file; `None` for block devices, and for paths that cannot be examined: opening gives
/// a better error. Blocks on the file system.
pub(super) fn look(path: &Path, create: Option<u64>) -> Option<PoolFile> {
    let (parent, filesystem, wanted) = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => {
            let parent = path.canonicalize().ok()?.parent()?.to_owned();
            let size = meta.len().max(create.unwrap_or(0));
            (parent, meta.dev(), size.saturating_sub(meta.blocks() * 512))
        }
        Ok(_) => return None,
        Err(_) => {
            let parent = path.parent()?.canonicalize().ok()?;
            let filesystem = fs::metadata(&parent).ok()?.dev();
            (parent, filesystem, create?)
        }
    };
    let room = statvfs(&parent).ok().map(|space| space.f_bavail.saturating_mul(space.f_frsize));
    let magic = statfs(&parent).ok().and_then(|found| u64::try_from(found.f_type).ok());
    let in_memory = magic.is_some_and(|magic| MEMORY_MAGICS.contains(&magic));
    Some(PoolFile { path: path.to_owned(), parent, filesystem, wanted, room, in_memory })
}

/// Refuses a plain file among the device nodes below /dev, which are in memory: such a name is
/// mistyped.
///
/// # Errors
/// When the path is such a file; the message says what to do instead.
pub(super) fn refuse_below_dev(device: &DeviceSpec) -> Result<(), ApiError> {
    let path = Path::new(&device.path);
    let Some(file) = look(path, device.create) else { return Ok(()) };
    // file systems mounted below /dev, such as /dev/shm, are chosen on purpose
    let nodes = fs::metadata("/dev").is_ok_and(|meta| meta.dev() == file.filesystem);
    if !nodes || !file.parent.starts_with("/dev") {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "{} would be a plain file among the device nodes, in memory and gone at the next boot; check the name ('lsblk' lists block devices), or put the \
         file elsewhere; --force uses it all the same",
        device.path
    )))
}

/// Returns the message about a path where nothing is.
pub(super) fn nothing_at(path: &str) -> String {
    match Path::new(path).starts_with("/dev") {
        true => format!("{path} does not exist; check the name: 'lsblk' lists block devices"),
        false => format!("{path} does not exist; give {path}:SIZE to create it"),
    }
}

/// Returns warnings about files that become devices of a pool, with the needs of the files in
/// `others`. Blocks on the file systems.
pub fn warnings(devices: &[DeviceSpec], others: &[PathBuf]) -> Vec<String> {
    let new = |path: &PathBuf| !devices.iter().any(|device| Path::new(&device.path) == path);
    let files: Vec<PoolFile> = devices.iter().filter_map(|device| look(Path::new(&device.path), device.create)).collect();
    let others: Vec<PoolFile> = others.iter().filter(|path| new(path)).filter_map(|path| look(path, None)).collect();
    judge(&files, &others)
}

/// Returns warnings about files that were examined.
pub(super) fn judge(files: &[PoolFile], others: &[PoolFile]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut filesystems: BTreeMap<u64, Vec<&PoolFile>> = BTreeMap::new();
    files.iter().for_each(|file| filesystems.entry(file.filesystem).or_default().push(file));
    for (filesystem, files) in filesystems {
        let Some(first) = files.first() else { continue };
        let paths = files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>().join(" ");
        let several = files.len() > 1;
        if first.in_memory {
            let (are, go) = if several { ("are", "they are") } else { ("is", "it is") };
            lines.push(format!("{paths} {are} on a filesystem in memory (tmpfs): {go} gone at the next boot; use a filesystem on a disk"));
        }
        let Some(room) = first.room else { continue };
        let wanted: u64 = files.iter().map(|file| file.wanted).sum();
        let beside: u64 = others.iter().filter(|other| other.filesystem == filesystem).map(|other| other.wanted).sum();
        lines.extend(beyond(&paths, several, wanted, beside, room));
    }
    lines
}

/// Returns a warning when files need more than their file system has.
fn beyond(paths: &str, several: bool, wanted: u64, beside: u64, room: u64) -> Option<String> {
    let of_others = match beside {
        0 => String::new(),
        beside => format!(", files of other pools there {} more", Size(beside)),
    };
    let (grow, together, smaller) = if several { ("grow", " together", "them") } else { ("grows", "", "it") };
    (wanted > 0 && wanted.saturating_add(beside) > room).then(|| {
        format!(
            "{paths} {grow} by {}{together}{of_others}, and the filesystem has room for {}: when it is full, writes fail and devices are taken out of service; make \
             {smaller} smaller, or make room",
            Size(wanted),
            Size(room)
        )
    })
}

#[cfg(test)]
mod tests {
    //! Right places and wrong ones.

    use super::*;

    fn spec(path: &Path, create: Option<u64>) -> DeviceSpec {
        DeviceSpec { path: path.display().to_string(), create }
    }

    #[test]
    fn files_beyond_the_room_of_their_filesystem_are_warned_of_with_the_numbers() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut all = warnings(&[spec(&dir.path().join("huge"), Some(1 << 60))], &[]);
        let line = all.pop().expect("a warning");
        assert!(line.contains("huge grows by") && line.contains("has room for"), "{line}");
        let room = |line: &str| line.contains("room");
        assert!(!warnings(&[spec(&dir.path().join("small"), Some(4096))], &[]).iter().any(|line| room(line)));
        // an existing file counts as far as it is not allocated
        let sparse = dir.path().join("sparse");
        fs::File::create(&sparse).and_then(|file| file.set_len(1 << 42)).expect("a sparse file");
        assert!(warnings(&[spec(&sparse, None)], &[]).iter().any(|line| room(line)));
        let beside = warnings(&[spec(&dir.path().join("small"), Some(4096))], &[sparse]);
        assert!(beside.iter().any(|line| line.contains("files of other pools there")), "{beside:?}");
    }

    #[test]
    fn sums_are_compared_with_the_room() {
        assert_eq!(beyond("a", false, 10, 0, 10), None);
        assert_eq!(beyond("a", false, 0, 20, 10), None, "it takes nothing");
        assert!(beyond("a", false, 11, 0, 10).is_some());
        assert!(
            beyond("a b", true, 6, 5, 10).is_some_and(|line| line.contains("a b grow by 6B together, files of other pools there 5B more"))
        );
        assert!(beyond("a", false, u64::MAX, 1, 10).is_some());
    }

    #[test]
    fn plain_files_below_dev_are_refused_and_what_is_mounted_there_is_not() {
        let typed = spec(Path::new("/dev/millpond-nosuch"), Some(1 << 20));
        assert!(refuse_below_dev(&typed).expect_err("below /dev").message.contains("gone at the next boot"));
        assert_eq!(refuse_below_dev(&spec(Path::new("/dev/null"), None)), Ok(()));
        assert!(nothing_at("/dev/nosuch").contains("lsblk") && !nothing_at("/dev/nosuch").contains("SIZE"));
        assert!(nothing_at("/srv/a").contains("/srv/a:SIZE"));
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(refuse_below_dev(&spec(&dir.path().join("a"), Some(1))), Ok(()));
    }

    #[test]
    fn files_in_memory_are_warned_of() {
        let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = memory.path().join("a");
        assert_eq!(refuse_below_dev(&spec(&path, Some(4096))), Ok(()));
        assert!(warnings(&[spec(&path, Some(4096))], &[]).iter().any(|line| line.contains("tmpfs")));
    }
}
