//! The same work on many things by several threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Threads that wait for the target or compute.
pub const WORKERS: usize = 8;

/// Does `work` on each item; returns the results in the order of the items.
///
/// # Errors
/// One of the errors; the rest may be undone.
pub fn parallel<I: Sync, R: Send, E: Send>(items: &[I], work: impl Fn(&I) -> Result<R, E> + Sync) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(index) else { break };
                    match work(item) {
                        Ok(result) => results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result)),
                        Err(error) => {
                            next.store(items.len(), Relaxed);
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
