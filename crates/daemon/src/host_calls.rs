//! Calls to the host that may never return: examining, reading and opening devices.
//!
//! Each call runs on a thread of its own, and its caller waits for a limited time. A call that has
//! not returned by then goes on alone; until it returns, no other call with that path begins, so a
//! device that hangs holds one thread and no more. The number of threads is limited.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

#[cfg(test)]
mod tests;

/// How long examining or opening a device may take: a disk that spins up takes some seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

/// Most calls in progress: half of the threads that the runtime has for blocking work.
const MOST: usize = 256;

/// A device that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer {
    /// Path of the device.
    pub path: PathBuf,
    /// Time since the call to it began.
    pub silent: Duration,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has not answered for {} s; check the device and its cables", self.path.display(), self.silent.as_secs())
    }
}

/// Calls in progress, by path.
#[derive(Clone, Debug)]
pub(super) struct HostCalls {
    slots: Arc<Mutex<BTreeMap<PathBuf, Arc<Slot>>>>,
    threads: Arc<Semaphore>,
}

impl Default for HostCalls {
    fn default() -> Self {
        HostCalls::at_most(MOST)
    }
}

/// State of one path.
#[derive(Debug, Default)]
struct Slot {
    /// Held while a call is in progress.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Start of that call.
    since: Mutex<Option<Instant>>,
}

impl Slot {
    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silent(&self) -> Duration {
        self.since().map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The right to make a call with a path; dropped when the call returns or panics.
struct Turn {
    slot: Arc<Slot>,
    _turn: OwnedMutexGuard<()>,
    _thread: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.slot.since() = None;
    }
}

impl HostCalls {
    /// Allows at most `calls` calls in progress.
    fn at_most(calls: usize) -> HostCalls {
        HostCalls { slots: Arc::default(), threads: Arc::new(Semaphore::new(calls)) }
    }

    /// Calls `f` with the path on a thread of its own.
    ///
    /// # Errors
    /// When this call, or an earlier one with this path, has not returned within the limit. It goes
    /// on; its result is dropped.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        path: &Path,
        limit: Duration,
        f: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let slot = Arc::clone(self.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(path.to_owned()).or_default());
        let no_answer = || NoAnswer { path: path.to_owned(), silent: slot.silent() };
        if slot.silent() >= limit {
            return Err(no_answer());
        }
        let called = async {
            let turn = Arc::clone(&slot.turn).lock_owned().await;
            // the semaphore is never closed
            let thread = Arc::clone(&self.threads).acquire_owned().await.ok();
            let turn = Turn { _turn: turn, _thread: thread, slot: Arc::clone(&slot) };
            *slot.since() = Some(Instant::now());
            let path = path.to_owned();
            let call = move || {
                let _turn = turn;
                f(&path)
            };
            tokio::task::spawn_blocking(call).await
        };
        match timeout(limit, called).await {
            Ok(Ok(value)) => Ok(value),
            // it panicked, or the runtime ends: either way there is no answer
            Ok(Err(error)) => {
                tracing::error!(device = %path.display(), %error, "a call to the host did not end well");
                Err(no_answer())
            }
            Err(_) => Err(no_answer()),
        }
    }
}
