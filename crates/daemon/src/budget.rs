//! The memory that requests of all clients may hold together: payloads and replies in flight.
//!
//! Each client has a share of its own, [`SHARE`], that it need not ask for, so small requests never
//! wait for other clients. Memory beyond that comes from one budget of the daemon. When the budget
//! cannot give as much as a client asks for, the client waits its turn in the queue of its pool: no
//! client gets memory before the first in that queue, however little it asks for.
//!
//! A pool may wait for hours, for a target of publications that is away or for a device that hangs,
//! and its requests keep their memory. So while several pools are in service, a pool takes no more
//! than it leaves free: the first one that waits holds at most half of the budget, the next one half
//! of the rest. A pool that holds nothing may take the memory for one request in any case, even if
//! the budget is used up. So the budget is exceeded by one request for each pool at most, and a pool
//! waits for no other.
//!
//! No client waits for ever for clients of other pools, nor for clients of its own that go on: the
//! first in the queue is served at the latest when the other clients of its pool have returned their
//! memory. Held memory returns when the pool answers a request, a client sends the rest of a payload,
//! or a client reads a reply; a client that neither sends nor reads for [`PATIENCE`] is disconnected.
//! A request has all its memory before it begins, so a client that holds memory never waits for the
//! budget itself.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Memory that requests of all pools share.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    used: AtomicU64,
    /// Number of pools in service.
    pools: AtomicUsize,
    /// Number of the last pool.
    last: AtomicU64,
    /// The most bytes in use at which a pool that waits can go on, read without the lock; 0 if no pool
    /// waits for others.
    ceiling: AtomicU64,
    /// Pools that wait, by their numbers.
    waiting: Mutex<BTreeMap<u64, Waiting>>,
}

