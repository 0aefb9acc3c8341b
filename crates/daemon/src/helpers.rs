//! Threads that compress and decompress blocks for the pools of the daemon, beside their shards.
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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use millpond_device::Waker;
use millpond_engine::{Codec, CodecWork};

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

/// Work that is to be done: what reads wait for comes first. It takes a quarter of the time, and
/// writes can have a lot of work in a queue.
#[derive(Debug, Default)]
pub(crate) struct Works {
    urgent: VecDeque<CodecWork>,
    others: VecDeque<CodecWork>,
}

impl Works {
    pub(crate) fn push(&mut self, work: CodecWork) {
        if work.is_for_read() { self.urgent.push_back(work) } else { self.others.push_back(work) }
    }

    pub(crate) fn pop(&mut self) -> Option<CodecWork> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    pub(crate) fn len(&self) -> usize {
        self.urgent.len() + self.others.len()
    }
}

/// Finished work of a shard.
#[derive(Debug)]
struct Finished {
    works: Mutex<Vec<CodecWork>>,
    /// Changed under the lock of `works`.
    has_some: AtomicBool,
    /// A defect of the program made a helper panic, and its work is lost.
    lost: AtomicBool,
    /// The shard sleeps, or is about to.
    asleep: AtomicBool,
    waker: Waker,
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
        helpers
    }

    /// Creates the queue of a shard, which `waker` wakes.
    pub(crate) fn queue(&self, waker: Waker) -> WorkQueue {
        let (has_some, lost, asleep) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let finished = Finished { works: Mutex::default(), has_some, lost, asleep, waker };
        let finished = Arc::new(finished);
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
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A helper that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until the end of the daemon.
    fn help(&self) {
        let mut codec = Codec::default();
        while let Some((mut work, finished)) = self.wait_for_work() {
            match catch_unwind(AssertUnwindSafe(|| work.run(&mut codec))) {
                Ok(()) => finished.add(Some(work)),
                Err(_) => {
                    codec = Codec::default();
                    finished.add(None);
                }
            }
        }
    }

    fn wait_for_work(&self) -> Option<(CodecWork, Arc<Finished>)> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(found) = state.take() {
                return Some(found);
            }
            state.waiting += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }
}

impl State {
    /// Takes work of the queues in turn.
    fn take(&mut self) -> Option<(CodecWork, Arc<Finished>)> {
        let at = self.queues.iter().position(|queue| queue.works.len() > 0)?;
        let mut queue = self.queues.remove(at)?;
        let work = queue.works.pop();
        let finished = Arc::clone(&queue.finished);
        self.queues.push_back(queue);
        Some((work?, finished))
    }
}

impl Finished {
    fn lock(&self) -> MutexGuard<'_, Vec<CodecWork>> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds finished work; `None` for work that is lost.
    fn add(&self, work: Option<CodecWork>) {
        self.lost.fetch_or(work.is_none(), Ordering::SeqCst);
        let mut works = self.lock();
        works.extend(work);
        self.has_some.store(true, Ordering::SeqCst);
        drop(works);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
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
        let wanted = queue.works.len().saturating_sub(1).min(waiting);
        drop(state);
        (0..wanted).for_each(|_| self.shared.work.notify_one());
    }

    /// Takes work that no helper has begun.
    pub(crate) fn take(&self) -> Option<CodecWork> {
        let mut state = self.shared.lock();
        state.queues.iter_mut().find(|queue| queue.id == self.id)?.works.pop()
    }

    /// Returns whether helpers have begun all work.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.lock().queues.iter().all(|queue| queue.id != self.id || queue.works.len() == 0)
    }

    /// Takes the work that helpers have finished.
    ///
    /// # Panics
    /// When a helper has panicked: requests wait for its work, and the pool must be imported again,
    /// as after a panic of the shard.
    pub(crate) fn take_finished(&self) -> Vec<CodecWork> {
        if !self.has_finished() {
            return Vec::new();
        }
        assert!(!self.finished.lost.load(Ordering::SeqCst), "a helper thread panicked while it coded blocks");
        let mut works = self.finished.lock();
        self.finished.has_some.store(false, Ordering::SeqCst);
        std::mem::take(&mut works)
    }

    /// Returns whether helpers have finished work.
    pub(crate) fn has_finished(&self) -> bool {
        self.finished.has_some.load(Ordering::SeqCst)
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
