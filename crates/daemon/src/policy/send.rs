//! Sends of the snapshots of policies to their targets: which are due, how they ended, and which are
//! behind.
//!
//! Nothing about a send is stored: both ends are looked at before each one, so a daemon that was
//! killed finds again what the target lacks. Holds with the policy's tag, on the newest snapshot that
//! both ends have and on those that are being sent, keep these from being thinned
//! (`docs/decisions/0041-policies-that-send.md`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use millpond_api::instant::{self, show_span};
use millpond_api::send_target::SendTarget;
use millpond_api::{EventKind, PolicySend};
use millpond_engine::VolumeId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::turn::Turn;
use super::{Attached, Entry, Policies, Terms};
use crate::events::Happened;
use crate::service::Daemon;

mod holds;
mod plan;
mod process;
#[cfg(test)]
mod tests;
mod turn;

pub(super) use holds::LONGEST_SENDER;
use process::{LastLine, SendFailure};

/// Most sends at a time.
const MOST_RUNNING: usize = 2;
/// Longest time between two looks at what is due and what is behind.
const LOOK: Duration = Duration::from_secs(5);
/// Shortest and longest time until a send that failed is tried again; it doubles in between.
const RETRY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1800));
/// Failures in a row after which a send is behind.
const FAILURES: u64 = 3;
/// Seconds by which the newest snapshot at the target may be older than twice the time between two
/// runs.
const SLACK: u64 = 600;

/// Reasons to look at the sends again.
#[derive(Default)]
pub(crate) struct SendWake {
    changed: Notify,
    /// Holds may be left of policies that no longer send, or pools have come into service.
    look_at_holds: AtomicBool,
}

impl SendWake {
    /// Looks at what is sent, and at holds that are left: a policy, or the pools in service, changed.
    pub(crate) fn look_again(&self) {
        self.look_at_holds.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }
}

/// A snapshot that is complete at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AtTarget {
    /// The part of its name after `@`.
    name: String,
    taken: Timestamp,
}

/// Sends of one volume under one policy.
pub(super) struct Sending {
    begun: Instant,
    /// Since when one is due, to serve the longest wait first; `None`: none is.
    due: Option<Instant>,
    /// Target and last line of the running one.
    running: Option<(SendTarget, LastLine)>,
    /// A send has ended since the daemon started.
    looked: bool,
    newest: Option<AtTarget>,
    sent: Option<Timestamp>,
    /// Failures in a row, and since the daemon started.
    failing: u64,
    failed: u64,
    error: Option<String>,
    /// A send was ended because its target took no byte, and none has succeeded since.
    hung: bool,
    retry: Option<Instant>,
    /// A user asked for a send while one ran: if that fails, the next one does not wait.
    at_once: bool,
    /// Reason that an event has reported.
    behind: Option<String>,
}

impl Sending {
    fn new(now: Instant) -> Sending {
        Sending {
            begun: now,
            due: Some(now),
            running: None,
            looked: false,
            newest: None,
            sent: None,
            failing: 0,
            failed: 0,
            error: None,
            hung: false,
            retry: None,
            at_once: false,
            behind: None,
        }
    }

    /// True if a send can begin.
    fn is_due(&self, now: Instant) -> bool {
        self.running.is_none() && self.due.is_some() && self.retry.is_none_or(|retry| retry <= now)
    }

    /// Notes how a send ended.
    fn ended(&mut self, result: Result<Option<AtTarget>, SendFailure>, now: Instant, time: Timestamp) {
        self.running = None;
        self.looked = true;
        let at_once = std::mem::take(&mut self.at_once);
        match result {
            Ok(newest) => {
                (self.newest, self.sent) = (newest.or(self.newest.take()), Some(time));
                (self.failing, self.error, self.hung, self.retry) = (0, None, false, None);
            }
            Err(why) => {
                let doubled = 1_u32 << u32::try_from(self.failing.min(8)).unwrap_or(8);
                self.retry = Some(now + (RETRY.0 * doubled).min(RETRY.1)).filter(|_| !at_once);
                self.failing += 1;
                self.failed += 1;
                self.error = Some(why.to_string());
                self.hung |= matches!(why, SendFailure::Hung(_) | SendFailure::Idle(_));
                self.due = self.due.or(Some(now));
            }
        }
    }

    fn lag(&self, now: Timestamp) -> Option<u64> {
        let lag = now.duration_since(self.newest.as_ref()?.taken);
        Some(u64::try_from(lag.as_secs()).unwrap_or(0))
    }

