//! Which runs are due, which are late, and what becomes of a run that has ended.
//!
//! A policy runs in each pool by itself, so a pool that hangs delays no other one. At most one run
//! of a policy in a pool is in progress. A run that was missed is made once as soon as that is
//! possible.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millpond_api::instant;
use millpond_api::{ApiError, EventKind, PolicyState};
use millpond_engine::VolumeId;

use super::turn::{Run, Tracked, Turn};
use super::{Attached, Entry, Policies, Terms};
use crate::events::Happened;
use crate::service::Daemon;

/// Longest time between two looks at the clock while there are policies.
const LOOK: Duration = Duration::from_secs(5);
/// The same without policies.
const IDLE: Duration = Duration::from_secs(3600);
/// Shortest and longest time after which an overdue run is late. In between it is that between
/// runs.
const GRACE: (u64, u64) = (10, 300);
/// Shortest and longest time between two attempts of a run that fails.
const RETRY: (u64, u64) = (1, 10);
/// Most missed runs of a calendar that are counted.
const MOST_COUNTED: u64 = 100_000;

/// Runs of a policy in one pool.
pub(in crate::policy) struct Progress {
    /// Time of the next run; `None` before the snapshots of the pool were looked at.
    pub(in crate::policy) due: Option<Timestamp>,
    /// Time from which the first run is expected, until `due` is known.
    begun: Timestamp,
    /// Earliest time of the next attempt.
    retry: Timestamp,
    /// Reason why the last attempt failed, and time of the first such attempt.
    pub(in crate::policy) failing: Option<(Timestamp, String)>,
    /// Reason why the last run that took snapshots, or had to, did not freeze a guest.
    pub(in crate::policy) not_frozen: Option<String>,
    /// An event has reported that runs are late, for this reason.
    pub(in crate::policy) late: Option<String>,
    /// Runs that were missed since then.
    missed: u64,
    pub(in crate::policy) running: bool,
    /// The pool is imported on this host.
    pub(in crate::policy) here: bool,
    /// Snapshots of the policy, by volume; `None` before the first look, or while a run has them.
    pub(in crate::policy) tracked: Option<Tracked>,
    /// Numbers for lists, by volume.
    pub(in crate::policy) seen: BTreeMap<VolumeId, Seen>,
}

/// The snapshots of a policy on one volume, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct Seen {
    pub(in crate::policy) count: u64,
    pub(in crate::policy) oldest: Option<Timestamp>,
    pub(in crate::policy) newest: Option<Timestamp>,
}

impl Progress {
    pub(in crate::policy) fn new(now: Timestamp) -> Progress {
        Progress {
            due: None,
            begun: now,
            retry: Timestamp::MIN,
            failing: None,
            not_frozen: None,
            late: None,
            missed: 0,
            running: false,
            here: false,
            tracked: None,
            seen: BTreeMap::new(),
        }
    }

    /// Returns the state for lists.
    pub(in crate::policy) fn state(&self) -> PolicyState {
        match (self.here, &self.late) {
            (false, _) => PolicyState::Waiting,
            (true, Some(_)) => PolicyState::Late,
            (true, None) => PolicyState::Ok,
        }
    }

    /// Forgets the times that other properties, or another clock, gave.
    pub(in crate::policy) fn start_again(&mut self, now: Timestamp) {
        (self.due, self.begun, self.retry) = (None, now, Timestamp::MIN);
        self.tracked = None;
    }

    /// Begins the condition if a run is late; returns the reason then.
    fn becomes_late(&mut self, grace: u64, now: Timestamp) -> Option<String> {
        let passed = |since: Timestamp| now.duration_since(since) > SignedDuration::from_secs(i64::try_from(grace).unwrap_or(i64::MAX));
        let failing = self.failing.as_ref().is_some_and(|(since, _)| passed(*since));
        if self.late.is_some() || !(passed(self.due.unwrap_or(self.begun)) || failing) {
            return None;
        }
        let reason = match (&self.failing, self.running) {
            (Some((_, reason)), _) => reason.clone(),
            (None, true) => "the pool does not answer".to_owned(),
            (None, false) => "the daemon did not run, the pool was not in service, or the clock was set forward".to_owned(),
        };
        self.late = Some(reason.clone());
        Some(reason)
    }
}

