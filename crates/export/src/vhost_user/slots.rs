//! Requests in flight to the disk: a slab, indexed by the low bits of the tag. Its slots
//! have generations, which the crate `slab` does not have.

use millpond_block::{Op, Tag};
use vm_memory::GuestAddress;

use super::chain::Segments;
use super::request::Status;

/// Facts about a request that its answer needs.
#[derive(Debug)]
pub(super) struct Slot {
    /// Changes with each use of the slot, so that a second completion with the same tag is
    /// detected.
    generation: u16,
    /// Number of outstanding completions; 0 for a free slot.
    pub left: u16,
    pub queue: u16,
    pub head: u16,
    pub op: Op,
    pub status: Status,
    /// A part of it was not carried out: it may be left to be repeated.
    pub undone: bool,
    pub status_at: GuestAddress,
    /// Destination of a read's data.
    pub data: Segments,
    /// Bytes of data in either direction.
    pub length: u32,
}

/// Table of requests in flight. Tag layout: bits 63-32 the device, 31-16 the slot's generation,
/// 15-0 the slot.
#[derive(Debug)]
pub(super) struct Slots {
    device: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    most: u16,
}

impl Slots {
    pub fn new(device: u32, most: u16) -> Slots {
        Slots { device, slots: Vec::new(), free: Vec::new(), most }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if one more request fits besides `others`.
    pub fn has_room(&self, others: usize) -> bool {
        self.len() + others < usize::from(self.most)
    }

    /// Adds a request of `parts` completions. The caller ensures that there is room.
    pub fn insert(&mut self, parts: u16, make: impl FnOnce(u16) -> Slot) -> Tag {
        let slot = |generation| Slot { left: parts, ..make(generation) };
        let (index, generation) = match self.free.pop() {
            Some(index) => {
                let mut generation = 0;
                if let Some(place) = self.slots.get_mut(usize::from(index)) {
                    generation = place.generation.wrapping_add(1);
                    *place = slot(generation);
                }
                (index, generation)
            }
            None => {
                let index = self.slots.len() as u16; // less than `most`
                self.slots.push(slot(0));
                (index, 0)
            }
        };
        Tag(u64::from(self.device) << 32 | u64::from(generation) << 16 | u64::from(index))
    }

    /// Returns the request of a tag if it is in flight.
    pub fn get_mut(&mut self, tag: Tag) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(tag.0 as u16))?;
        let same = (tag.0 >> 32) as u32 == self.device && (tag.0 >> 16) as u16 == slot.generation && slot.left > 0;
        same.then_some(slot)
    }

    /// Frees the slot of a request without outstanding completions.
    pub fn free(&mut self, tag: Tag) {
        self.free.push(tag.0 as u16);
    }
}

impl Slot {
    pub fn new(generation: u16, queue: u16, head: u16, op: Op, status_at: GuestAddress, data: Segments, length: u32) -> Slot {
        Slot { generation, left: 0, queue, head, op, status: Status::Ok, undone: false, status_at, data, length }
    }
}
