//! Threads that compress and decompress blocks, and that encrypt and decrypt TLS connections, for the
//! pools of the daemon, beside their shards.
//!
//! Each shard puts work into a [`WorkQueue`] of its own. It does work of its queue itself whenever
//! it has nothing else to do, so a pool works without any helper, and a single small work never
//! waits for another thread. Helpers take from the queues in turn: a busy pool does not delay
//! another one.
//!
//! INV-HELPER-1: a shard does not sleep while finished work waits for it. It announces that it is
//! about to sleep, then looks for finished work; a helper adds finished work, then looks whether the
//! shard sleeps, and wakes it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millpond_device::Waker;
use millpond_engine::{Codec, CodecWork};

use crate::tls::{Pace, TlsWork};

/// How long a helper that served a connection looks for more work before it sleeps: the next part of a
/// stream comes after some microseconds, and to wake a thread costs both sides about as many.
const SPIN: Duration = Duration::from_micros(20);
/// Most helpers by default: compression of 8 cores is more than most devices can take.
const MOST: usize = 8;

/// The helper threads of a daemon. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Number of helpers.
    threads: AtomicUsize,
    /// Changes when work is added.
    added: AtomicUsize,
    /// Helpers that look for work without sleeping.
    spinning: AtomicUsize,
    /// Number of times that a helper served a connection.
    #[cfg(test)]
    connections: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    queues: VecDeque<Queue>,
    last: u64,
    /// Helpers that wait for work.
    waiting: usize,
    stopping: bool,
}

#[derive(Debug)]
struct Queue {
    id: u64,
    works: Works,
    finished: Arc<Finished>,
}

/// One work.
enum Work {
    Codec(CodecWork),
    Tls(TlsWork),
}

/// Work that is to be done: what reads wait for comes first. It takes a quarter of the time, and
/// writes can have a lot of work in a queue.
#[derive(Default)]
pub(crate) struct Works {
    urgent: VecDeque<CodecWork>,
    tls: VecDeque<TlsWork>,
    others: VecDeque<CodecWork>,
}

impl Works {
    pub(crate) fn push(&mut self, work: CodecWork) {
        if work.is_for_read() { self.urgent.push_back(work) } else { self.others.push_back(work) }
    }

    /// Removes the next work of compression or decompression.
    pub(crate) fn pop(&mut self) -> Option<CodecWork> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    fn pop_any(&mut self) -> Option<Work> {
        let urgent = self.urgent.pop_front().map(Work::Codec);
        urgent.or_else(|| self.tls.pop_front().map(Work::Tls)).or_else(|| self.others.pop_front().map(Work::Codec))
    }

    /// Number of works of compression and decompression.
    pub(crate) fn len(&self) -> usize {
        self.urgent.len() + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.tls.is_empty()
    }
}

impl fmt::Debug for Works {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Works({} codec, {} tls)", self.len(), self.tls.len())
    }
}

/// Finished work of a shard.
struct Finished {
    works: Mutex<Vec<CodecWork>>,
    /// Changed under the lock of `works`.
    has_some: AtomicBool,
    tls: Mutex<Vec<TlsWork>>,
    /// Changed under the lock of `tls`.
    has_tls: AtomicBool,
    /// A defect of the program made a helper panic, and its work is lost.
    lost: AtomicBool,
    /// The shard sleeps, or is about to.
    asleep: AtomicBool,
    waker: Waker,
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished").field("has_some", &self.has_some).field("has_tls", &self.has_tls).finish_non_exhaustive()
    }
}

impl Helpers {
    /// Returns the default number of helpers: one less than the processors that this process may
    /// use, at most [`MOST`].
    pub fn usual() -> usize {
        thread::available_parallelism().map_or(0, |cores| cores.get() - 1).min(MOST)
    }

