//! Conditions: problems that last, from their beginning to their end.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::event::{EventKind, EventSeverity, Severity};
use super::words::words;

/// Defines the kinds from one table: variant, word, severity, kind of the event that reports the
/// beginning, and meaning. Kinds with [`EventKind::ConditionBegan`] have no older kind of event.
macro_rules! kinds {
    ($($variant:ident = $word:literal, $severity:ident, $begins:ident, $meaning:literal;)+) => {
        words! {
            /// Kind of a condition. Words of kinds do not change.
            pub enum ConditionKind {
                $(#[doc = $meaning] $variant = $word,)+
            }
        }

        impl ConditionKind {
            /// All kinds that this version knows.
            pub const ALL: &[ConditionKind] = &[$(ConditionKind::$variant),+];

            /// Returns the severity of conditions of the kind, unless one has its own.
            pub fn severity(&self) -> Severity {
                match self {
                    $(ConditionKind::$variant => Severity::$severity,)+
                    ConditionKind::Other(_) => Severity::Warning,
                }
            }

            /// Returns the kind of the event that reports the beginning.
            pub fn begins(&self) -> EventKind {
                match self {
                    $(ConditionKind::$variant => EventKind::$begins,)+
                    ConditionKind::Other(_) => EventKind::ConditionBegan,
                }
            }

            /// Returns the meaning in a few words.
            pub fn meaning(&self) -> &str {
                match self {
                    $(ConditionKind::$variant => $meaning,)+
                    ConditionKind::Other(word) => word,
                }
            }
        }
    };
}

kinds! {
    PoolUnavailable = "pool.unavailable", Error, PoolWaiting, "pool not in service";
    PoolFaulted = "pool.faulted", Error, PoolFaulted, "pool stopped";
    PoolDegraded = "pool.degraded", Error, PoolDegraded, "redundancy reduced";
    PoolSilent = "pool.silent", Error, PoolSilent, "pool does not answer";
    PoolRefusesWrites = "pool.refuses-writes", Error, ConditionBegan, "pool refuses writes";
    PoolChanging = "pool.changing", Warning, ConditionBegan, "pool is being imported or closed";
    PoolFull = "pool.full", Error, PoolFull, "pool full";
    PoolSpace = "pool.space", Warning, PoolSpace, "pool nearly full";
    PoolFillsSoon = "pool.fills-soon", Warning, ConditionBegan, "pool full within a day at its present rate";
    PoolRemovalEnded = "pool.removal-ended", Warning, PoolRemovalEnded, "removal ended without success";
    PoolRemovalWaits = "pool.removal-waits", Warning, PoolRemovalWaits, "removal waiting";
    PoolOlderState = "pool.older-state", Warning, PoolOlderState, "pool at an older state";
    PoolUnreclaimed = "pool.unreclaimed", Warning, PoolUnreclaimed, "space that cannot be freed";
    PolicyLate = "policy.late", Warning, PolicyMissed, "runs of a policy late";
    PolicyNotFrozen = "policy.not-frozen", Warning, GuestNotFrozen, "guests of a policy not frozen";
    PolicyNotSent = "policy.not-sent", Warning, PolicyNotSent, "snapshots of a policy not sent";
    GuestStuck = "guest.stuck", Error, GuestStuck, "guest may be frozen";
    ReceiveStalled = "receive.stalled", Warning, ConditionBegan, "incomplete receive without progress for a day";
    PublicationAway = "publication.away", Error, ConditionBegan, "clones wait for a target of publications";
    ScrubErrors = "scrub.errors", Warning, ScrubEnded, "last scrub found errors";
    ScrubOverdue = "scrub.overdue", Warning, ConditionBegan, "no scrub for a long time";
    DeviceFailed = "device.failed", Error, DeviceFailed, "device failed";
    DeviceMissing = "device.missing", Warning, DeviceMissing, "device missing";
    DeviceSilent = "device.silent", Warning, DeviceSilent, "device does not answer";
    DeviceSlow = "device.slow", Warning, DeviceSlow, "device slow";
    DeviceErrors = "device.errors", Warning, DeviceErrors, "device with errors";
    DeviceFull = "device.full", Warning, DeviceFull, "no space below a device";
    DeviceWear = "device.wear", Warning, ConditionBegan, "device worn or failing by its own report";
    ExportStopped = "export.stopped", Error, ExportStopped, "export not served";
    ExportReconnects = "export.reconnects", Warning, ConditionBegan, "clients of an export reconnect often";
    HostNearlyFull = "host.nearly-full", Warning, HostNearlyFull, "filesystem below a pool nearly full";
    HostClockJump = "host.clock-jump", Warning, ConditionBegan, "clock of the host was set";
    EventsUnsaved = "events.unsaved", Warning, ConditionBegan, "events not stored";
    SinkFailing = "sink.failing", Warning, ConditionBegan, "alerts not delivered";
}

/// A problem that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Condition {
    /// Kind of the condition.
    pub kind: ConditionKind,
    /// Severity of the condition. `error`: redundancy, data or service is missing.
    pub severity: EventSeverity,
    /// The pool, device, export, host or sink that has the condition.
    pub subject: String,
    /// Name of the pool concerned, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Path of the device concerned, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Cause, in one line.
    pub cause: String,
    /// Next step of the administrator, in one line; empty if the cause contains it.
    #[serde(default)]
    pub remedy: String,
    /// Time since which it lasts, as the daemon noticed it; kept across restarts.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// True if the cause of another condition, of the pool, names this one.
    #[serde(default)]
    pub covered: bool,
}

words! {
    /// Change of a condition, in an alert.
    pub enum AlertState {
        /// The condition has begun.
        Begun = "begun",
        /// The condition has ended.
        Ended = "ended",
        /// A test of the sink; the condition is invented.
        Test = "test",
    }
}

/// An alert, as sinks get it: once when a condition begins, and once when it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alert {
    /// Change of the condition.
    pub state: AlertState,
    /// Name of the host.
    pub host: String,
    /// Time of the change.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// The condition.
    pub condition: Condition,
}

impl Alert {
    /// Returns the alert in one line.
    pub fn line(&self) -> String {
        let Condition { severity, cause, remedy, .. } = &self.condition;
        match self.state {
            AlertState::Ended => format!("ended: {cause}"),
            AlertState::Test => format!("test: {cause}"),
            _ if remedy.is_empty() => format!("{severity}: {cause}"),
            _ => format!("{severity}: {cause}; {remedy}"),
        }
    }
}

/// Result of a test alert at one sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SinkTest {
    /// Name of the sink in the configuration.
    pub sink: String,
    /// Reason why the alert was not delivered; null if it was.
    #[serde(default)]
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    //! The table and `docs/health.md` have the same kinds.
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_is_listed_and_described() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/health.md");
        let page = fs::read_to_string(page).expect("docs/health.md");
        let (_, kinds) = page.split_once("\n## Conditions\n").expect("a section");
        let kinds = kinds.split("\n## ").next().unwrap_or_default();
        let rows: Vec<(&str, &str)> = kinds.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).collect();
        for kind in ConditionKind::ALL {
            let row = rows.iter().find(|(word, _)| *word == kind.as_str());
            let severities = row.and_then(|(_, rest)| rest.split('|').next()).unwrap_or_default();
            let severity = kind.severity().name();
            assert!(severities.contains(severity), "{kind} has no row with '{severity}' in docs/health.md");
        }
        for (word, _) in rows {
            assert!(
                !matches!(ConditionKind::from(word.to_owned()), ConditionKind::Other(_)),
                "docs/health.md describes {word}, which is no kind"
            );
        }
    }
}