/// A pool whose clients wait.
#[derive(Debug)]
struct Waiting {
    /// The most bytes in use at which the first of them can go on.
    ceiling: u64,
    waker: Waker,
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
            pools: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            ceiling: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Returns the bytes in all, and the bytes in use. These may be more, by one request of each pool.
    pub fn use_of(&self) -> (u64, u64) {
        (self.total, self.used.load(Ordering::Acquire))
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most bytes in use at which a pool that holds `held` can take `bytes`.
    fn ceiling(&self, held: u64, bytes: u64) -> u64 {
        // without other pools nothing need be left free
        let rest = if self.pools.load(Ordering::Relaxed) > 1 { held.saturating_add(bytes) } else { 0 };
        self.total.saturating_sub(bytes).saturating_sub(rest)
    }

    fn try_take(&self, held: u64, bytes: u64) -> bool {
        let ceiling = self.ceiling(held, bytes);
        let more = |used: u64| used.checked_add(bytes).filter(|_| held == 0 || used <= ceiling);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Notes that a pool waits, or that it waits no more.
    fn wait(&self, pool: u64, waiting: Option<Waiting>) {
        let mut all = self.waiting();
        match waiting {
            Some(waiting) => drop(all.insert(pool, waiting)),
            None => drop(all.remove(&pool)),
        }
        let ceiling = all.values().map(|waiting| waiting.ceiling).max().unwrap_or(0);
        self.ceiling.store(ceiling, Ordering::SeqCst);
    }

    fn give_back(&self, bytes: u64) {
        let used = self.used.fetch_sub(bytes, Ordering::SeqCst).saturating_sub(bytes);
        let ceiling = self.ceiling.load(Ordering::SeqCst);
        if ceiling > 0 && used <= ceiling {
            self.waiting().values().filter(|waiting| used <= waiting.ceiling).for_each(|waiting| waiting.waker.wake());
        }
    }
}

/// A client, as the queue of its pool knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker(u64);

/// The budget as the thread of a pool sees it. When it is dropped, the memory of the pool's clients
/// returns.
#[derive(Debug)]
pub struct PoolBudget {
    budget: Arc<Budget>,
    number: u64,
    /// Bytes of the budget that clients of the pool hold.
    held: Cell<u64>,
    /// Clients that wait.
    queue: RefCell<VecDeque<Asker>>,
    /// Wakes the thread.
    waker: Waker,
    /// Number of the last asker.
    last: Cell<u64>,
}

impl PoolBudget {
    /// Returns the view of another pool. `waker` wakes its thread when it makes sense to ask again.
    pub fn new(budget: Arc<Budget>, waker: Waker) -> PoolBudget {
        budget.pools.fetch_add(1, Ordering::Relaxed);
        let number = budget.last.fetch_add(1, Ordering::Relaxed);
        PoolBudget { budget, number, held: Cell::default(), queue: RefCell::default(), waker, last: Cell::default() }
    }

    /// Returns the budget of the daemon.
    pub fn of_daemon(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Returns a new number for a client.
    pub fn asker(&self) -> Asker {
        self.last.set(self.last.get() + 1);
        Asker(self.last.get())
    }

    fn try_take(&self, bytes: u64) -> bool {
        let taken = self.budget.try_take(self.held.get(), bytes);
        if taken {
            self.held.set(self.held.get() + bytes);
        }
        taken
    }

    /// Takes bytes. Returns false when too few are free or other clients of the pool wait; the client
    /// is then in the queue, and the thread is woken when it makes sense to ask again.
    pub fn take(&self, asker: Asker, bytes: u64) -> bool {
        if bytes == 0 || (self.queue.borrow().is_empty() && self.try_take(bytes)) {
            return true;
        }
        let mut queue = self.queue.borrow_mut();
        let place = queue.iter().position(|waiting| *waiting == asker);
        if place.map_or(queue.is_empty(), |place| place == 0) {
            if self.try_take(bytes) {
                if place.is_some() {
                    queue.pop_front();
                    self.passed_on(&queue);
                }
                return true;
            }
            let ceiling = self.budget.ceiling(self.held.get(), bytes);
            self.budget.wait(self.number, Some(Waiting { ceiling, waker: self.waker.clone() }));
            if self.budget.use_of().1 <= ceiling {
                // bytes that were returned before that was visible woke nobody
                self.waker.wake();
            }
        }
        if place.is_none() {
            queue.push_back(asker);
        }
        false
    }

    /// Returns bytes to the budget.
    pub fn give_back(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.held.set(self.held.get().saturating_sub(bytes));
        self.budget.give_back(bytes);
        if !self.queue.borrow().is_empty() {
            // it may take more now, whatever others hold
            self.waker.wake();
        }
    }

    /// Removes a client from the queue.
    pub fn leave(&self, asker: Asker) {
        let mut queue = self.queue.borrow_mut();
        if !queue.is_empty() {
            queue.retain(|waiting| *waiting != asker);
            self.passed_on(&queue);
        }
    }

    /// Lets the first client in the queue ask.
    fn passed_on(&self, queue: &VecDeque<Asker>) {
        match queue.is_empty() {
            true => self.budget.wait(self.number, None),
            false => self.waker.wake(),
        }
    }
}

impl Drop for PoolBudget {
    fn drop(&mut self) {
        self.budget.wait(self.number, None);
        self.budget.pools.fetch_sub(1, Ordering::Relaxed);
        self.budget.used.fetch_sub(self.held.get(), Ordering::SeqCst);
        // the last pool that is left need leave nothing free
        self.budget.waiting().values().for_each(|waiting| waiting.waker.wake());
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
    pub fn take(&mut self, budget: &PoolBudget, bytes: u64) -> bool {
        let bytes = bytes.saturating_mul(self.times);
        let more = Purse::shared(self.held + bytes) - Purse::shared(self.held);
        self.waits = !budget.take(self.asker, more);
        self.asked = true;
        if !self.waits {
            self.held += bytes;
        }
        !self.waits
    }

    /// Lowers the memory that is held to that for requests and replies of `bytes`, if that is less
    /// than before.
    pub fn shrink(&mut self, budget: &PoolBudget, bytes: u64) {
        let held = bytes.saturating_mul(self.times);
        if held < self.held {
            budget.give_back(Purse::shared(self.held) - Purse::shared(held));
            self.held = held;
        }
    }

    /// Ends a look at the client's requests: leaves the queue when none of them asked for memory.
    pub fn settle(&mut self, budget: &PoolBudget) {
        if self.waits && !self.asked {
            budget.leave(self.asker);
            self.waits = false;
        }
        self.asked = false;
    }

    /// Returns all memory and leaves the queue.
    pub fn empty(&mut self, budget: &PoolBudget) {
        self.shrink(budget, 0);
        if self.waits {
            budget.leave(self.asker);
            self.waits = false;
        }
    }
}

#[cfg(test)]
mod tests;
