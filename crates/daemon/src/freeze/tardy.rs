//! Agents that kept a run waiting: policies leave them alone for a while.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::agent::Agent;
use super::{Freezer, Guest, How};
use crate::service::Daemon;

/// Most doublings of the time for which policies do not freeze a guest that is slow to freeze.
const MOST_DOUBLINGS: u32 = 5;

/// An agent that kept a run waiting.
pub(super) struct Tardy {
    /// Time until which policies do not use it.
    pub(super) until: Instant,
    reason: String,
    /// It has answered since, or had answered and did not freeze in time.
    answers: bool,
    /// The daemon is asking it.
    probing: bool,
    /// Freezes in a row that took too long.
    slow: u32,
}

impl Freezer {
    pub(super) fn tardy(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Tardy>> {
        self.tardy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an agent kept a command waiting. `answers`: before it was slow to freeze.
    pub(super) fn note_tardy(&self, socket: &Path, reason: &str, answers: bool) {
        let (now, mut tardy) = (Instant::now(), self.tardy());
        tardy.retain(|_, old| now < old.until + self.limits.rest * 120);
        let slow = tardy.get(socket).map_or(0, |old| old.slow) + u32::from(answers);
        let until = now + self.limits.rest * 2u32.pow(slow.saturating_sub(1).min(MOST_DOUBLINGS));
        tardy.insert(socket.to_owned(), Tardy { until, reason: reason.to_owned(), answers, probing: false, slow });
    }

    /// Returns why an agent is not asked now, and whether to find out if it answers again.
    pub(super) fn is_tardy(&self, socket: &Path) -> Option<(String, bool)> {
        let (now, mut tardy) = (Instant::now(), self.tardy());
        let old = tardy.get_mut(socket)?;
        if now >= old.until && old.answers {
            return None;
        }
        let probe = now >= old.until && !old.probing;
        old.probing |= probe;
        Some((old.reason.clone(), probe))
    }
}

impl Daemon {
    /// Returns why a policy does not ask an agent now: it kept a run waiting, and has not answered
    /// since. From time to time the daemon finds out in the background whether it answers again, so
    /// that other guests do not wait for that.
    pub(super) fn left_alone(self: &Arc<Daemon>, guest: &Guest, how: How) -> Option<String> {
        if how.patient {
            return None;
        }
        let (reason, probe) = self.freezer.is_tardy(&guest.socket)?;
        if probe {
            let (daemon, socket) = (Arc::clone(self), guest.socket.clone());
            tokio::spawn(async move {
                let freezer = &daemon.freezer;
                let answers = {
                    let _lock = freezer.lock(&socket).await;
                    match Agent::connect(&socket).await {
                        Ok(mut agent) => agent.sync(freezer.limits.sync).await.is_ok(),
                        // the next run finds that out by itself
                        Err(_) => true,
                    }
                };
                if let Some(old) = freezer.tardy().get_mut(&socket) {
                    (old.probing, old.answers) = (false, answers);
                    if !answers {
                        old.until = Instant::now() + freezer.limits.rest;
                    }
                }
            });
        }
        Some(reason)
    }
}
