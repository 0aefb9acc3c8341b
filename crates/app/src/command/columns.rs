//! Columns of the tables that list commands print.

use jiff::Timestamp;
use millpond_api::instant::{now, show_span};
use millpond_api::{
    BaseSource, Checkpoint, Condition, Device, DeviceCap, DeviceClass, DeviceLayout, Event, Export, Found, GroupFill, Job, LayoutSpec,
    LostRange, Pool, PoolLayout, SinkTest, Snapshot, Token, Volume,
};
use millpond_daemon::doctor::Check;

use crate::output::{Cell, Column, Shown};

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

/// A name, or an empty cell if there is none.
fn known(name: &str) -> Cell {
    Cell::text_or_none(Some(name).filter(|name| !name.is_empty()))
}

fn yes(flag: bool) -> Cell {
    text(if flag { "on" } else { "off" })
}

/// Columns of volumes.
pub const VOLUME: &[Column<Volume>] = &[
    Column { name: "name", cell: |v| text(&v.name), shown: Shown::Always },
    Column { name: "size", cell: |v| Cell::Bytes(v.size), shown: Shown::Always },
    Column { name: "sector", cell: |v| text(v.sector.as_str()), shown: Shown::Always },
    Column { name: "cache", cell: |v| text(v.cache.as_str()), shown: Shown::Always },
    Column { name: "referenced_bytes", cell: |v| Cell::Bytes(v.referenced_bytes), shown: Shown::Always },
    Column { name: "unique_bytes", cell: |v| Cell::Bytes(v.unique_bytes), shown: Shown::Always },
    Column { name: "ratio", cell: ratio, shown: Shown::People },
    Column { name: "snapshots", cell: |v| Cell::Count(v.snapshots), shown: Shown::Always },
    Column { name: "origin", cell: |v| Cell::text_or_none(v.origin.as_deref()), shown: Shown::Always },
    Column { name: "base", cell: |v| Cell::text_or_none(v.base.as_ref().map(BaseSource::words).as_deref()), shown: Shown::OnRequest },
    Column { name: "compression", cell: |v| text(v.compression.as_str()), shown: Shown::OnRequest },
    Column { name: "readonly", cell: |v| yes(v.readonly), shown: Shown::OnRequest },
    Column {
        name: "special_small_blocks",
        cell: |v| if v.special_small_blocks == 0 { Cell::None } else { Cell::Bytes(u64::from(v.special_small_blocks)) },
        shown: Shown::OnRequest,
    },
    Column { name: "read_cache", cell: |v| v.read_cache.map_or_else(|| text("auto"), Cell::Bytes), shown: Shown::OnRequest },
    Column { name: "read_cache_hits", cell: |v| Cell::Count(v.read_cache_hits), shown: Shown::OnRequest },
    Column { name: "read_cache_misses", cell: |v| Cell::Count(v.read_cache_misses), shown: Shown::OnRequest },
    Column {
        name: "reservation",
        cell: |v| if v.reservation == 0 { Cell::None } else { Cell::Bytes(v.reservation) },
        shown: Shown::OnRequest,
    },
    Column { name: "iops", cell: |v| limit_of(v, "iops"), shown: Shown::OnRequest },
    Column { name: "iops_max", cell: |v| limit_of(v, "iops_max"), shown: Shown::OnRequest },
    Column { name: "iops_max_length", cell: |v| limit_of(v, "iops_max_length"), shown: Shown::OnRequest },
    Column { name: "iops_rd", cell: |v| limit_of(v, "iops_rd"), shown: Shown::OnRequest },
    Column { name: "iops_rd_max", cell: |v| limit_of(v, "iops_rd_max"), shown: Shown::OnRequest },
    Column { name: "iops_rd_max_length", cell: |v| limit_of(v, "iops_rd_max_length"), shown: Shown::OnRequest },
    Column { name: "iops_wr", cell: |v| limit_of(v, "iops_wr"), shown: Shown::OnRequest },
    Column { name: "iops_wr_max", cell: |v| limit_of(v, "iops_wr_max"), shown: Shown::OnRequest },
    Column { name: "iops_wr_max_length", cell: |v| limit_of(v, "iops_wr_max_length"), shown: Shown::OnRequest },
    Column { name: "bps", cell: |v| limit_of(v, "bps"), shown: Shown::OnRequest },
    Column { name: "bps_max", cell: |v| limit_of(v, "bps_max"), shown: Shown::OnRequest },
    Column { name: "bps_max_length", cell: |v| limit_of(v, "bps_max_length"), shown: Shown::OnRequest },
    Column { name: "bps_rd", cell: |v| limit_of(v, "bps_rd"), shown: Shown::OnRequest },
    Column { name: "bps_rd_max", cell: |v| limit_of(v, "bps_rd_max"), shown: Shown::OnRequest },
    Column { name: "bps_rd_max_length", cell: |v| limit_of(v, "bps_rd_max_length"), shown: Shown::OnRequest },
    Column { name: "bps_wr", cell: |v| limit_of(v, "bps_wr"), shown: Shown::OnRequest },
    Column { name: "bps_wr_max", cell: |v| limit_of(v, "bps_wr_max"), shown: Shown::OnRequest },
    Column { name: "bps_wr_max_length", cell: |v| limit_of(v, "bps_wr_max_length"), shown: Shown::OnRequest },
    Column { name: "created", cell: |v| Cell::Time(v.created), shown: Shown::OnRequest },
    Column { name: "id", cell: |v| Cell::Count(u64::from(v.id)), shown: Shown::OnRequest },
];

