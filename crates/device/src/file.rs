//! Opens and creates the devices of a pool: block devices and plain files.
//!
//! Two programs never have a device open for writing at the same time: a file gets an exclusive
//! `flock`, and a block device is also opened with `O_EXCL`, which keeps it from being mounted.
//! Locks belong to the open file, so they end with the [`HostDevice`] or the process.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use millpond_block::{Buf, DeviceGeometry, DeviceSpace, PAGE};
use rustix::fs::{self, Access, Advice, AtFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use crate::page_cache::{PageCache, open_through};
use crate::serial::serial_of;
use crate::space::space_of;

/// Sizes are rounded down to multiples of this, the grain of every [`millpond_block::Io`].
const GRAIN: u64 = PAGE as u64;
/// `GRAIN` in the type of sector sizes.
const GRAIN_32: u32 = PAGE as u32;
/// Magic numbers of filesystems in memory, as statfs(2) returns them.
const TMPFS_MAGIC: u32 = 0x0102_1994;
const RAMFS_MAGIC: u32 = 0x8584_58f6;

/// Options for opening a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Create the file if it is missing, and grow it to this many bytes if it is smaller (sparse;
    /// it never shrinks). For a block device that is smaller, opening fails.
    pub create_size: Option<u64>,
    /// Bypass the kernel's page cache where the host can; see [`HostDevice::direct`].
    pub direct: bool,
    /// Open without the right to write. Several programs may do so at a time, but not together with
    /// a writer.
    pub read_only: bool,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostDeviceKind {
    /// A plain file.
    File,
    /// A block device.
    Block,
}

/// An open, locked device.
#[derive(Debug)]
pub struct HostDevice {
    file: OwnedFd,
    path: PathBuf,
    kind: HostDeviceKind,
    geometry: DeviceGeometry,
    direct: bool,
    in_memory: bool,
    read_only: bool,
    serial: Option<String>,
    space: Option<DeviceSpace>,
    stand_in: bool,
}

/// The kernel's page cache of an open file. Errors are ignored: they are no reason not to open it.
struct Cached<'a>(BorrowedFd<'a>);

impl PageCache for Cached<'_> {
    fn write_back(&mut self) {
        let _ = fs::fdatasync(self.0);
    }

    fn forget(&mut self) {
        let _ = fs::fadvise(self.0, 0, None, Advice::DontNeed);
    }
}

/// The step during which opening failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenStep {
    /// Looking up the path.
    Inspect,
    /// Opening the file or device.
    Open,
    /// Making the new file or its directory entry durable.
    Create,
    /// Growing the file.
    Grow,
    /// Reading size and sectors.
    Measure,
}

impl fmt::Display for OpenStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpenStep::Inspect => "inspect",
            OpenStep::Open => "open",
            OpenStep::Create => "create",
            OpenStep::Grow => "grow",
            OpenStep::Measure => "measure",
        })
    }
}

/// Reason why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The path does not exist.
    #[error("{path} does not exist; give FILE:SIZE to create it")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// It is neither a file nor a block device.
    #[error("{path} is a {found}; a pool needs a block device or a plain file")]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// Kind of the file at the path.
        found: &'static str,
    },
    /// Another daemon, mount or program uses it.
    #[error("{path} is in use by another program; export the pool there or unmount it first")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// It has less than one grain, or less than requested and cannot grow.
    #[error("{path} has {size} bytes, {needed} are needed")]
    TooSmall {
        /// The path.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// Required size in bytes.
        needed: u64,
    },
    /// Its sectors are larger than 4096 bytes.
    #[error("{path} has sectors of {logical} bytes; 512 and 4096 are supported")]
    Sector {
        /// The path.
        path: PathBuf,
        /// Logical sector in bytes.
        logical: u32,
    },
    /// A system call failed.
    #[error("cannot {step} {path}: {errno}")]
    Host {
        /// The path.
        path: PathBuf,
        /// The step that failed.
        step: OpenStep,
        /// The error.
        errno: Errno,
    },
}

