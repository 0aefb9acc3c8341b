//! Pools as the API shows them, made from the status of their shards.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use millpond_api::{
    Device, DeviceCap, DeviceClass, DeviceHealth, DeviceIo, DeviceLayout, DeviceState, LayoutSpec, LostData, OtherLayout, Pool, PoolHealth,
    PoolIo, PoolLayout, PoolSpace, Scrub, ScrubState,
};
use millpond_block::DeviceSlot;
use millpond_engine::{Class, DeviceInfo, Layout, MemberState, PoolState, ScrubInfo, SpaceInfo};
use millpond_format::Label;

use super::device_names::{DeviceNames, Named, seen_before};
use super::shard::ShardStatus;
use super::state::PoolRecord;
use super::upgrade;
use crate::hint;
use millpond_api::instant;

/// Returns the layout of a pool. Requests cannot give that of a bucket yet.
fn pool_layout(layout: Layout) -> PoolLayout {
    PoolLayout::Known(match layout {
        Layout::Linear => LayoutSpec::Linear,
        Layout::Stripe { width, unit } => LayoutSpec::Stripe { width, unit },
        Layout::Mirror { copies } => LayoutSpec::Mirror { copies },
        Layout::Parity { width, parity, unit } => LayoutSpec::Parity { width, parity, unit },
        Layout::Bucket { segments } => {
            let fields = [("segments".to_owned(), segments.into())].into_iter().collect();
            return PoolLayout::Other(OtherLayout { kind: "bucket".to_owned(), fields });
        }
    })
}

/// Returns the word for the layout of a device, which is in no bucket.
fn device_layout(layout: Layout) -> DeviceLayout {
    match layout {
        Layout::Linear => DeviceLayout::Linear,
        Layout::Stripe { .. } => DeviceLayout::Stripe,
        Layout::Mirror { .. } => DeviceLayout::Mirror,
        Layout::Parity { parity: 1, .. } => DeviceLayout::Parity1,
        Layout::Parity { .. } => DeviceLayout::Parity2,
        Layout::Bucket { .. } => DeviceLayout::Unknown,
    }
}

pub(super) fn class_word(class: Class) -> DeviceClass {
    match class {
        Class::Data => DeviceClass::Data,
        Class::Special => DeviceClass::Special,
        Class::Log => DeviceClass::Log,
        Class::Cache => DeviceClass::Cache,
        Class::Spare => DeviceClass::Spare,
    }
}

/// Returns a pool in service as the API shows it.
pub(super) fn view(record: &PoolRecord, since: Timestamp, status: &ShardStatus) -> Pool {
    let (health, reason) = match &status.pool.state {
        PoolState::Opening => (PoolHealth::Opening, None),
        PoolState::Online => (PoolHealth::Online, None),
        PoolState::Closing | PoolState::Closed => (PoolHealth::Closing, None),
        PoolState::Faulted(fault) => (PoolHealth::Faulted, Some(hint::fault(fault))),
    };
    // a pool is whole without its cache and without spares
    let whole = status.pool.devices.iter().all(|device| device.state == MemberState::Present || device.class.is_auxiliary());
    let health = match health {
        PoolHealth::Online if !whole => PoolHealth::Degraded,
        PoolHealth::Online if status.pool.read_only => PoolHealth::Readonly,
        other => other,
    };
    let devices = devices(record, status, reason.is_some());
    let reason = match reason {
        Some(why) => Some(stopped(record, status, &why)),
        None => refusal(record, status).or_else(|| cause(record, status, &health)),
    };
    Pool {
        name: record.name.clone(),
        id: record.id.clone(),
        health,
        devices,
        reason,
        readonly: status.pool.read_only,
        format: Some(Label::VERSION),
        features: upgrade::names(status.pool.named_features),
        layout: Some(pool_layout(status.pool.layout)),
        size: status.pool.size,
        allocated: status.pool.allocated,
        free: status.pool.free,
        full_in_seconds: None,
        space: space(status),
        removal_ended: status.pool.removal_ended.clone().or_else(|| record.removal_ended.as_ref().map(|ended| ended.why.clone())),
        removal_ended_at: record.removal_ended.as_ref().map(|ended| ended.at),
        removal_waits: status.pool.removal_waits.clone(),
        fell_back: status.pool.fell_back.clone(),
        silent_since: None,
        imported: Some(since),
        io: counters(status),
        clients: status.clients,
        scrub: status.pool.scrub.as_ref().map(scrub),
        job_rate: status.pool.job_rate,
        late_policies: Vec::new(),
        warnings: Vec::new(),
    }
}

