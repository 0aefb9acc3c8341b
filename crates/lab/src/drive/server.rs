//! Serves simulated drives as files of a FUSE mount. The data of a write goes to the drive's
//! backing file at once, the data of a read is taken from it at its completion; both are answered
//! at the time that the model gives.

use super::model::{Drive, Sized};
use super::request::{Nanos, Op, Request};
use crate::mounted::{DIRECT, FOREVER, attributes, configure};
use anyhow::{Context, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, WriteFlags,
};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Inode of the first file; the directory has inode 1.
const FIRST_FILE: u64 = 2;

/// Serves `disk0`, `disk1`, … in a directory until it is unmounted. Data is kept in sparse files of
/// the same names in `backing`, which are made if they are missing.
///
/// # Errors
/// Not root, no `/dev/fuse`, or a backing file cannot be made.
pub fn serve(mount: &Path, backing: &Path, drives: &[Sized]) -> Result<()> {
    let mut files = Vec::new();
    for (index, drive) in drives.iter().enumerate() {
        let path = backing.join(format!("disk{index}"));
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        file.set_len(drive.size).with_context(|| format!("sizing {}", path.display()))?;
        files.push(Disk::start(Drive::new(&drive.model, drive.size), file, drive.size));
    }
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("millpond-drives".to_owned()), MountOption::NoAtime];
    fuser::mount(Drives(files), mount, &config).with_context(|| format!("mounting simulated drives on {}", mount.display()))
}

/// A request that is in flight.
enum Pending {
    Read(ReplyData, u64, u32),
    Write(ReplyWrite, u32),
    Flush(ReplyEmpty),
}

struct State {
    drive: Drive,
    pending: HashMap<u64, Pending>,
    made: u64,
}

struct Disk {
    state: Mutex<State>,
    wake: Condvar,
    since: Instant,
    file: File,
    size: u64,
}

impl Disk {
    fn start(drive: Drive, file: File, size: u64) -> Arc<Disk> {
        let state = Mutex::new(State { drive, pending: HashMap::new(), made: 0 });
        let disk = Arc::new(Disk { state, wake: Condvar::new(), since: Instant::now(), file, size });
        let own = disk.clone();
        thread::spawn(move || own.work());
        disk
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos::try_from(self.since.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    fn submit(&self, op: Op, offset: u64, length: u64, pending: Pending) {
        let mut state = self.lock();
        state.made += 1;
        let id = state.made;
        state.pending.insert(id, pending);
        state.drive.submit(self.now(), Request { id, op, offset, length });
        self.wake.notify_one();
    }

    /// Answers completed requests, as long as the process lives.
    fn work(&self) {
        let mut done = Vec::new();
        let mut buffer = Vec::new();
        let mut state = self.lock();
        loop {
            state.drive.advance(self.now(), &mut done);
            if !done.is_empty() {
                let due: Vec<Pending> = done.drain(..).filter_map(|d| state.pending.remove(&d.id)).collect();
                drop(state);
                due.into_iter().for_each(|pending| self.answer(pending, &mut buffer));
                state = self.lock();
                continue;
            }
            state = match state.drive.next() {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = Duration::from_nanos(at.saturating_sub(self.now()));
                    self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn answer(&self, pending: Pending, buffer: &mut Vec<u8>) {
        match pending {
            Pending::Write(reply, length) => reply.written(length),
            Pending::Flush(reply) => reply.ok(),
            Pending::Read(reply, offset, length) => {
                buffer.resize(length as usize, 0);
                match self.file.read_exact_at(buffer, offset) {
                    Ok(()) => reply.data(buffer),
                    Err(error) => reply.error(error.into()),
                }
            }
        }
    }
}

struct Drives(Vec<Arc<Disk>>);

impl Drives {
    fn disk(&self, inode: INodeNo) -> Option<&Arc<Disk>> {
        self.0.get(usize::try_from(inode.0.checked_sub(FIRST_FILE)?).ok()?)
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let size = if inode == INodeNo::ROOT { 0 } else { self.disk(inode)?.size };
        Some(attributes(inode, size))
    }
}

impl Filesystem for Drives {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config)
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.strip_prefix("disk")?.parse::<u64>().ok()).filter(|_| parent == INodeNo::ROOT);
        match number.and_then(|n| self.attributes(INodeNo(n.checked_add(FIRST_FILE)?))) {
            Some(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (index, number) in (0..self.0.len() as u64).enumerate().skip(offset as usize) {
            if reply.add(INodeNo(number + FIRST_FILE), index as u64 + 1, FileType::RegularFile, format!("disk{number}")) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), DIRECT);
    }

    fn read(
        &self,
        _: &fuser::Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(disk) = self.disk(inode) else { return reply.error(Errno::ENOENT) };
        let length = u64::from(size).min(disk.size.saturating_sub(offset));
        if length == 0 {
            return reply.data(&[]);
        }
        disk.submit(Op::Read, offset, length, Pending::Read(reply, offset, length as u32));
    }

    fn write(
        &self,
        _: &fuser::Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(disk) = self.disk(inode) else { return reply.error(Errno::ENOENT) };
        let length = data.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > disk.size) {
            return reply.error(Errno::ENOSPC);
        }
        match disk.file.write_all_at(data, offset) {
            Ok(()) => disk.submit(Op::Write, offset, length, Pending::Write(reply, data.len() as u32)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // of close(2), not of the drive
    }

    fn fsync(&self, _: &fuser::Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.disk(inode) {
            Some(disk) => disk.submit(Op::Flush, 0, 0, Pending::Flush(reply)),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Discards take no time, and free space of the backing file.
    fn fallocate(&self, _: &fuser::Request, inode: INodeNo, _: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        const DISCARD: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        let Some(disk) = self.disk(inode) else { return reply.error(Errno::ENOENT) };
        if mode as u32 != DISCARD.bits() {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match fallocate(&disk.file, DISCARD, offset, length) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(io::Error::from(error).into()),
        }
    }
}
