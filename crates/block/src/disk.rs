//! The contract between an export and what it serves.

use crate::{Buf, ByteRange, Data, DiskError, Features, Geometry, Query, Request};

/// Chosen by the submitter to recognise the completion; the disk does not look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// The bytes of a write.
pub enum Payload<'a> {
    /// Not a write.
    None,
    /// Copied during `submit`: right for small writes.
    Copy(&'a [u8]),
    /// Handed over, written from where it lies: right for large writes. Its first `length` bytes are the payload.
    Owned(Buf),
}

/// The one answer to a request.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the request.
    pub tag: Tag,
    /// For a read, the bytes (pieces in order, summing up to the length asked for); empty otherwise.
    pub result: Result<Data, DiskError>,
}

/// A virtual disk, as exports see it. `submit` never blocks; completions are delivered by whoever drives the disk, exactly one per
/// request, in any order.
///
/// *A flush covers every write whose completion was delivered before the flush was submitted; nothing more may be relied on.*
pub trait Disk {
    /// Size and sectors; the size may grow between calls.
    fn geometry(&self) -> Geometry;
    /// What the disk offers.
    fn features(&self) -> Features;
    /// Says that reads of these ranges are about to be submitted. Nothing follows from it but that the disk may look for what they need all at
    /// once, which is faster than one by one.
    fn expect(&mut self, _reads: &[ByteRange]) {}
    /// Asks for memory for a request that moves so many bytes, before its payload is received or it is submitted. False when there is none just now:
    /// the request waits, and whoever drives the export asks again when there may be some. It is given back by that one, too.
    fn reserve(&mut self, _bytes: u64) -> bool {
        true
    }
    /// Starts a request.
    fn submit(&mut self, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts to find out what the map says. Exactly one [`Answer`](crate::Answer) is delivered for it; it takes account of every write
    /// and discard whose completion was delivered before.
    fn query(&mut self, tag: Tag, query: Query);
    /// A buffer of at least `bytes` bytes with arbitrary content, to be handed over with a write. Who recycles buffers has a better way.
    fn buffer(&mut self, bytes: usize) -> Buf {
        Buf::zeroed(bytes)
    }
}
