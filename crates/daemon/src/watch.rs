//! Changes of pools from one look to the next, as events: devices that fail or recover, pools that
//! degrade, stop, fill or recover, jobs that begin by themselves or end, exports that stop.
//!
//! Each change is reported once. The looks are those that the API lists, so an event says the same
//! as `pool status` at that time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_api::instant::about;
use millpond_api::size::Size;
use millpond_api::{
    ConditionKind, Device, DeviceState, EventKind, Export, ExportState, Job, JobKind, Pool, PoolHealth, Scrub, ScrubState, Severity,
};
use millpond_block::MemberId;

use super::conditions::find::{device_kind, pool_kind};
use super::events::Happened;

mod room;
#[cfg(test)]
mod tests;

use room::Room;

/// How long a pool may be silent before that is reported: its thread may just be busy.
const SILENCE: Duration = Duration::from_secs(10);
/// How long an export of a pool in service may take to be served, or to be served again.
const GRACE: Duration = Duration::from_secs(5);
/// The same limit while exports of its pool are being restored.
const RESTORE: Duration = Duration::from_secs(60);

/// State of one pool at the last look.
#[derive(Default)]
pub(super) struct Watch {
    /// `None` before the first look.
    health: Option<PoolHealth>,
    /// Trouble was reported, its end was not.
    troubled: bool,
    /// Look since which it has not answered.
    silent: Option<Instant>,
    /// Devices in trouble, by their ids: a new device at an old path is another one.
    unwell: BTreeMap<String, Unwell>,
    jobs: BTreeMap<String, Followed>,
    /// Start of the last scrub, and whether it has ended.
    scrub: Option<(Timestamp, bool)>,
    /// Reason why the last removal ended by itself.
    removal_ended: Option<String>,
    /// Last reported reason why a removal did not go on.
    removal_waits: Option<String>,
    /// Reason why its import went back beyond the newest checkpoint.
    fell_back: Option<String>,
    /// Bytes that are not freed because deadlists cannot be read.
    unreclaimed: u64,
    room: Room,
}

/// A device in trouble.
struct Unwell {
    path: String,
    /// Kind of the event that reported it.
    kind: EventKind,
}

/// A job that runs.
struct Followed {
    kind: JobKind,
    device: Option<String>,
    errors: u64,
    /// It was in a look; a job that a command has just begun may not be in the look yet.
    listed: bool,
    /// It was missing from the last look.
    missed: bool,
}

/// Pools and exports at the last look.
#[derive(Default)]
pub(super) struct Watches {
    pools: BTreeMap<String, Watch>,
    exports: BTreeMap<u64, Served>,
}

/// State of an export at the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Yes,
    /// Not served yet: its pool has not been in service since the daemon started, which was
    /// reported for the pool.
    Waits,
    /// Not served since this look, perhaps only for now: its pool has just come into service.
    Late(Instant),
    /// Not served, which was reported: with its pool, where that is not in service.
    No,
}

/// Returns true while a command opens or closes a pool.
fn is_changing(pool: &Pool) -> bool {
    matches!(pool.health, PoolHealth::Opening | PoolHealth::Closing)
}

/// Returns kind and member of a job, from its id.
fn parts(job: &Job) -> (&JobKind, Option<MemberId>) {
    let member = job.id.strip_prefix(&format!("{}:{}:", job.kind, job.pool)).and_then(|member| member.parse().ok()).map(MemberId);
    (&job.kind, member)
}

/// Returns the key of a job. Jobs of one member have one key, whatever their kind: a replacement by
/// a command may be listed as a resilver.
fn key(kind: &JobKind, member: Option<MemberId>) -> String {
    member.map_or_else(|| kind.to_string(), |member| member.to_string())
}

impl Watches {
    /// Compares pools with the last look, and returns the events. `path_of` returns the path of a
    /// member.
    pub(super) fn look_at_pools(
        &mut self,
        pools: &[Pool],
        jobs: &[Job],
        path_of: impl Fn(&str, MemberId) -> Option<String>,
        now: Instant,
    ) -> Vec<Happened> {
        let mut news = Vec::new();
        for pool in pools {
            let watch = self.pools.entry(pool.id.clone()).or_default();
            watch.look(pool, jobs, |member| path_of(&pool.name, member), now, &mut news);
        }
        // a pool in trouble may be exported and imported to end that, so it is kept
        self.pools.retain(|id, watch| watch.troubled || pools.iter().any(|pool| pool.id == *id));
        news
    }

