//! Events.

use clap::ValueEnum;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::words;

mod caller;
mod kind;

pub use caller::{Caller, CallerKind};
pub use kind::EventKind;

/// How much an event matters, as requests and the configuration give it: the least severity of the
/// events that are wanted. Other words are refused; answers have [`EventSeverity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something was done, or is well again.
    #[default]
    Info,
    /// Something needs attention: redundancy is reduced, space runs short, a device is slow.
    Warning,
    /// Something stopped, failed, or was lost.
    Error,
}

impl Severity {
    /// Returns the name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

words! {
    /// Severity of an event.
    pub enum EventSeverity {
        /// Something was done, or is well again.
        Info = "info",
        /// Something needs attention: redundancy is reduced, space runs short, a device is slow.
        Warning = "warning",
        /// Something stopped, failed, or was lost.
        Error = "error",
    }
}

impl EventSeverity {
    /// Returns true if the event matters at least as much as `least`. A severity that this version
    /// does not know always does, so that no filter hides its event.
    pub fn is_at_least(&self, least: Severity) -> bool {
        match self {
            EventSeverity::Info => least <= Severity::Info,
            EventSeverity::Warning => least <= Severity::Warning,
            EventSeverity::Error | EventSeverity::Other(_) => true,
        }
    }
}

impl Default for EventSeverity {
    fn default() -> EventSeverity {
        Severity::default().into()
    }
}

impl From<Severity> for EventSeverity {
    fn from(severity: Severity) -> EventSeverity {
        match severity {
            Severity::Info => EventSeverity::Info,
            Severity::Warning => EventSeverity::Warning,
            Severity::Error => EventSeverity::Error,
        }
    }
}

/// One event, a JSON line of `GET /v1/events`. `docs/events.md` lists the kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event: later events have higher ones, also across restarts. 0 if an older
    /// version stored the event.
    #[serde(default)]
    pub number: u64,
    /// Time of the event.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Severity of the event.
    #[serde(default)]
    pub severity: EventSeverity,
    /// Kind of the event.
    pub event: EventKind,
    /// The pool, device, volume, snapshot, export or job that the event is about.
    pub subject: String,
    /// Name of the pool that the subject belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Path of the device that the event is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Description in one line.
    #[serde(default)]
    pub message: String,
    /// The caller whose request made the change; null if the daemon itself made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Caller>,
}
