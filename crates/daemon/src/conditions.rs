//! Conditions: problems that last, with cause, remedy, and the time since which they last.
//!
//! [`find`] derives them from the lists of pools and exports, and from [`Signs`] that other parts of
//! the daemon leave. The [`Ledger`] knows since when each lasts, also across restarts, and reports
//! each change once: to the sinks of the configuration, and as an event where no other code reports
//! one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_api::instant;
use millpond_api::{Alert, AlertState, Condition, ConditionKind, EventKind, Export, Pool, Severity};

use super::events::Happened;
use super::host::host_name;
use super::service::Daemon;
use super::state::replace_file;
use clock::ClockWatch;
use ledger::{Change, Ledger};
use reconnects::Reconnects;

mod clock;
pub mod find;
mod ledger;
mod reconnects;
#[cfg(test)]
mod tests;

/// Age at which incomplete receives are looked for again.
const RECEIVES: Duration = Duration::from_secs(60);
/// Subject of conditions of the host.
const HOST: &str = "host";

/// A condition that was found, without the time of its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub kind: ConditionKind,
    pub severity: Severity,
    pub subject: String,
    pub pool: Option<String>,
    /// Id of the pool; empty if the condition is not of a pool.
    pub owner: String,
    /// Identity of the subject; the subject itself if it is empty.
    pub key: String,
    pub device: Option<String>,
    pub cause: String,
    pub remedy: String,
    pub covered: bool,
}

impl Found {
    /// Returns a condition of a subject that is no part of a pool.
    pub fn new(kind: ConditionKind, subject: &str, cause: String, remedy: &str) -> Found {
        Found {
            severity: kind.severity(),
            kind,
            subject: subject.to_owned(),
            pool: None,
            owner: String::new(),
            key: String::new(),
            device: None,
            cause,
            remedy: remedy.to_owned(),
            covered: false,
        }
    }
}

/// Facts beyond the lists of pools and exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Pools whose last complete scrub is too long ago: days, by id.
    pub overdue: BTreeMap<String, u64>,
    /// Pools on a file system that is nearly full: the reason, by name.
    pub short: BTreeMap<String, String>,
    /// Policies whose runs are late, with the reasons, by the id of the pool.
    pub late: BTreeMap<String, Vec<(String, String)>>,
    /// Policies whose last runs froze no guest, with the reasons, by the id of the pool.
    pub unfrozen: BTreeMap<String, Vec<(String, String)>>,
    /// Sends of policies that are behind: policy, volume and reason, by the id of the pool.
    pub unsent: BTreeMap<String, Vec<(String, String, String)>>,
    /// Further conditions.
    pub others: Vec<Found>,
}

/// State from which conditions are found and followed.
#[derive(Default)]
pub(super) struct Conditions(Mutex<State>);

#[derive(Default)]
struct State {
    ledger: Ledger,
    clock: ClockWatch,
    reconnects: Reconnects,
    short: BTreeMap<String, String>,
    /// Reports of disks, by pool id and key of the device.
    wear: BTreeMap<(String, String), Found>,
}

impl Conditions {
    /// Loads the conditions of an earlier daemon from its state directory. `last` is the time of its
    /// last event.
    pub(super) fn load(dir: &Path, last: Option<Timestamp>) -> Conditions {
        let state = State { ledger: Ledger::load(dir), clock: ClockWatch::since(last), ..State::default() };
        Conditions(Mutex::new(state))
    }

    /// Locks the state. Never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the file systems of a pool are nearly full, for this reason, or are not.
    pub(super) fn set_short(&self, pool: &str, why: Option<String>) {
        let mut state = self.state();
        match why {
            Some(why) => drop(state.short.insert(pool.to_owned(), why)),
            None => drop(state.short.remove(pool)),
        }
    }

    /// Replaces the reports of the disks of pools.
    pub(super) fn set_wear(&self, wear: Vec<Found>) {
        self.state().wear = wear.into_iter().map(|found| ((found.owner.clone(), found.key.clone()), found)).collect();
    }

    /// Ends the conditions of a pool that was destroyed.
    pub(super) fn forget(&self, pool_id: &str) {
        self.state().ledger.forget(pool_id);
    }
}

impl Daemon {
    /// Returns the conditions that exist now, most severe first.
    pub(super) fn conditions(&self, pools: &[Pool], exports: &[Export]) -> Vec<Condition> {
        let now = instant::now();
        let signs = self.signs(pools, now);
        let found = find::find(pools, exports, &signs);
        let state = self.conditions.state();
        let mut conditions: Vec<Condition> = found.into_iter().filter_map(|found| state.ledger.shown(found, now)).collect();
        conditions.sort_by_key(|condition| !condition.severity.is_at_least(Severity::Error));
        conditions
    }