    /// Compares exports with the last look, and returns the events. `restoring` returns whether the
    /// exports of a pool are being restored.
    pub(super) fn look_at_exports(
        &mut self,
        exports: &[Export],
        pools: &[Pool],
        restoring: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<Happened> {
        let mut news = Vec::new();
        for export in exports {
            let name = export.name.split(['/', '@']).next().unwrap_or_default();
            let pool = pools.iter().find(|pool| pool.name == name);
            // no events about exports of a pool that a command opens or closes, or that does not
            // answer
            let says_nothing = |pool: &Pool| is_changing(pool) || pool.silent_since.is_some();
            let Some(pool) = pool.filter(|pool| !says_nothing(pool)) else { continue };
            let before = self.exports.get(&export.id).copied();
            let in_service = pool.health.is_in_service();
            let grace = if restoring(name) { RESTORE } else { GRACE };
            let served = match (&export.state, before) {
                (ExportState::Online, _) => Served::Yes,
                (_, None | Some(Served::Yes | Served::Waits)) if in_service => Served::Late(now),
                (_, Some(Served::Late(since))) if in_service && now.saturating_duration_since(since) < grace => Served::Late(since),
                (_, None | Some(Served::Waits)) => Served::Waits,
                _ => Served::No,
            };
            self.exports.insert(export.id, served);
            let subject = format!("{} {}", export.id, export.name);
            let reason = export.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let event = |kind, message| Happened::to_pool(kind, name, message).about(subject.clone());
            match (before, served) {
                (Some(Served::Yes | Served::Late(_)), Served::No) => {
                    news.push(event(EventKind::ExportStopped, format!("export {} ({}) is not served{reason}", export.id, export.name)));
                }
                (Some(Served::No | Served::Waits), Served::Yes) => {
                    news.push(event(EventKind::ExportRestored, format!("export {} ({}) is served again", export.id, export.name)));
                }
                _ => {}
            }
        }
        self.exports.retain(|id, _| exports.iter().any(|export| export.id == *id));
        news
    }

    /// Notes that a command has begun a job, whose beginning is then no event.
    pub(super) fn expect_job(&mut self, pool_id: &str, kind: JobKind, member: Option<MemberId>, device: Option<String>) {
        let key = key(&kind, member);
        let job = Followed { kind, device, errors: 0, listed: false, missed: false };
        self.pools.entry(pool_id.to_owned()).or_default().jobs.insert(key, job);
    }

    /// Notes that an export is served: when it stops before the next look, that is an event.
    pub(super) fn expect_export(&mut self, id: u64) {
        self.exports.entry(id).or_insert(Served::Yes);
    }

    /// Notes that an export has ended with its pool, by a command that reports it.
    pub(super) fn expect_stop(&mut self, id: u64) {
        self.exports.insert(id, Served::No);
    }

    /// True when an event has reported a device of a pool as in trouble.
    pub(super) fn is_unwell(&self, pool_id: &str, path: &str) -> bool {
        self.pools.get(pool_id).is_some_and(|watch| watch.unwell.values().any(|unwell| unwell.path == path))
    }

    /// Returns the time until a pool is full at its recent rate.
    pub(super) fn full_in(&self, pool: &Pool, now: Instant) -> Option<Duration> {
        self.pools.get(&pool.id)?.room.full_in(pool, now)
    }
}

impl Watch {
    fn look(&mut self, pool: &Pool, jobs: &[Job], path_of: impl Fn(MemberId) -> Option<String>, now: Instant, news: &mut Vec<Happened>) {
        if is_changing(pool) {
            return;
        }
        if pool.silent_since.is_none() {
            self.silent = None;
            self.look_at_devices(pool, news);
        } else if now.saturating_duration_since(*self.silent.get_or_insert(now)) < SILENCE {
            return;
        }
        self.look_at_health(pool, news);
        if pool.health.is_in_service() {
            news.extend(self.room.look(pool, now));
            self.look_at_scrub(pool, news);
            self.look_at_what_is_left(pool, news);
            self.look_at_jobs(pool, jobs, path_of, news);
        }
    }

