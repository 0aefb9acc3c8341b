//! One virtqueue: where it lies, how far it is, what of it is in flight.

use std::num::Wrapping;
use std::sync::atomic::Ordering;

use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::Memory;
use super::dirty::{DirtyLog, Marked};
use super::inflight::{Inflight, InflightMemory};

/// Longest queue that a guest may make: the most that split rings can have.
pub const MAX_QUEUE_SIZE: u16 = 32768;
/// Bytes of the used ring: flags and index, an element, and the index behind the elements.
const USED_HEAD: u64 = 4;
const USED_ELEMENT: u64 = 8;
const WISH: u64 = 2;

/// How a queue is started.
#[derive(Clone, Debug)]
pub struct QueueSetup {
    /// Descriptors: a power of two.
    pub size: u16,
    /// Where the descriptors are, by the guest's addresses.
    pub descriptors: u64,
    /// Where the guest puts what it offers.
    pub available: u64,
    /// Where it is answered.
    pub used: u64,
    /// The first entry to take, by the front end.
    pub base: u16,
    /// Where requests in flight are recorded, and at which byte the queue's part begins.
    pub inflight: Option<(InflightMemory, usize)>,
    /// Where writes to the used ring are noted in the log of dirty pages, if they are.
    pub log: Option<u64>,
}

/// Why a queue cannot be started, or went on no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The front end named no such queue.
    #[error("there is no such queue")]
    Number,
    /// It has a size that is not possible, or lies where the guest has no memory.
    #[error("the queue lies outside the guest's memory, or its size is not possible")]
    Place,
    /// The record of requests in flight is too short.
    #[error("the record of requests in flight is too short")]
    Record,
    /// The guest offers more than the queue holds, what is not there, or twice the same.
    #[error("the guest's index is not possible")]
    Index,
    /// It runs already.
    #[error("the queue runs already")]
    Running,
}

/// A queue that was started.
pub(super) struct VirtQueue {
    queue: Queue,
    inflight: Option<Inflight>,
    log: Option<u64>,
    /// Heads that a predecessor had in flight, to be done again first; the next one at the end.
    again: Vec<u16>,
    /// By head: in flight.
    taken: Vec<bool>,
    /// In flight.
    pub busy: u16,
    /// It takes nothing any more, and ends when what is in flight is answered.
    pub stopping: bool,
    /// Answers were given since the guest was last told.
    told_less: bool,
    /// It broke: the guest did what it must not.
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
                // What was taken is what was answered and what is in flight; the front end cannot know better.
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
        Ok(VirtQueue { queue, inflight, log, again, taken, busy: 0, stopping: false, told_less: false, broken: false })
    }

    /// Where the guest's descriptors are, and how many.
    pub fn table(&self) -> (GuestAddress, u16) {
        (GuestAddress(self.queue.desc_table()), self.queue.size())
    }

    /// Requests of a predecessor that are still to be done.
    pub fn left(&self) -> usize {
        self.again.len()
    }

    /// The entry that the next front end begins with; all before it are answered once [`VirtQueue::is_drained`].
    pub fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    /// True when nothing is in flight, and nothing of a predecessor is still to be done.
    pub fn is_drained(&self) -> bool {
        self.busy == 0 && (self.again.is_empty() || self.broken)
    }

    /// The next request's head. A queue that is to stop takes what a predecessor left, for its entries lie before those that are answered.
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
        self.busy += 1; // no more than there are descriptors
        if let Some(record) = &mut self.inflight {
            record.begin(head);
        }
        Ok(Some(head))
    }

    fn fail(&mut self) -> QueueError {
        self.broken = true;
        QueueError::Index
    }

    /// Shows the guest an answer of `written` bytes.
    pub fn answer(&mut self, marked: Marked<'_>, head: u16, written: u32) {
        let Marked { memory, log } = marked;
        let place = USED_HEAD + USED_ELEMENT * u64::from(self.queue.next_used() & (self.queue.size() - 1)); // a power of two
        if let Some(record) = &self.inflight {
            record.answering(head);
        }
        // The head was checked when it was taken and the ring when the queue was started, so this cannot fail.
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
        self.told_less = true;
    }

    /// True when the guest is to be told of answers, once for all since the last time.
    pub fn must_tell(&mut self, memory: &Memory) -> bool {
        if !std::mem::take(&mut self.told_less) {
            return false;
        }
        if self.queue.event_idx_enabled() {
            return self.queue.needs_notification(memory).unwrap_or(true);
        }
        // The used index must be out before the flag is read.
        std::sync::atomic::fence(Ordering::SeqCst);
        let flags: Result<u16, _> = memory.load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        flags.map_or(true, |flags| u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// True when there is something to take.
    pub fn has_more(&self, memory: &Memory) -> bool {
        if self.broken || self.stopping {
            return !self.broken && !self.again.is_empty();
        }
        let next = self.queue.next_avail();
        !self.again.is_empty() || self.queue.avail_idx(memory, Ordering::Acquire).is_ok_and(|Wrapping(index)| index != next)
    }

    /// Asks the guest to tell when it offers something. True when it has done so meanwhile.
    pub fn listen(&mut self, marked: Marked<'_>) -> bool {
        if self.stopping || self.broken {
            return false;
        }
        let offered = self.queue.enable_notification(marked.memory).unwrap_or(false);
        self.mark_wish(marked.log);
        offered
    }

    /// Asks the guest not to tell: the queue is looked at anyway.
    pub fn hush(&mut self, marked: Marked<'_>) {
        let _ = self.queue.disable_notification(marked.memory);
        self.mark_wish(marked.log);
    }

    /// Notes where it was written whether the guest is to tell: in the flags, or behind the last element.
    fn mark_wish(&self, log: Option<&DirtyLog>) {
        if log.is_some() {
            self.mark_used(log, 0, USED_HEAD);
            self.mark_used(log, USED_HEAD + USED_ELEMENT * u64::from(self.queue.size()), WISH);
        }
    }

    /// Notes that a part of the used ring was written.
    fn mark_used(&self, log: Option<&DirtyLog>, at: u64, length: u64) {
        if let (Some(log), Some(ring)) = (log, self.log) {
            log.mark(ring.saturating_add(at), length);
        }
    }
}
