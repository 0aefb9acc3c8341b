//! The contract between an export and the disk that it serves.

use crate::{Buf, ByteRange, DiskError, Features, Geometry, IoSlices, Query, Request};

/// Number by which the submitter recognises a completion. The disk does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// The bytes of a write.
pub enum Payload<'a> {
    /// None: the request is not a write.
    None,
    /// Borrowed, and copied during `submit`: faster for small writes.
    Copy(&'a [u8]),
    /// Owned, and written from this buffer without a copy: faster for large writes. The first
    /// `length` bytes are the payload.
    Owned(Buf),
}

/// The completion of a request.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the request.
    pub tag: Tag,
    /// For a read, the data (pieces in order, together as long as the request); empty for other
    /// requests.
    pub result: Result<IoSlices, DiskError>,
}

/// A virtual disk, as exports see it. `submit` never blocks. The program that drives the disk
/// delivers the completions, exactly one per request, in any order.
///
/// *A flush covers every write whose completion was delivered before the flush was submitted;
/// nothing more may be relied on.*
pub trait Disk {
    /// Size and sectors; the size may grow between calls.
    fn geometry(&self) -> Geometry;
    /// Features that the disk offers.
    fn features(&self) -> Features;
    /// Hint that reads or writes of these ranges are about to be submitted, which begin within the
    /// disk. The disk may look up all of them at once, which is faster than one by one.
    fn expect(&mut self, _ranges: &[ByteRange]) {}
    /// Reserves memory for a request that transfers `bytes` bytes, before its payload is received
    /// or it is submitted. Returns false when there is not enough memory now: the request waits,
    /// and the program that drives the export calls again later. That program also releases the
    /// memory.
    fn reserve(&mut self, _bytes: u64) -> bool {
        true
    }
    /// Starts a request.
    fn submit(&mut self, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts a query of the map. Exactly one [`Answer`](crate::Answer) is delivered for it; it
    /// reflects every write and discard whose completion was delivered before.
    fn query(&mut self, tag: Tag, query: Query);
    /// Returns a buffer of at least `bytes` bytes with arbitrary content, to be filled and passed
    /// to [`submit`](Disk::submit). Disks that recycle buffers override this.
    fn buffer(&mut self, bytes: usize) -> Buf {
        Buf::zeroed(bytes)
    }
}
