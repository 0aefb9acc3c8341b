//! The conditions that pools, devices and exports have now. `status --check`, events, alerts and
//! metrics are all made from this list.

use std::time::Duration;

use millpond_api::instant::about;
use millpond_api::size::Size;
use millpond_api::{
    Condition, ConditionKind, Device, DeviceClass, DeviceHealth, DeviceState, Export, ExportState, Pool, PoolHealth, Severity,
};

use super::{Found, Signs};

/// Percentage of a pool in use from which it has [`ConditionKind::PoolSpace`].
pub const NEARLY_FULL: u64 = 80;
/// A pool that is full within this time at its present rate has [`ConditionKind::PoolFillsSoon`].
const SOON: Duration = Duration::from_secs(86_400);

/// Returns the kind of condition that a device has; `None` when it is well, or being filled.
pub fn device_kind(device: &Device) -> Option<ConditionKind> {
    match (&device.state, &device.health) {
        (DeviceState::Missing, _) => Some(ConditionKind::DeviceMissing),
        (DeviceState::Failed, _) | (_, DeviceHealth::Failed) => Some(ConditionKind::DeviceFailed),
        (_, DeviceHealth::Full) => Some(ConditionKind::DeviceFull),
        (_, DeviceHealth::Silent) => Some(ConditionKind::DeviceSilent),
        (_, DeviceHealth::Slow) => Some(ConditionKind::DeviceSlow),
        (_, DeviceHealth::Failing) => Some(ConditionKind::DeviceErrors),
        _ => None,
    }
}

/// Returns the kind of condition that the state of a pool is; `None` for pools in service with all
/// their devices.
pub fn pool_kind(pool: &Pool) -> Option<ConditionKind> {
    match &pool.health {
        PoolHealth::Degraded => Some(ConditionKind::PoolDegraded),
        PoolHealth::Faulted => Some(ConditionKind::PoolFaulted),
        PoolHealth::Unavailable if pool.silent_since.is_some() => Some(ConditionKind::PoolSilent),
        PoolHealth::Unavailable | PoolHealth::Other(_) => Some(ConditionKind::PoolUnavailable),
        PoolHealth::Opening | PoolHealth::Closing => Some(ConditionKind::PoolChanging),
        PoolHealth::Online if pool.reason.is_some() => Some(ConditionKind::PoolRefusesWrites),
        PoolHealth::Online | PoolHealth::Readonly | PoolHealth::Planned => None,
    }
}

/// Returns the percentage in use of the space that guests can fill.
pub fn percent(pool: &Pool) -> Option<u64> {
    let percent = (u128::from(pool.allocated) * 100).checked_div(u128::from(pool.size))?;
    u64::try_from(percent).ok()
}

/// Returns the conditions of pools, devices and exports, and those that `signs` has of pools.
pub fn find(pools: &[Pool], exports: &[Export], signs: &Signs) -> Vec<Found> {
    let mut found: Vec<Found> = pools.iter().flat_map(|pool| of_pool(pool, signs)).collect();
    for export in exports.iter().filter(|export| export.state != ExportState::Online) {
        let name = export.name.split(['/', '@']).next().unwrap_or_default();
        let pool = pools.iter().find(|pool| pool.name == name);
        let severity = match pool.map(|pool| pool.health.is_in_service()) {
            Some(true) => Severity::Error,
            // a condition of the pool says so
            Some(false) => continue,
            // the user has exported the pool
            None => Severity::Warning,
        };
        let cause = format!("export {} ({}) is {}{}", export.id, export.name, export.state, because(export.reason.as_deref()));
        let id = export.id;
        let remedy = format!("correct that, or end it with 'millpond unexport {id}'");
        let condition = Found::new(ConditionKind::ExportStopped, &format!("{id} {}", export.name), cause, &remedy);
        found.push(Found { pool: Some(name.to_owned()), severity, ..condition });
    }
    found.extend(signs.others.iter().cloned());
    found
}

