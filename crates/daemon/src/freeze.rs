//! Freezes the file systems of guests while their snapshots are taken, by the QEMU guest agent.
//!
//! INV-FREEZE-1: a guest that may be frozen has a mark in the state directory, from before the
//! command until its agent has confirmed the thaw, or until QEMU has ended. Each way out thaws: after
//! the snapshot, at an error, when the pool takes too long, and at the start of a daemon that finds
//! marks of a killed one. A thaw that is not confirmed is repeated until it is.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use millpond_api::{ApiError, EventKind, instant};
use millpond_engine::{Target, VolumeId};
use serde_json::Value;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::events::Happened;
use crate::service::Daemon;
use crate::shard::{ShardError, ShardHandle};

mod agent;
#[cfg(test)]
mod tests;

use agent::{Agent, AgentError};

const FREEZE: &str = "guest-fsfreeze-freeze";
const THAW: &str = "guest-fsfreeze-thaw";
const STATUS: &str = "guest-fsfreeze-status";
/// Directory of the marks, in the state directory.
const MARKS: &str = "frozen";
/// Longest path of a unix socket in bytes, by the kernel.
const MOST_PATH: usize = 107;
/// Most doublings of the time for which policies do not freeze a guest that is slow to freeze.
const MOST_DOUBLINGS: u32 = 5;

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
fn merged(guests: Vec<Guest>) -> Vec<Guest> {
    let mut once: Vec<Guest> = Vec::new();
    for guest in guests {
        match once.iter_mut().find(|other| other.socket == guest.socket) {
            Some(other) => other.used |= guest.used,
            None => once.push(guest),
        }
    }
    once
}

/// How guests are frozen for a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// One guest that is not frozen is enough that nothing is taken.
    pub(crate) required: bool,
    /// Agents that kept an earlier run waiting are asked all the same.
    pub(crate) patient: bool,
}

/// An agent that kept a run waiting.
struct Tardy {
    /// Time until which policies do not use it.
    until: Instant,
    reason: String,
    /// It has answered since, or had answered and did not freeze in time.
    answers: bool,
    /// The daemon is asking it.
    probing: bool,
    /// Freezes in a row that took too long.
    slow: u32,
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

/// State of a guest after a thaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thawed {
    /// It was frozen until now, as far as the agent says.
    Now,
    /// It was thawed before: by the agent itself, or by another program.
    Before,
    /// It has ended.
    Ended,
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

