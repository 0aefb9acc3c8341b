//! Common parts of the lab's FUSE mounts: a directory of files with a fixed size, which bypass the page
//! cache.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, InitFlags, KernelConfig};

/// Largest request of the kernel with 4 KiB pages.
const MAX_REQUEST: u32 = 1 << 20;
/// Maximum number of requests that the kernel keeps in flight; more than any load of the lab.
const IN_FLIGHT: u16 = 1024;
/// Cache time of names and attributes, which never change.
pub const FOREVER: Duration = Duration::from_secs(3600);
/// Opened files bypass the page cache regardless of the open flags: a cached request would take no time.
pub const DIRECT: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Asks the kernel for large requests, many of them at a time.
///
/// # Errors
/// The kernel does not take these limits.
pub fn configure(config: &mut KernelConfig) -> io::Result<()> {
    let wrong = |what: &str| io::Error::other(format!("the kernel does not take {what}"));
    config.set_max_write(MAX_REQUEST).map_err(|_| wrong("requests of 1 MiB"))?;
    config.set_max_background(IN_FLIGHT).map_err(|_| wrong("so many requests"))?;
    config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| wrong("asynchronous direct I/O"))
}

/// Returns the attributes of a file of `size` bytes, all of them in use, or of the directory.
pub fn attributes(inode: INodeNo, size: u64) -> FileAttr {
    let (kind, perm) = if inode == INodeNo::ROOT { (FileType::Directory, 0o755) } else { (FileType::RegularFile, 0o600) };
    FileAttr {
        ino: inode,
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
