//! `status --check` and `pool status --check`: reports health as an exit code, and each problem in
//! one line.

use std::time::Duration;

use millpond_api::failure::{Code, Failure, Outcome};
use millpond_api::instant::about;
use millpond_api::size::Size;
use millpond_api::{Device, DeviceClass, DeviceHealth, DeviceState, Export, ExportState, Pool, PoolHealth};
use serde::Serialize;

use crate::output::{Format, Listing, write_out};

#[cfg(test)]
mod tests;

/// Percentage of a pool in use from which a warning is given.
const FULL: u128 = 80;

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
}

impl Cause {
    /// A problem of level error: the pool that was asked for is not available.
    pub fn no_pool(name: &str, failure: &Failure) -> Cause {
        Cause { level: Level::Error, pool: name.to_owned(), cause: failure.to_string() }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    state: &'static str,
    causes: &'a [Cause],
}

/// Lists the problems that `--check` reports.
pub fn causes(pools: &[Pool], exports: &[Export]) -> Vec<Cause> {
    let mut causes: Vec<Cause> = pools.iter().flat_map(of_pool).collect();
    for export in exports.iter().filter(|export| export.state != ExportState::Online) {
        let name = export.name.split(['/', '@']).next().unwrap_or_default();
        let pool = pools.iter().find(|pool| pool.name == name);
        let level = match pool.map(|pool| pool.health.is_in_service()) {
            Some(true) => Level::Error,
            // `of_pool` has already reported this pool.
            Some(false) => continue,
            None => Level::Warning,
        };
        let cause = format!("export {} ({}) is {}{}", export.id, export.name, export.state, because(export.reason.as_deref()));
        causes.push(Cause { level, pool: name.to_owned(), cause });
    }
    causes
}

fn of_pool(pool: &Pool) -> Vec<Cause> {
    let name = &pool.name;
    let mut causes = Vec::new();
    let mut add = |level, cause| causes.push(Cause { level, pool: name.clone(), cause });
    let health = |what: &PoolHealth| format!("pool {name} is {what}{}", because(pool.reason.as_deref()));
    match &pool.health {
        PoolHealth::Online if pool.reason.is_some() => {
            add(Level::Error, format!("pool {name} refuses writes{}", because(pool.reason.as_deref())))
        }
        PoolHealth::Online | PoolHealth::Readonly => {}
        word @ (PoolHealth::Opening | PoolHealth::Closing) => add(Level::Warning, health(word)),
        word => add(Level::Error, health(word)),
    }
    if pool.health.is_in_service() {
        for (device, reason) in pool.devices.iter().filter_map(|device| Some((device, worry(device)?))) {
            add(Level::Warning, format!("pool {name}: {} device {} {reason}", device.class, device.path));
        }
        if pool.is_full() {
            let (free, size) = (Size(pool.free), Size(pool.size));
            add(Level::Error, format!("pool {name} is full, {free} of {size} are free: writes are answered ENOSPC"));
        } else if let Some(percent) =
            (u128::from(pool.allocated) * 100).checked_div(u128::from(pool.size)).filter(|percent| *percent >= FULL)
        {
            let (free, size) = (Size(pool.free), Size(pool.size));
            let forecast = pool.full_in_seconds.map(|left| format!("; full in about {}", about(Duration::from_secs(left))));
            add(Level::Warning, format!("pool {name} is {percent} % full, {free} of {size} are free{}", forecast.unwrap_or_default()));
        }
        for late in &pool.late_policies {
            add(Level::Warning, format!("pool {name}: {late}"));
        }
        if let Some(why) = &pool.removal_ended {
            add(Level::Warning, format!("pool {name}: the removal of a device ended without success: {why}"));
        }
        if let Some(why) = &pool.removal_waits {
            add(Level::Warning, format!("pool {name}: the removal of a device waits: {why}"));
        }
        if let Some(why) = &pool.fell_back {
            add(Level::Warning, format!("pool {name} went back to an older checkpoint, without the log after it: {why}"));
        }
        if pool.io.unreclaimed > 0 {
            add(Level::Warning, format!("pool {name}: {} cannot be freed, because deadlists cannot be read", Size(pool.io.unreclaimed)));
        }
        if let Some(scrub) = pool.scrub.as_ref().filter(|scrub| scrub.errors > 0) {
            let level = if scrub.lost() > 0 { Level::Error } else { Level::Warning };
            add(level, format!("pool {name}: the last scrub found {}", scrub.found(name)));
        }
    }
    causes
}

/// Returns why a device of a pool in service deserves a warning of its own. Faults that make the
/// pool degraded are in the pool's reason already.
fn worry(device: &Device) -> Option<String> {
    let aside = matches!(device.class, DeviceClass::Cache | DeviceClass::Spare);
    match (&device.state, &device.health) {
        (DeviceState::Missing | DeviceState::Failed | DeviceState::Resilvering, _) if !aside => None,
        (DeviceState::Missing | DeviceState::Failed, _) => Some(format!("is {}{}", device.state, because(device.health_reason.as_deref()))),
        (_, DeviceHealth::Ok | DeviceHealth::Filling) => None,
        (_, health) if health.as_str().is_empty() => None,
        (_, health) => Some(format!("is {health}{}", because(device.health_reason.as_deref()))),
    }
}

fn because(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
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
