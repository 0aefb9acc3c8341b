//! Requests in flight to the disk.

use millpond_block::Tag;
use slab::Slab;

use super::files::held_by_write;

/// Kind of a request, which decides about its reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The reply contains the data read.
    Read,
    /// The reply contains the number of bytes written; with `fua` they are durable then.
    Write { fua: bool },
    /// The reply confirms a hole.
    Clear,
    /// The reply confirms that everything is durable.
    Flush,
    /// The reply contains the offset of data or of a hole. `wanted` is true for data, `from` is the
    /// caller's offset, and `at` the offset at which the query began.
    Seek { wanted: bool, from: u64, at: u64 },
}

/// Request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub unique: u64,
    pub kind: Kind,
    /// Bytes that the request reads, writes or clears.
    pub bytes: u64,
    /// Number of the open file.
    pub handle: u64,
    /// Time of receipt, in nanoseconds of the loop's clock.
    pub since: u64,
    pub image: super::tree::Image,
}

/// Table of requests in flight. The lower half of a tag is the index.
pub(super) struct InFlight {
    session: u32,
    table: Slab<Pending>,
    /// Bytes of memory that reads and writes in flight hold.
    pub bytes: u64,
}

impl InFlight {
    pub fn new(session: u32) -> InFlight {
        InFlight { session, table: Slab::new(), bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the bytes of memory that a request holds.
    fn weight(pending: &Pending) -> u64 {
        match pending.kind {
            Kind::Read => pending.bytes,
            Kind::Write { .. } => held_by_write(pending.bytes),
            Kind::Clear | Kind::Flush | Kind::Seek { .. } => 0,
        }
    }

    pub fn insert(&mut self, pending: Pending) -> Tag {
        self.bytes += Self::weight(&pending);
        let index = self.table.insert(pending) as u32;
        Tag(u64::from(self.session) << 32 | u64::from(index))
    }

    pub fn remove(&mut self, tag: Tag) -> Option<Pending> {
        let index = (tag.0 & u64::from(u32::MAX)) as u32;
        let pending = self.table.try_remove(index as usize)?;
        self.bytes -= Self::weight(&pending);
        Some(pending)
    }
}
