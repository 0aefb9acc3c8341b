//! Freezes the file systems of guests while their snapshots are taken, by the QEMU guest agent.
//!
//! INV-FREEZE-1: a guest that may be frozen has a mark in the state directory, from before the
//! command until its agent has confirmed the thaw, or until QEMU has ended. Each way out thaws: after
//! the snapshot, at an error, when the pool takes too long, and at the start of a daemon that finds
//! marks of a killed one. A thaw that is not confirmed is repeated until it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use millpond_api::{ApiError, EventKind, instant};
use millpond_engine::{Target, VolumeId};
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{sleep, timeout};

use crate::events::Happened;
use crate::service::Daemon;
use crate::shard::{ShardError, ShardHandle};

mod agent;
#[cfg(test)]
mod tests;

use agent::{Agent, AgentError};

const FREEZE: &str = "guest-fsfreeze-freeze";
const THAW: &str = "guest-fsfreeze-thaw";
/// Directory of the marks, in the state directory.
const MARKS: &str = "frozen";
/// Longest path of a unix socket in bytes, by the kernel.
const MOST_PATH: usize = 107;

/// Time limits.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How long an agent may take to answer at all.
    sync: Duration,
    /// How long it may take to freeze: it writes the guest's dirty pages first.
    freeze: Duration,
    /// How long it may take to thaw.
    thaw: Duration,
    /// How long a guest stays frozen at most while the pool takes the snapshot.
    frozen: Duration,
    /// Pause before a thaw is repeated.
    pause: Duration,
}

const LIMITS: Limits = Limits {
    sync: Duration::from_secs(3),
    freeze: Duration::from_secs(10),
    thaw: Duration::from_secs(5),
    frozen: Duration::from_secs(5),
    pause: Duration::from_secs(2),
};

/// A guest to freeze: the socket of its agent, and the volume that a message names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Guest {
    /// Unix socket of the agent's channel.
    pub(crate) socket: PathBuf,
    /// `pool/volume`.
    pub(crate) volume: String,
    /// The volume has clients, so there is a guest.
    pub(crate) used: bool,
}

/// Checks a template for the sockets of agents.
///
/// # Errors
/// When it is no absolute path.
pub(crate) fn check(template: &str) -> Result<(), ApiError> {
    if !template.starts_with('/') || template.len() > 1024 || template.contains(char::is_control) {
        return Err(ApiError::usage(format!(
            "'{template}' is not the absolute path of a socket; give for example /var/run/qemu-server/{{vmid}}.qga"
        )));
    }
    Ok(())
}