fn of_pool(pool: &Pool, signs: &Signs) -> Vec<Found> {
    let name = &pool.name;
    let mut found = Vec::new();
    let own = |kind: ConditionKind, cause: String, remedy: &str| Found {
        pool: Some(name.clone()),
        owner: pool.id.clone(),
        ..Found::new(kind, name, cause, remedy)
    };
    let reason = because(pool.reason.as_deref());
    if let Some(kind) = pool_kind(pool) {
        let cause = match kind {
            ConditionKind::PoolRefusesWrites => format!("pool {name} refuses writes{reason}"),
            _ => format!("pool {name} is {}{reason}", pool.health),
        };
        found.push(own(kind.clone(), cause, &pool_remedy(&kind, name)));
    }
    if pool.health.is_in_service() || pool.health == PoolHealth::Faulted {
        found.extend(pool.devices.iter().filter_map(|device| of_device(pool, device)));
    }
    if !pool.health.is_in_service() {
        return found;
    }
    found.extend(room(pool, &own));
    found.extend(left_over(pool, &own));
    for (policy, why) in signs.late.get(&pool.id).into_iter().flatten() {
        let remedy = format!("correct that; 'millpond policy run {policy}' tries again at once");
        let cause = format!("pool {name}: policy '{policy}' is late: {why}");
        found.push(Found { subject: format!("{name}: {policy}"), ..own(ConditionKind::PolicyLate, cause, &remedy) });
    }
    for (policy, why) in signs.unfrozen.get(&pool.id).into_iter().flatten() {
        let cause = format!("pool {name}: policy '{policy}' does not freeze a guest: {why}");
        let remedy = format!("correct that; 'millpond policy run {policy}' tries again at once");
        found.push(Found { subject: format!("{name}: {policy}"), ..own(ConditionKind::PolicyNotFrozen, cause, &remedy) });
    }
    for (policy, volume, why) in signs.unsent.get(&pool.id).into_iter().flatten() {
        let cause = format!("policy '{policy}' does not send {volume}: {why}");
        let remedy = format!("correct that; 'millpond policy run {policy}' tries again at once");
        found.push(Found { subject: format!("{volume}: {policy}"), ..own(ConditionKind::PolicyNotSent, cause, &remedy) });
    }
    if let Some(scrub) = pool.scrub.as_ref().filter(|scrub| scrub.errors > 0) {
        let severity = if scrub.lost() > 0 { Severity::Error } else { Severity::Warning };
        let cause = format!("pool {name}: the last scrub found {}", scrub.found(name));
        let remedy = format!("replace devices with errors, then run 'millpond pool scrub {name}' again");
        found.push(Found { severity, ..own(ConditionKind::ScrubErrors, cause, &remedy) });
    }
    if let Some(days) = signs.overdue.get(&pool.id) {
        let cause = format!("pool {name} has had no complete scrub for {days} days");
        found.push(own(ConditionKind::ScrubOverdue, cause, &format!("run 'millpond pool scrub {name}'")));
    }
    if let Some(why) = signs.short.get(name) {
        found.push(own(ConditionKind::HostNearlyFull, format!("pool {name}: {why}"), "free up space there, or move the pool"));
    }
    found
}

fn pool_remedy(kind: &ConditionKind, name: &str) -> String {
    match kind {
        ConditionKind::PoolDegraded => {
            format!(
                "bring the devices back, or replace them: 'millpond pool status {name}' lists them, 'millpond pool replace {name} OLD NEW' fills a new one"
            )
        }
        ConditionKind::PoolFaulted => {
            format!("correct the cause, then run 'millpond pool export {name} --force' and 'millpond pool import {name}'")
        }
        ConditionKind::PoolUnavailable => format!("correct that; 'millpond pool import {name}' tries again"),
        ConditionKind::PoolSilent => "see the kernel's messages about the pool's devices".to_owned(),
        ConditionKind::PoolChanging => "wait for it to end".to_owned(),
        // the reason names what to do
        _ => String::new(),
    }
}

