use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;

const CREATE: OpenOptions = OpenOptions { create_size: Some(1 << 20), direct: true, read_only: false };

fn dirs() -> Vec<tempfile::TempDir> {
    let shm = Path::new("/dev/shm");
    let mut dirs = vec![tempfile::tempdir().expect("a temporary directory")];
    if shm.is_dir() {
        dirs.push(tempfile::tempdir_in(shm).expect("a directory in shared memory"));
    }
    dirs
}

#[test]
fn files_are_created_sparse_locked_and_grown() {
    for dir in dirs() {
        let path = dir.path().join("a");
        assert_eq!(HostDevice::open(&path, OpenOptions::default()).err(), Some(OpenError::Missing { path: path.clone() }));
        let mut device = HostDevice::open(&path, CREATE).expect("create");
        let DeviceGeometry { size, logical_sector, physical_sector } = device.geometry();
        assert_eq!(size, 1 << 20);
        assert!(matches!(logical_sector, 512 | 4096) && physical_sector == 4096);
        let meta = std::fs::metadata(&path).expect("metadata");
        assert!(meta.blocks() * 512 < 1 << 20, "not sparse");
        assert_eq!(meta.mode() & 0o777, 0o600);
        for read_only in [false, true] {
            let again = HostDevice::open(&path, OpenOptions { read_only, ..CREATE });
            assert_eq!(again.err(), Some(OpenError::InUse { path: path.clone() }));
        }
        device.grow((1 << 21) + 100).expect("grow");
        assert_eq!(device.geometry().size, 1 << 21);
        device.grow(4096).expect("nothing to do");
        assert_eq!(device.geometry().size, 1 << 21);
        drop(device);
        let again = once_free(|| HostDevice::open(&path, CREATE)).expect("reopen");
        assert_eq!(again.geometry().size, 1 << 21, "never shrinks");
        assert_eq!(again.kind(), HostDeviceKind::File);
        drop(again);
        let reader = OpenOptions { create_size: None, direct: false, read_only: true };
        let (first, second) = (once_free(|| HostDevice::open(&path, reader)), HostDevice::open(&path, reader));
        assert!(first.is_ok() && second.is_ok(), "readers share");
        assert_eq!(HostDevice::open(&path, CREATE).err(), Some(OpenError::InUse { path: path.clone() }));
    }
}

#[test]
fn a_rehearsal_finds_what_opening_would_and_makes_nothing() {
    for dir in dirs() {
        let path = dir.path().join("a");
        let rehearsed = HostDevice::rehearse(&path, CREATE).expect("a file that is still to be made");
        assert!(rehearsed.is_stand_in() && !path.exists() && rehearsed.path() == path);
        let made = HostDevice::open(&path, CREATE).expect("create");
        assert_eq!(rehearsed.geometry(), made.geometry());
        assert_eq!(HostDevice::rehearse(&path, CREATE).err(), Some(OpenError::InUse { path: path.clone() }));
        drop(made);
        let there = once_free(|| HostDevice::rehearse(&path, OpenOptions { create_size: Some(1 << 30), ..CREATE })).expect("a file");
        assert!(!there.is_stand_in() && there.geometry().size == 1 << 20, "nothing grows");
        // an empty file counts as missing
        let empty = dir.path().join("empty");
        std::fs::write(&empty, []).expect("write");
        let rehearsed = HostDevice::rehearse(&empty, CREATE).expect("an empty file");
        assert!(rehearsed.is_stand_in() && rehearsed.geometry().size == 1 << 20);
        assert_eq!(std::fs::metadata(&empty).expect("metadata").len(), 0);
        // errors that prevent creation give the same message in a rehearsal
        for (name, size) in [("none/a", 1 << 20), ("small", 100)] {
            let (path, options) = (dir.path().join(name), OpenOptions { create_size: Some(size), ..CREATE });
            let refused = HostDevice::rehearse(&path, options).err();
            assert_eq!((refused.is_some(), refused), (true, HostDevice::open(&path, options).err()), "{name}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("the directory").count(), 2);
    }
}

#[test]
fn other_kinds_and_empty_files_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let refused = |path: &Path, found| {
        let error = HostDevice::open(path, CREATE).err();
        assert_eq!(error, Some(OpenError::WrongKind { path: path.to_owned(), found }));
    };
    refused(dir.path(), "directory");
    refused(Path::new("/dev/null"), "character device");
    let socket = dir.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
    refused(&socket, "socket");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, []).expect("write");
    let error = HostDevice::open(&empty, OpenOptions::default()).err();
    assert_eq!(error, Some(OpenError::TooSmall { path: empty.clone(), size: 0, needed: 4096 }));
    assert!(empty.exists(), "a file that was there stays");
    let small = dir.path().join("small");
    let error = HostDevice::open(&small, OpenOptions { create_size: Some(100), ..CREATE }).err();
    assert_eq!(error, Some(OpenError::TooSmall { path: small.clone(), size: 0, needed: 4096 }));
    assert!(!small.exists(), "what could not be used was not left behind");
    let far = dir.path().join("no/such/dir");
    let error = HostDevice::open(&far, CREATE).expect_err("no directory");
    assert_eq!(error, OpenError::Host { path: far, step: OpenStep::Open, errno: Errno::NOENT });
    assert!(error.to_string().starts_with("cannot open "));
}