/// Compression ratio of a volume: referenced bytes per byte used. Usage is known only for all
/// versions of a volume together, so the ratio is shown only for a volume without snapshots and
/// origin.
fn ratio(volume: &Volume) -> Cell {
    if volume.snapshots > 0 || volume.origin.is_some() || volume.unique_bytes == 0 {
        return Cell::None;
    }
    text(&format!("{:.2}x", volume.referenced_bytes as f64 / volume.unique_bytes as f64))
}

fn limit_of(volume: &Volume, name: &str) -> Cell {
    match volume.limits.get(name).copied().unwrap_or(0) {
        0 => Cell::None,
        limit if name.starts_with("bps") && !name.ends_with("length") => Cell::Rate(limit as f64),
        limit => Cell::Count(limit),
    }
}

/// Columns of snapshots.
pub const SNAPSHOT: &[Column<Snapshot>] = &[
    Column { name: "name", cell: |s| text(&s.name), shown: Shown::Always },
    Column { name: "created", cell: |s| Cell::Time(s.created), shown: Shown::Always },
    Column { name: "epoch", cell: |s| Cell::Count(s.epoch), shown: Shown::Always },
    Column { name: "referenced_bytes", cell: |s| Cell::Bytes(s.referenced_bytes), shown: Shown::Always },
    Column { name: "unique_bytes", cell: |s| Cell::Bytes(s.unique_bytes), shown: Shown::Always },
    Column { name: "holds", cell: |s| Cell::Count(u64::from(s.holds)), shown: Shown::Always },
    Column { name: "clones", cell: |s| Cell::Count(u64::from(s.clones)), shown: Shown::Always },
    Column { name: "hold_tags", cell: |s| text(&s.hold_tags.join(",")), shown: Shown::Json },
    Column { name: "size", cell: |s| Cell::Bytes(s.size), shown: Shown::OnRequest },
    Column { name: "description", cell: |s| text(&s.description), shown: Shown::OnRequest },
    Column { name: "expires", cell: |s| s.expires.map_or(Cell::None, Cell::Time), shown: Shown::People },
    Column { name: "id", cell: |s| Cell::Count(s.id), shown: Shown::OnRequest },
    Column {
        name: "identity",
        cell: |s| Cell::text_or_none(s.identity.as_ref().map(ToString::to_string).as_deref()),
        shown: Shown::OnRequest,
    },
    Column { name: "received", cell: |s| text(if s.received { "yes" } else { "no" }), shown: Shown::OnRequest },
    Column {
        name: "receiving",
        cell: |s| Cell::text_or_none(s.receiving.as_ref().map(|receiving| receiving.token().to_string()).as_deref()),
        shown: Shown::OnRequest,
    },
];