    fn look_at_devices(&mut self, pool: &Pool, news: &mut Vec<Happened>) {
        // A device without an id may be remembered by a path that another device has now: the one
        // in trouble counts.
        let mut by_key: BTreeMap<&str, (&Device, Option<EventKind>)> = BTreeMap::new();
        for device in &pool.devices {
            let condition = condition(device);
            let known = by_key.entry(device.key()).or_insert_with(|| (device, condition.clone()));
            if known.1.is_none() {
                *known = (device, condition);
            }
        }
        for (key, (device, condition)) in by_key {
            let path = &device.path;
            match (self.unwell.get(key).map(|unwell| unwell.kind.clone()), condition) {
                (before, Some(kind)) if before.as_ref() != Some(&kind) => {
                    self.unwell.insert(key.to_owned(), Unwell { path: path.clone(), kind: kind.clone() });
                    let message = message_of(pool, device, &kind);
                    news.push(Happened::to_device(kind, &pool.name, path, message));
                }
                // a device that is being filled has not recovered yet
                (Some(_), None) if matches!(device.state, DeviceState::Online | DeviceState::Available | DeviceState::Replacing) => {
                    self.unwell.remove(key);
                    let message = format!("device {path} of pool '{}' has recovered", pool.name);
                    news.push(Happened::to_device(EventKind::DeviceRecovered, &pool.name, path, message));
                }
                _ => {}
            }
        }
        self.unwell.retain(|key, _| pool.devices.iter().any(|device| device.key() == key));
    }

    fn look_at_health(&mut self, pool: &Pool, news: &mut Vec<Happened>) {
        if self.health.as_ref() == Some(&pool.health) {
            return;
        }
        self.health = Some(pool.health.clone());
        let reason = pool.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let event = |kind, what| Happened::to_pool(kind, &pool.name, format!("pool '{}' {what}{reason}", pool.name));
        let trouble = match pool_kind(pool) {
            Some(kind @ ConditionKind::PoolDegraded) => Some(event(kind.begins(), "is degraded")),
            Some(kind @ ConditionKind::PoolFaulted) => Some(event(kind.begins(), "is stopped")),
            Some(kind @ ConditionKind::PoolSilent) => Some(event(kind.begins(), "does not answer")),
            // other reasons for a pool to be out of service are reported where they are found
            Some(ConditionKind::PoolUnavailable) => None,
            _ => {
                if std::mem::take(&mut self.troubled) {
                    let message = format!("pool '{}' is healthy again", pool.name);
                    news.push(Happened::to_pool(EventKind::PoolHealthy, &pool.name, message));
                }
                None
            }
        };
        self.troubled |= trouble.is_some();
        news.extend(trouble);
    }

    /// Reports a removal that ended by itself or waits, an import that went back, and space that
    /// cannot be freed.
    fn look_at_what_is_left(&mut self, pool: &Pool, news: &mut Vec<Happened>) {
        let event = |kind, what: String| Happened::to_pool(kind, &pool.name, format!("pool '{}': {what}", pool.name));
        // a removal that ended before the import was reported then
        let old = pool.removal_ended_at.is_some_and(|ended| pool.imported.is_none_or(|imported| ended < imported));
        if let Some(why) = pool.removal_ended.as_ref().filter(|why| !old && self.removal_ended.as_ref() != Some(why)) {
            news.push(event(EventKind::PoolRemovalEnded, format!("the removal of a device ended without success: {why}")));
        }
        self.removal_ended.clone_from(&pool.removal_ended);
        if let Some(why) = pool.removal_waits.as_ref().filter(|why| self.removal_waits.as_ref() != Some(why)) {
            news.push(event(EventKind::PoolRemovalWaits, format!("the removal of a device waits: {why}")));
            self.removal_waits = Some(why.clone());
        }
        if let Some(why) = pool.fell_back.as_ref().filter(|why| self.fell_back.as_ref() != Some(why)) {
            news.push(event(EventKind::PoolOlderState, format!("it went back to an older checkpoint, without the log after it: {why}")));
        }
        self.fell_back.clone_from(&pool.fell_back);
        let unreclaimed = pool.io.unreclaimed;
        if unreclaimed > 0 && self.unreclaimed == 0 {
            news.push(event(
                EventKind::PoolUnreclaimed,
                format!("{} cannot be freed, because deadlists cannot be read", Size(unreclaimed)),
            ));
        }
        self.unreclaimed = unreclaimed;
    }

    fn look_at_scrub(&mut self, pool: &Pool, news: &mut Vec<Happened>) {
        let Some(scrub) = &pool.scrub else { return };
        let ended = scrub.state != ScrubState::Running;
        // a scrub that ended before the import was reported then
        let old = scrub.ended.zip(pool.imported).is_some_and(|(ended, imported)| ended < imported);
        if ended && !old && self.scrub != Some((scrub.begun, true)) {
            news.push(scrub_ended(pool, scrub));
        }
        self.scrub = Some((scrub.begun, ended));
    }