/// Returns the devices of a pool, each replacement after the device that it replaces. Of a faulted
/// pool, those that caused the stop are shown as faulted; all of them if none did.
fn devices(record: &PoolRecord, status: &ShardStatus, faulted: bool) -> Vec<Device> {
    let blamed = |member: &DeviceInfo| member.trouble.is_some() || member.full.is_some() || member.errors > 0;
    let named = status.pool.devices.iter().any(blamed);
    let names = DeviceNames::of(record, status);
    let mut devices = Vec::new();
    for member in &status.pool.devices {
        let state = match (member.state, member.slot, member.replacement) {
            _ if faulted && (blamed(member) || !named) => DeviceState::Faulted,
            (MemberState::Present, _, Some(_)) => DeviceState::Replacing,
            (MemberState::Present, _, None) if member.class == Class::Spare => DeviceState::Available,
            (MemberState::Present, _, None) => DeviceState::Online,
            (MemberState::Filling, ..) => DeviceState::Resilvering,
            (_, None, _) => DeviceState::Missing,
            (_, Some(_), _) => DeviceState::Failed,
        };
        devices.push(device_view(record, &names, member, state, member.slot, status));
        if let Some(slot) = member.replacement {
            devices.push(device_view(record, &names, member, DeviceState::Resilvering, Some(slot), status));
        }
    }
    devices
}

fn counters(status: &ShardStatus) -> PoolIo {
    let metrics = &status.metrics;
    PoolIo {
        guests: status.guests,
        user_bytes: metrics.user_bytes,
        header_bytes: metrics.header_bytes,
        metadata_bytes: metrics.metadata_bytes,
        cleaner_bytes: metrics.cleaner_bytes,
        gathered_bytes: metrics.gathered_bytes,
        forwarded_bytes: metrics.forwarded_bytes,
        forwards_full: metrics.forwards_full,
        segments_cleaned: metrics.segments_cleaned,
        checkpoints: metrics.checkpoints,
        last_checkpoint: metrics.last_checkpoint.map(|time| instant::from_millis(time.0)),
        oldest_restore_point: metrics.oldest_restore_point.map(|time| instant::from_millis(time.0)),
        log_bytes: metrics.log_bytes,
        batches: metrics.batches,
        flushes: metrics.flushes,
        nodes_touched: metrics.nodes_touched,
        node_reads: metrics.node_reads,
        node_writes: metrics.node_writes,
        nodes_resident: metrics.nodes_resident,
        piece_memory: metrics.piece_memory,
        piece_reads: metrics.piece_reads,
        piece_failures: metrics.piece_failures,
        reclaim_backlog: metrics.reclaim_backlog,
        unreclaimed: metrics.unreclaimed,
        throttled: metrics.throttled,
        replayed_batches: metrics.replayed_batches,
        read_cache_limit: metrics.read_cache_limit,
        read_cache_bytes: metrics.read_cache_bytes,
        read_cache_hits: metrics.read_cache_hits,
        read_cache_misses: metrics.read_cache_misses,
        read_ahead_bytes: metrics.read_ahead_bytes,
        read_ahead_used_bytes: metrics.read_ahead_used_bytes,
        read_ahead_memory_bytes: metrics.read_ahead_memory_bytes,
        cache_hits: metrics.cache_hits,
        cache_hit_bytes: metrics.cache_hit_bytes,
        cache_misses: metrics.cache_misses,
        cache_fill_bytes: metrics.cache_fill_bytes,
        turns: status.turns.counts,
        turn_nanos: status.turns.nanos,
    }
}

fn space(status: &ShardStatus) -> PoolSpace {
    let (SpaceInfo { in_use, retained: resting, ready, holes, wanted }, metrics) = (status.pool.space, &status.metrics);
    let (prepared, given_back, given_up) = (metrics.prepared_bytes, metrics.given_back_bytes, status.pool.given_up);
    PoolSpace { in_use, resting, ready, holes, wanted, prepared, given_back, given_up }
}

fn scrub(info: &ScrubInfo) -> Scrub {
    let state = match (info.ended, info.complete) {
        (None, _) => ScrubState::Running,
        (Some(_), true) => ScrubState::Done,
        (Some(_), false) => ScrubState::Stopped,
    };
    let lost = info.lost.iter().map(|lost| LostData { volume: lost.volume.clone(), offset: lost.offset, length: lost.length });
    Scrub {
        state,
        begun: instant::from_millis(info.begun.0),
        ended: info.ended.map(|time| instant::from_millis(time.0)),
        errors: info.errors,
        repaired: info.repaired,
        lost_blocks: info.lost_blocks,
        lost_nodes: info.lost_nodes,
        lost: lost.collect(),
    }
}

