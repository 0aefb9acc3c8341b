//! Open files: reads, writes, clears and seeks.

use millpond_block::{Buf, ByteRange, DiskError, Op, Payload, Query, Request, Run};

use super::handles::Handle;
use super::inflight::{Kind, Pending};
use super::message::{MAX_TRANSFER, Message};
use super::node::Node;
use super::reply::Reply;
use super::session::{MAX_HANDLES, Outcome, Session, errno_of, node, take};
use super::tree::{Image, Tree};
use super::wire::{
    FallocateIn, InHeader, LseekIn, LseekOut, O_ACCMODE, O_DSYNC, O_RDONLY, OpenIn, OpenOut, ReadIn, WriteIn, errno, fallocate_mode,
    open_flag, whence,
};
use zerocopy::FromBytes;

/// Shortest write, in bytes, whose buffer is handed on to the disk. Smaller writes are copied, so
/// that the buffer, which has the size of the largest write, can be used for the next request.
const LARGE_WRITE: u64 = 32 << 10;
/// Granularity of a volume's map, in bytes.
const GRAIN: u64 = 4096;

/// Returns the bytes of memory that a write of this length holds until it is answered. A write that
/// is not copied keeps the whole buffer that it was read into.
pub(super) fn held_by_write(bytes: u64) -> u64 {
    if bytes >= LARGE_WRITE { u64::from(MAX_TRANSFER) } else { bytes }
}

/// Returns the image that a request names. A request's open file must belong to this node: the
/// kernel ensures it, and the session does, too.
fn image_of(header: &InHeader) -> Result<Image, i32> {
    match node(header)? {
        Node::Image(image) => Ok(image),
        _ => Err(errno::EISDIR),
    }
}

