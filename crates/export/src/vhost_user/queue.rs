//! One virtqueue: its place in memory, its position, and its requests in flight.

use std::num::Wrapping;
use std::sync::atomic::Ordering;

use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::Memory;
use super::dirty::{DirtyLog, Marked};
use super::inflight::{Inflight, InflightMemory};

/// Maximum size of a queue: the limit of split rings.
pub const MAX_QUEUE_SIZE: u16 = 32768;
/// Parts of the used ring in bytes: flags and index, an element, and the index behind the elements.
const USED_HEAD: u64 = 4;
const USED_ELEMENT: u64 = 8;
const WISH: u64 = 2;

/// Description of a queue to start.
#[derive(Clone, Debug)]
pub struct QueueSetup {
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// Guest address of the descriptor table.
    pub descriptors: u64,
    /// Guest address of the available ring, with the guest's requests.
    pub available: u64,
    /// Guest address of the used ring, with the answers.
    pub used: u64,
    /// First entry to take, according to the front end.
    pub base: u16,
    /// Record of requests in flight, with the offset of the queue's part in bytes.
    pub inflight: Option<(InflightMemory, usize)>,
    /// Guest address under which writes to the used ring are logged as dirty; `None` if they are
    /// not.
    pub log: Option<u64>,
}

/// Reason for which a queue cannot be started or has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The queue does not exist.
    #[error("there is no such queue")]
    Number,
    /// The queue has an impossible size, or lies outside the guest's memory.
    #[error("the queue lies outside the guest's memory, or its size is not possible")]
    Place,
    /// The record of requests in flight is too short.
    #[error("the record of requests in flight is too short")]
    Record,
    /// The guest offers more entries than the queue has, a descriptor that does not exist, or the
    /// same one twice.
    #[error("the guest's index is not possible")]
    Index,
    /// The queue runs already.
    #[error("the queue runs already")]
    Running,
}

/// A started queue.
pub(super) struct VirtQueue {
    queue: Queue,
    inflight: Option<Inflight>,
    log: Option<u64>,
    /// Heads that a previous daemon had in flight, to be repeated first. The next one is at the
    /// end.
    again: Vec<u16>,
    /// Whether each head is in flight.
    taken: Vec<bool>,
    /// Number of requests in flight.
    pub busy: u16,
    /// True if the queue takes no more requests, and ends when those in flight are answered.
    pub stopping: bool,
    /// True if there are answers about which the guest has not been notified.
    unnotified: bool,
    /// True if the queue has stopped because the guest violated the protocol.
    pub broken: bool,
}

impl VirtQueue {
    pub fn start(memory: &Memory, setup: &QueueSetup, event_idx: bool) -> Result<VirtQueue, QueueError> {
        let mut queue = Queue::new(MAX_QUEUE_SIZE).map_err(|_| QueueError::Place)?;
        queue.try_set_size(setup.size).map_err(|_| QueueError::Place)?;
        queue.try_set_desc_table_address(GuestAddress(setup.descriptors)).map_err(|_| QueueError::Place)?;
        queue.try_set_avail_ring_address(GuestAddress(setup.available)).map_err(|_| QueueError::Place)?;
        queue.try_set_used_ring_address(GuestAddress(setup.used)).map_err(|_| QueueError::Place)?;
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        if !queue.is_valid(memory) {
            return Err(QueueError::Place);
        }
        let Wrapping(used) = queue.used_idx(memory, Ordering::Acquire).map_err(|_| QueueError::Place)?;
        let mut base = setup.base;
        let mut again = Vec::new();
        let mut inflight = None;
        if let Some((area, at)) = &setup.inflight {
            let mut record = Inflight::new(area.clone(), *at, setup.size).map_err(|_| QueueError::Record)?;
            if let Some(heads) = record.recover(used) {
                // Entries taken so far are those answered and those in flight, whatever base the
                // front end reports.
                base = used.wrapping_add(heads.len() as u16);
                again = heads;
                again.reverse();
            }
            inflight = Some(record);
        }
        queue.set_next_avail(base);
        queue.set_next_used(used);
        let taken = vec![false; usize::from(setup.size)];
        let log = setup.log;
        Ok(VirtQueue { queue, inflight, log, again, taken, busy: 0, stopping: false, unnotified: false, broken: false })
    }

    /// Returns the address and the size of the descriptor table.
    pub fn table(&self) -> (GuestAddress, u16) {
        (GuestAddress(self.queue.desc_table()), self.queue.size())
    }

    /// Returns the number of requests of a previous daemon that are still to be repeated.
    pub fn left(&self) -> usize {
        self.again.len()
    }