fn room(pool: &Pool, own: &dyn Fn(ConditionKind, String, &str) -> Found) -> Option<Found> {
    let (name, free, size) = (&pool.name, Size(pool.free), Size(pool.size));
    let forecast = pool.full_in_seconds.map(Duration::from_secs);
    let remedy = "destroy snapshots, discard data, or add a device";
    if pool.is_full() {
        let cause = format!("pool {name} is full, {free} of {size} are free: writes are answered ENOSPC");
        return Some(own(ConditionKind::PoolFull, cause, remedy));
    }
    let percent = percent(pool)?;
    if percent >= NEARLY_FULL {
        let forecast = forecast.map(|left| format!("; full in about {}", about(left))).unwrap_or_default();
        let cause = format!("pool {name} is {percent} % full, {free} of {size} are free{forecast}");
        return Some(own(ConditionKind::PoolSpace, cause, remedy));
    }
    let left = forecast.filter(|left| *left <= SOON)?;
    let cause = format!("pool {name} is {percent} % full, and full in about {} at the rate of the last hour", about(left));
    Some(own(ConditionKind::PoolFillsSoon, cause, remedy))
}

/// Returns the conditions that earlier commands and imports have left.
fn left_over(pool: &Pool, own: &dyn Fn(ConditionKind, String, &str) -> Found) -> Vec<Found> {
    let name = &pool.name;
    let mut found = Vec::new();
    if let Some(why) = &pool.removal_ended {
        let cause = format!("pool {name}: the removal of a device ended without success: {why}");
        found.push(own(ConditionKind::PoolRemovalEnded, cause, &format!("make room, then run 'millpond pool remove {name} DEVICE' again")));
    }
    if let Some(why) = &pool.removal_waits {
        let cause = format!("pool {name}: the removal of a device waits: {why}");
        found.push(own(
            ConditionKind::PoolRemovalWaits,
            cause,
            &format!("correct that, or run 'millpond pool remove {name} DEVICE --stop'"),
        ));
    }
    if let Some(why) = &pool.fell_back {
        let cause = format!("pool {name} went back to an older checkpoint, without the log after it: {why}");
        found.push(own(ConditionKind::PoolOlderState, cause, "check the data of its volumes; the next import ends this warning"));
    }
    if pool.io.unreclaimed > 0 {
        let cause = format!("pool {name}: {} cannot be freed, because deadlists cannot be read", Size(pool.io.unreclaimed));
        found.push(own(ConditionKind::PoolUnreclaimed, cause, "bring missing devices back"));
    }
    found
}

fn of_device(pool: &Pool, device: &Device) -> Option<Found> {
    let kind = device_kind(device)?;
    let name = &pool.name;
    let aside = matches!(device.class, DeviceClass::Cache | DeviceClass::Spare);
    let gone = matches!(device.state, DeviceState::Missing | DeviceState::Failed | DeviceState::Resilvering);
    let word = if matches!(device.state, DeviceState::Missing | DeviceState::Failed) {
        device.state.to_string()
    } else {
        device.health.to_string()
    };
    let cause = format!("pool {name}: {} device {} is {word}{}", device.class, device.path, because(device.health_reason.as_deref()));
    let remedy = match kind {
        ConditionKind::DeviceFailed | ConditionKind::DeviceMissing if aside => {
            format!("'millpond pool remove {name} {}' takes it out of the pool", device.path)
        }
        ConditionKind::DeviceFailed | ConditionKind::DeviceErrors => {
            format!("'millpond pool replace {name} {} NEW' fills a new one", device.path)
        }
        ConditionKind::DeviceMissing => format!("bring it back, or 'millpond pool replace {name} {} NEW' fills a new one", device.path),
        ConditionKind::DeviceFull => "free up space on the filesystem or volume below it".to_owned(),
        ConditionKind::DeviceSilent => "see the kernel's messages about it".to_owned(),
        _ => "see the kernel's messages about it, and its cable and load".to_owned(),
    };
    let severity = if aside { Severity::Warning } else { kind.severity() };
    // the pool's reason names these
    let covered = (gone && !aside) || pool.health == PoolHealth::Faulted;
    Some(Found {
        pool: Some(name.clone()),
        owner: pool.id.clone(),
        key: device.key().to_owned(),
        device: Some(device.path.clone()),
        severity,
        covered,
        ..Found::new(kind, &device.path, cause, &remedy)
    })
}

fn because(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

impl Found {
    /// Returns the condition with the time of its beginning.
    pub fn condition(self, since: jiff::Timestamp) -> Condition {
        let Found { kind, severity, subject, pool, device, cause, remedy, covered, .. } = self;
        Condition { kind, severity: severity.into(), subject, pool, device, cause, remedy, since, covered }
    }
}