    /// Returns why the target is behind; `None` if it is not. `since`: the time from which it had to
    /// have snapshots.
    fn why_behind(&self, interval: u64, since: Timestamp, (now, time): (Instant, Timestamp)) -> Option<String> {
        if self.failing >= FAILURES || self.hung {
            return self.error.clone();
        }
        // after a start the first look may take a while
        if !self.looked && now.duration_since(self.begun).as_secs() < SLACK {
            return None;
        }
        let limit = interval.saturating_mul(2).saturating_add(SLACK);
        let newest = self.newest.as_ref().map_or(since, |newest| newest.taken);
        let lag = time.duration_since(newest);
        if lag <= SignedDuration::from_secs(i64::try_from(limit).unwrap_or(i64::MAX)) {
            return None;
        }
        let cause = match (&self.running, &self.error) {
            (Some((_, line)), _) => format!("a send runs: {}", line.lock().unwrap_or_else(PoisonError::into_inner)),
            (None, Some(error)) => error.clone(),
            (None, None) => "no newer snapshot was taken, or other sends are before it".to_owned(),
        };
        Some(format!("the newest snapshot there is {} old; {cause}", show_span(u64::try_from(lag.as_secs()).unwrap_or(0))))
    }

    fn view(&self, now: Instant, time: Timestamp) -> PolicySend {
        let line = self.running.as_ref().map(|(_, line)| line.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let until = self.retry.map(|retry| retry.saturating_duration_since(now)).filter(|_| self.running.is_none());
        PolicySend {
            newest: self.newest.as_ref().map(|newest| newest.name.clone()),
            taken: self.newest.as_ref().map(|newest| newest.taken),
            sent: self.sent,
            lag_seconds: self.lag(time),
            running: self.running.is_some(),
            progress: line.filter(|line| !line.is_empty()),
            failing: self.failing,
            failed: self.failed,
            error: self.error.clone(),
            retry: until.and_then(|until| time.checked_add(until).ok()),
        }
    }
}

/// A send that is to be made.
pub(super) struct Job {
    policy: String,
    terms: Arc<Terms>,
    /// Rules, as the target of a backup takes them.
    keep: String,
    target: SendTarget,
    pool_id: String,
    pool: String,
    volume: VolumeId,
    /// The newest snapshot that is known to be at the target.
    known: Option<AtTarget>,
    shown: LastLine,
}

impl Entry {
    /// Returns the target of the policy; `None` if it does not send.
    pub(super) fn target(&self) -> Option<SendTarget> {
        self.record.send.as_ref()?.parse().ok()
    }

    /// Returns the sends of a volume for lists; `None` if the policy does not send.
    pub(super) fn send_view(&self, volume: &Attached) -> Option<PolicySend> {
        self.record.send.as_ref()?;
        let sending = self.sends.get(&(volume.pool_id.clone(), volume.id()));
        Some(sending.map_or_else(PolicySend::default, |sending| sending.view(Instant::now(), instant::now())))
    }

    /// Notes that the target lacks snapshots of volumes. Made by hand, it waits for no retry.
    fn send_soon(&mut self, pool_id: &str, volumes: impl Iterator<Item = VolumeId>, by_hand: bool) {
        if self.record.send.is_none() {
            return;
        }
        let now = Instant::now();
        for volume in volumes {
            let sending = self.sends.entry((pool_id.to_owned(), volume)).or_insert_with(|| Sending::new(now));
            sending.due = sending.due.or(Some(now));
            if by_hand {
                sending.retry = None;
                sending.at_once = sending.running.is_some();
            }
        }
    }

    /// Forgets the sends of volumes that the policy does not send, and begins those that it does.
    fn meet_volumes(&mut self, now: Instant) {
        let sends = self.record.send.is_some();
        let attached =
            |key: &(String, VolumeId)| self.record.volumes.iter().any(|volume| (&volume.pool_id, volume.id()) == (&key.0, key.1));
        self.sends.retain(|key, sending| sending.running.is_some() || sends && attached(key));
        for volume in self.record.volumes.iter().filter(|_| sends) {
            self.sends.entry((volume.pool_id.clone(), volume.id())).or_insert_with(|| Sending::new(now));
        }
    }

    /// Forgets what is known about another target.
    pub(super) fn forget_target(&mut self) {
        let now = Instant::now();
        for sending in self.sends.values_mut() {
            let (running, failed) = (sending.running.take(), sending.failed);
            *sending = Sending { running, failed, ..Sending::new(now) };
        }
    }
}

impl Policies {
    /// Takes the send that has waited longest, of a volume of which none runs.
    fn next_send(&mut self, pools: &BTreeMap<String, String>, now: Instant) -> Option<Job> {
        let running: Vec<(String, VolumeId)> = self
            .all
            .values()
            .flat_map(|entry| &entry.sends)
            .filter(|(_, sending)| sending.running.is_some())
            .map(|(key, _)| key.clone())
            .collect();
        // one whose rules cannot be applied here waits, and keeps no other from its turn
        let able = self.all.iter().filter(|(_, entry)| entry.terms.is_ok() && entry.target().is_some());
        let due = able.flat_map(|(policy, entry)| entry.sends.iter().map(move |(key, sending)| (policy, key, sending)));
        let due = due.filter(|(_, key, sending)| sending.is_due(now) && pools.contains_key(&key.0) && !running.contains(key));
        let (policy, key) = due.min_by_key(|(.., sending)| sending.due).map(|(policy, key, _)| (policy.clone(), key.clone()))?;
        let entry = self.all.get_mut(&policy)?;
        let (target, terms) = (entry.target()?, Arc::clone(entry.terms.as_ref().ok()?));
        let shown = LastLine::default();
        let sending = entry.sends.get_mut(&key)?;
        (sending.due, sending.running) = (None, Some((target.clone(), Arc::clone(&shown))));
        let (pool, keep, known) = (pools.get(&key.0)?.clone(), entry.record.keep.clone(), sending.newest.clone());
        Some(Job { policy, terms, keep, target, pool_id: key.0, pool, volume: key.1, known, shown })
    }
}

impl Daemon {
    /// Sends the snapshots of policies, as long as the daemon lives. Sends that run end with it.
    pub(crate) async fn keep_sends(self: Arc<Daemon>) {
        let mut running = JoinSet::new();
        self.sends.look_again();
        loop {
            self.release_left_holds().await;
            while running.len() < MOST_RUNNING {
                let pools = self.pools_in_service();
                let Some(job) = self.policies().next_send(&pools, Instant::now()) else { break };
                let daemon = Arc::clone(&self);
                running.spawn(async move {
                    let result = daemon.send_volume(&job).await;
                    daemon.end_send(&job, result);
                });
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.sends.changed.notified() => {}
                Some(_) = running.join_next() => {}
            }
            self.report_behind();
        }
    }

