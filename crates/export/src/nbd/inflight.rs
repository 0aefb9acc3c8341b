//! Requests in flight to the disk: a slab, indexed by the low bits of the tag. Its slots
//! have generations, which the crate `slab` does not have.

use millpond_block::{Op, Tag};

use super::context::Context;
use super::reply::RequestKey;

/// Facts about a request that its reply needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) asked: RequestKey,
    /// Bytes of data that the request moves, in either direction; 0 if it moves none.
    pub(super) bytes: u32,
    pub(super) kind: Kind,
}

/// Operation that the disk performs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Op {
        op: Op,
        /// True for a read whose reply must be one chunk.
        whole: bool,
    },
    /// A query for one context of a block status request.
    Status { group: usize, context: Context },
}

struct Slot {
    /// Changes with each use of the slot, so that a second completion with the same tag is
    /// detected.
    generation: u16,
    pending: Option<Pending>,
}

/// Table of requests in flight. Tag layout: bits 63-32 the session, 31-16 the slot's generation,
/// 15-0 the slot.
pub(super) struct InFlight {
    session: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    most: u16,
}

impl InFlight {
    pub(super) fn new(session: u32, most: u16) -> InFlight {
        InFlight { session, slots: Vec::new(), free: Vec::new(), most: most.max(1) }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if `count` more requests may be [inserted](Self::insert). If no other request
    /// is in flight, the limit does not apply, so that a request with many queries can proceed.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.len() == 0 || self.len() + count <= usize::from(self.most)
    }

    /// Adds a request. The caller checks [`InFlight::has_room`] first.
    ///
    /// # Panics
    /// When the number of requests reaches the number of distinct tags, which the limits exclude.
    pub(super) fn insert(&mut self, pending: Pending) -> Tag {
        assert!(self.len() < usize::from(u16::MAX), "more requests in flight than tags");
        let (index, generation) = match self.free.pop() {
            Some(index) => match self.slots.get_mut(usize::from(index)) {
                Some(slot) => {
                    slot.generation = slot.generation.wrapping_add(1);
                    slot.pending = Some(pending);
                    (index, slot.generation)
                }
                None => unreachable!("free slot {index} does not exist"),
            },
            None => {
                // less than 65,535
                let index = self.slots.len() as u16;
                self.slots.push(Slot { generation: 0, pending: Some(pending) });
                (index, 0)
            }
        };
        Tag(u64::from(self.session) << 32 | u64::from(generation) << 16 | u64::from(index))
    }

    /// Ends a request; returns `None` if no request in flight has this tag.
    pub(super) fn remove(&mut self, tag: Tag) -> Option<Pending> {
        let index = tag.0 as u16;
        let slot = self.slots.get_mut(usize::from(index))?;
        if (tag.0 >> 32) as u32 != self.session || (tag.0 >> 16) as u16 != slot.generation {
            return None;
        }
        let pending = slot.pending.take()?;
        self.free.push(index);
        Some(pending)
    }
}

#[cfg(test)]
mod tests;