impl HostDevice {
    /// Opens and locks `path`, and creates or grows a file when the options say so. A created file
    /// is durable on return, with its directory entry.
    ///
    /// # Errors
    /// [`OpenError`]; a file that this call created is removed again.
    pub fn open(path: &Path, options: OpenOptions) -> Result<HostDevice, OpenError> {
        let fail = |step| move |errno| OpenError::Host { path: path.to_owned(), step, errno };
        let (kind, create) = match fs::stat(path) {
            Ok(stat) => (kind_of(path, FileType::from_raw_mode(stat.st_mode))?, false),
            Err(Errno::NOENT) if options.create_size.is_some() && !options.read_only => (HostDeviceKind::File, true),
            Err(Errno::NOENT) => return Err(OpenError::Missing { path: path.to_owned() }),
            Err(errno) => return Err(fail(OpenStep::Inspect)(errno)),
        };
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        if create {
            flags |= OFlags::CREATE | OFlags::EXCL;
        } else if kind == HostDeviceKind::Block && !options.read_only {
            flags |= OFlags::EXCL;
        }
        let mode = Mode::RUSR | Mode::WUSR;
        // Some filesystems refuse O_DIRECT at open, others only at the first use; `settle` handles
        // the latter.
        let opened = match fs::open(path, if options.direct { flags | OFlags::DIRECT } else { flags }, mode) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if options.direct => fs::open(path, flags, mode).map(|file| (file, false)),
            other => other.map(|file| (file, options.direct)),
        };
        let (file, direct) = opened.map_err(|errno| match errno {
            Errno::BUSY => OpenError::InUse { path: path.to_owned() },
            errno => fail(OpenStep::Open)(errno),
        })?;
        if kind == HostDeviceKind::File {
            // Access times of pool files are useless, and updating them costs a read in memory a
            // fortieth of its time. Only the owner may set the flag.
            let _ = fs::fcntl_getfl(&file).and_then(|flags| fs::fcntl_setfl(&file, flags | OFlags::NOATIME));
        }
        let geometry = DeviceGeometry { size: 0, logical_sector: 512, physical_sector: GRAIN_32 };
        let in_memory = kind == HostDeviceKind::File && is_in_memory(&file);
        let (path_buf, read_only, serial) = (path.to_owned(), options.read_only, fs::fstat(&file).ok().as_ref().and_then(serial_of));
        let mut device =
            HostDevice { file, path: path_buf, kind, geometry, direct, in_memory, read_only, serial, space: None, stand_in: false };
        let settled = device.settle(options, create);
        if create && settled.as_ref().is_err_and(|error| !matches!(error, OpenError::InUse { .. })) {
            // The returned error is the one that matters; the empty file is removed. A file that is
            // in use now belongs to another program.
            let _ = fs::unlink(path);
        }
        settled.map(|()| device)
    }

    /// True when this is not the file at the path but a temporary stand-in for a file that does not
    /// exist yet ([`HostDevice::rehearse`]).
    pub fn is_stand_in(&self) -> bool {
        self.stand_in
    }

    /// Opens and locks the device at `path` as [`HostDevice::open`] would, but creates and grows
    /// nothing. Where a file would be created, it opens a file without a name instead, which
    /// disappears when it is closed: conditions that would make creation fail make this call fail,
    /// too.
    ///
    /// # Errors
    /// Those of [`HostDevice::open`].
    pub fn rehearse(path: &Path, options: OpenOptions) -> Result<HostDevice, OpenError> {
        let fail = |step| move |errno| OpenError::Host { path: path.to_owned(), step, errno };
        let there = fs::stat(path);
        let empty = there.as_ref().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0);
        let size = match (there, options.create_size) {
            (Err(Errno::NOENT), Some(size)) => size,
            (Ok(_), Some(size)) if empty => {
                fs::access(path, Access::READ_OK | Access::WRITE_OK).map_err(fail(OpenStep::Open))?;
                size
            }
            _ => return HostDevice::open(path, OpenOptions { create_size: None, ..options }),
        };
        let parent = parent_of(path);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        let file = match fs::open(parent, flags, Mode::RUSR | Mode::WUSR) {
            // where the filesystem has no unnamed files, a file in memory gets the size, and the
            // right to write to the directory is checked
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let may = if empty { Ok(()) } else { fs::access(parent, Access::WRITE_OK | Access::EXEC_OK) };
                may.and_then(|()| fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC))
            }
            // an empty file exists, in a directory without the right to write
            Err(Errno::ACCESS | Errno::PERM) if empty => fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC),
            opened => opened,
        };
        let file = file.map_err(fail(OpenStep::Open))?;
        let geometry = DeviceGeometry { size: 0, logical_sector: 512, physical_sector: GRAIN_32 };
        let (path, kind) = (path.to_owned(), HostDeviceKind::File);
        // the stand-in has no pages in the page cache that matter
        let (in_memory, stand_in) = (true, true);
        let mut device =
            HostDevice { file, path, kind, geometry, direct: false, in_memory, read_only: false, serial: None, space: None, stand_in };
        device.settle(OpenOptions { create_size: Some(size), ..OpenOptions::default() }, false)?;
        Ok(device)
    }

    /// Locks and measures the device, and grows it if requested: the steps after opening.
    fn settle(&mut self, options: OpenOptions, created: bool) -> Result<(), OpenError> {
        let lock = if self.read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
        fs::flock(&self.file, lock).map_err(|errno| match errno {
            Errno::WOULDBLOCK => OpenError::InUse { path: self.path.clone() },
            errno => self.fail(OpenStep::Open, errno),
        })?;
        let opened = fs::fstat(&self.file).map_err(|errno| self.fail(OpenStep::Inspect, errno))?;
        if kind_of(&self.path, FileType::from_raw_mode(opened.st_mode))? != self.kind {
            return Err(self.fail(OpenStep::Open, Errno::STALE));
        }
        if let Some(size) = options.create_size {
            self.grow(size)?;
        }
        if created {
            self.make_entry_durable()?;
        }
        self.measure()?;
        if !self.direct && !self.in_memory {
            open_through(&mut Cached(self.file.as_fd()), None);
        }
        Ok(())
    }

    fn fail(&self, step: OpenStep, errno: Errno) -> OpenError {
        OpenError::Host { path: self.path.clone(), step, errno }
    }

    /// Grows a file to at least `size` bytes (sparse) and makes its size durable. A device that is
    /// large enough is left unchanged.
    ///
    /// # Errors
    /// [`OpenError::TooSmall`] for block devices, [`OpenError::Host`].
    pub fn grow(&mut self, size: u64) -> Result<(), OpenError> {
        let now = self.host_size()?;
        if now >= size {
            return Ok(());
        }
        if self.kind == HostDeviceKind::Block || self.read_only {
            return Err(OpenError::TooSmall { path: self.path.clone(), size: now, needed: size });
        }
        fs::ftruncate(&self.file, size).and_then(|()| fs::fsync(&self.file)).map_err(|errno| self.fail(OpenStep::Grow, errno))?;
        self.measure()
    }

    fn make_entry_durable(&self) -> Result<(), OpenError> {
        fs::open(parent_of(&self.path), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(fs::fsync)
            .map_err(|errno| self.fail(OpenStep::Create, errno))
    }

    fn host_size(&self) -> Result<u64, OpenError> {
        // The end of a block device is its size (as BLKGETSIZE64 returns it), so one call serves
        // both kinds.
        fs::seek(&self.file, SeekFrom::End(0)).map_err(|errno| self.fail(OpenStep::Measure, errno))
    }

    fn measure(&mut self) -> Result<(), OpenError> {
        let path = self.path.clone();
        let measure = |errno| OpenError::Host { path: path.clone(), step: OpenStep::Measure, errno };
        let size = self.host_size()? / GRAIN * GRAIN;
        if size == 0 {
            return Err(OpenError::TooSmall { path: self.path.clone(), size, needed: GRAIN });
        }
        let (logical_sector, physical_sector) = match self.kind {
            HostDeviceKind::Block => {
                (fs::ioctl_blksszget(&self.file).map_err(measure)?, fs::ioctl_blkpbszget(&self.file).map_err(measure)?)
            }
            HostDeviceKind::File => (direct_grain(&self.file).unwrap_or(512), GRAIN_32),
        };
        if !matches!(logical_sector, 512 | 4096) {
            if self.kind == HostDeviceKind::Block {
                return Err(OpenError::Sector { path: self.path.clone(), logical: logical_sector });
            }
            self.leave_direct().map_err(measure)?;
        }
        let logical_sector = if logical_sector == GRAIN_32 { GRAIN_32 } else { 512 };
        self.geometry = DeviceGeometry { size, logical_sector, physical_sector: physical_sector.max(logical_sector) };
        if self.direct {
            self.try_direct().map_err(measure)?;
        }
        Ok(())
    }

    /// Reads the first page with direct I/O. If the host does not support it, the device is used
    /// through the page cache.
    fn try_direct(&mut self) -> Result<(), Errno> {
        let mut page = Buf::zeroed(PAGE);
        match rustix::io::pread(&self.file, page.bytes_mut(), 0) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => self.leave_direct(),
            Ok(_) => Ok(()),
            // The engine finds and reports media that cannot be read; opening need not fail.
            Err(Errno::IO) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn leave_direct(&mut self) -> Result<(), Errno> {
        if self.direct {
            let flags = fs::fcntl_getfl(&self.file)?;
            fs::fcntl_setfl(&self.file, flags.difference(OFlags::DIRECT))?;
            self.direct = false;
        }
        Ok(())
    }

    /// Size and sectors; the size is rounded down to 4096.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The serial number of the disk, as it was at opening; `None` for files, and for devices
    /// without one.
    pub fn serial(&self) -> Option<&str> {
        self.serial.as_deref()
    }

    /// File or block device.
    pub fn kind(&self) -> HostDeviceKind {
        self.kind
    }

    /// True when the kernel's page cache is bypassed.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// True when the file is in a filesystem in memory: operations copy and do not wait for a
    /// device.
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// True when opened without the right to write.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Looks up which parts have space on the host, for [`HostDevice::take_space`]. For a long file
    /// with many extents this takes a while.
    #[must_use]
    pub fn with_space(mut self) -> HostDevice {
        self.space = Some(space_of(&self.file, self.kind, self.geometry.size));
        self
    }

    /// Returns which parts of the device have space on the host.
    pub fn take_space(&mut self) -> DeviceSpace {
        self.space.take().unwrap_or_else(|| space_of(&self.file, self.kind, self.geometry.size))
    }

    /// Whether this is a block device that the kernel has removed, because it was pulled out. The
    /// kernel then reports a size of 0, and answers writes with ENOSPC, as if a volume were full.
    pub(crate) fn is_removed(&self) -> bool {
        self.kind == HostDeviceKind::Block && fs::seek(&self.file, SeekFrom::End(0)).is_ok_and(|size| size == 0)
    }

    /// End of the bytes that can be read now: less than the geometry's size if another program has
    /// truncated the file.
    pub(crate) fn readable_end(&self) -> Result<u64, Errno> {
        match self.kind {
            HostDeviceKind::File => fs::fstat(&self.file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0)),
            HostDeviceKind::Block => Ok(self.geometry.size),
        }
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // Closing unlocks too, but later if a forked process or the kernel still has the open file.
        let _ = fs::flock(&self.file, FlockOperation::NonBlockingUnlock);
    }
}

impl AsFd for HostDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the directory of a path.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn kind_of(path: &Path, kind: FileType) -> Result<HostDeviceKind, OpenError> {
    let found = match kind {
        FileType::RegularFile => return Ok(HostDeviceKind::File),
        FileType::BlockDevice => return Ok(HostDeviceKind::Block),
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    };
    Err(OpenError::WrongKind { path: path.to_owned(), found })
}

/// Returns the offset alignment that direct I/O on a file needs, if the host reports it.
fn direct_grain(file: &OwnedFd) -> Option<u32> {
    let stat: Statx = fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (is_known && stat.stx_dio_offset_align != 0).then_some(stat.stx_dio_offset_align.max(512))
}

/// True for tmpfs and ramfs.
fn is_in_memory(file: &OwnedFd) -> bool {
    fs::fstatfs(file).is_ok_and(|stat| u32::try_from(stat.f_type).is_ok_and(|magic| matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC)))
}

#[cfg(test)]
pub(crate) mod tests;
