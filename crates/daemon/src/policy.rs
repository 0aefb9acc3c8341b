//! Policies: snapshots by a schedule, with thinning.
//!
//! A policy is in the state file of this host; its snapshots are marked by their description and by
//! the time in their name ([`Terms::time_of`]), so another host finds them again under a policy of
//! the same name (`docs/decisions/0036-policies.md`). The decisions are pure functions: `keep`
//! decides which snapshots are superfluous, `calendar` when the next run is.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use millpond_api::ApiError;
use millpond_api::send_target::SendTarget;
use millpond_engine::VolumeId;
use serde::{Deserialize, Serialize};

use crate::freeze;

mod calendar;
mod due;
mod keep;
mod prune;
mod requests;
pub(super) mod send;
#[cfg(test)]
mod tests;
mod turn;

use calendar::Schedule;
use due::Progress;
pub use keep::Keep;

/// Most policies of a daemon.
const MOST_POLICIES: usize = 1000;
/// Most volumes of one pool under a policy with `group`: those of one snapshot command.
const MOST_IN_GROUP: usize = 256;
/// Default names of snapshots.
const TEMPLATE: &str = "auto-{policy}-{time}";
/// Form of `{time}`, in UTC, so that names sort by time and no clock change repeats one.
const STAMP: &str = "%Y%m%dT%H%M%SZ";
/// Characters of a stamp.
const STAMP_LENGTH: usize = 16;
/// Longest name of a policy in bytes: names of snapshots have room for it.
const LONGEST_NAME: usize = 64;

/// A volume under a policy, by ids that are never reused, so that a rename does not break it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attached {
    /// Id of the pool.
    pub(super) pool_id: String,
    /// Id of the volume.
    pub(super) volume: u32,
    /// `pool/volume` when last seen.
    pub(super) name: String,
    /// Time since which it is under the policy.
    pub(super) since: Timestamp,
}

impl Attached {
    pub(super) fn id(&self) -> VolumeId {
        VolumeId(self.volume)
    }
}

/// A policy, as the state file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Name of the policy.
    pub(super) name: String,
    /// Rules.
    pub(super) keep: String,
    /// Snapshots of all volumes of a pool are taken at one instant.
    #[serde(default)]
    pub(super) group: bool,
    /// Calendar time of the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
    /// IANA name of the time zone.
    pub(super) zone: String,
    /// Seconds for which each snapshot is locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lock: Option<u64>,
    /// Seconds after which each snapshot expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expire: Option<u64>,
    /// Order in which snapshots are destroyed when the pool is nearly full; `None`: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prune: Option<u32>,
    /// Names of the snapshots.
    pub(super) template: String,
    /// Sockets of guest agents, with placeholders; `None`: guests are not frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) freeze: Option<String>,
    /// Nothing is taken of a guest that cannot be frozen.
    #[serde(default)]
    pub(super) freeze_required: bool,
    /// Where the snapshots are sent; `None`: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) send: Option<String>,
    /// Time since which they are sent there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) send_since: Option<Timestamp>,
    /// Volumes under the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<Attached>,
}

/// The properties of a policy, as its runs use them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Terms {
    keep: Keep,
    schedule: Schedule,
    zone: TimeZone,
    /// Description of its snapshots.
    mark: String,
    /// Name with `{time}`.
    template: String,
    lock: Option<u64>,
    expire: Option<u64>,
    group: bool,
    freeze: Option<String>,
    freeze_required: bool,
}