/// Returns why guests' writes are refused although the pool is in service.
fn refusal(record: &PoolRecord, status: &ShardStatus) -> Option<String> {
    let full = status.pool.devices.iter().filter(|device| device.full.is_some());
    let names = DeviceNames::of(record, status);
    let paths: Vec<String> = full.map(|device| names.member(device.member)).collect();
    status.pool.refuses_writes.then(|| {
        format!(
            "the filesystem or volume below {} is full: writes are answered ENOSPC until there is space; free up space there",
            paths.join(", ")
        )
    })
}

/// Returns the path of a device, with its serial number where that is known, so that users find it
/// in the machine.
fn called(record: &PoolRecord, names: &DeviceNames, member: &DeviceInfo, status: &ShardStatus) -> String {
    let host = member.slot.and_then(|slot| status.host(slot));
    let before = || seen_before(record, member)?.serial.clone();
    let path = names.member(member.member);
    match host.map_or_else(before, |host| host.serial.clone()) {
        Some(serial) => format!("{path} (serial {serial})"),
        None => path,
    }
}

/// Returns why a pool is stopped, with the devices involved, and what to do.
fn stopped(record: &PoolRecord, status: &ShardStatus, why: &str) -> String {
    let (name, names) = (&record.name, DeviceNames::of(record, status));
    let devices: Vec<String> = status
        .pool
        .devices
        .iter()
        .filter_map(|device| {
            let path = called(record, &names, device, status);
            match (device.full, device.trouble, device.errors) {
                (Some(_), ..) => Some(format!("no space below {path}")),
                (None, Some(trouble), _) => Some(format!("{path} failed: {trouble}")),
                (None, None, 0) => None,
                (None, None, errors) => Some(format!("{errors} errors of {path}")),
            }
        })
        .collect();
    let devices = if devices.is_empty() { String::new() } else { format!(" ({})", devices.join(", ")) };
    let next = if let PoolState::Faulted(fault) = &status.pool.state { hint::restart(fault, name) } else { None };
    format!("{why}{devices}{}", next.map(|next| format!("; {next}")).unwrap_or_default())
}

/// Returns why a pool is in service, but not `online`.
fn cause(record: &PoolRecord, status: &ShardStatus, health: &PoolHealth) -> Option<String> {
    match health {
        PoolHealth::Opening => Some("it is being imported".to_owned()),
        PoolHealth::Closing => Some("it is being closed".to_owned()),
        PoolHealth::Readonly => Some(match record.checkpoint {
            Some(id) => format!("it was imported with --readonly, at checkpoint {id}"),
            None => "it was imported with --readonly".to_owned(),
        }),
        PoolHealth::Degraded => {
            let names = DeviceNames::of(record, status);
            let lacking = status.pool.devices.iter().filter(|device| device.state != MemberState::Present && !device.class.is_auxiliary());
            let reasons: Vec<String> = lacking
                .map(|device| {
                    let path = called(record, &names, device, status);
                    match (device.state, device.slot, device.trouble) {
                        (MemberState::Filling, ..) => format!("{path} is being resilvered"),
                        (_, _, Some(why)) => format!("{path} failed: {why}"),
                        (_, None, None) => format!("{path} is missing"),
                        (_, Some(_), None) => format!("{path} is out of date"),
                    }
                })
                .collect();
            Some(reasons.join(", "))
        }
        _ => None,
    }
}

/// Returns the condition of a device as far as the pool itself knows it: a word and the reason.
fn condition(member: &DeviceInfo) -> (DeviceHealth, Option<String>) {
    match (member.trouble, member.full, member.silent) {
        (None, ..) if member.state == MemberState::Filling => (DeviceHealth::Filling, Some("it is being resilvered".to_owned())),
        (None, ..) if member.slot.is_none() => (DeviceHealth::Missing, Some("it was not found when the pool was imported".to_owned())),
        (Some(why), ..) => (DeviceHealth::Failed, Some(format!("taken out of service: {why}"))),
        (None, Some(_), _) => (DeviceHealth::Full, Some("the filesystem or volume below it is full; free up space there".to_owned())),
        (None, None, Some(millis)) => (DeviceHealth::Silent, Some(format!("it has not answered for {} s", millis / 1000))),
        (None, None, None) => (DeviceHealth::Ok, None),
    }
}

/// Returns errors and repairs of a member since the import.
pub(super) fn errors_of(member: &DeviceInfo, status: &ShardStatus) -> (u64, u64) {
    let host = member.slot.and_then(|slot| status.host(slot));
    (member.errors.max(host.map_or(0, |host| host.load.errors)), member.repaired)
}