    /// Returns the entry with which the next front end begins. All entries before it are answered
    /// once [`VirtQueue::is_drained`] is true.
    pub fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Returns true if no request is in flight and none of a previous daemon is still to be
    /// repeated.
    pub fn is_drained(&self) -> bool {
        self.busy == 0 && (self.again.is_empty() || self.broken)
    }

    /// Returns the head of the next request. A stopping queue still takes the requests of a
    /// previous daemon, because their entries come before answered ones.
    pub fn take(&mut self, memory: &Memory) -> Result<Option<u16>, QueueError> {
        if self.broken {
            return Ok(None);
        }
        let head = match self.again.pop() {
            Some(head) => head,
            None if self.stopping => return Ok(None),
            None => match self.queue.iter(memory).map(|mut offered| offered.next().map(|chain| chain.head_index())) {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(None),
                Err(_) => return Err(self.fail()),
            },
        };
        match self.taken.get_mut(usize::from(head)) {
            Some(taken) if !*taken => *taken = true,
            _ => return Err(self.fail()),
        }
        self.busy += 1; // at most the number of descriptors
        if let Some(record) = &mut self.inflight {
            record.begin(head);
        }
        Ok(Some(head))
    }

    fn fail(&mut self) -> QueueError {
        self.broken = true;
        QueueError::Index
    }

    /// Adds the answer to a request to the used ring; `written` bytes were written to the guest's
    /// memory.
    pub fn answer(&mut self, marked: Marked<'_>, head: u16, written: u32) {
        let Marked { memory, log } = marked;
        let place = USED_HEAD + USED_ELEMENT * u64::from(self.queue.next_used() & (self.queue.size() - 1)); // the size is a power of two
        if let Some(record) = &self.inflight {
            record.answering(head);
        }
        // The head was checked when it was taken and the ring when the queue was started, so this
        // cannot fail.
        let _ = self.queue.add_used(memory, head, written);
        self.mark_used(log, place, USED_ELEMENT);
        self.mark_used(log, 0, USED_HEAD);
        if let Some(record) = &self.inflight {
            record.answered(head, self.queue.next_used());
        }
        if let Some(taken) = self.taken.get_mut(usize::from(head)) {
            *taken = false;
        }
        self.busy = self.busy.saturating_sub(1);
        self.unnotified = true;
    }

    /// Returns true if requests in flight are on record, so that they can be repeated later.
    pub fn has_record(&self) -> bool {
        self.inflight.is_some()
    }

    /// Forgets a request in flight without an answer. It stays on record, and is repeated when the queue
    /// is started again.
    pub fn leave(&mut self, head: u16) {
        if let Some(taken) = self.taken.get_mut(usize::from(head)) {
            *taken = false;
        }
        self.busy = self.busy.saturating_sub(1);
    }

    /// Returns true if the guest wants a notification about the answers since the last call.
    pub fn must_tell(&mut self, memory: &Memory) -> bool {
        if !std::mem::take(&mut self.unnotified) {
            return false;
        }
        if self.queue.event_idx_enabled() {
            return self.queue.needs_notification(memory).unwrap_or(true);
        }
        // The used index must be visible before the flag is read.
        std::sync::atomic::fence(Ordering::SeqCst);
        let flags: Result<u16, _> = memory.load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        flags.map_or(true, |flags| u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// Returns true if there is a request to take.
    pub fn has_more(&self, memory: &Memory) -> bool {
        if self.broken || self.stopping {
            return !self.broken && !self.again.is_empty();
        }
        let next = self.queue.next_avail();
        !self.again.is_empty() || self.queue.avail_idx(memory, Ordering::Acquire).is_ok_and(|Wrapping(index)| index != next)
    }

    /// Enables notifications by the guest. Returns true if it has offered a request meanwhile.
    pub fn listen(&mut self, marked: Marked<'_>) -> bool {
        if self.stopping || self.broken {
            return false;
        }
        let offered = self.queue.enable_notification(marked.memory).unwrap_or(false);
        self.mark_wish(marked.log);
        offered
    }

    /// Disables notifications by the guest, while the queue is looked at anyway.
    pub fn hush(&mut self, marked: Marked<'_>) {
        let _ = self.queue.disable_notification(marked.memory);
        self.mark_wish(marked.log);
    }

    /// Marks the places in which notifications were enabled or disabled as dirty: the flags, and
    /// the index behind the last element.
    fn mark_wish(&self, log: Option<&DirtyLog>) {
        if log.is_some() {
            self.mark_used(log, 0, USED_HEAD);
            self.mark_used(log, USED_HEAD + USED_ELEMENT * u64::from(self.queue.size()), WISH);
        }
    }

    /// Marks a part of the used ring as dirty.
    fn mark_used(&self, log: Option<&DirtyLog>, at: u64, length: u64) {
        if let (Some(log), Some(ring)) = (log, self.log) {
            log.mark(ring.saturating_add(at), length);
        }
    }
}