    /// Compares the conditions with the last look, and reports changes.
    pub(super) async fn look_at_conditions(&self, pools: &[Pool], exports: &[Export], now: Instant) {
        let time = instant::now();
        self.look_at_receives(pools, RECEIVES).await;
        {
            let mut state = self.conditions.state();
            state.clock.look(time, now);
            state.reconnects.look(exports, time, now);
            state.ledger.note_scrubs(pools, time);
        }
        let signs = self.signs(pools, time);
        let found = find::find(pools, exports, &signs);
        let (changes, text) = {
            let mut state = self.conditions.state();
            let changes = state.ledger.look(found, pools, now, time);
            let text = state.ledger.unsaved();
            (changes, text)
        };
        for change in changes {
            self.report_condition(change, time);
        }
        if let Some(text) = text {
            self.save_conditions(text).await;
        }
    }

    /// Returns the facts beyond the lists of pools and exports.
    fn signs(&self, pools: &[Pool], now: Timestamp) -> Signs {
        let late = pools.iter().map(|pool| (pool.id.clone(), self.late_runs(&pool.id))).collect();
        let unfrozen = pools.iter().map(|pool| (pool.id.clone(), self.unfrozen_runs(&pool.id))).collect();
        let unsent = pools.iter().map(|pool| (pool.id.clone(), self.unsent(&pool.id))).collect();
        let stuck = pools.iter().flat_map(|pool| {
            self.stuck_guests(&pool.name).into_iter().map(move |(volume, why)| Found {
                pool: Some(pool.name.clone()),
                owner: pool.id.clone(),
                ..Found::new(
                    ConditionKind::GuestStuck,
                    &volume,
                    why,
                    "the daemon goes on thawing it; see docs/policies.md to do it by hand",
                )
            })
        });
        let stuck: Vec<Found> = stuck.collect();
        let stalled: Vec<Found> = pools.iter().flat_map(|pool| self.receives.stalled(pool, now)).collect();
        let away: Vec<Found> = pools.iter().flat_map(|pool| self.fetching.conditions(pool)).collect();
        let state = self.conditions.state();
        let mut others: Vec<Found> = state.clock.condition().into_iter().collect();
        others.extend(stuck);
        others.extend(stalled);
        others.extend(away);
        others.extend(state.reconnects.conditions());
        others.extend(state.wear.values().cloned());
        if let Some(why) = self.events.unsaved() {
            let cause = format!("events are not stored: {why}");
            others.push(Found::new(
                ConditionKind::EventsUnsaved,
                HOST,
                cause,
                "free up space in the state directory, or correct its permissions",
            ));
        }
        others.extend(self.sinks.conditions());
        let overdue = self.options.scrub_overdue.map(|limit| state.ledger.overdue(pools, limit, now)).unwrap_or_default();
        Signs { overdue, short: state.short.clone(), late, unfrozen, unsent, others }
    }

    fn report_condition(&self, Change { state, condition }: Change, time: Timestamp) {
        let severity = match condition.severity.is_at_least(Severity::Error) {
            true => Severity::Error,
            false => Severity::Warning,
        };
        // other kinds have events of their own
        if condition.kind.begins() == EventKind::ConditionBegan {
            let remedy = if condition.remedy.is_empty() { String::new() } else { format!("; {}", condition.remedy) };
            let (kind, message, severity) = match state {
                AlertState::Ended => (EventKind::ConditionEnded, format!("ended: {}", condition.cause), Severity::Info),
                _ => (EventKind::ConditionBegan, format!("{}: {}{remedy}", condition.kind, condition.cause), severity),
            };
            self.report(Happened::of_condition(kind, &condition, message).at(severity));
        }
        let alert = Alert { state, host: host_name(), time, condition };
        self.sinks.send(&alert);
    }

    async fn save_conditions(&self, text: String) {
        let path = self.dir.path().join(ledger::FILE);
        let saved = self.calls.call(&path, super::host_calls::PATIENCE, move |path| replace_file(path, text.as_bytes())).await;
        let why = match saved {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the filesystem does not answer".to_owned(),
        };
        tracing::warn!(file = %path.display(), why, "the beginnings of conditions may be forgotten at the next start");
    }
}