impl Session {
    pub(super) fn open<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &T) -> Outcome {
        let wanted = take::<OpenIn>(arguments)?;
        let image = image_of(header)?;
        let (_, read_only) = tree.extent(image).ok_or(errno::ESTALE)?;
        let writes = wanted.flags & O_ACCMODE != O_RDONLY;
        if writes && read_only {
            return Err(errno::EROFS);
        }
        let handle = Handle { image, pid: header.pid, since: tree.now(), writes, counters: Default::default() };
        let fh = self.handles.open(handle, MAX_HANDLES).ok_or(errno::ENFILE)?;
        let open_flags = open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES | open_flag::NOFLUSH;
        Ok(Some(Reply::body(header.unique, &OpenOut { fh, open_flags, backing_id: 0 })))
    }

    pub(super) fn read<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &mut T) -> Outcome {
        let wanted = take::<ReadIn>(arguments)?;
        let image = image_of(header)?;
        let (size, _) = tree.extent(image).ok_or(errno::ESTALE)?;
        let length = u64::from(wanted.size.min(MAX_TRANSFER)).min(size.saturating_sub(wanted.offset));
        if length == 0 {
            return Ok(Some(Reply::done(header.unique)));
        }
        let range = ByteRange { offset: wanted.offset, length };
        self.submit(header, image, wanted.fh, Kind::Read, Request { op: Op::Read, range, fua: false }, Payload::None, tree);
        Ok(None)
    }

    pub(super) fn write<T: Tree>(
        &mut self,
        header: &InHeader,
        message: &mut Message,
        length: usize,
        tree: &mut T,
        spare: impl FnOnce(&mut T) -> Buf,
    ) -> Outcome {
        let image = image_of(header)?;
        let wanted = WriteIn::read_from_bytes(&message.arguments(length.min(super::wire::WRITE_HEAD))).map_err(|_| errno::EINVAL)?;
        if message.payload(length).len() != wanted.size as usize {
            return Err(errno::EINVAL);
        }
        let (size, read_only) = tree.extent(image).ok_or(errno::ESTALE)?;
        if read_only {
            return Err(errno::EROFS);
        }
        if wanted.size == 0 {
            return Ok(Some(Reply::body(header.unique, &super::wire::WriteOut::default())));
        }
        // as on a disk, the part of a write beyond the end is not written; only a write that begins
        // beyond the end fails
        let room = size.saturating_sub(wanted.offset);
        if room == 0 {
            return Err(errno::ENOSPC);
        }
        let bytes = u64::from(wanted.size).min(room);
        let range = ByteRange { offset: wanted.offset, length: bytes };
        // the kernel sends no FSYNC after a write that bypasses its cache, so only the flags ask
        // for durability
        let fua = wanted.flags & O_DSYNC != 0;
        let (kind, request) = (Kind::Write { fua }, Request { op: Op::Write, range, fua });
        if bytes >= LARGE_WRITE {
            let spare = spare(tree);
            let body = message.exchange(spare);
            self.submit(header, image, wanted.fh, kind, request, Payload::Owned(body), tree);
        } else {
            let payload = message.payload(super::wire::WRITE_HEAD + bytes as usize);
            self.submit(header, image, wanted.fh, kind, request, Payload::Copy(payload), tree);
        }
        Ok(None)
    }

    pub(super) fn fsync<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &mut T) -> Outcome {
        // the structure begins with the number of the open file, as all others do
        let fh = take::<u64>(arguments)?;
        let image = match node(header)? {
            Node::Image(image) => image,
            _ => return Ok(Some(Reply::done(header.unique))),
        };
        tree.extent(image).ok_or(errno::ESTALE)?;
        let range = ByteRange { offset: 0, length: 0 };
        self.submit(header, image, fh, Kind::Flush, Request { op: Op::Flush, range, fua: false }, Payload::None, tree);
        Ok(None)
    }

    /// Handles FALLOCATE. Holes and zeroes are the same here: the range reads as zeroes and takes
    /// no space, except for partial blocks at its ends.
    pub(super) fn fallocate<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &mut T) -> Outcome {
        const PUNCH: u32 = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
        const ZERO_KEEPING: u32 = fallocate_mode::ZERO_RANGE | fallocate_mode::KEEP_SIZE;
        let wanted = take::<FallocateIn>(arguments)?;
        let image = image_of(header)?;
        let (size, read_only) = tree.extent(image).ok_or(errno::ESTALE)?;
        if read_only {
            return Err(errno::EROFS);
        }
        let end = wanted.offset.checked_add(wanted.length).ok_or(errno::EINVAL)?;
        if wanted.length == 0 {
            return Err(errno::EINVAL);
        }
        match wanted.mode {
            PUNCH | ZERO_KEEPING => {}
            fallocate_mode::ZERO_RANGE if end <= size => {}
            // space is only allocated by writes; only a resize can extend the file
            0 | fallocate_mode::KEEP_SIZE if end <= size => return Ok(Some(Reply::done(header.unique))),
            0 | fallocate_mode::KEEP_SIZE | fallocate_mode::ZERO_RANGE => return Err(errno::ENOSPC),
            _ => return Err(errno::EOPNOTSUPP),
        }
        let length = end.min(size).saturating_sub(wanted.offset);
        if length == 0 {
            return Ok(Some(Reply::done(header.unique)));
        }
        let range = ByteRange { offset: wanted.offset, length };
        let request = Request { op: Op::WriteZeroes { may_unmap: true }, range, fua: false };
        self.submit(header, image, wanted.fh, Kind::Clear, request, Payload::None, tree);
        Ok(None)
    }

    pub(super) fn lseek<T: Tree>(&mut self, header: &InHeader, arguments: &[u8], tree: &mut T) -> Outcome {
        let wanted = take::<LseekIn>(arguments)?;
        let image = image_of(header)?;
        let data = match wanted.whence {
            whence::DATA => true,
            whence::HOLE => false,
            _ => return Err(errno::EINVAL),
        };
        let (size, _) = tree.extent(image).ok_or(errno::ESTALE)?;
        if wanted.offset >= size {
            return Err(errno::ENXIO);
        }
        let at = wanted.offset / GRAIN * GRAIN;
        let kind = Kind::Seek { wanted: data, from: wanted.offset, at };
        let pending = Pending { unique: header.unique, kind, bytes: 0, handle: wanted.fh, image, since: tree.nanos() };
        self.search(pending, at, size, tree);
        Ok(None)
    }

    fn search<T: Tree>(&mut self, pending: Pending, at: u64, size: u64, tree: &mut T) {
        let tag = self.in_flight.insert(pending);
        // the search ends with the first or the second run
        tree.query(pending.image, tag, Query { range: ByteRange { offset: at, length: size - at }, since: None, most: 2 });
    }

    /// Continues a search with `runs`, which begin at the offset of the query.
    pub(super) fn found<T: Tree>(&mut self, pending: &Pending, runs: Result<Vec<Run>, DiskError>, tree: &mut T) -> Outcome {
        let Kind::Seek { wanted, from, mut at } = pending.kind else { return Err(errno::EIO) };
        let (size, _) = tree.extent(pending.image).ok_or(errno::ESTALE)?;
        let mut offset = None;
        for run in runs.map_err(|error| errno_of(error, pending.kind))? {
            if run.set == wanted {
                offset = Some(at);
                break;
            }
            at = at.saturating_add(run.length);
        }
        if offset.is_none() && at < size {
            let kind = Kind::Seek { wanted, from, at };
            self.search(Pending { kind, ..*pending }, at, size, tree);
            return Ok(None);
        }
        // every file ends with a hole, and there is no data beyond the end
        let offset = if wanted { offset.ok_or(errno::ENXIO)? } else { offset.unwrap_or(size) };
        Ok(Some(Reply::body(pending.unique, &LseekOut { offset: offset.max(from) })))
    }

    #[allow(clippy::too_many_arguments, reason = "what a request is made of")]
    fn submit<T: Tree>(
        &mut self,
        header: &InHeader,
        image: Image,
        handle: u64,
        kind: Kind,
        request: Request,
        payload: Payload<'_>,
        tree: &mut T,
    ) {
        let bytes = request.range.length;
        let tag = self.in_flight.insert(Pending { unique: header.unique, kind, bytes, handle, image, since: tree.nanos() });
        tree.submit(image, tag, request, payload);
    }
}
