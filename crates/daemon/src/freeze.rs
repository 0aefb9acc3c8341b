//! Freezes the file systems of guests while their snapshots are taken, by the QEMU guest agent.
//!
//! INV-FREEZE-1: a guest that may be frozen has a mark in the state directory, from before the
//! command until its agent has confirmed the thaw, or until QEMU has ended. Each way out thaws: after
//! the snapshot, at an error, when the pool takes too long, and at the start of a daemon that finds
//! marks of a killed one. A thaw that is not confirmed is repeated until it is.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::service::Daemon;

mod agent;
mod guest;
mod marks;
mod tardy;
#[cfg(test)]
mod tests;
mod thaw;

use agent::{Agent, AgentError};
use guest::merged;
pub(crate) use guest::{Guest, check};
use tardy::Tardy;

const FREEZE: &str = "guest-fsfreeze-freeze";
/// Directory of the marks, in the state directory.
const MARKS: &str = "frozen";

/// Time limits.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How long other commands may use the agents before this one gives up.
    lock: Duration,
    /// How long an agent may take to answer at all.
    sync: Duration,
    /// How long it may take to freeze: it writes the guest's dirty pages first.
    freeze: Duration,
    /// The same for each of several guests, because the first ones wait, frozen, for the last.
    freeze_together: Duration,
    /// How long it may take to thaw.
    thaw: Duration,
    /// How long a guest stays frozen at most while the pool takes the snapshot.
    frozen: Duration,
    /// Pause before a thaw is repeated.
    pause: Duration,
    /// How long policies leave an agent alone that kept a run waiting.
    rest: Duration,
}

const LIMITS: Limits = Limits {
    lock: Duration::from_secs(10),
    sync: Duration::from_secs(3),
    freeze: Duration::from_secs(10),
    freeze_together: Duration::from_secs(5),
    thaw: Duration::from_secs(5),
    frozen: Duration::from_secs(5),
    pause: Duration::from_secs(2),
    rest: Duration::from_secs(30),
};

/// How guests are frozen for a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// One guest that is not frozen is enough that nothing is taken.
    pub(crate) required: bool,
    /// Agents that kept an earlier run waiting are asked all the same.
    pub(crate) patient: bool,
}

/// The guests that this daemon freezes.
pub(crate) struct Freezer {
    marks: PathBuf,
    limits: Limits,
    /// Locks of agents: each answers one client at a time.
    locks: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
    /// Guests that may be frozen because their thaw is not confirmed, with the reason.
    stuck: Mutex<BTreeMap<Guest, String>>,
    /// Agents that kept runs waiting.
    tardy: Mutex<BTreeMap<PathBuf, Tardy>>,
    /// The daemon ends: no guest is frozen any more.
    closed: AtomicBool,
}

/// A guest whose agent answers, before it is frozen.
struct Ready {
    guest: Guest,
    agent: Agent,
    lock: OwnedMutexGuard<()>,
}

/// A guest that is frozen, or may be.
struct Frozen {
    guest: Guest,
    /// Connection on which it was frozen, if that can be used.
    agent: Option<Agent>,
    /// Number of frozen file systems, by the agent; 0 if unknown.
    count: u64,
    mark: PathBuf,
    _lock: OwnedMutexGuard<()>,
}