/// Columns of pools.
pub const POOL: &[Column<Pool>] = &[
    Column { name: "name", cell: |p| text(&p.name), shown: Shown::Always },
    Column { name: "size", cell: |p| Cell::Bytes(p.size), shown: Shown::Always },
    Column { name: "allocated", cell: |p| Cell::Bytes(p.allocated), shown: Shown::Always },
    Column { name: "free", cell: |p| Cell::Bytes(p.free), shown: Shown::Always },
    Column { name: "health", cell: |p| text(p.health.as_str()), shown: Shown::Always },
    Column { name: "devices", cell: |p| text(&paths(&p.devices)), shown: Shown::Json },
    Column { name: "layout", cell: |p| Cell::text_or_none(p.layout.as_ref().map(pool_layout).as_deref()), shown: Shown::OnRequest },
    Column { name: "reason", cell: |p| Cell::text_or_none(p.reason.as_deref()), shown: Shown::OnRequest },
    Column { name: "clients", cell: |p| Cell::Count(p.clients), shown: Shown::OnRequest },
    Column { name: "id", cell: |p| text(&p.id), shown: Shown::OnRequest },
];

/// Properties that `pool show` and `pool get` print.
pub const POOL_PROPERTIES: &[Column<Pool>] = &[
    Column { name: "name", cell: |p| text(&p.name), shown: Shown::Always },
    Column { name: "id", cell: |p| text(&p.id), shown: Shown::Always },
    Column { name: "health", cell: |p| text(p.health.as_str()), shown: Shown::Always },
    Column { name: "reason", cell: |p| Cell::text_or_none(p.reason.as_deref()), shown: Shown::Always },
    Column { name: "format", cell: |p| p.format.map_or(Cell::None, |format| Cell::Count(format.into())), shown: Shown::Always },
    Column {
        name: "features",
        cell: |p| if p.features.is_empty() { Cell::None } else { text(&p.features.join(", ")) },
        shown: Shown::Always,
    },
    Column { name: "layout", cell: |p| Cell::text_or_none(p.layout.as_ref().map(pool_layout).as_deref()), shown: Shown::Always },
    Column { name: "size", cell: |p| Cell::Bytes(p.size), shown: Shown::Always },
    Column { name: "allocated", cell: |p| Cell::Bytes(p.allocated), shown: Shown::Always },
    Column { name: "free", cell: |p| Cell::Bytes(p.free), shown: Shown::Always },
    Column { name: "segments_in_use", cell: |p| Cell::Bytes(p.space.in_use), shown: Shown::Always },
    Column { name: "segments_resting", cell: |p| Cell::Bytes(p.space.resting), shown: Shown::Always },
    Column { name: "segments_ready", cell: |p| Cell::Bytes(p.space.ready), shown: Shown::Always },
    Column { name: "segments_holes", cell: |p| Cell::Bytes(p.space.holes), shown: Shown::Always },
    Column { name: "clients", cell: |p| Cell::Count(p.clients), shown: Shown::Always },
    Column { name: "imported", cell: |p| p.imported.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "devices", cell: |p| text(&paths(&p.devices)), shown: Shown::Always },
    Column { name: "job_rate", cell: |p| p.job_rate.map_or(Cell::None, |rate| Cell::Rate(rate as f64)), shown: Shown::Always },
    Column { name: "limits", cell: |p| Cell::text_or_none(limits(&p.devices).as_deref()), shown: Shown::Always },
];

/// Columns of the devices of a pool.
pub const DEVICE: &[Column<Device>] = &[
    Column { name: "id", cell: |d| known(&d.id), shown: Shown::Always },
    // a missing device has no path
    Column { name: "path", cell: |d| if d.was.is_none() && d.path != d.id { known(&d.path) } else { Cell::None }, shown: Shown::Always },
    Column { name: "serial", cell: |d| Cell::text_or_none(d.serial.as_deref()), shown: Shown::Always },
    Column { name: "was", cell: |d| Cell::text_or_none(d.was.as_deref()), shown: Shown::Always },
    Column { name: "class", cell: device_class, shown: Shown::Always },
    // a spare may replace a device of any layout
    Column { name: "layout", cell: device_layout, shown: Shown::Always },
    Column { name: "state", cell: |d| text(d.state.as_str()), shown: Shown::Always },
    Column { name: "size", cell: |d| Cell::Bytes(d.size), shown: Shown::Always },
    Column { name: "allocated", cell: |d| Cell::Bytes(d.allocated), shown: Shown::Always },
    Column { name: "free", cell: |d| Cell::Bytes(d.free), shown: Shown::Always },
    Column { name: "errors", cell: |d| Cell::Count(d.errors), shown: Shown::Always },
    Column { name: "health", cell: |d| text(d.health.as_str()), shown: Shown::OnRequest },
    Column { name: "sector", cell: |d| Cell::Count(u64::from(d.sector)), shown: Shown::OnRequest },
    Column { name: "direct", cell: |d| yes(d.direct), shown: Shown::OnRequest },
    Column { name: "limit", cell: |d| Cell::text_or_none(limit(&d.limit).as_deref()), shown: Shown::OnRequest },
    Column { name: "reads", cell: |d| Cell::Count(d.io.reads), shown: Shown::OnRequest },
    Column { name: "writes", cell: |d| Cell::Count(d.io.writes), shown: Shown::OnRequest },
    Column { name: "flushes", cell: |d| Cell::Count(d.io.flushes), shown: Shown::OnRequest },
];

