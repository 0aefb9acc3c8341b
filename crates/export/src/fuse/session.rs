//! One mount: requests of the kernel and the replies to them.
//!
//! Invariants:
//! - `INV-FUSE-1` Every request that needs a reply gets exactly one, with its number, whatever it
//!   contains.
//! - `INV-FUSE-2` Memory is bounded. At [`MAX_REQUESTS`] requests or [`MAX_BYTES`] in flight, and
//!   while a request waits for memory, [`Session::has_room`] is false and the loop leaves further
//!   requests with the kernel.
//! - `INV-FUSE-3` The kernel caches neither the tree nor the content: each name, size and byte is
//!   the pool's at that moment.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Answer, Buf, Completion, DiskError, Tag};
use zerocopy::FromBytes;

use super::attr::{Owner, attributes};
use super::directory;
use super::files::held_by_write;
use super::handles::{Counters, Handle, Handles, Load};
use super::inflight::{InFlight, Kind};
use super::message::{MAX_TRANSFER, Message};
use super::node::Node;
use super::reply::Reply;
use super::tree::{Image, Tree};
use super::wire::{
    AttrOut, EntryOut, InHeader, InitIn, InitOut, MAJOR, MINOR, NAME_MAX, OLDEST_MINOR, ReadIn, ReleaseIn, SetattrIn, StatfsOut, WriteOut,
    errno, init_flag, opcode, setattr_flag,
};

/// Maximum number of requests in flight: enough for some hundred threads, or a few deep queues.
pub const MAX_REQUESTS: usize = 512;
/// Maximum bytes of reads and writes in flight. One request may exceed it.
pub const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of open files.
pub(super) const MAX_HANDLES: usize = 65_536;
/// Flags that are requested, where the kernel has them.
const FLAGS: u32 = init_flag::ASYNC_READ
    | init_flag::BIG_WRITES
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::MAX_PAGES
    | init_flag::NO_OPENDIR_SUPPORT;
/// Unit of the pool's space, in bytes. Loop devices use it as the granularity of discards.
const BLOCK: u32 = 4096;

/// The server side of one mount. See the [module](super) for how a loop drives it.
pub struct Session {
    owner: Owner,
    /// True after INIT: kernel and session have agreed on a protocol version.
    ready: bool,
    pub(super) in_flight: InFlight,
    pub(super) handles: Handles,
    pub(super) replies: VecDeque<Reply>,
    /// Length of the request in the message that waits for memory.
    waiting: Option<usize>,
}

/// Immediate result of a request: a reply or an errno. `None`: the reply comes later, or none is
/// needed.
pub(super) type Outcome = Result<Option<Reply>, i32>;

impl Session {
    /// Makes a session for a new mount whose files belong to `owner`. `id` is the upper half of
    /// every tag. It must not be given to another session while completions of this session are
    /// outstanding.
    pub fn new(id: u32, owner: Owner) -> Session {
        Session { owner, ready: false, in_flight: InFlight::new(id), handles: Handles::default(), replies: VecDeque::new(), waiting: None }
    }

    /// Returns false while the next request has to wait for replies or memory.
    pub fn has_room(&self) -> bool {
        self.waiting.is_none() && self.in_flight.len() < MAX_REQUESTS && self.in_flight.bytes < MAX_BYTES
    }

    /// Returns the number of requests in flight to the disk.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the bytes of memory that reads and writes in flight hold: memory reserved and not
    /// yet returned.
    pub fn bytes(&self) -> u64 {
        self.in_flight.bytes
    }

    /// Returns true while a request waits for memory.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns the number of replies to be written.
    pub fn replies(&self) -> usize {
        self.replies.len()
    }

    /// Returns the next reply to be written to the device.
    pub fn pop_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// Returns the open files by number.
    pub fn handles(&self) -> impl Iterator<Item = (u64, &Handle)> {
        self.handles.iter()
    }

    /// Returns the counters of all requests since the session began.
    pub fn counters(&self) -> Counters {
        self.handles.total()
    }

    /// Returns the use of each image that was opened.
    pub fn loads(&self) -> BTreeMap<Image, Load> {
        self.handles.loads()
    }

    /// Handles a request of `length` bytes that was read into `message`. `spare` returns a buffer
    /// of the same size as the message's own, which is used when the message's buffer is handed on.
    pub fn request<T: Tree>(&mut self, message: &mut Message, length: usize, tree: &mut T, spare: impl FnOnce(&mut T) -> Buf) {
        // Without a header there is no number for a reply. The kernel sends no such request.
        let Some(header) = message.header(length) else { return };
        let bytes = memory_of(&header, message, length);
        if bytes > 0 && !tree.reserve(bytes) {
            self.waiting = Some(length);
            return;
        }
        let outcome = if header.len as usize != length { Err(errno::EINVAL) } else { self.dispatch(&header, message, length, tree, spare) };
        match outcome {
            Ok(None) => {}
            Ok(Some(reply)) => self.replies.push_back(reply),
            Err(error) => {
                // requests for unsupported operations or missing names do not count as errors
                self.handles.rest().errors += u64::from(error != errno::ENOSYS && error != errno::ENOENT);
                self.replies.push_back(Reply::error(header.unique, error));
            }
        }
    }

