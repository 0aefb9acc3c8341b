//! Compression and decompression for a shard's pool, and encryption for its clients: by helpers, and
//! by the shard itself while it has nothing else to do.

use millpond_device::Waker;
use millpond_engine::{Codec, CodecWork};

use crate::helpers::{Helpers, WorkQueue, Works};
use crate::tls::{Pace, TlsWork};

/// Blocks that the shard codes in one go before it looks at other events: 0.1 ms of Zstandard.
const BLOCKS_IN_A_GO: usize = 8;
/// Time in nanoseconds for a helper that slept to begin a connection's work, before the shard may do
/// the work itself: what a wake-up takes on a machine that is not busy.
const WAKE_UP_NANOS: u64 = 50_000;

/// Work of the pool that is to be done, or being done.
#[derive(Default)]
pub(super) struct Coders {
    codec: Codec,
    /// `None` until the daemon has said which helpers there are.
    queue: Option<WorkQueue>,
    /// Work that is not in the queue.
    own: Works,
    /// Works that were begun or are in the queue.
    under_way: usize,
    /// Connections that are handed over.
    tls_under_way: usize,
    /// When the shard may do a connection's work that no helper has begun.
    tls_from: u64,
}

impl Coders {
    /// Shares work with helpers from now on.
    pub fn share(&mut self, helpers: &Helpers, waker: Waker) {
        self.queue.get_or_insert_with(|| helpers.queue(waker));
    }

    /// Takes on work of the pool.
    pub fn add(&mut self, work: CodecWork) {
        self.under_way += 1;
        self.own.push(work);
    }

    /// Returns whether there are helpers that can take over connections.
    pub fn has_helpers(&self) -> bool {
        self.queue.as_ref().is_some_and(WorkQueue::has_helpers)
    }

    /// Hands a connection over. There must be helpers.
    pub fn hand_over(&mut self, work: TlsWork, now: u64) {
        let Some(queue) = &self.queue else { return debug_assert!(false, "there are no helpers") };
        self.tls_under_way += 1;
        self.tls_from = if queue.add_tls(work) { now + WAKE_UP_NANOS } else { now };
    }

    /// Returns the connections that helpers are done with.
    pub fn take_tls(&mut self) -> Vec<TlsWork> {
        let Some(queue) = self.queue.as_ref().filter(|_| self.tls_under_way > 0) else { return Vec::new() };
        let finished = queue.take_finished_tls();
        self.tls_under_way -= finished.len();
        finished
    }

    /// Does a connection's work that no helper had time for, and returns it.
    pub fn work_for_tls(&mut self, now: u64) -> Option<TlsWork> {
        let queue = self.queue.as_ref().filter(|_| self.tls_under_way > 0 && now >= self.tls_from)?;
        let mut work = queue.take_tls()?;
        self.tls_under_way -= 1;
        work.run(&Pace::BETWEEN);
        Some(work)
    }

    /// Returns whether helpers are done with a connection.
    pub fn has_finished_tls(&self) -> bool {
        self.tls_under_way > 0 && self.queue.as_ref().is_some_and(WorkQueue::has_finished_tls)
    }

    /// Returns whether the shard has work that it can do itself, or finished work to hand over.
    /// Work that helpers have is not that.
    pub fn is_busy(&self) -> bool {
        let queued = || self.queue.as_ref().is_some_and(|queue| queue.has_finished() || !queue.is_empty());
        self.under_way() > 0 && (!self.own.is_empty() || queued())
    }

    /// Returns whether helpers have finished work.
    pub fn has_finished(&self) -> bool {
        self.under_way() > 0 && self.queue.as_ref().is_some_and(WorkQueue::has_finished)
    }

    /// Returns the number of works that are not finished.
    pub fn under_way(&self) -> usize {
        self.under_way + self.tls_under_way
    }

    /// Does a few blocks of work, and returns all blocks that are finished.
    pub fn work(&mut self) -> Vec<CodecWork> {
        if self.under_way == 0 {
            return Vec::new();
        }
        if let Some(queue) = &self.queue {
            // helpers begin while the shard does the first one
            queue.add(std::iter::from_fn(|| self.own.pop()));
        }
        let mut finished = Vec::new();
        let mut blocks = 0;
        while blocks < BLOCKS_IN_A_GO {
            let next = match &self.queue {
                Some(queue) => queue.take(),
                None => self.own.pop(),
            };
            let Some(mut work) = next else { break };
            blocks += work.blocks();
            work.run(&mut self.codec);
            finished.push(work);
        }
        finished.extend(self.queue.iter().flat_map(WorkQueue::take_finished));
        self.under_way -= finished.len();
        finished
    }

    /// Announces that the shard is about to sleep. Returns false when it must not.
    pub fn may_sleep(&self) -> bool {
        self.under_way() == 0 || self.queue.as_ref().is_none_or(WorkQueue::may_sleep)
    }

    /// Announces that the shard is awake.
    pub fn awake(&self) {
        if let Some(queue) = self.queue.as_ref().filter(|_| self.under_way() > 0) {
            queue.awake();
        }
    }
}