    /// Starts so many helpers; fewer, with a warning, when the system has no room for more threads.
    pub fn start(count: usize) -> Helpers {
        let mut helpers = Helpers::default();
        for nth in 0..count {
            let shared = Arc::clone(&helpers.shared);
            match thread::Builder::new().name(format!("helper-{nth}")).spawn(move || shared.help()) {
                Ok(thread) => helpers.threads.push(thread),
                Err(error) => {
                    tracing::warn!(%error, started = nth, wanted = count, "cannot start more helper threads");
                    break;
                }
            }
        }
        helpers.shared.threads.store(helpers.threads.len(), Ordering::Relaxed);
        helpers
    }

    /// Returns how often helpers have served a connection.
    #[cfg(test)]
    pub(crate) fn connections_served(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Creates the queue of a shard, which `waker` wakes.
    pub(crate) fn queue(&self, waker: Waker) -> WorkQueue {
        let finished = Arc::new(Finished {
            works: Mutex::default(),
            has_some: AtomicBool::new(false),
            tls: Mutex::default(),
            has_tls: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            waker,
        });
        let mut state = self.shared.lock();
        state.last += 1;
        let id = state.last;
        state.queues.push_back(Queue { id, works: Works::default(), finished: Arc::clone(&finished) });
        WorkQueue { shared: Arc::clone(&self.shared), id, finished }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.threads.store(0, Ordering::Relaxed);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A helper that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Works until the end of the daemon.
    fn help(&self) {
        let mut codec = Codec::default();
        let mut spins = false;
        while let Some((mut work, finished)) = self.wait_for_work(spins) {
            spins = matches!(work, Work::Tls(_));
            let run = AssertUnwindSafe(|| match &mut work {
                Work::Codec(work) => work.run(&mut codec),
                Work::Tls(work) => work.run(&Pace::HELPER),
            });
            if catch_unwind(run).is_ok() {
                #[cfg(test)]
                self.connections.fetch_add(usize::from(matches!(work, Work::Tls(_))), Ordering::Relaxed);
                finished.add(work);
            } else {
                codec = Codec::default();
                finished.lose();
            }
        }
    }

    fn wait_for_work(&self, mut spins: bool) -> Option<(Work, Arc<Finished>)> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(found) = state.take() {
                return Some(found);
            }
            if std::mem::take(&mut spins) {
                let before = self.added.load(Ordering::Relaxed);
                drop(state);
                self.spin(before);
                state = self.lock();
                continue;
            }
            state.waiting += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }
}

impl Shared {
    /// Waits a moment for work to be added.
    fn spin(&self, before: usize) {
        self.spinning.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        while self.added.load(Ordering::Relaxed) == before && begun.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        self.spinning.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// Takes work of the queues in turn.
    fn take(&mut self) -> Option<(Work, Arc<Finished>)> {
        let at = self.queues.iter().position(|queue| !queue.works.is_empty())?;
        let mut queue = self.queues.remove(at)?;
        let work = queue.works.pop_any();
        let finished = Arc::clone(&queue.finished);
        self.queues.push_back(queue);
        Some((work?, finished))
    }
}

impl Finished {
    /// Adds finished work.
    fn add(&self, work: Work) {
        match work {
            Work::Codec(work) => {
                let mut works = lock(&self.works);
                works.push(work);
                self.has_some.store(true, Ordering::SeqCst);
            }
            Work::Tls(work) => {
                let mut works = lock(&self.tls);
                works.push(work);
                self.has_tls.store(true, Ordering::SeqCst);
            }
        }
        self.wake();
    }

    fn check(&self) {
        assert!(!self.lost.load(Ordering::SeqCst), "a helper thread panicked at its work");
    }

    /// Reports that work is lost.
    fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.has_some.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The work of one shard. Work that is in it is lost when it is dropped.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    shared: Arc<Shared>,
    id: u64,
    finished: Arc<Finished>,
}

impl WorkQueue {
    /// Adds work, and wakes as many helpers as have something to do while the shard does a work
    /// itself.
    pub(crate) fn add(&self, works: impl IntoIterator<Item = CodecWork>) {
        let mut state = self.shared.lock();
        let waiting = state.waiting;
        let Some(queue) = state.queues.iter_mut().find(|queue| queue.id == self.id) else { return };
        works.into_iter().for_each(|work| queue.works.push(work));
        self.shared.added.fetch_add(1, Ordering::Relaxed);
        let wanted = queue.works.len().saturating_sub(1).min(waiting);
        drop(state);
        (0..wanted).for_each(|_| self.shared.work.notify_one());
    }