    fn tardy(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Tardy>> {
        self.tardy.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Notes that an agent kept a command waiting. `answers`: before it was slow to freeze.
    fn note_tardy(&self, socket: &Path, reason: &str, answers: bool) {
        let (now, mut tardy) = (Instant::now(), self.tardy());
        tardy.retain(|_, old| now < old.until + self.limits.rest * 120);
        let slow = tardy.get(socket).map_or(0, |old| old.slow) + u32::from(answers);
        let until = now + self.limits.rest * 2u32.pow(slow.saturating_sub(1).min(MOST_DOUBLINGS));
        tardy.insert(socket.to_owned(), Tardy { until, reason: reason.to_owned(), answers, probing: false, slow });
    }

    /// Returns why an agent is not asked now, and whether to find out if it answers again.
    fn is_tardy(&self, socket: &Path) -> Option<(String, bool)> {
        let (now, mut tardy) = (Instant::now(), self.tardy());
        let old = tardy.get_mut(socket)?;
        if now >= old.until && old.answers {
            return None;
        }
        let probe = now >= old.until && !old.probing;
        old.probing |= probe;
        Some((old.reason.clone(), probe))
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

    /// Returns the guests of marks, and the marks. One that was not written completely is removed: its
    /// guest was not frozen yet.
    fn marked(&self) -> Vec<(Guest, PathBuf)> {
        let entries = fs::read_dir(&self.marks).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) => {
                    tracing::warn!(mark = %path.display(), %error, "the mark of a guest that may be frozen cannot be read");
                    return None;
                }
            };
            let whole = text.strip_suffix('\n').and_then(|text| text.split_once('\n'));
            let Some((socket, volume)) = whole else {
                // it stays if it cannot be removed, and does no harm
                let _ = fs::remove_file(&path);
                return None;
            };
            Some((Guest { socket: PathBuf::from(socket), volume: volume.to_owned(), used: true }, path))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
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

impl Frozen {
    /// Thaws once. The guest is thawed, too, when it does not exist any more.
    async fn thaw(&mut self, limits: Limits) -> Result<Thawed, AgentError> {
        let mut agent = match self.agent.take() {
            Some(agent) => agent,
            None => match Agent::connect(&self.guest.socket).await {
                Err(AgentError::NoGuest(_)) => return Ok(Thawed::Ended),
                connected => connected?,
            },
        };
        // it may still be busy with the freeze
        agent.sync(limits.sync + limits.thaw).await?;
        let done = match agent.run(THAW, limits.thaw).await {
            // 0: no file system was frozen any more
            Ok(count) if self.count > 0 && count.as_u64() == Some(0) => Ok(Thawed::Before),
            Ok(_) => Ok(Thawed::Now),
            // Windows ends a freeze by itself, and reports that as the error of the thaw
            Err(error @ AgentError::Refused { .. }) => match agent.run(STATUS, limits.thaw).await {
                Ok(status) if status.as_str() == Some("thawed") => Ok(Thawed::Before),
                _ => Err(error),
            },
            Err(error) => Err(error),
        };
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
    /// Returns the guest that has each of these volumes of a pool as a disk, by a template for the
    /// sockets of their agents, or the reason why the template gives no socket.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub(crate) async fn guests_of(
        &self,
        template: &str,
        shard: &ShardHandle,
        volumes: &[(VolumeId, String)],
    ) -> Result<Vec<Result<Guest, String>>, ShardError> {
        let (exports, open) = (shard.exports().await?, shard.open_files().await?);
        let guest = |(id, volume): &(VolumeId, String)| {
            let target = Target::Head(*id);
            let served = exports.iter().any(|export| export.target == Some(target) && !export.read_only && !export.clients.is_empty());
            let used = served || open.iter().any(|file| file.target == target);
            let socket = socket_of(template, volume).map_err(|reason| format!("{volume}: {reason}"))?;
            Ok(Guest { socket, volume: volume.clone(), used })
        };
        Ok(volumes.iter().map(guest).collect())
    }

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

    /// Returns why a policy does not ask an agent now: it kept a run waiting, and has not answered
    /// since. From time to time the daemon finds out in the background whether it answers again, so
    /// that other guests do not wait for that.
    fn left_alone(self: &Arc<Daemon>, guest: &Guest, how: How) -> Option<String> {
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

    /// Thaws guests, each by itself. One that does not confirm it is thawed in the background. Returns
    /// the reasons for guests that were thawed before.
    async fn thaw_all(self: &Arc<Daemon>, frozen: Vec<Frozen>) -> Vec<String> {
        let each = frozen.into_iter().map(|mut frozen| async move {
            match frozen.thaw(self.freezer.limits).await {
                Ok(thawed) => {
                    frozen.unmark();
                    let before = thawed == Thawed::Before;
                    before.then(|| failed(&frozen.guest, &"the guest was thawed before the snapshot was complete"))
                }
                Err(error) => {
                    self.thaw_later(frozen, Some(error));
                    None
                }
            }
        });
        join_all(each).await.into_iter().flatten().collect()
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
                    Ok(_) => break,
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
                daemon.thaw_later(Frozen { guest, agent: None, count: 0, mark, _lock: lock }, None);
            });
        }
    }

    /// Freezes no guest from now on, and waits until those that are frozen are thawed. A guest that
    /// does not confirm its thaw keeps its mark, and is thawed by the next daemon.
    pub(crate) async fn wait_for_thaws(&self) {
        let (freezer, limits) = (&self.freezer, self.freezer.limits);
        freezer.closed.store(true, Ordering::SeqCst);
        let busy = || -> Vec<PathBuf> {
            let locks = freezer.locks();
            locks.iter().filter(|(_, lock)| Arc::strong_count(lock) > 1).map(|(socket, _)| socket.clone()).collect()
        };
        let idle = async {
            while busy().iter().any(|socket| freezer.stuck_reason(socket).is_none()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let limit = limits.sync + limits.freeze + limits.frozen + limits.sync + limits.thaw * 2;
        let in_time = timeout(limit, idle).await.is_ok();
        if !in_time || !busy().is_empty() {
            tracing::warn!(agents = ?busy(), "guests may be frozen: the next start of the daemon thaws them");
        }
    }

    /// Returns the volumes of a pool whose guests may be frozen, with the reasons.
    pub(crate) fn stuck_guests(&self, pool: &str) -> Vec<(String, String)> {
        let of_pool = |guest: &Guest| guest.volume.split('/').next() == Some(pool);
        self.freezer
            .stuck()
            .iter()
            .filter(|(guest, _)| of_pool(guest))
            .map(|(guest, reason)| (guest.volume.clone(), reason.clone()))
            .collect()
    }
}