/// Returns the time after which an overdue run is late, in seconds.
fn grace(terms: &Terms) -> u64 {
    terms.schedule.interval().clamp(GRACE.0, GRACE.1)
}

fn later(now: Timestamp, seconds: u64) -> Timestamp {
    now.checked_add(Duration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

impl Daemon {
    /// Runs policies when they are due, as long as the daemon lives.
    pub(crate) async fn keep_policies(self: Arc<Daemon>) {
        loop {
            let wait = self.start_due_runs();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.policies_changed.notified() => {}
            }
        }
    }

    /// Starts the runs that are due, reports those that are late, and returns how long to wait.
    fn start_due_runs(self: &Arc<Daemon>) -> Duration {
        let now = instant::now();
        let pools: BTreeMap<String, String> =
            self.registry().pools.iter().map(|(name, entry)| (entry.record.id.clone(), name.clone())).collect();
        let (mut news, mut turns, mut next) = (Vec::new(), Vec::new(), later(now, LOOK.as_secs()));
        {
            let mut policies = self.policies();
            if policies.all.is_empty() {
                return IDLE;
            }
            policies.notice_clock(now);
            for entry in policies.all.values_mut() {
                entry.meet_pools(&pools, now);
                let terms = match &entry.terms {
                    Ok(terms) => Arc::clone(terms),
                    Err(error) => {
                        news.extend(entry.cannot_run(&pools, &error.message.clone()));
                        continue;
                    }
                };
                for (id, progress) in entry.pools.iter_mut().filter(|(_, progress)| progress.here) {
                    let Some(pool) = pools.get(id) else { continue };
                    if let Some(reason) = progress.becomes_late(grace(&terms), now) {
                        news.push(missed(pool, &entry.record.name, progress.due, &reason));
                    }
                    if progress.running {
                        continue;
                    }
                    let start = progress.due.unwrap_or(Timestamp::MIN).max(progress.retry);
                    if start <= now {
                        progress.running = true;
                        turns.push(Turn::new(&entry.record, Arc::clone(&terms), id, pool, progress));
                    } else {
                        next = next.min(start);
                    }
                }
            }
        }
        news.into_iter().for_each(|happened| self.report(happened));
        for mut turn in turns {
            let daemon = Arc::clone(self);
            tokio::spawn(async move {
                let run = daemon.make_run(&mut turn).await;
                daemon.end_run(&turn, run);
            });
        }
        // to the next millisecond, so that the run is due when this wakes up
        Duration::try_from(next.duration_since(instant::now())).unwrap_or_default() + Duration::from_millis(1)
    }

    /// Notes how a run ended.
    pub(in crate::policy) fn end_run(&self, turn: &Turn, run: Run) {
        let now = instant::now();
        let mut news = Vec::new();
        {
            let mut policies = self.policies();
            let Some(entry) = policies.all.get_mut(&turn.policy) else { return };
            entry.counts.taken += run.taken;
            entry.counts.destroyed += run.destroyed;
            let is_same = entry.terms.as_ref().is_ok_and(|terms| **terms == *turn.terms);
            let Some(progress) = entry.pools.get_mut(&turn.pool_id) else { return };
            progress.running = false;
            if !is_same || run.made.is_some_and(|made| made > now) {
                // the policy was changed, or the clock set back, meanwhile
                progress.start_again(now);
                self.policies_changed.notify_one();
                return;
            }
            if let Some(tracked) = run.tracked {
                progress.seen = tracked.seen();
                progress.tracked = Some(tracked);
            }
            let (schedule, zone) = (&turn.terms.schedule, &turn.terms.zone);
            if let Some(made) = run.made {
                // runs that were due between the one that was made and the making of it
                let due = progress.due.or(run.due).unwrap_or(made);
                let missed = schedule.count(zone, due, made, MOST_COUNTED);
                progress.missed += missed;
                entry.counts.missed += missed;
                progress.due = Some(schedule.next_after(zone, made));
            } else if run.due.is_some() {
                progress.due = run.due;
            }
            if let Some(reasons) = run.freezing {
                entry.counts.not_frozen += u64::from(!reasons.is_empty());
                let before = std::mem::replace(&mut progress.not_frozen, reasons.into_iter().next());
                news.extend(freezing(turn, before.as_deref(), progress.not_frozen.as_deref()));
            }
            match run.error {
                None => {
                    progress.failing = None;
                    progress.retry = Timestamp::MIN;
                    if run.made.is_some() && progress.late.take().is_some() {
                        news.push(resumed(&turn.pool, &turn.policy, std::mem::take(&mut progress.missed)));
                    }
                    if progress.late.is_none() {
                        progress.missed = 0;
                    }
                }
                Some(error) => {
                    tracing::debug!(policy = turn.policy, pool = turn.pool, %error, "a run failed");
                    let since = progress.failing.take().map_or(now, |(since, _)| since);
                    progress.failing = Some((since, error.message));
                    progress.retry = later(now, schedule.interval().clamp(RETRY.0, RETRY.1));
                }
            }
        }
        news.into_iter().for_each(|happened| self.report(happened));
        if run.taken > 0 {
            self.send_taken(turn);
        }
        self.forget_volumes(&turn.policy, &turn.pool_id, &run.gone);
        self.policies_changed.notify_one();
    }

    /// Detaches volumes that do not exist any more.
    fn forget_volumes(&self, policy: &str, pool_id: &str, gone: &[VolumeId]) {
        if gone.is_empty() {
            return;
        }
        let mut names = Vec::new();
        if let Some(entry) = self.policies().all.get_mut(policy) {
            let is_gone = |volume: &Attached| volume.pool_id == pool_id && gone.contains(&volume.id());
            names.extend(entry.record.volumes.iter().filter(|volume| is_gone(volume)).map(|volume| volume.name.clone()));
            entry.record.volumes.retain(|volume| !is_gone(volume));
        }
        for name in &names {
            let pool = name.split('/').next().unwrap_or_default();
            let message = format!("volume '{name}' is destroyed, and no longer under policy '{policy}'");
            self.report(Happened::to_pool(EventKind::PolicyDetached, pool, message).about(name));
        }
        self.sends.look_again();
        if let Err(error) = self.save() {
            tracing::warn!(%error, "a volume that is gone stays in the record of its policy");
        }
    }

    /// Detaches the volumes of a pool that is destroyed.
    pub(crate) fn forget_pool_of_policies(&self, pool_id: &str) {
        for entry in self.policies().all.values_mut() {
            entry.record.volumes.retain(|volume| volume.pool_id != pool_id);
            entry.pools.remove(pool_id);
        }
    }

    /// Returns the reasons why runs in a pool are late or freeze no guests, one for each policy.
    pub(crate) fn late_policies(&self, pool_id: &str) -> Vec<String> {
        let late = self.late_runs(pool_id).into_iter().map(|(policy, reason)| format!("policy '{policy}' is late: {reason}"));
        let unfrozen = self.unfrozen_runs(pool_id).into_iter();
        late.chain(unfrozen.map(|(policy, reason)| format!("policy '{policy}' does not freeze a guest: {reason}"))).collect()
    }

    /// Returns the policies that are not late and whose last run in a pool did not freeze a guest,
    /// with the reasons.
    pub(crate) fn unfrozen_runs(&self, pool_id: &str) -> Vec<(String, String)> {
        let unfrozen = |entry: &Entry| {
            let progress = entry.pools.get(pool_id).filter(|progress| progress.here && progress.late.is_none())?;
            Some((entry.record.name.clone(), progress.not_frozen.clone()?))
        };
        self.policies().all.values().filter_map(unfrozen).collect()
    }

    /// Returns the policies whose runs in a pool are late, with the reasons.
    pub(crate) fn late_runs(&self, pool_id: &str) -> Vec<(String, String)> {
        let late = |entry: &Entry| {
            let progress = entry.pools.get(pool_id).filter(|progress| progress.here)?;
            Some((entry.record.name.clone(), progress.late.clone()?))
        };
        self.policies().all.values().filter_map(late).collect()
    }
}

impl Policies {
    /// Computes all times again if the clock was set back.
    fn notice_clock(&mut self, now: Timestamp) {
        let back = self.looked.is_some_and(|looked| now.duration_since(looked) < SignedDuration::from_secs(-2));
        self.looked = Some(now);
        if back {
            tracing::warn!("the clock was set back: the runs of policies are scheduled anew");
            self.all.values_mut().flat_map(|entry| entry.pools.values_mut()).for_each(|progress| progress.start_again(now));
        }
    }
}

impl Entry {
    /// Notes which of its pools are imported on this host.
    fn meet_pools(&mut self, pools: &BTreeMap<String, String>, now: Timestamp) {
        let wanted: Vec<&String> = self.record.volumes.iter().map(|volume| &volume.pool_id).collect();
        self.pools.retain(|id, progress| progress.running || wanted.contains(&id));
        for id in wanted {
            let progress = self.pools.entry(id.clone()).or_insert_with(|| Progress::new(now));
            let here = pools.contains_key(id);
            if here && !progress.here {
                progress.start_again(now);
            }
            if !here {
                // a user exported the pool: nothing is late then
                (progress.late, progress.failing) = (None, None);
            }
            progress.here = here;
        }
    }

    /// Reports once for each pool that this host cannot use the properties.
    fn cannot_run(&mut self, pools: &BTreeMap<String, String>, reason: &str) -> Vec<Happened> {
        let mut news = Vec::new();
        for (id, progress) in self.pools.iter_mut().filter(|(_, progress)| progress.here && progress.late.is_none()) {
            progress.late = Some(reason.to_owned());
            news.extend(pools.get(id).map(|pool| missed(pool, &self.record.name, None, reason)));
        }
        news
    }
}

fn missed(pool: &str, policy: &str, due: Option<Timestamp>, reason: &str) -> Happened {
    let since = due.map(|due| format!(" since {}", due.strftime("%Y-%m-%dT%H:%M:%SZ"))).unwrap_or_default();
    let message = format!("policy '{policy}' makes no snapshots in pool '{pool}'{since}: {reason}");
    Happened::to_pool(EventKind::PolicyMissed, pool, message).about(format!("{pool}: {policy}"))
}

/// Returns the event of a run that froze guests, or failed to, if that has changed.
fn freezing(turn: &Turn, before: Option<&str>, now: Option<&str>) -> Option<Happened> {
    let (pool, policy) = (&turn.pool, &turn.policy);
    let (kind, message) = match (before, now) {
        (None, Some(reason)) => {
            let taken = if turn.terms.freeze_required { "takes no snapshots of" } else { "takes snapshots without freezing" };
            (EventKind::GuestNotFrozen, format!("policy '{policy}' {taken} a guest in pool '{pool}': {reason}"))
        }
        (Some(_), None) => (EventKind::GuestFreezes, format!("policy '{policy}' freezes its guests in pool '{pool}' again")),
        _ => return None,
    };
    Some(Happened::to_pool(kind, pool, message).about(format!("{pool}: {policy}")))
}

fn resumed(pool: &str, policy: &str, missed: u64) -> Happened {
    let count = if missed >= MOST_COUNTED { format!("{MOST_COUNTED} or more") } else { missed.to_string() };
    let message = format!("policy '{policy}' makes snapshots in pool '{pool}' again; missed runs: {count}");
    Happened::to_pool(EventKind::PolicyResumed, pool, message).about(format!("{pool}: {policy}"))
}

/// Returns the error of a pool that takes no snapshots.
pub(in crate::policy) fn read_only(pool: &str) -> ApiError {
    ApiError::busy(format!("pool '{pool}' is imported read-only; export it and import it without --readonly"))
}
