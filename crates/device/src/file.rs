//! Opens and creates what a pool lies on: block devices and plain files.
//!
//! Two openers never share a device for writing: a file carries an exclusive `flock`, a block device is opened with `O_EXCL` as well,
//! which also keeps it from being mounted. Locks belong to the open file, so they end with the [`HostDevice`] or the process.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use millpond_block::{Buf, PAGE};
use rustix::fs::{self, Access, Advice, AtFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use crate::page_cache::{PageCache, open_through};
use crate::serial::serial_of;
use crate::space::space_of;
use crate::{DeviceGeometry, DeviceSpace};

/// Sizes are rounded down to this many bytes, the grain of every [`crate::Io`].
const GRAIN: u64 = PAGE as u64;
/// `GRAIN` in the type of sector sizes.
const GRAIN_32: u32 = PAGE as u32;
/// What statfs(2) tells of filesystems in memory.
const TMPFS_MAGIC: u32 = 0x0102_1994;
const RAMFS_MAGIC: u32 = 0x8584_58f6;

/// How to open a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Make the file when it is missing and grow it to this many bytes when it is smaller (sparse; never shrinks). An error on a block
    /// device that is smaller.
    pub create_size: Option<u64>,
    /// Bypass the kernel's page cache where the host can; [`HostDevice::direct`] tells whether it does.
    pub direct: bool,
    /// Open without the right to write; several may do so at a time, but not together with a writer.
    pub read_only: bool,
}

/// What kind of thing a device is.
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

/// The kernel's page cache of an open file. What fails is no reason not to open it.
struct Cached<'a>(BorrowedFd<'a>);

impl PageCache for Cached<'_> {
    fn write_back(&mut self) {
        let _ = fs::fdatasync(self.0);
    }

    fn forget(&mut self) {
        let _ = fs::fadvise(self.0, 0, None, Advice::DontNeed);
    }
}

/// What was being done when opening failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenStep {
    /// Looking at the path.
    Inspect,
    /// Opening it.
    Open,
    /// Making the file or its entry in the directory durable.
    Create,
    /// Making the file bigger.
    Grow,
    /// Asking for size and sectors.
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

