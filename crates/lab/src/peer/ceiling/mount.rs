//! The ceiling over FUSE: a mount with one file that is only memory. It shows the cost of the
//! kernel's FUSE, a limit that no file of a mount can exceed by much.

use anyhow::{Context, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// Name of the file.
pub const FILE: &str = "disk";
/// Its inode; the directory has inode 1.
const INODE: INodeNo = INodeNo(2);
/// Largest request of the kernel with 4 KiB pages.
const MAX_REQUEST: u32 = 1 << 20;
/// Maximum number of requests that the kernel keeps in flight; more than any load of the lab.
const IN_FLIGHT: u16 = 1024;
/// Cache time of names and attributes, which never change.
const FOREVER: Duration = Duration::from_secs(3600);

/// Serves `size` bytes of memory as the file [`FILE`] of a directory until it is unmounted.
///
/// # Errors
/// Not root, or no `/dev/fuse`.
pub fn serve(mount: &Path, size: u64) -> Result<()> {
    let memory = Mutex::new(vec![1; usize::try_from(size)?]);
    fuser::mount(Memory(memory), mount, &Config::default()).with_context(|| format!("mounting memory on {}", mount.display()))
}

struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == INODE;
        let size = if is_file { self.lock().len() as u64 } else { 0 };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o755 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Memory {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wrong = |what: &str| io::Error::other(format!("the kernel does not take {what}"));
        config.set_max_write(MAX_REQUEST).map_err(|_| wrong("requests of 1 MiB"))?;
        config.set_max_background(IN_FLIGHT).map_err(|_| wrong("so many requests"))?;
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| wrong("asynchronous direct I/O"))
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&FOREVER, &self.attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(inode));
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let memory = self.lock();
        let end = start.saturating_add(size as usize).min(memory.len());
        reply.data(memory.get(start..end).unwrap_or_default());
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        match self.lock().get_mut(start..start.saturating_add(data.len())) {
            Some(place) => place.copy_from_slice(data),
            None => return reply.error(Errno::ENOSPC),
        }
        reply.written(data.len() as u32); // at most 1 MiB
    }

    fn flush(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}