/// A loop device over a file, detached when dropped; `None` (with a note) if the machine has none.
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    pub(crate) fn new(size: u64, sector: u32) -> Option<Loop> {
        let dir = tempfile::tempdir().ok()?;
        let backing = dir.path().join("backing");
        std::fs::File::create(&backing).and_then(|file| file.set_len(size)).ok()?;
        let output = Command::new("losetup").args(["--find", "--show", "--sector-size", &sector.to_string()]).arg(&backing).output();
        match output {
            Ok(output) if output.status.success() => {
                let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                Some(Loop { device, _dir: dir })
            }
            other => {
                eprintln!("SKIPPED: no loop device here: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// Retries until the device is not in use: a process that another test is just starting has this
/// test's files open for a moment.
pub(crate) fn once_free(open: impl Fn() -> Result<HostDevice, OpenError>) -> Result<HostDevice, OpenError> {
    let start = Instant::now();
    loop {
        match open() {
            Err(OpenError::InUse { .. }) if start.elapsed() < Duration::from_secs(120) => std::thread::sleep(Duration::from_millis(2)),
            other => return other,
        }
    }
}

#[test]
fn block_devices_tell_size_and_sectors_and_are_exclusive() {
    for sector in [512, 4096] {
        let Some(disk) = Loop::new(8 << 20, sector) else { return };
        let options = OpenOptions { create_size: Some(8 << 20), direct: true, read_only: false };
        let device = HostDevice::open(&disk.device, options).expect("open");
        assert_eq!(device.kind(), HostDeviceKind::Block);
        assert_eq!((device.geometry().size, device.geometry().logical_sector), (8 << 20, sector));
        assert!(device.geometry().physical_sector >= sector);
        let again = HostDevice::open(&disk.device, OpenOptions::default());
        assert_eq!(again.err(), Some(OpenError::InUse { path: disk.device.clone() }));
        drop(device);
        let larger = OpenOptions { create_size: Some(9 << 20), ..options };
        let error = once_free(|| HostDevice::open(&disk.device, larger));
        assert_eq!(error.err(), Some(OpenError::TooSmall { path: disk.device.clone(), size: 8 << 20, needed: 9 << 20 }));
    }
}

/// True when the first page is in the page cache.
fn is_cached(path: &Path) -> Option<bool> {
    use rustix::io::{ReadWriteFlags, preadv2};
    let file = std::fs::File::open(path).expect("open");
    let mut page = [0; PAGE];
    match preadv2(&file, &mut [std::io::IoSliceMut::new(&mut page)], 0, ReadWriteFlags::NOWAIT) {
        Ok(count) => Some(count == PAGE),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[test]
fn what_only_the_page_cache_has_is_not_believed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a");
    std::fs::write(&path, vec![7; 1 << 20]).expect("write");
    std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("sync");
    let buffered = OpenOptions { create_size: None, direct: false, read_only: false };
    let device = HostDevice::open(&path, buffered);
    if device.as_ref().is_ok_and(HostDevice::in_memory) {
        eprintln!("SKIPPED: the temporary directory is in memory");
        return;
    }
    drop(device);
    std::fs::read(&path).expect("read");
    let Some(true) = is_cached(&path) else {
        eprintln!("SKIPPED: the file system does not tell what is cached");
        return;
    };
    for read_only in [false, true] {
        std::fs::read(&path).expect("read");
        let device = HostDevice::open(&path, OpenOptions { read_only, ..buffered }).expect("open");
        assert!(!device.direct());
        // opening reads nothing, so nothing is cached again
        assert_eq!(is_cached(&path), Some(false), "pages that may never have been written are still shown");
    }
}