fn device_class(device: &Device) -> Cell {
    match &device.class {
        DeviceClass::Unknown => Cell::None,
        class => text(class.as_str()),
    }
}

fn device_layout(device: &Device) -> Cell {
    match (&device.class, &device.layout) {
        (DeviceClass::Spare, _) | (_, DeviceLayout::Unknown) => Cell::None,
        (_, layout) => text(layout.as_str()),
    }
}

/// Columns of events.
pub const EVENT: &[Column<Event>] = &[
    Column { name: "time", cell: |e| Cell::Time(e.time), shown: Shown::Always },
    Column { name: "severity", cell: |e| text(e.severity.as_str()), shown: Shown::Always },
    Column { name: "event", cell: |e| text(e.event.as_str()), shown: Shown::Always },
    Column { name: "message", cell: |e| text(&e.message), shown: Shown::Always },
    Column { name: "by", cell: |e| Cell::text_or_none(e.by.as_ref().map(ToString::to_string).as_deref()), shown: Shown::OnRequest },
    Column { name: "number", cell: |e| Cell::Count(e.number), shown: Shown::OnRequest },
    Column { name: "subject", cell: |e| text(&e.subject), shown: Shown::OnRequest },
    Column { name: "pool", cell: |e| Cell::text_or_none(e.pool.as_deref()), shown: Shown::OnRequest },
    Column { name: "device", cell: |e| Cell::text_or_none(e.device.as_deref()), shown: Shown::OnRequest },
];

/// Columns of tokens.
pub const TOKEN: &[Column<Token>] = &[
    Column { name: "name", cell: |t| text(&t.name), shown: Shown::Always },
    Column { name: "role", cell: |t| text(t.role.as_str()), shown: Shown::Always },
    Column { name: "pools", cell: |t| text(&if t.pools.is_empty() { "all".to_owned() } else { t.pools.join(",") }), shown: Shown::Always },
    Column { name: "created", cell: |t| Cell::Time(t.created), shown: Shown::Always },
    Column { name: "created_by", cell: |t| text(&t.created_by), shown: Shown::Always },
    Column { name: "expires", cell: |t| t.expires.map_or_else(|| text("never"), Cell::Time), shown: Shown::Always },
    Column { name: "expired", cell: |t| yes(t.expired), shown: Shown::Json },
    Column { name: "last_used", cell: |t| t.last_used.map_or(Cell::None, Cell::Time), shown: Shown::Always },
];

/// Columns of checks of the host.
pub const CHECK: &[Column<Check>] = &[
    Column { name: "state", cell: |c| text(c.state.as_str()), shown: Shown::Always },
    Column { name: "check", cell: |c| text(c.check), shown: Shown::Always },
    Column { name: "subject", cell: |c| text(&c.subject), shown: Shown::Always },
    Column { name: "found", cell: |c| text(&c.found), shown: Shown::Always },
    Column { name: "remedy", cell: |c| known(&c.remedy), shown: Shown::Always },
];

/// Columns of checks of a bucket.
#[cfg(feature = "bucket")]
pub const BUCKET_CHECK: &[Column<millpond_bucket::Check>] = &[
    Column { name: "check", cell: |c| text(c.check.as_str()), shown: Shown::Always },
    Column { name: "state", cell: |c| text(c.state.as_str()), shown: Shown::Always },
    Column { name: "found", cell: |c| text(&c.found), shown: Shown::Always },
    Column { name: "took_millis", cell: |c| Cell::Count(c.took_millis), shown: Shown::Always },
];

/// Columns of tests of sinks.
pub const SINK_TEST: &[Column<SinkTest>] = &[
    Column { name: "sink", cell: |t| text(&t.sink), shown: Shown::Always },
    Column { name: "result", cell: |t| text(if t.failure.is_none() { "delivered" } else { "failed" }), shown: Shown::Always },
    Column { name: "failure", cell: |t| Cell::text_or_none(t.failure.as_deref()), shown: Shown::Always },
];