/// Why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is nothing at the path.
    #[error("{path} does not exist; give FILE:SIZE to create it")]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// It is neither a file nor a block device.
    #[error("{path} is a {found}; a pool needs a block device or a plain file")]
    WrongKind {
        /// Where.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Another daemon, mount or program holds it.
    #[error("{path} is in use by another program; export the pool there or unmount it first")]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// It holds less than one grain, or less than was asked for and cannot grow.
    #[error("{path} has {size} bytes, {needed} are needed")]
    TooSmall {
        /// Where.
        path: PathBuf,
        /// Bytes there.
        size: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// Its sectors are larger than 4096 bytes.
    #[error("{path} has sectors of {logical} bytes; 512 and 4096 are supported")]
    Sector {
        /// Where.
        path: PathBuf,
        /// Logical sector in bytes.
        logical: u32,
    },
    /// The host refused.
    #[error("cannot {step} {path}: {errno}")]
    Host {
        /// Where.
        path: PathBuf,
        /// During what.
        step: OpenStep,
        /// Why.
        errno: Errno,
    },
}

impl HostDevice {
    /// Opens and locks `path`, creating or growing a file when the options say so. A file that was made is durable on return, its
    /// directory entry included.
    ///
    /// # Errors
    /// [`OpenError`]; a file made by this call is removed again.
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
        // Some file systems refuse O_DIRECT when opening, others only when it is used: `settle` sorts those out.
        let opened = match fs::open(path, if options.direct { flags | OFlags::DIRECT } else { flags }, mode) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if options.direct => fs::open(path, flags, mode).map(|file| (file, false)),
            other => other.map(|file| (file, options.direct)),
        };
        let (file, direct) = opened.map_err(|errno| match errno {
            Errno::BUSY => OpenError::InUse { path: path.to_owned() },
            errno => fail(OpenStep::Open)(errno),
        })?;
        if kind == HostDeviceKind::File {
            // Nobody wants to know when a pool was last read; noting it costs a read in memory a fortieth of its time. The owner alone may ask.
            let _ = fs::fcntl_getfl(&file).and_then(|flags| fs::fcntl_setfl(&file, flags | OFlags::NOATIME));
        }
        let geometry = DeviceGeometry { size: 0, logical_sector: 512, physical_sector: GRAIN_32 };
        let in_memory = kind == HostDeviceKind::File && is_in_memory(&file);
        let (path_buf, read_only, serial) = (path.to_owned(), options.read_only, fs::fstat(&file).ok().as_ref().and_then(serial_of));
        let mut device =
            HostDevice { file, path: path_buf, kind, geometry, direct, in_memory, read_only, serial, space: None, stand_in: false };
        let settled = device.settle(options, create);
        if create && settled.as_ref().is_err_and(|error| !matches!(error, OpenError::InUse { .. })) {
            // The error that matters is the one being returned; the empty file is only litter. One that is in use is not ours any more.
            let _ = fs::unlink(path);
        }
        settled.map(|()| device)
    }

    /// True when this is not what is at the path, but stands in for a file that is still to be made ([`HostDevice::rehearse`]).
    pub fn is_stand_in(&self) -> bool {
        self.stand_in
    }

    /// Opens and locks what is at `path`, as [`HostDevice::open`] would, and makes and grows nothing. In place of a file that is to be made there is one
    /// without a name, which is gone when it is closed: what would keep the real one from being made keeps this one, too.
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
            // where no file is without a name one in memory has the size, and the directory is asked
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let may = if empty { Ok(()) } else { fs::access(parent, Access::WRITE_OK | Access::EXEC_OK) };
                may.and_then(|()| fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC))
            }
            // an empty file in a directory that may not be written to
            Err(Errno::ACCESS | Errno::PERM) if empty => fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC),
            opened => opened,
        };
        let file = file.map_err(fail(OpenStep::Open))?;
        let geometry = DeviceGeometry { size: 0, logical_sector: 512, physical_sector: GRAIN_32 };
        let (path, kind) = (path.to_owned(), HostDeviceKind::File);
        // it has no pages in a cache that matter
        let (in_memory, stand_in) = (true, true);
        let mut device =
            HostDevice { file, path, kind, geometry, direct: false, in_memory, read_only: false, serial: None, space: None, stand_in };
        device.settle(OpenOptions { create_size: Some(size), ..OpenOptions::default() }, false)?;
        Ok(device)
    }

    /// Locks, sizes, measures; the steps after opening.
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

    /// Makes a file at least `size` bytes long (sparse) and durable at that; a device that is large enough already is left alone.
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
        // The end of a block device is its size (what BLKGETSIZE64 tells), so that one call serves both kinds.
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

    /// Reads the first page directly; a host that cannot do that is used through its page cache.
    fn try_direct(&mut self) -> Result<(), Errno> {
        let mut page = Buf::zeroed(PAGE);
        match rustix::io::pread(&self.file, page.bytes_mut(), 0) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => self.leave_direct(),
            Ok(_) => Ok(()),
            // A medium that cannot be read is for the engine to find and name; opening is no reason to fail.
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

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The serial number of the disk, as it was when the device was opened; nothing for files, and for devices that have none.
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

    /// True when it lies in a filesystem that keeps its content in memory: using it is a copy, not a wait.
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// True when opened without the right to write.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Looks up what the host has for the device, for [`HostDevice::take_space`]. Of a long file that is in many pieces it takes a while.
    #[must_use]
    pub fn with_space(mut self) -> HostDevice {
        self.space = Some(space_of(&self.file, self.kind, self.geometry.size));
        self
    }

    /// What the host has for the device.
    pub fn take_space(&mut self) -> DeviceSpace {
        self.space.take().unwrap_or_else(|| space_of(&self.file, self.kind, self.geometry.size))
    }

    /// Bytes that can be read right now: of a file that somebody cut short, fewer than the geometry says.
    pub(crate) fn readable_end(&self) -> Result<u64, Errno> {
        match self.kind {
            HostDeviceKind::File => fs::fstat(&self.file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0)),
            HostDeviceKind::Block => Ok(self.geometry.size),
        }
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // Closing does it too, but later if somebody else (a forked process, the kernel) still has the open file.
        let _ = fs::flock(&self.file, FlockOperation::NonBlockingUnlock);
    }
}

impl AsFd for HostDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The directory that a path is in.
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

/// The offset alignment that direct I/O on a file needs, where the host tells.
fn direct_grain(file: &OwnedFd) -> Option<u32> {
    let stat: Statx = fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (told && stat.stx_dio_offset_align != 0).then_some(stat.stx_dio_offset_align.max(512))
}

/// True for tmpfs and ramfs.
fn is_in_memory(file: &OwnedFd) -> bool {
    fs::fstatfs(file).is_ok_and(|stat| u32::try_from(stat.f_type).is_ok_and(|magic| matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC)))
}

#[cfg(test)]
pub(crate) mod tests;