    /// Continues with the request that waits for memory and is still in `message`.
    pub fn resume<T: Tree>(&mut self, message: &mut Message, tree: &mut T, spare: impl FnOnce(&mut T) -> Buf) {
        if let Some(length) = self.waiting.take() {
            self.request(message, length, tree, spare);
        }
    }

    fn dispatch<T: Tree>(
        &mut self,
        header: &InHeader,
        message: &mut Message,
        length: usize,
        tree: &mut T,
        spare: impl FnOnce(&mut T) -> Buf,
    ) -> Outcome {
        match header.opcode {
            // the session keeps no state about nodes, and these requests need no reply
            opcode::FORGET | opcode::BATCH_FORGET => return Ok(None),
            opcode::INIT => return self.init(header, &message.arguments(length)),
            _ if !self.ready => return Err(errno::EIO),
            opcode::WRITE => return self.write(header, message, length, tree, spare),
            _ => {}
        }
        let arguments = message.arguments(length);
        match header.opcode {
            opcode::READ => self.read(header, &arguments, tree),
            opcode::LOOKUP => self.lookup(header, &arguments, tree),
            opcode::GETATTR => self.getattr(header, tree),
            opcode::SETATTR => self.setattr(header, &arguments, tree),
            opcode::OPEN => self.open(header, &arguments, tree),
            opcode::RELEASE => self.release(header, &arguments),
            opcode::FSYNC => self.fsync(header, &arguments, tree),
            opcode::FALLOCATE => self.fallocate(header, &arguments, tree),
            opcode::LSEEK => self.lseek(header, &arguments, tree),
            opcode::READDIR => self.readdir(header, &arguments, tree),
            opcode::STATFS => Ok(Some(statfs(header, tree))),
            opcode::RELEASEDIR | opcode::FSYNCDIR | opcode::DESTROY => Ok(Some(Reply::done(header.unique))),
            opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE => Err(errno::EPERM),
            // this includes INTERRUPT: every request is answered soon, and after ENOSYS the kernel
            // does not send INTERRUPT again
            _ => Err(errno::ENOSYS),
        }
    }

    fn init(&mut self, header: &InHeader, arguments: &[u8]) -> Outcome {
        let mut padded = [0; size_of::<InitIn>()];
        for (to, from) in padded.iter_mut().zip(arguments) {
            *to = *from;
        }
        let init = InitIn::read_from_bytes(&padded).map_err(|_| errno::EINVAL)?;
        if self.ready || arguments.len() < 16 || init.major < MAJOR || (init.major == MAJOR && init.minor < OLDEST_MINOR) {
            return Err(errno::EPROTO);
        }
        let flags = init.flags & FLAGS;
        // A kernel of a later major version repeats INIT with this one.
        self.ready = init.major == MAJOR;
        let requests = MAX_REQUESTS as u16;
        Ok(Some(Reply::body(
            header.unique,
            &InitOut {
                major: MAJOR,
                minor: MINOR.min(init.minor),
                max_readahead: init.max_readahead,
                flags,
                max_background: requests,
                congestion_threshold: requests,
                max_write: MAX_TRANSFER,
                time_gran: 1_000_000,
                max_pages: (MAX_TRANSFER / BLOCK) as u16,
                ..InitOut::default()
            },
        )))
    }

