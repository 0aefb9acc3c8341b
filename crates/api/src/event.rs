//! Events.

use clap::ValueEnum;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much an event matters.
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

/// One event, a JSON line of `GET /v1/events`. `docs/events.md` lists the kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Time of the event.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Severity of the event.
    #[serde(default)]
    pub severity: Severity,
    /// Kind of the event: `pool.created`, `device.failed`, `export.removed` and so on. Names of
    /// kinds do not change.
    pub event: String,
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
}
