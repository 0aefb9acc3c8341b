//! The ceiling over FUSE: a mount with one file that is only memory. It shows the cost of the
//! kernel's FUSE, a limit that no file of a mount can exceed by much.

use crate::mounted::{DIRECT, FOREVER, attributes, configure};
use anyhow::{Context, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, Filesystem, Generation, INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Name of the file.
pub const FILE: &str = "disk";
/// Its inode; the directory has inode 1.
const INODE: INodeNo = INodeNo(2);

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
        attributes(inode, if inode == INODE { self.lock().len() as u64 } else { 0 })
    }
}

impl Filesystem for Memory {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config)
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
        reply.opened(FileHandle(0), DIRECT);
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
