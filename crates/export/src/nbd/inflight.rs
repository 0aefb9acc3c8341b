//! The requests that the disk has: a slab addressed by the low bits of the tag.

use millpond_block::{Op, Tag};

use super::context::Context;
use super::reply::Asked;

/// What a reply needs to know of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) asked: Asked,
    /// Bytes of data the request moves, in either direction; 0 for those that move none.
    pub(super) bytes: u32,
    pub(super) kind: Kind,
}

/// What the disk was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Op {
        op: Op,
        /// A read that wants one chunk.
        whole: bool,
    },
    /// One context of a block status request.
    Status { group: usize, context: Context },
}

struct Slot {
    /// Differs between uses of a slot, so that a completion delivered twice is noticed.
    generation: u16,
    pending: Option<Pending>,
}

/// Tag layout: bits 63-32 the session, 31-16 the slot's generation, 15-0 the slot.
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

    /// True when `count` more may be [inserted](Self::insert). One request that needs several is let in alone when they are more than allowed.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.len() == 0 || self.len() + count <= usize::from(self.most)
    }

    /// The caller asks for room first.
    ///
    /// # Panics
    /// When there are as many as tags can tell apart: that many are never let in.
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
                // Below 65,535.
                let index = self.slots.len() as u16;
                self.slots.push(Slot { generation: 0, pending: Some(pending) });
                (index, 0)
            }
        };
        Tag(u64::from(self.session) << 32 | u64::from(generation) << 16 | u64::from(index))
    }

    /// Ends a request; `None` when the tag is none of those in flight.
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