    fn look_at_jobs(&mut self, pool: &Pool, jobs: &[Job], path_of: impl Fn(MemberId) -> Option<String>, news: &mut Vec<Happened>) {
        let mut missing = std::mem::take(&mut self.jobs);
        for job in jobs.iter().filter(|job| job.pool == pool.name && !matches!(job.kind, JobKind::Reclaim | JobKind::Copy)) {
            let (kind, member) = parts(job);
            let key = key(kind, member);
            // a spare has its place before the record shows that
            let path = || filled(pool, kind).or_else(|| member.and_then(&path_of));
            let begun = || {
                let followed = Followed { kind: kind.clone(), device: path(), errors: 0, listed: true, missed: false };
                let message = format!("{} begins", followed.words(pool));
                news.push(Happened::to_pool(EventKind::JobBegan, &pool.name, message).about(job.id.clone()));
                followed
            };
            let followed = missing.remove(&key).unwrap_or_else(begun);
            self.jobs.insert(key, Followed { kind: kind.clone(), errors: job.errors, listed: true, missed: false, ..followed });
        }
        for (key, job) in missing {
            if job.listed || job.missed {
                news.extend(job.ended(pool, &key));
            } else {
                self.jobs.insert(key, Followed { missed: true, ..job });
            }
        }
    }
}

impl Followed {
    fn words(&self, pool: &Pool) -> String {
        let device = self.device.as_ref().map(|path| format!(" of {path}")).unwrap_or_default();
        format!("{}{device} in pool '{}'", self.kind, pool.name)
    }

    /// Returns the event for the end of the job; that of a scrub is reported with its findings.
    fn ended(&self, pool: &Pool, key: &str) -> Option<Happened> {
        if self.kind == JobKind::Scrub {
            return None;
        }
        let device = self.device.as_ref().and_then(|path| pool.devices.iter().find(|device| device.path == *path));
        let outcome = match (&self.kind, device.map(|device| &device.state)) {
            (JobKind::Remove, Some(state)) => format!("; the device stays in the pool and is {state}"),
            (_, None | Some(DeviceState::Online)) => String::new(),
            (_, Some(state)) => format!("; the device is {state}"),
        };
        let errors = match self.errors {
            0 => String::new(),
            errors => format!("; {errors} pieces could not be read anywhere"),
        };
        let member = key.parse::<u16>().map(|member| format!(":{member}")).unwrap_or_default();
        let subject = format!("{}:{}{member}", self.kind, pool.name);
        let happened = Happened::to_pool(EventKind::JobEnded, &pool.name, format!("{} has ended{outcome}{errors}", self.words(pool)));
        let severity = if self.errors > 0 { Severity::Error } else { Severity::Info };
        Some(happened.about(subject).at(severity))
    }
}

/// Returns the device that a resilver fills, when it is the only one.
fn filled(pool: &Pool, kind: &JobKind) -> Option<String> {
    let mut filling = pool.devices.iter().filter(|device| *kind == JobKind::Resilver && device.state == DeviceState::Resilvering);
    let first = filling.next()?;
    filling.next().is_none().then(|| first.path.clone())
}

/// Returns the kind of event for the condition of a device; `None` when it is well, or being
/// filled.
fn condition(device: &Device) -> Option<EventKind> {
    device_kind(device).map(|kind| kind.begins())
}

fn message_of(pool: &Pool, device: &Device, kind: &EventKind) -> String {
    let what = match kind {
        EventKind::DeviceMissing => "is missing",
        EventKind::DeviceFailed => "failed",
        EventKind::DeviceFull => "has no space below it",
        EventKind::DeviceSilent => "does not answer",
        EventKind::DeviceSlow => "is slow",
        _ => "has errors",
    };
    let reason = device.health_reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{} device {} of pool '{}' {what}{reason}", device.class, device.path, pool.name)
}

fn scrub_ended(pool: &Pool, scrub: &Scrub) -> Happened {
    let severity = match (scrub.lost(), scrub.errors) {
        (0, 0) => Severity::Info,
        (0, _) => Severity::Warning,
        _ => Severity::Error,
    };
    let how = if scrub.state == ScrubState::Done { "done" } else { "stopped" };
    let found = scrub.found(&pool.name);
    Happened::to_pool(EventKind::ScrubEnded, &pool.name, format!("scrub of pool '{}' {how}: {found}", pool.name)).at(severity)
}
