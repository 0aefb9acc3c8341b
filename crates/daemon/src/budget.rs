//! The memory that requests of all clients may hold together: payloads and replies in flight.
//!
//! Each client has a share of its own, [`SHARE`], that it need not ask for, so small requests never
//! wait for other clients. What it holds beyond that comes from one budget of the daemon. When the
//! budget cannot give what a client asks for, the client waits its turn in one queue of all shards:
//! no client gets memory before the first in the queue, however little it asks for.
//!
//! No client waits for ever: no request is larger than the budget ([`LEAST`]), so the first client
//! in the queue is served at the latest when all other clients have returned their memory, and no
//! other client gets memory before it. Held memory returns when the pool answers a request, a
//! client sends the rest of a payload, or a client reads a reply; a client that neither sends nor
//! reads for [`PATIENCE`] is disconnected. A request has all its memory before it begins, so a
//! client that holds memory never waits for the budget itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millpond_block::MAX_REQUEST_BYTES;
use millpond_device::Waker;

/// Bytes that each client may hold without asking: some sixty requests of 4 KiB.
pub const SHARE: u64 = 256 << 10;
/// Least size of the budget: the longest request to a compressed volume, which holds three times its
/// bytes, and its reply's headers.
pub const LEAST: u64 = 4 * MAX_REQUEST_BYTES;
/// How long a client that holds memory of the budget may neither send nor read.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Default budget as a part of the host's memory: 1/N, and at most [`MOST`].
const PART: u64 = 4;
/// Most bytes of the default budget: what 64 clients with the longest requests hold.
const MOST: u64 = 4 << 30;

/// A client, as the queue of the budget knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker(pub u64);

/// Memory that requests of all clients share.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    used: AtomicU64,
    /// Length of the queue, read without its lock.
    waits: AtomicUsize,
    queue: Mutex<VecDeque<(Asker, Waker)>>,
    /// Number of the next asker.
    last: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget::new((memory_of_host() / PART).min(MOST))
    }
}

impl Budget {
    /// Returns a budget of `bytes`, but at least [`LEAST`].
    pub fn new(bytes: u64) -> Budget {
        Budget {
            total: bytes.max(LEAST),
            used: AtomicU64::new(0),
            waits: AtomicUsize::new(0),
            queue: Mutex::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Returns the bytes in all, and the bytes in use.
    pub fn use_of(&self) -> (u64, u64) {
        (self.total, self.used.load(Ordering::Acquire))
    }

    /// Returns a new number for a client.
    pub fn asker(&self) -> Asker {
        Asker(self.last.fetch_add(1, Ordering::Relaxed))
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(Asker, Waker)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.total);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Takes bytes. Returns false when too few are free or other clients wait; the client is then
    /// in the queue, and `waker` wakes when it makes sense to ask again.
    pub fn take(&self, asker: Asker, bytes: u64, waker: &Waker) -> bool {
        if bytes == 0 || (self.waits.load(Ordering::Acquire) == 0 && self.try_take(bytes)) {
            return true;
        }
        let mut queue = self.queue();
        let place = queue.iter().position(|(waiting, _)| *waiting == asker);
        let first = place.map_or(queue.is_empty(), |place| place == 0);
        if first && self.try_take(bytes) {
            if place.is_some() {
                queue.pop_front();
            }
            self.passed_on(&queue);
            return true;
        }
        if place.is_none() {
            queue.push_back((asker, waker.clone()));
            self.waits.store(queue.len(), Ordering::Release);
            // bytes that were returned before the queue was visible woke no client
            self.passed_on(&queue);
        }
        false
    }

    /// Returns bytes to the budget.
    pub fn give_back(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.used.fetch_sub(bytes, Ordering::AcqRel);
        if self.waits.load(Ordering::Acquire) > 0 {
            self.passed_on(&self.queue());
        }
    }

    /// Removes a client from the queue.
    pub fn leave(&self, asker: Asker) {
        if self.waits.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queue = self.queue();
        queue.retain(|(waiting, _)| *waiting != asker);
        self.passed_on(&queue);
    }

    /// Wakes the first client in the queue.
    fn passed_on(&self, queue: &VecDeque<(Asker, Waker)>) {
        self.waits.store(queue.len(), Ordering::Release);
        if let Some((_, waker)) = queue.front() {
            waker.wake();
        }
    }
}

/// Returns the bytes of memory of the host, or the limit of the daemon's control group where that
/// is less.
fn memory_of_host() -> u64 {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let host = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        number(line.trim().trim_end_matches("kB")).map(|kilobytes| kilobytes << 10)
    });
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| number(&text));
    host.into_iter().chain(group).min().unwrap_or(0)
}

/// Memory that one client holds.
#[derive(Debug)]
pub struct Purse {
    asker: Asker,
    held: u64,
    /// Bytes of memory for each byte that the client's requests move.
    times: u64,
    /// True while the client waits in the queue.
    waits: bool,
    /// True when the client has asked since it was last settled.
    asked: bool,
}

impl Purse {
    /// Returns a purse that holds nothing.
    pub fn new(asker: Asker) -> Purse {
        Purse { asker, held: 0, times: 1, waits: false, asked: false }
    }

    fn shared(held: u64) -> u64 {
        held.saturating_sub(SHARE)
    }

    /// True while the client waits in the queue.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// True when the client holds memory beyond its share.
    pub fn holds_shared(&self) -> bool {
        Purse::shared(self.held) > 0
    }

    /// Sets how many times the bytes that they move requests hold in memory, from now on.
    pub fn weigh(&mut self, times: u64) {
        self.times = times;
    }

    /// Takes memory for a request that moves `bytes`; returns false when the client has to wait.
    pub fn take(&mut self, budget: &Budget, bytes: u64, waker: &Waker) -> bool {
        let bytes = bytes.saturating_mul(self.times);
        let more = Purse::shared(self.held + bytes) - Purse::shared(self.held);
        self.waits = !budget.take(self.asker, more, waker);
        self.asked = true;
        if !self.waits {
            self.held += bytes;
        }
        !self.waits
    }

    /// Lowers the memory that is held to that for requests and replies of `bytes`, if that is less
    /// than before.
    pub fn shrink(&mut self, budget: &Budget, bytes: u64) {
        let held = bytes.saturating_mul(self.times);
        if held < self.held {
            budget.give_back(Purse::shared(self.held) - Purse::shared(held));
            self.held = held;
        }
    }

    /// Ends a look at the client's requests: leaves the queue when none of them asked for memory.
    pub fn settle(&mut self, budget: &Budget) {
        if self.waits && !self.asked {
            budget.leave(self.asker);
            self.waits = false;
        }
        self.asked = false;
    }

    /// Returns all memory and leaves the queue.
    pub fn empty(&mut self, budget: &Budget) {
        self.shrink(budget, 0);
        if self.waits {
            budget.leave(self.asker);
            self.waits = false;
        }
    }
}

#[cfg(test)]
mod tests;