/// Columns of conditions.
pub const CONDITION: &[Column<Condition>] = &[
    Column { name: "since", cell: |c| Cell::Time(c.since), shown: Shown::Always },
    Column { name: "severity", cell: |c| text(c.severity.as_str()), shown: Shown::Always },
    Column { name: "kind", cell: |c| text(c.kind.as_str()), shown: Shown::Always },
    Column { name: "cause", cell: |c| text(&c.cause), shown: Shown::Always },
    Column { name: "remedy", cell: |c| known(&c.remedy), shown: Shown::Always },
];

/// Columns of the history of an object.
pub const HISTORY: &[Column<Event>] = &[
    Column { name: "time", cell: |e| Cell::Time(e.time), shown: Shown::Always },
    Column { name: "by", cell: |e| Cell::text_or_none(e.by.as_ref().map(ToString::to_string).as_deref()), shown: Shown::Always },
    Column { name: "event", cell: |e| text(e.event.as_str()), shown: Shown::Always },
    Column { name: "message", cell: |e| text(&e.message), shown: Shown::Always },
    Column { name: "subject", cell: |e| text(&e.subject), shown: Shown::Json },
];

/// Columns of exports.
pub const EXPORT: &[Column<Export>] = &[
    Column { name: "id", cell: |e| Cell::Count(e.id), shown: Shown::Always },
    Column { name: "kind", cell: |e| text(e.kind.as_str()), shown: Shown::Always },
    Column { name: "name", cell: |e| text(&e.name), shown: Shown::Always },
    Column { name: "address", cell: |e| text(&e.address), shown: Shown::Always },
    Column { name: "readonly", cell: |e| yes(e.readonly), shown: Shown::Always },
    Column { name: "state", cell: |e| text(e.state.as_str()), shown: Shown::Always },
    Column { name: "clients", cell: |e| Cell::Count(e.clients), shown: Shown::Always },
    Column { name: "reads", cell: |e| Cell::Count(e.io.reads), shown: Shown::Table },
    Column { name: "read_bytes", cell: |e| Cell::Bytes(e.io.read_bytes), shown: Shown::Table },
    Column { name: "writes", cell: |e| Cell::Count(e.io.writes), shown: Shown::Table },
    Column { name: "write_bytes", cell: |e| Cell::Bytes(e.io.write_bytes), shown: Shown::Table },
    Column { name: "uris", cell: |e| text(&e.uris.join(",")), shown: Shown::Json },
    Column { name: "unix", cell: |e| Cell::text_or_none(e.unix.as_deref()), shown: Shown::Json },
    Column { name: "tcp", cell: |e| Cell::text_or_none(e.tcp.as_deref()), shown: Shown::Json },
    Column { name: "tls", cell: |e| text(tls(e)), shown: Shown::Json },
    Column { name: "max_clients", cell: |e| bound(e.limits.max_clients), shown: Shown::Json },
    Column { name: "max_requests", cell: |e| bound(e.limits.max_requests.map(u32::from)), shown: Shown::Json },
    Column { name: "handshake_seconds", cell: |e| bound(e.limits.handshake_seconds), shown: Shown::Json },
    Column { name: "uid", cell: |e| e.access.uid.map_or(Cell::None, |n| Cell::Count(n.into())), shown: Shown::Json },
    Column { name: "gid", cell: |e| e.access.gid.map_or(Cell::None, |n| Cell::Count(n.into())), shown: Shown::Json },
    Column { name: "mode", cell: |e| e.access.mode.map_or(Cell::None, |mode| text(&format!("{mode:04o}"))), shown: Shown::Json },
    Column { name: "allow_other", cell: |e| yes(e.access.allow_other), shown: Shown::Json },
    Column { name: "queues", cell: |e| e.queues.map_or(Cell::None, |n| Cell::Count(n.into())), shown: Shown::Json },
    Column { name: "reason", cell: |e| Cell::text_or_none(e.reason.as_deref()), shown: Shown::Json },
    Column { name: "connections", cell: |e| text(&peers(e)), shown: Shown::Json },
    Column { name: "io", cell: |e| Cell::Count(e.io.reads + e.io.writes), shown: Shown::Json },
    Column { name: "volumes", cell: |e| Cell::Count(e.volumes.len() as u64), shown: Shown::Json },
];