    /// Names of the pools in service, by id.
    fn pools_in_service(&self) -> BTreeMap<String, String> {
        let registry = self.registry();
        registry
            .pools
            .iter()
            .filter(|(_, entry)| entry.shard.is_ok())
            .map(|(name, entry)| (entry.record.id.clone(), name.clone()))
            .collect()
    }

    /// Notes that a run has taken snapshots.
    pub(super) fn send_taken(&self, turn: &Turn) {
        if let Some(entry) = self.policies().all.get_mut(&turn.policy) {
            entry.send_soon(&turn.pool_id, turn.volumes.iter().map(Attached::id), turn.is_by_hand());
        }
        self.sends.changed.notify_one();
    }

    fn end_send(&self, job: &Job, result: Result<Option<AtTarget>, SendFailure>) {
        if let Err(why) = &result {
            tracing::warn!(policy = job.policy, pool = job.pool, target = %job.target, %why, "a send failed");
        }
        if let Some(entry) = self.policies().all.get_mut(&job.policy) {
            let is_same = entry.target().as_ref() == Some(&job.target);
            if let Some(sending) = entry.sends.get_mut(&(job.pool_id.clone(), job.volume)) {
                match is_same {
                    true => sending.ended(result, Instant::now(), instant::now()),
                    false => sending.running = None,
                }
            }
        }
        self.report_behind();
    }

    /// True while the policy sends this volume to this target.
    fn is_wanted(&self, job: &Job) -> bool {
        self.policies().all.get(&job.policy).is_some_and(|entry| {
            let attached = entry.record.volumes.iter().any(|volume| (&volume.pool_id, volume.id()) == (&job.pool_id, job.volume));
            attached && entry.target().as_ref() == Some(&job.target)
        })
    }

    /// Reports sends that have come to be behind, or no longer are.
    fn report_behind(&self) {
        let (pools, mut news) = (self.pools_in_service(), Vec::new());
        let times = (Instant::now(), instant::now());
        for entry in self.policies().all.values_mut() {
            entry.meet_volumes(times.0);
            let interval = entry.terms.as_ref().map_or(0, |terms| terms.schedule.interval());
            let (policy, target) = (&entry.record.name, entry.record.send.as_deref().unwrap_or_default());
            for volume in &entry.record.volumes {
                let Some(pool) = pools.get(&volume.pool_id) else { continue };
                let Some(sending) = entry.sends.get_mut(&(volume.pool_id.clone(), volume.id())) else { continue };
                let since = entry.record.send_since.map_or(volume.since, |since| since.max(volume.since));
                let why = sending.why_behind(interval, since, times);
                let (kind, message) = match (&sending.behind, &why) {
                    (None, Some(why)) => {
                        (EventKind::PolicyNotSent, format!("policy '{policy}' does not send '{}' to '{target}': {why}", volume.name))
                    }
                    (Some(_), None) => (EventKind::PolicySent, format!("policy '{policy}' sends '{}' to '{target}' again", volume.name)),
                    _ => {
                        sending.behind = why;
                        continue;
                    }
                };
                sending.behind = why;
                news.push(Happened::to_pool(kind, pool, message).about(format!("{}: {policy}", volume.name)));
            }
        }
        news.into_iter().for_each(|happened| self.report(happened));
    }

    /// Returns the sends in a pool that are behind: policy, volume, and the reason.
    pub(crate) fn unsent(&self, pool_id: &str) -> Vec<(String, String, String)> {
        let policies = self.policies();
        let all = policies.all.values().flat_map(|entry| entry.record.volumes.iter().map(move |volume| (entry, volume)));
        let behind = all.filter(|(_, volume)| volume.pool_id == pool_id).filter_map(|(entry, volume)| {
            let why = entry.sends.get(&(volume.pool_id.clone(), volume.id()))?.behind.clone()?;
            Some((entry.record.name.clone(), volume.name.clone(), why))
        });
        behind.collect()
    }
}
