//! How the API sees pools: what a shard says of itself, put into the API's words.

use std::path::PathBuf;

use jiff::Timestamp;
use millpond_engine::{Layout, PoolState};

use super::shard::{IoCounters, ShardStatus};
use super::state::PoolRecord;
use crate::api::{Device, DeviceIo, GuestIo, LayoutSpec, Pool, PoolIo};

/// Guest counters, as the API says them.
pub(super) fn guest_io(counters: &IoCounters) -> GuestIo {
    GuestIo {
        reads: counters.reads,
        read_bytes: counters.read_bytes,
        read_nanos: counters.read_nanos,
        writes: counters.writes,
        write_bytes: counters.write_bytes,
        write_nanos: counters.write_nanos,
        flushes: counters.flushes,
        discards: counters.discards,
        errors: counters.errors,
    }
}

fn layout_words(layout: Layout) -> (LayoutSpec, &'static str) {
    match layout {
        Layout::Linear => (LayoutSpec::Linear, "linear"),
        Layout::Stripe { width, unit } => (LayoutSpec::Stripe { width, unit }, "stripe"),
    }
}

/// A pool in service.
pub(super) fn view(record: &PoolRecord, since: Timestamp, status: ShardStatus) -> Pool {
    let (health, reason) = match &status.pool.state {
        PoolState::Opening => ("opening", None),
        PoolState::Online => ("online", None),
        PoolState::Closing | PoolState::Closed => ("closing", None),
        PoolState::Faulted(reason) => ("faulted", Some(reason.clone())),
    };
    let (layout, layout_word) = layout_words(status.pool.layout);
    // Devices are handed to the shard in member order, so both lists run in step.
    let devices = status.pool.devices.iter().zip(&status.devices).map(|(member, host)| Device {
        path: host.path.display().to_string(),
        class: "data".to_owned(),
        layout: layout_word.to_owned(),
        state: if reason.is_some() { "faulted" } else { "online" }.to_owned(),
        size: member.size,
        allocated: member.allocated,
        free: member.free,
        errors: member.errors.max(host.load.errors),
        sector: host.geometry.logical_sector,
        direct: host.direct,
        io: DeviceIo {
            reads: host.load.reads,
            read_bytes: host.load.read_bytes,
            read_nanos: host.load.read_nanos,
            writes: host.load.writes,
            write_bytes: host.load.write_bytes,
            write_nanos: host.load.write_nanos,
            flushes: host.load.flushes,
            in_flight: host.load.in_flight,
        },
    });
    let metrics = &status.metrics;
    Pool {
        name: record.name.clone(),
        id: record.id.clone(),
        health: health.to_owned(),
        devices: devices.collect(),
        reason,
        layout,
        size: status.pool.size,
        allocated: status.pool.allocated,
        free: status.pool.free,
        imported: Some(since),
        io: PoolIo {
            guests: guest_io(&status.guests),
            user_bytes: metrics.user_bytes,
            header_bytes: metrics.header_bytes,
            metadata_bytes: metrics.metadata_bytes,
            cleaner_bytes: metrics.cleaner_bytes,
            segments_cleaned: metrics.segments_cleaned,
            checkpoints: metrics.checkpoints,
            log_bytes: metrics.log_bytes,
            nodes_touched: metrics.nodes_touched,
            reclaim_backlog: metrics.reclaim_backlog,
            throttled: metrics.throttled,
            replayed_batches: metrics.replayed_batches,
            turns: status.turns.0,
        },
        clients: status.clients,
    }
}

/// A pool that is not in service.
pub(super) fn unavailable(record: &PoolRecord, reason: String) -> Pool {
    let device = |path: &PathBuf| Device {
        path: path.display().to_string(),
        class: "data".to_owned(),
        layout: "unknown".to_owned(),
        state: if path.exists() { "unavailable" } else { "missing" }.to_owned(),
        size: 0,
        allocated: 0,
        free: 0,
        errors: 0,
        sector: 0,
        direct: false,
        io: DeviceIo::default(),
    };
    Pool {
        name: record.name.clone(),
        id: record.id.clone(),
        health: "unavailable".to_owned(),
        reason: Some(reason),
        layout: LayoutSpec::Linear,
        size: 0,
        allocated: 0,
        free: 0,
        devices: record.devices.iter().map(device).collect(),
        imported: None,
        io: PoolIo::default(),
        clients: 0,
    }
}