/// Columns of pools found for import.
pub const FOUND: &[Column<Found>] = &[
    Column { name: "name", cell: |f| text(&f.name), shown: Shown::Always },
    Column { name: "id", cell: |f| text(&f.id), shown: Shown::Always },
    Column { name: "state", cell: |f| text(f.state.as_str()), shown: Shown::Always },
    Column { name: "devices", cell: |f| text(&f.devices.join(",")), shown: Shown::Always },
    Column { name: "missing", cell: |f| text(&numbers(&f.missing)), shown: Shown::Programs },
    Column { name: "missing_devices", cell: |f| Cell::text_or_none(missing(f).as_deref()), shown: Shown::People },
    // the same in JSON, where `missing` is a list of numbers
    Column { name: "missing_devices", cell: |f| Cell::text_or_none(missing(f).as_deref()), shown: Shown::Json },
    Column { name: "in_use_by", cell: |f| Cell::text_or_none(used_by(f).as_deref()), shown: Shown::People },
    Column { name: "used_by", cell: |f| Cell::text_or_none(f.used_by.as_deref()), shown: Shown::Json },
    Column { name: "used_at", cell: |f| f.used_at.map_or(Cell::None, Cell::Time), shown: Shown::Json },
];

/// Describes how many devices were not found, and which ones as far as that is known.
pub fn missing(found: &Found) -> Option<String> {
    let missing = found.missing.len();
    let of = format!("{missing} of {}", found.devices.len() + missing);
    let known: Vec<String> =
        found.missing_devices.iter().filter(|device| device.was.is_some() || !device.id.is_empty()).map(ToString::to_string).collect();
    let known = if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
    (missing > 0).then(|| of + &known)
}

/// Names the other host that has the pool, and how long ago its claim was last seen.
fn used_by(found: &Found) -> Option<String> {
    let host = found.used_by.as_ref()?;
    let ago = |at: Timestamp| u64::try_from(now().duration_since(at).as_secs()).unwrap_or(0);
    Some(found.used_at.map_or_else(|| host.clone(), |at| format!("{host}, seen {} ago", show_span(ago(at)))))
}

/// Columns of the ranges that a rebuild loses.
pub const LOST: &[Column<LostRange>] = &[
    Column { name: "name", cell: |l| text(&l.name), shown: Shown::Always },
    Column { name: "offset", cell: |l| Cell::Count(l.offset), shown: Shown::Always },
    Column { name: "length", cell: |l| Cell::Bytes(l.length), shown: Shown::Always },
];

/// Columns of pools whose import goes back to an older checkpoint, with the loss.
pub const GOES_BACK: &[Column<Found>] = &[
    Column { name: "name", cell: |f| text(&f.name), shown: Shown::Always },
    Column { name: "id", cell: |f| text(&f.id), shown: Shown::Always },
    Column { name: "state", cell: |f| text(f.state.as_str()), shown: Shown::Always },
    Column { name: "checkpoint", cell: |f| f.checkpoint.as_ref().map_or(Cell::None, |c| Cell::Count(c.id)), shown: Shown::Always },
    Column { name: "time", cell: |f| f.checkpoint.as_ref().map_or(Cell::None, |c| Cell::Time(c.time)), shown: Shown::Always },
    Column {
        name: "lost_millis",
        cell: |f| f.checkpoint.as_ref().map_or(Cell::None, |c| Cell::Millis(c.lost_millis)),
        shown: Shown::Always,
    },
    Column {
        name: "lost_bytes",
        cell: |f| f.checkpoint.as_ref().and_then(|c| c.lost_bytes).map_or(Cell::None, Cell::Bytes),
        shown: Shown::Always,
    },
];

/// Columns of background jobs.
pub const JOB: &[Column<Job>] = &[
    Column { name: "id", cell: |j| text(&j.id), shown: Shown::Always },
    Column { name: "pool", cell: |j| text(&j.pool), shown: Shown::Always },
    Column { name: "kind", cell: |j| text(j.kind.as_str()), shown: Shown::Always },
    Column { name: "state", cell: |j| text(j.state.as_str()), shown: Shown::Always },
    Column { name: "done_bytes", cell: |j| Cell::Bytes(j.done_bytes), shown: Shown::Always },
    Column { name: "remaining_bytes", cell: |j| Cell::Bytes(j.remaining_bytes), shown: Shown::Always },
    Column { name: "rate", cell: |j| j.rate.map_or(Cell::None, |rate| Cell::Rate(rate as f64)), shown: Shown::Always },
    Column { name: "eta_seconds", cell: |j| j.eta_seconds.map_or(Cell::None, Cell::Seconds), shown: Shown::Always },
    Column { name: "errors", cell: |j| Cell::Count(j.errors), shown: Shown::Json },
];