impl Terms {
    /// Reads the properties of a record.
    ///
    /// # Errors
    /// [`millpond_api::ErrorKind::Usage`] with the property that is wrong.
    pub(super) fn of(record: &PolicyRecord) -> Result<Terms, ApiError> {
        let keep: Keep = record.keep.parse().map_err(ApiError::usage)?;
        let schedule = match &record.at {
            Some(at) => at.parse(),
            None => Schedule::each(keep.finest()),
        };
        let schedule = schedule.map_err(ApiError::usage)?;
        let zone = zone(&record.zone)?;
        let template = record.template.replace("{policy}", &record.name);
        if template.matches("{time}").count() != 1 {
            return Err(ApiError::usage(format!("'{}' does not have {{time}} once; give for example {TEMPLATE}", record.template)));
        }
        let example = template.replace("{time}", "20260101T000000Z");
        millpond_api::names::check(millpond_api::names::Kind::Snapshot, &format!("{example}-99"))?;
        let locked = record.lock.unwrap_or(0) / schedule.interval();
        if locked > keep::MOST_KEPT {
            return Err(ApiError::usage(format!(
                "each volume would have {locked} locked snapshots at a time, the most is {}; give a shorter lock, or take them less often",
                keep::MOST_KEPT
            )));
        }
        if record.expire.zip(record.lock).is_some_and(|(expire, lock)| expire < lock) {
            return Err(ApiError::usage("snapshots would expire before their lock ends; give a longer expiry, or a shorter lock"));
        }
        record.freeze.as_deref().map(freeze::check).transpose()?;
        record.send.as_deref().map(str::parse::<SendTarget>).transpose()?;
        if record.send.is_some() && record.name.len() > send::LONGEST_SENDER {
            let most = send::LONGEST_SENDER;
            return Err(ApiError::usage(format!("the name of a policy that sends has at most {most} characters; use another policy")));
        }
        let (mark, freeze) = (mark(&record.name), record.freeze.clone());
        let (lock, expire, group, freeze_required) = (record.lock, record.expire, record.group, record.freeze_required);
        Ok(Terms { keep, schedule, zone, mark, template, lock, expire, group, freeze, freeze_required })
    }

    /// Returns the name of a snapshot that is taken at `time`.
    fn name_at(&self, time: Timestamp) -> String {
        self.template.replace("{time}", &time.strftime(STAMP).to_string())
    }

    /// Returns when the policy took a snapshot; `None` if it did not, or if a user gave the
    /// snapshot another name, without such a time.
    fn time_of(&self, name: &str, description: &str) -> Option<Timestamp> {
        if description != self.mark {
            return None;
        }
        let starts = 0..=name.len().checked_sub(STAMP_LENGTH)?;
        starts.filter_map(|at| name.get(at..at + STAMP_LENGTH)).find_map(stamp)
    }
}

/// Returns the time of a stamp.
fn stamp(text: &str) -> Option<Timestamp> {
    let digits = text.bytes().enumerate().all(|(at, byte)| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    });
    digits.then(|| jiff::civil::DateTime::strptime(STAMP, text).ok()).flatten().and_then(|at| TimeZone::UTC.to_timestamp(at).ok())
}

/// Returns the description of the snapshots of a policy.
fn mark(policy: &str) -> String {
    format!("policy {policy}")
}

/// Returns the time zone of this name.
fn zone(name: &str) -> Result<TimeZone, ApiError> {
    if name.eq_ignore_ascii_case("utc") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name)
        .map_err(|_| ApiError::usage(format!("this host knows no time zone '{name}'; give an IANA name such as Europe/Berlin, or UTC")))
}

/// Returns the name of the host's time zone, UTC if it has none.
fn host_zone() -> String {
    TimeZone::try_system().ok().and_then(|zone| zone.iana_name().map(str::to_owned)).unwrap_or_else(|| "UTC".to_owned())
}

/// Counts since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) taken: u64,
    pub(super) destroyed: u64,
    pub(super) missed: u64,
    /// Runs in which a guest was not frozen.
    pub(super) not_frozen: u64,
}

/// A policy with its runs.
pub(super) struct Entry {
    pub(super) record: PolicyRecord,
    /// Its properties; an error if this host cannot use them, for example because it does not know
    /// the time zone.
    pub(super) terms: Result<Arc<Terms>, ApiError>,
    /// Runs in each pool, by the ids of pools.
    pools: BTreeMap<String, Progress>,
    /// Sends of each volume, by the ids of pool and volume.
    sends: BTreeMap<(String, VolumeId), send::Sending>,
    pub(super) counts: Counts,
}

impl Entry {
    pub(super) fn new(record: PolicyRecord) -> Entry {
        let terms = Terms::of(&record).map(Arc::new);
        Entry { record, terms, pools: BTreeMap::new(), sends: BTreeMap::new(), counts: Counts::default() }
    }
}

/// The policies of the daemon.
#[derive(Default)]
pub(super) struct Policies {
    all: BTreeMap<String, Entry>,
    /// Time of the clock at the last look, which notices that the clock was set back.
    looked: Option<Timestamp>,
}

impl Policies {
    /// Starts with the policies of the state file.
    pub(super) fn of(records: Vec<PolicyRecord>) -> Policies {
        let all = records.into_iter().map(|record| (record.name.clone(), Entry::new(record))).collect();
        Policies { all, looked: None }
    }

    /// Returns the records for the state file.
    pub(super) fn records(&self) -> Vec<PolicyRecord> {
        self.all.values().map(|entry| entry.record.clone()).collect()
    }

    /// Returns the policies.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.all.values()
    }
}