    fn lookup<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &T) -> Outcome {
        let parent = node(header)?;
        let name = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
        if name.len() > NAME_MAX {
            return Err(errno::ENAMETOOLONG);
        }
        let name = str::from_utf8(name).map_err(|_| errno::ENOENT)?;
        let found = directory::lookup(tree, parent, name).ok_or(errno::ENOENT)?;
        let attr = attributes(tree, found, self.owner).ok_or(errno::ENOENT)?;
        Ok(Some(Reply::body(header.unique, &EntryOut { nodeid: found.number(), attr, ..EntryOut::default() })))
    }

    fn getattr<T: Tree>(&mut self, header: &InHeader, tree: &T) -> Outcome {
        let attr = attributes(tree, node(header)?, self.owner).ok_or(errno::ESTALE)?;
        Ok(Some(Reply::body(header.unique, &AttrOut { attr, ..AttrOut::default() })))
    }

    /// Handles SETATTR. Owner, mode and size cannot be changed. Times come from the pool; a request
    /// to set them has no effect.
    fn setattr<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &T) -> Outcome {
        let wanted = take::<SetattrIn>(arguments)?;
        let attr = attributes(tree, node(header)?, self.owner).ok_or(errno::ESTALE)?;
        let changes = [
            (setattr_flag::SIZE, wanted.size != attr.size),
            (setattr_flag::MODE, wanted.mode & 0o7777 != attr.mode & 0o7777),
            (setattr_flag::UID, wanted.uid != attr.uid),
            (setattr_flag::GID, wanted.gid != attr.gid),
        ];
        if changes.into_iter().any(|(flag, differs)| wanted.valid & flag != 0 && differs) {
            return Err(errno::EPERM);
        }
        Ok(Some(Reply::body(header.unique, &AttrOut { attr, ..AttrOut::default() })))
    }

    fn readdir<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &T) -> Outcome {
        let wanted = take::<ReadIn>(arguments)?;
        let directory = node(header)?;
        if !directory.is_directory() {
            return Err(errno::ENOTDIR);
        }
        let listing = directory::list(tree, directory, wanted.offset, wanted.size as usize);
        Ok(Some(Reply::bytes(header.unique, 0, &listing)))
    }

    fn release(&mut self, header: &InHeader, arguments: &[u8]) -> Outcome {
        let wanted = take::<ReleaseIn>(arguments)?;
        self.handles.close(wanted.fh).ok_or(errno::EBADF)?;
        Ok(Some(Reply::done(header.unique)))
    }

    /// Handles the disk's answer to a request, at a time of [`Tree::nanos`]. Returns false if the
    /// request does not belong to this session.
    pub fn complete(&mut self, completion: Completion, nanos: u64) -> bool {
        let Some(pending) = self.in_flight.remove(completion.tag) else { return false };
        let took = nanos.saturating_sub(pending.since);
        let counters = self.handles.counters_of(pending.handle, pending.image);
        let reply = match completion.result {
            Err(error) => {
                counters.errors += 1;
                Reply::error(pending.unique, errno_of(error, pending.kind))
            }
            Ok(data) => match pending.kind {
                Kind::Read => {
                    counters.reads += 1;
                    counters.read_bytes += pending.bytes;
                    counters.read_nanos += took;
                    Reply::data(pending.unique, data)
                }
                Kind::Write { fua } => {
                    counters.writes += 1;
                    counters.fua_writes += u64::from(fua);
                    counters.write_bytes += pending.bytes;
                    counters.write_nanos += took;
                    // at most MAX_TRANSFER
                    Reply::body(pending.unique, &WriteOut { size: pending.bytes as u32, padding: 0 })
                }
                Kind::Clear => {
                    counters.discards += 1;
                    counters.discard_bytes += pending.bytes;
                    Reply::done(pending.unique)
                }
                Kind::Flush | Kind::Seek { .. } => {
                    counters.flushes += 1;
                    Reply::done(pending.unique)
                }
            },
        };
        self.replies.push_back(reply);
        true
    }

    /// Handles the answer to a query. A search may continue with another query. Returns false if
    /// the query does not belong to this session.
    pub fn answer<T: Tree>(&mut self, answer: Answer, tree: &mut T) -> bool {
        let Some(pending) = self.in_flight.remove(answer.tag) else { return false };
        match self.found(&pending, answer.result, tree) {
            Ok(None) => {}
            Ok(Some(reply)) => self.replies.push_back(reply),
            Err(error) => {
                // the result that there is no more data does not count as an error
                self.handles.counters_of(pending.handle, pending.image).errors += u64::from(error != errno::ENXIO);
                self.replies.push_back(Reply::error(pending.unique, error));
            }
        }
        true
    }

    /// Returns the id of the session that submitted the request with this tag.
    pub fn id_of(tag: Tag) -> u32 {
        (tag.0 >> 32) as u32
    }
}

fn statfs<T: Tree>(header: &InHeader, tree: &T) -> Reply {
    let (space, block) = (tree.space(), u64::from(BLOCK));
    let (blocks, free) = (space.size / block, space.free / block);
    let body =
        StatfsOut { blocks, bfree: free, bavail: free, bsize: BLOCK, frsize: BLOCK, namelen: NAME_MAX as u32, ..StatfsOut::default() };
    Reply::body(header.unique, &body)
}

/// Returns the maximum of memory that a request will hold, in bytes.
fn memory_of(header: &InHeader, message: &Message, length: usize) -> u64 {
    match header.opcode {
        opcode::READ => take::<ReadIn>(&message.arguments(length)).map_or(0, |read| u64::from(read.size.min(MAX_TRANSFER))),
        opcode::WRITE => held_by_write(message.payload(length).len() as u64),
        _ => 0,
    }
}

/// Returns the node that a request names.
pub(super) fn node(header: &InHeader) -> Result<Node, i32> {
    Node::of(header.nodeid).ok_or(errno::ESTALE)
}

/// Decodes the structure at the start of a request's arguments.
pub(super) fn take<S: FromBytes>(arguments: &[u8]) -> Result<S, i32> {
    S::read_from_prefix(arguments).map(|(structure, _)| structure).map_err(|_| errno::EINVAL)
}

pub(super) fn errno_of(error: DiskError, kind: Kind) -> i32 {
    match error {
        DiskError::Io => errno::EIO,
        DiskError::NoSpace => errno::ENOSPC,
        DiskError::Invalid => errno::EINVAL,
        // the volume has shrunk since the request was checked
        DiskError::OutOfBounds if matches!(kind, Kind::Read | Kind::Seek { .. }) => errno::EINVAL,
        DiskError::OutOfBounds => errno::ENOSPC,
        DiskError::ReadOnly => errno::EROFS,
        DiskError::NotSupported => errno::EOPNOTSUPP,
        DiskError::Shutdown => errno::ESHUTDOWN,
    }
}

#[cfg(test)]
mod tests;