    /// Adds a connection's work, and wakes a helper. Returns whether one had nothing to do.
    pub(crate) fn add_tls(&self, work: TlsWork) -> bool {
        let mut state = self.shared.lock();
        let waiting = state.waiting;
        let Some(queue) = state.queues.iter_mut().find(|queue| queue.id == self.id) else { return false };
        queue.works.tls.push_back(work);
        self.shared.added.fetch_add(1, Ordering::Relaxed);
        let spinning = self.shared.spinning.load(Ordering::Relaxed);
        let free = waiting + spinning >= queue.works.tls.len();
        drop(state);
        // a helper that spins sees it; if it has just stopped, it looks once more under the lock
        if waiting > 0 && spinning == 0 {
            self.shared.work.notify_one();
        }
        free
    }

    /// Takes a connection's work that no helper has begun.
    pub(crate) fn take_tls(&self) -> Option<TlsWork> {
        let mut state = self.shared.lock();
        state.queues.iter_mut().find(|queue| queue.id == self.id)?.works.tls.pop_front()
    }

    /// Takes the connections' work that helpers have finished.
    ///
    /// # Panics
    /// As [`WorkQueue::take_finished`].
    pub(crate) fn take_finished_tls(&self) -> Vec<TlsWork> {
        self.finished.check();
        if !self.has_finished_tls() {
            return Vec::new();
        }
        let mut works = lock(&self.finished.tls);
        self.finished.has_tls.store(false, Ordering::SeqCst);
        std::mem::take(&mut works)
    }

    /// Returns whether helpers have finished a connection's work.
    pub(crate) fn has_finished_tls(&self) -> bool {
        self.finished.has_tls.load(Ordering::SeqCst)
    }

    /// Returns whether there are helpers.
    pub(crate) fn has_helpers(&self) -> bool {
        self.shared.threads.load(Ordering::Relaxed) > 0
    }

    /// Takes work of compression or decompression that no helper has begun.
    pub(crate) fn take(&self) -> Option<CodecWork> {
        let mut state = self.shared.lock();
        state.queues.iter_mut().find(|queue| queue.id == self.id)?.works.pop()
    }

    /// Returns whether helpers have begun all work.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.lock().queues.iter().all(|queue| queue.id != self.id || queue.works.is_empty())
    }

    /// Takes the work that helpers have finished.
    ///
    /// # Panics
    /// When a helper has panicked: requests wait for its work, and the pool must be imported again,
    /// as after a panic of the shard.
    pub(crate) fn take_finished(&self) -> Vec<CodecWork> {
        if !self.finished.has_some.load(Ordering::SeqCst) {
            return Vec::new();
        }
        self.finished.check();
        let mut works = lock(&self.finished.works);
        self.finished.has_some.store(false, Ordering::SeqCst);
        std::mem::take(&mut works)
    }

    /// Returns whether helpers have finished work.
    pub(crate) fn has_finished(&self) -> bool {
        self.finished.has_some.load(Ordering::SeqCst) || self.has_finished_tls()
    }

    /// Announces that the shard is about to sleep. Returns false when it must not, because finished
    /// work waits for it (INV-HELPER-1).
    pub(crate) fn may_sleep(&self) -> bool {
        self.finished.asleep.store(true, Ordering::SeqCst);
        !self.has_finished()
    }

    /// Announces that the shard is awake.
    pub(crate) fn awake(&self) {
        self.finished.asleep.store(false, Ordering::SeqCst);
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        self.shared.lock().queues.retain(|queue| queue.id != self.id);
    }
}

#[cfg(test)]
mod tests;
