//! The record of requests in flight, which outlives the daemon: shared memory that the front end
//! keeps.
//!
//! There is one part per queue, in the split-ring layout of the vhost-user document ("Inflight I/O
//! tracking"):
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | features | 0 |
//! | 8 | 2 | version | 1; 0 in an area that was never used |
//! | 10 | 2 | desc_num | descriptors of the queue |
//! | 12 | 2 | last_batch_head | the request answered last |
//! | 14 | 2 | used_idx | index of the used ring when the last request was unmarked |
//! | 16 | 16 each | | per descriptor: inflight (1), padding (5), next (2), counter (8) |
//!
//! INV-VHOST-2: a request is marked before it is submitted and unmarked after the guest can see its
//! answer. The next daemon relies on the order of the stores, so each has release order. The memory
//! outlives the process but not the machine, and need not be flushed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// Shared memory for the record of requests in flight.
pub type InflightMemory = Arc<MmapRegion<()>>;

const VERSION: u16 = 1;
const VERSION_AT: usize = 8;
const COUNT_AT: usize = 10;
const BATCH_AT: usize = 12;
const USED_AT: usize = 14;
const HEADER: usize = 16;
const STATE: usize = 16;
const NEXT_IN_STATE: usize = 6;
const COUNTER_IN_STATE: usize = 8;
/// Alignment of the parts of queues in bytes.
const ALIGN: usize = 64;

/// Returns the size in bytes of the part of a queue of `size` descriptors.
pub(super) fn part_size(size: u16) -> usize {
    (HEADER + STATE * usize::from(size)).next_multiple_of(ALIGN)
}

/// Part of one queue.
#[derive(Debug)]
pub(super) struct Inflight {
    memory: InflightMemory,
    at: usize,
    size: u16,
    counter: u64,
}

/// Error: the area is shorter than its description.
#[derive(Debug)]
pub(super) struct Short;

impl Inflight {
    /// Returns the part at `at` bytes, for a queue of `size` descriptors.
    pub fn new(memory: InflightMemory, at: usize, size: u16) -> Result<Inflight, Short> {
        let end = at.checked_add(part_size(size)).ok_or(Short)?;
        let fits = end <= memory.size() && at.is_multiple_of(8);
        if fits { Ok(Inflight { memory, at, size, counter: 0 }) } else { Err(Short) }
    }

    /// Returns the requests that a previous daemon had in flight: their heads, oldest first.
    /// Returns `None` for an area that was never used, and initializes it. `used` is the index of
    /// the guest's used ring.
    pub fn recover(&mut self, used: u16) -> Option<Vec<u16>> {
        if self.load::<u16>(VERSION_AT) != VERSION {
            self.store(COUNT_AT, self.size);
            self.store(USED_AT, used);
            self.store(VERSION_AT, VERSION);
            return None;
        }
        // Requests of the last batch were answered, but may still be marked. A batch of this server
        // has one request; another server's may have more.
        let mut head = self.load::<u16>(BATCH_AT);
        for _ in 0..used.wrapping_sub(self.load::<u16>(USED_AT)).min(self.size) {
            let Some(state) = self.state(head) else { break };
            self.store(state, 0u8);
            head = self.load(state + NEXT_IN_STATE);
        }
        self.store(USED_AT, used);
        let mut found: Vec<(u64, u16)> = Vec::new();
        for head in 0..self.size {
            if let Some(state) = self.state(head)
                && self.load::<u8>(state) == 1
            {
                found.push((self.load(state + COUNTER_IN_STATE), head));
            }
        }
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Some(found.into_iter().map(|(_, head)| head).collect())
    }

    /// Marks a request as in flight.
    pub fn begin(&mut self, head: u16) {
        let Some(state) = self.state(head) else { return };
        self.store(state + COUNTER_IN_STATE, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(state, 1u8);
    }

    /// Records that the guest is about to see the answer to a request.
    pub fn answering(&self, head: u16) {
        let Some(state) = self.state(head) else { return };
        self.store(state + NEXT_IN_STATE, self.load::<u16>(BATCH_AT));
        self.store(BATCH_AT, head);
    }

    /// Unmarks a request whose answer the guest can see. `used` is the new index of the used ring.
    pub fn answered(&self, head: u16, used: u16) {
        let Some(state) = self.state(head) else { return };
        self.store(state, 0u8);
        self.store(USED_AT, used);
    }

    fn state(&self, head: u16) -> Option<usize> {
        (head < self.size).then(|| HEADER + STATE * usize::from(head))
    }

    /// Loads a value of the part, which lies within the memory. A value that cannot be loaded reads
    /// as zero.
    fn load<T: vm_memory::AtomicAccess + Default>(&self, offset: usize) -> T {
        let slice = self.memory.get_slice(self.at + offset, size_of::<T>());
        slice.ok().and_then(|slice| slice.load(0, Ordering::Acquire).ok()).unwrap_or_default()
    }

    fn store<T: vm_memory::AtomicAccess>(&self, offset: usize, value: T) {
        if let Ok(slice) = self.memory.get_slice(self.at + offset, size_of::<T>()) {
            // in bounds and aligned, so it cannot fail
            let _ = slice.store(value, 0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