/// Columns of groups with their allocation.
pub const GROUP_FILL: &[Column<GroupFill>] = &[
    Column { name: "devices", cell: |g| text(&g.devices.join(" ")), shown: Shown::Always },
    Column { name: "size", cell: |g| Cell::Bytes(g.size), shown: Shown::Always },
    Column { name: "allocated", cell: |g| Cell::Bytes(g.allocated), shown: Shown::Always },
    Column { name: "surplus", cell: |g| Cell::Bytes(g.surplus), shown: Shown::Always },
];

/// Columns of restore points.
pub const CHECKPOINT: &[Column<Checkpoint>] = &[
    Column { name: "id", cell: |c| Cell::Count(c.id), shown: Shown::Always },
    Column { name: "time", cell: |c| Cell::Time(c.time), shown: Shown::Always },
    Column { name: "verified", cell: |c| text(c.verified.as_str()), shown: Shown::Always },
    Column { name: "lost_millis", cell: |c| Cell::Millis(c.lost_millis), shown: Shown::Always },
    Column { name: "lost_bytes", cell: |c| c.lost_bytes.map_or(Cell::None, Cell::Bytes), shown: Shown::Always },
    Column { name: "lost_by_rewind", cell: |c| c.lost_by_rewind.map_or(Cell::None, Cell::Bytes), shown: Shown::Json },
    Column { name: "copies", cell: |c| Cell::Count(u64::from(c.copies)), shown: Shown::Always },
    Column { name: "lsn", cell: |c| Cell::Count(c.lsn), shown: Shown::Json },
    Column { name: "reason", cell: |c| Cell::text_or_none(c.reason.as_deref()), shown: Shown::Always },
];

/// Formats a layout for display.
pub fn layout(layout: LayoutSpec) -> String {
    match layout {
        LayoutSpec::Linear => "linear".to_owned(),
        LayoutSpec::Mirror { copies } => format!("mirror of {copies}"),
        LayoutSpec::Parity { width, parity, unit } => format!("parity{parity} -i {width} -I {}", millpond_api::size::Size(u64::from(unit))),
        LayoutSpec::Stripe { width, unit } => format!("stripe -i {width} -I {}", millpond_api::size::Size(u64::from(unit))),
    }
}

/// Formats the layout of a pool for display. A layout that this version does not know is shown as
/// the word of its kind.
pub fn pool_layout(of: &PoolLayout) -> String {
    match of {
        PoolLayout::Known(known) => layout(*known),
        PoolLayout::Other(other) => other.kind.clone(),
    }
}

fn paths(devices: &[Device]) -> String {
    let paths: Vec<&str> = devices.iter().map(|device| device.path.as_str()).collect();
    paths.join(",")
}

/// Formats the caps of a device; `None` if it has none.
pub fn limit(cap: &DeviceCap) -> Option<String> {
    let bytes = cap.bps.map(|bps| format!("{}/s", millpond_api::size::Size(bps)));
    let operations = cap.iops.map(|iops| format!("{iops} operations/s"));
    let both: Vec<String> = bytes.into_iter().chain(operations).collect();
    if both.is_empty() { None } else { Some(both.join(", ")) }
}

fn limits(devices: &[Device]) -> Option<String> {
    let capped: Vec<String> = devices.iter().filter_map(|device| Some(format!("{}: {}", device.path, limit(&device.limit)?))).collect();
    if capped.is_empty() { None } else { Some(capped.join("; ")) }
}

/// TLS mode of an export.
fn tls(export: &Export) -> &str {
    export.tls.as_ref().map_or("off", |tls| tls.mode.as_str())
}

/// A limit set for this export, or `default`.
fn bound(limit: Option<u32>) -> Cell {
    limit.map_or_else(|| text("default"), |limit| Cell::Count(limit.into()))
}

fn peers(export: &Export) -> String {
    let peers: Vec<&str> = export.connections.iter().map(|client| client.peer.as_str()).collect();
    peers.join(",")
}

fn numbers(numbers: &[u16]) -> String {
    if numbers.is_empty() {
        return "-".to_owned();
    }
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}
