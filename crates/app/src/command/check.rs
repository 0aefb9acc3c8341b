//! `status --check` and `pool status --check`: reports health as an exit code, and each problem in
//! one line.

use jiff::Timestamp;
use millpond_api::failure::{Code, Failure, Outcome};
use millpond_api::{Condition, ConditionKind, Severity};
use serde::Serialize;

use crate::output::{Format, Listing, write_out};

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Needs attention.
    Warning,
    /// Redundancy, data or service is missing.
    Error,
}

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    level: Level,
    pool: String,
    cause: String,
    kind: String,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    remedy: String,
}

impl Cause {
    /// A problem of level error: the pool that was asked for is not available.
    pub fn no_pool(name: &str, failure: &Failure) -> Cause {
        Cause {
            level: Level::Error,
            pool: name.to_owned(),
            cause: failure.to_string(),
            kind: ConditionKind::PoolUnavailable.to_string(),
            subject: name.to_owned(),
            since: None,
            remedy: String::new(),
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    state: &'static str,
    causes: &'a [Cause],
}

/// Returns the problems that `--check` reports: the conditions, except those that the cause of
/// another one names.
pub fn causes(conditions: &[Condition]) -> Vec<Cause> {
    let cause = |condition: &Condition| Cause {
        level: if condition.severity.is_at_least(Severity::Error) { Level::Error } else { Level::Warning },
        pool: condition.pool.clone().unwrap_or_default(),
        cause: condition.cause.clone(),
        kind: condition.kind.to_string(),
        subject: condition.subject.clone(),
        since: Some(condition.since),
        remedy: condition.remedy.clone(),
    };
    conditions.iter().filter(|condition| !condition.covered).map(cause).collect()
}

/// Prints the problems. Without problems it succeeds (exit code 0).
///
/// # Errors
/// Exit code 1 for warnings and 4 for errors; or stdout cannot be written.
pub fn end(causes: &[Cause], how: &Listing) -> Outcome {
    let worst = causes.iter().map(|cause| cause.level).max();
    let (state, code) = match worst {
        None => ("healthy", None),
        Some(Level::Warning) => ("warnings", Some(Code::Failed)),
        Some(Level::Error) => ("degraded", Some(Code::Degraded)),
    };
    if how.format == Format::Json {
        let text = serde_json::to_string_pretty(&Answer { state, causes });
        write_out(&(text.map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))? + "\n"))?;
    } else {
        let line = |cause: &Cause| format!("{}: {}\n", if cause.level == Level::Error { "error" } else { "warning" }, cause.cause);
        write_out(&causes.iter().map(line).collect::<String>())?;
    }
    code.map_or(Ok(()), |code| Err(Failure::said(code)))
}