impl Freezer {
    /// Returns a freezer with its marks in the state directory.
    pub(crate) fn new(state: &Path) -> Freezer {
        Freezer {
            marks: state.join(MARKS),
            limits: LIMITS,
            locks: Mutex::default(),
            stuck: Mutex::default(),
            tardy: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn locks(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self) -> MutexGuard<'_, BTreeMap<Guest, String>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why the thaw of a guest is not confirmed.
    fn stuck_reason(&self, socket: &Path) -> Option<String> {
        self.stuck().iter().find(|(guest, _)| guest.socket == socket).map(|(_, reason)| reason.clone())
    }

    /// Waits until no other command talks to this agent.
    async fn lock(&self, socket: &Path) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(socket.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// Connects to the agent of a guest and waits for its first answer. Nothing is frozen. Returns
    /// `None` if there is no guest.
    async fn reach(&self, guest: Guest, lock: OwnedMutexGuard<()>) -> Result<Option<Ready>, String> {
        let started = async {
            let mut agent = Agent::connect(&guest.socket).await?;
            agent.sync(self.limits.sync).await?;
            Ok::<Agent, AgentError>(agent)
        };
        match started.await {
            Ok(agent) => Ok(Some(Ready { guest, agent, lock })),
            Err(AgentError::NoGuest(_)) if !guest.used => Ok(None),
            Err(error) => {
                let reason = failed(&guest, &error);
                if matches!(error, AgentError::Silent { .. }) {
                    self.note_tardy(&guest.socket, &reason, false);
                }
                Err(reason)
            }
        }
    }

    /// Freezes a guest. On an error it is not frozen, unless the error comes with a `Frozen`, which
    /// must be thawed.
    async fn freeze(&self, Ready { guest, mut agent, lock }: Ready, limit: Duration) -> Result<Frozen, (String, Option<Frozen>)> {
        let mark = match self.mark(&guest) {
            Ok(mark) => mark,
            Err(error) => return Err((failed(&guest, &format!("cannot write the mark of a frozen guest: {error}")), None)),
        };
        let done = agent.run(FREEZE, limit).await;
        let ended = matches!(done, Err(AgentError::Ended(_) | AgentError::Garbage(_)));
        let count = done.as_ref().ok().and_then(Value::as_u64).unwrap_or(0);
        let frozen = Frozen { guest, agent: (!ended).then_some(agent), count, mark, _lock: lock };
        let Err(error) = done else {
            self.tardy().remove(&frozen.guest.socket);
            return Ok(frozen);
        };
        let reason = failed(&frozen.guest, &error);
        match error {
            // an agent that refuses has frozen nothing, or has thawed what it froze
            AgentError::Refused { .. } => {
                frozen.unmark();
                Err((reason, None))
            }
            AgentError::Silent { .. } => {
                self.note_tardy(&frozen.guest.socket, &reason, true);
                Err((reason, Some(frozen)))
            }
            _ => Err((reason, Some(frozen))),
        }
    }
}

fn failed(guest: &Guest, error: &dyn Display) -> String {
    format!("guest agent {}: {error}", guest.socket.display())
}

impl Daemon {
    /// Takes snapshots by `take` while these guests are frozen. Returns its result, `None` if nothing
    /// was taken because a guest was not frozen, and the reasons for guests that were not frozen all
    /// the time.
    pub(crate) async fn frozen<T>(
        self: &Arc<Daemon>,
        guests: &[Guest],
        how: How,
        take: impl Future<Output = T>,
    ) -> (Option<T>, Vec<String>) {
        if guests.is_empty() {
            return (Some(take.await), Vec::new());
        }
        // A task of its own freezes and thaws, so that guests are thawed also if this future is dropped.
        let (frozen, begun) = oneshot::channel::<Vec<String>>();
        let (taken, ended) = oneshot::channel::<()>();
        let (daemon, guests) = (Arc::clone(self), merged(guests.to_vec()));
        let holding = tokio::spawn(async move {
            let (held, reasons) = daemon.freeze_all(guests, how).await;
            let taking = frozen.send(reasons).is_ok();
            let limit = daemon.freezer.limits.frozen;
            let in_time = !taking || held.is_empty() || timeout(limit, ended).await.is_ok();
            let mut reasons = daemon.thaw_all(held).await;
            if !in_time {
                let seconds = limit.as_secs();
                reasons = vec![format!("the pool did not take the snapshot within {seconds} s, so the guest was thawed before that")];
            }
            reasons
        });
        let mut reasons = begun.await.unwrap_or_else(|_| vec!["the daemon failed to freeze guests; see its messages".to_owned()]);
        let result = if how.required && !reasons.is_empty() { None } else { Some(take.await) };
        drop(taken);
        let after = holding.await.unwrap_or_else(|error| vec![format!("the daemon failed to thaw guests: {error}")]);
        if result.is_some() {
            reasons.extend(after);
        }
        (result, reasons)
    }

    /// Freezes guests, each once. Returns those that are frozen, and the reasons for the others. Locks
    /// are taken in the order of the sockets, and before any guest is frozen, so that two commands with
    /// the same guests do not wait for each other.
    async fn freeze_all(self: &Arc<Daemon>, mut guests: Vec<Guest>, how: How) -> (Vec<Frozen>, Vec<String>) {
        let (freezer, mut reasons, mut locked) = (&self.freezer, Vec::new(), Vec::new());
        guests.sort();
        let end = Instant::now() + freezer.limits.lock;
        for guest in guests {
            let unusable = if freezer.closed.load(Ordering::SeqCst) {
                Some("the daemon ends".to_owned())
            } else {
                freezer.stuck_reason(&guest.socket).or_else(|| self.left_alone(&guest, how))
            };
            if let Some(reason) = unusable {
                reasons.push(reason);
                continue;
            }
            match timeout_at(end, freezer.lock(&guest.socket)).await {
                Ok(lock) => locked.push((guest, lock)),
                Err(_) => reasons.push(failed(&guest, &"another command is freezing or thawing this guest")),
            }
        }
        let mut ready = Vec::new();
        for result in join_all(locked.into_iter().map(|(guest, lock)| freezer.reach(guest, lock))).await {
            match result {
                Ok(guest) => ready.extend(guest),
                Err(reason) => reasons.push(reason),
            }
        }
        if how.required && !reasons.is_empty() {
            return (Vec::new(), reasons);
        }
        let limit = if ready.len() > 1 { freezer.limits.freeze_together } else { freezer.limits.freeze };
        let mut frozen = Vec::new();
        for result in join_all(ready.into_iter().map(|guest| freezer.freeze(guest, limit))).await {
            match result {
                Ok(guest) => frozen.push(guest),
                Err((reason, left)) => {
                    reasons.push(reason);
                    // it may still freeze, late
                    left.into_iter().for_each(|guest| self.thaw_later(guest, None));
                }
            }
        }
        if how.required && !reasons.is_empty() {
            self.thaw_all(std::mem::take(&mut frozen)).await;
        }
        (frozen, reasons)
    }
}