/// Returns a member, or its replacement, as the API shows it.
fn device_view(
    record: &PoolRecord,
    names: &DeviceNames,
    member: &DeviceInfo,
    state: DeviceState,
    slot: Option<DeviceSlot>,
    status: &ShardStatus,
) -> Device {
    let host = slot.and_then(|slot| status.host(slot));
    let own = slot == member.slot;
    let named = names.get(member.member, !own);
    let before = || seen_before(record, member).filter(|_| own)?.serial.clone();
    let (health, health_reason) = if own { condition(member) } else { (DeviceHealth::Ok, None) };
    let (load, times) = host.map(|host| (host.load, host.times)).unwrap_or_default();
    // the engine counts per member: errors of the source of a copy are not those of the replacement
    let (errors, repaired) = match seen_before(record, member) {
        _ if !own => (load.errors, 0),
        Some(seen) => seen.with(errors_of(member, status)),
        None => errors_of(member, status),
    };
    Device {
        id: named.map(|named| named.id.clone()).unwrap_or_default(),
        path: named.map_or_else(|| names.member(member.member), |named| names.word(named)),
        serial: host.map_or_else(before, |host| host.serial.clone()),
        was: named.and_then(|named| named.was.as_ref()).map(|was| was.display().to_string()),
        class: class_word(member.class),
        layout: device_layout(member.layout),
        state,
        size: member.size,
        allocated: member.allocated,
        free: member.free,
        errors,
        repaired,
        sector: host.map_or(0, |host| host.geometry.logical_sector),
        direct: host.is_some_and(|host| host.direct),
        health,
        health_reason,
        limit: host.map_or(DeviceCap::default(), |host| DeviceCap { bps: host.limit.bytes_per_second, iops: host.limit.ops_per_second }),
        io: DeviceIo {
            reads: load.reads,
            read_bytes: load.read_bytes,
            read_nanos: load.read_nanos,
            read_queue_nanos: load.read_queue_nanos,
            writes: load.writes,
            write_bytes: load.write_bytes,
            write_nanos: load.write_nanos,
            write_queue_nanos: load.write_queue_nanos,
            flushes: load.flushes,
            flush_nanos: load.flush_nanos,
            discards: load.discards,
            in_flight: load.in_flight,
            busy_nanos: load.busy_nanos,
            failed: if own { member.failed } else { load.errors },
            mismatched: if own { member.errors.saturating_sub(member.failed) } else { 0 },
            read_times: times.reads.counts(),
            write_times: times.writes.counts(),
            flush_times: times.flushes.counts(),
            queue_times: times.queue.counts(),
        },
    }
}

/// Returns a pool that is not in service as the API shows it.
pub(super) fn unavailable(record: &PoolRecord, reason: String, absent: &BTreeMap<PathBuf, DeviceState>) -> Pool {
    let names = DeviceNames::remembered(record);
    let gone = |path: &&PathBuf| absent.get(*path) == Some(&DeviceState::Missing);
    let device = |named: &Named| Device {
        id: named.id.clone(),
        path: names.word(named),
        serial: record.seen.get(&named.member.0).filter(|_| !named.replacement).and_then(|seen| seen.serial.clone()),
        was: named.was.as_ref().or(named.path.as_ref().filter(gone)).map(|was| was.display().to_string()),
        class: DeviceClass::Unknown,
        layout: DeviceLayout::Unknown,
        // from the record, without a call to the host: a device that does not answer would delay
        // the caller
        state: match &named.path {
            Some(path) => absent.get(path).cloned().unwrap_or(DeviceState::Unavailable),
            None => DeviceState::Missing,
        },
        size: record.seen.get(&named.member.0).filter(|_| !named.replacement).map_or(0, |seen| seen.size),
        allocated: 0,
        free: 0,
        errors: 0,
        repaired: 0,
        sector: 0,
        direct: false,
        limit: DeviceCap::default(),
        health: DeviceHealth::Ok,
        health_reason: None,
        io: DeviceIo::default(),
    };
    Pool {
        name: record.name.clone(),
        id: record.id.clone(),
        health: PoolHealth::Unavailable,
        reason: Some(reason),
        readonly: false,
        format: None,
        features: Vec::new(),
        layout: None,
        size: 0,
        allocated: 0,
        free: 0,
        full_in_seconds: None,
        space: PoolSpace::default(),
        removal_ended: record.removal_ended.as_ref().map(|ended| ended.why.clone()),
        removal_ended_at: record.removal_ended.as_ref().map(|ended| ended.at),
        removal_waits: None,
        fell_back: None,
        devices: names.iter().map(device).collect(),
        silent_since: None,
        imported: None,
        io: PoolIo::default(),
        clients: 0,
        scrub: None,
        job_rate: None,
        late_policies: Vec::new(),
        warnings: Vec::new(),
    }
}