/// Returns the socket of the agent of the guest that has a volume: `{pool}`, `{volume}`, and
/// `{vmid}`, the number in names like `vm-100-disk-0`, are replaced.
///
/// # Errors
/// The reason, if the name has no such number or the path is too long.
fn socket_of(template: &str, volume: &str) -> Result<PathBuf, String> {
    let (pool, name) = volume.split_once('/').unwrap_or((volume, ""));
    let mut path = template.replace("{pool}", pool).replace("{volume}", name);
    if path.contains("{vmid}") {
        let number = ["vm-", "base-"].iter().find_map(|start| name.strip_prefix(start)?.split('-').next());
        let number = number.filter(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        path = path.replace("{vmid}", number.ok_or_else(|| format!("'{name}' has no number of a guest, as vm-100-disk-0 has"))?);
    }
    if path.len() > MOST_PATH {
        return Err(format!("{path} has more than {MOST_PATH} bytes"));
    }
    Ok(PathBuf::from(path))
}

/// Returns each guest once.
pub(crate) fn merged(guests: Vec<Guest>) -> Vec<Guest> {
    let mut once: Vec<Guest> = Vec::new();
    for guest in guests {
        match once.iter_mut().find(|other| other.socket == guest.socket) {
            Some(other) => other.used |= guest.used,
            None => once.push(guest),
        }
    }
    once
}

/// The guests that this daemon freezes.
pub(crate) struct Freezer {
    marks: PathBuf,
    limits: Limits,
    /// Locks of agents: each answers one client at a time.
    locks: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
    /// Guests that may be frozen because their thaw is not confirmed, with the reason.
    stuck: Mutex<BTreeMap<Guest, String>>,
}

/// A guest that is frozen, or may be.
struct Frozen {
    guest: Guest,
    /// Connection on which it was frozen, if that can be used.
    agent: Option<Agent>,
    mark: PathBuf,
    _lock: OwnedMutexGuard<()>,
}

impl Freezer {
    /// Returns a freezer with its marks in the state directory.
    pub(crate) fn new(state: &Path) -> Freezer {
        Freezer { marks: state.join(MARKS), limits: LIMITS, locks: Mutex::default(), stuck: Mutex::default() }
    }

    fn locks(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self) -> MutexGuard<'_, BTreeMap<Guest, String>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Writes a mark. It need not survive a loss of power, which ends the guest too.
    fn mark(&self, guest: &Guest) -> io::Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.marks)?;
        // not the name of a mark that an earlier daemon left
        let now = instant::to_millis(instant::now());
        let mark = self.marks.join(format!("{now}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::write(&mark, format!("{}\n{}\n", guest.socket.display(), guest.volume))?;
        Ok(mark)
    }

    /// Returns the guests of marks, and the marks.
    fn marked(&self) -> Vec<(Guest, PathBuf)> {
        let entries = fs::read_dir(&self.marks).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let text = fs::read_to_string(&path).ok()?;
            let (socket, volume) = text.trim_end().split_once('\n')?;
            Some((Guest { socket: PathBuf::from(socket), volume: volume.to_owned(), used: true }, path))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
    }

    /// Freezes a guest; returns `None` if there is none. On an error it is not frozen, unless the
    /// error comes with a `Frozen`, which must be thawed.
    async fn freeze(&self, guest: &Guest) -> Result<Option<Frozen>, (String, Option<Frozen>)> {
        let failed = |error: &dyn std::fmt::Display| format!("guest agent {}: {error}", guest.socket.display());
        let limits = self.limits;
        let Ok(lock) = timeout(limits.sync + limits.freeze, self.lock(&guest.socket)).await else {
            return Err((failed(&"another command is freezing or thawing this guest"), None));
        };
        let started = async {
            let mut agent = Agent::connect(&guest.socket).await?;
            agent.sync(limits.sync).await?;
            Ok::<Agent, AgentError>(agent)
        };
        let mut agent = match started.await {
            Ok(agent) => agent,
            Err(AgentError::NoGuest(_)) if !guest.used => return Ok(None),
            Err(error) => return Err((failed(&error), None)),
        };
        let mark = self.mark(guest).map_err(|error| (failed(&format!("cannot write the mark of a frozen guest: {error}")), None::<Frozen>))?;
        let done = agent.run(FREEZE, limits.freeze).await;
        let ended = matches!(done, Err(AgentError::Ended(_) | AgentError::Garbage(_)));
        let frozen = Frozen { guest: guest.clone(), agent: (!ended).then_some(agent), mark, _lock: lock };
        match done {
            Ok(_) => Ok(Some(frozen)),
            // an agent that refuses has frozen nothing, or has thawed what it froze
            Err(error @ AgentError::Refused { .. }) => {
                frozen.unmark();
                Err((failed(&error), None))
            }
            Err(error) => Err((failed(&error), Some(frozen))),
        }
    }
}

impl Frozen {
    /// Thaws once. The guest is thawed, too, when it does not exist any more.
    async fn thaw(&mut self, limits: Limits) -> Result<(), AgentError> {
        let mut agent = match self.agent.take() {
            Some(agent) => agent,
            None => match Agent::connect(&self.guest.socket).await {
                Err(AgentError::NoGuest(_)) => return Ok(()),
                connected => connected?,
            },
        };
        agent.sync(limits.sync + limits.thaw).await?;
        let done = agent.run(THAW, limits.thaw).await.map(drop);
        if matches!(done, Err(AgentError::Refused { .. } | AgentError::Silent { .. })) {
            self.agent = Some(agent);
        }
        done
    }

    /// Removes the mark. One that cannot be removed leads to another thaw at the next start.
    fn unmark(&self) {
        if let Err(error) = fs::remove_file(&self.mark) {
            tracing::warn!(mark = %self.mark.display(), %error, "the mark of a frozen guest stays");
        }
    }
}

impl Daemon {
    /// Returns the guests that have these volumes of a pool as disks, by a template for the sockets of
    /// their agents, and the reasons for volumes for which it gives no socket.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub(crate) async fn guests_of(
        &self,
        template: &str,
        shard: &ShardHandle,
        volumes: &[(VolumeId, String)],
    ) -> Result<(Vec<Guest>, Vec<String>), ShardError> {
        let (exports, open) = (shard.exports().await?, shard.open_files().await?);
        let (mut guests, mut reasons): (Vec<Guest>, Vec<String>) = (Vec::new(), Vec::new());
        for (id, volume) in volumes {
            let target = Target::Head(*id);
            let served = exports.iter().any(|export| export.target == Some(target) && !export.read_only && !export.clients.is_empty());
            let used = served || open.iter().any(|file| file.target == target);
            match socket_of(template, volume) {
                Ok(socket) => guests.push(Guest { socket, volume: volume.clone(), used }),
                Err(reason) => reasons.push(format!("{volume}: {reason}")),
            }
        }
        Ok((merged(guests), reasons))
    }

    /// Takes snapshots by `take` while these guests are frozen. Returns its result, and the reasons
    /// for guests that were not frozen. With `required`, one such guest is enough that nothing is
    /// taken. Callers drop the future only when the daemon ends.
    pub(crate) async fn frozen<T>(
        self: &Arc<Daemon>,
        guests: &[Guest],
        required: bool,
        take: impl Future<Output = T>,
    ) -> (Option<T>, Vec<String>) {
        let (mut frozen, mut reasons) = (Vec::new(), Vec::new());
        for result in join_all(guests.iter().map(|guest| self.freezer.freeze(guest))).await {
            match result {
                Ok(guest) => frozen.extend(guest),
                Err((reason, left)) => {
                    reasons.push(reason);
                    // it may still freeze, late
                    left.into_iter().for_each(|guest| self.thaw_later(guest, None));
                }
            }
        }
        if frozen.is_empty() {
            let refused = required && !reasons.is_empty();
            return (if refused { None } else { Some(take.await) }, reasons);
        }
        // A task of its own thaws, so that the guest is thawed also if this future is dropped.
        let (taken, ended) = oneshot::channel::<()>();
        let (daemon, limit) = (Arc::clone(self), self.freezer.limits.frozen);
        let thawing = tokio::spawn(async move {
            let in_time = timeout(limit, ended).await.is_ok();
            daemon.thaw_all(frozen).await;
            in_time
        });
        let result = if required && !reasons.is_empty() { None } else { Some(take.await) };
        drop(taken);
        if !thawing.await.unwrap_or(false) {
            let seconds = limit.as_secs();
            reasons.push(format!("the pool did not take the snapshot within {seconds} s, so the guest was thawed before that"));
        }
        (result, reasons)
    }

    /// Thaws guests, each by itself. One that does not confirm it is thawed in the background.
    async fn thaw_all(self: &Arc<Daemon>, frozen: Vec<Frozen>) {
        let each = frozen.into_iter().map(|mut frozen| async move {
            match frozen.thaw(self.freezer.limits).await {
                Ok(()) => frozen.unmark(),
                Err(error) => self.thaw_later(frozen, Some(error)),
            }
        });
        join_all(each).await;
    }

    /// Thaws a guest in the background, until its agent confirms that or the guest has ended. `error`
    /// is that of the first attempt, if one was made.
    fn thaw_later(self: &Arc<Daemon>, mut frozen: Frozen, error: Option<AgentError>) {
        let daemon = Arc::clone(self);
        tokio::spawn(async move {
            let mut failed = error;
            let guest = frozen.guest.clone();
            let pool = guest.volume.split('/').next().unwrap_or_default().to_owned();
            loop {
                if let Some(error) = failed.take() {
                    let reason = format!("the guest of {} may be frozen: guest agent {}: {error}", guest.volume, guest.socket.display());
                    let known = daemon.freezer.stuck().insert(guest.clone(), reason.clone()).is_some();
                    if !known {
                        daemon.report(Happened::to_pool(EventKind::GuestStuck, &pool, reason).about(&guest.volume));
                    }
                    sleep(daemon.freezer.limits.pause).await;
                }
                match frozen.thaw(daemon.freezer.limits).await {
                    Ok(()) => break,
                    Err(error) => failed = Some(error),
                }
            }
            frozen.unmark();
            if daemon.freezer.stuck().remove(&guest).is_some() {
                let message = format!("the guest of {} is thawed, or has ended", guest.volume);
                daemon.report(Happened::to_pool(EventKind::GuestThawed, &pool, message).about(&guest.volume));
            }
        });
    }

    /// Thaws the guests that an earlier daemon left frozen.
    pub(crate) fn thaw_left(self: &Arc<Daemon>) {
        for (guest, mark) in self.freezer.marked() {
            let daemon = Arc::clone(self);
            tokio::spawn(async move {
                tracing::warn!(volume = guest.volume, "a daemon ended while the guest was frozen: it is thawed");
                let lock = daemon.freezer.lock(&guest.socket).await;
                daemon.thaw_later(Frozen { guest, agent: None, mark, _lock: lock }, None);
            });
        }
    }

    /// Waits for commands that talk to agents, as long as an ordered thaw takes. A guest that is
    /// frozen then has its mark, and is thawed by the next daemon.
    pub(crate) async fn wait_for_thaws(&self) {
        let limits = self.freezer.limits;
        let idle = async {
            while self.freezer.locks().values().any(|lock| Arc::strong_count(lock) > 1) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(limits.frozen + limits.thaw, idle).await.is_err() {
            tracing::warn!("a guest may be frozen: the next start of the daemon thaws it");
        }
    }

    /// Returns the reasons why guests of a pool may be frozen.
    pub(crate) fn stuck_guests(&self, pool: &str) -> Vec<String> {
        let of_pool = |guest: &Guest| guest.volume.split('/').next() == Some(pool);
        self.freezer.stuck().iter().filter(|(guest, _)| of_pool(guest)).map(|(_, reason)| reason.clone()).collect()
    }
}
