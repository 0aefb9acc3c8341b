//! Kinds of events: names that scripts may rely on, with severity and meaning. `docs/events.md` has
//! the same table.

use millpond_api::Severity;
use millpond_api::Severity::{Error, Info, Warning};

/// Kind, severity, meaning.
pub(super) const KINDS: &[(&str, Severity, &str)] = &[
    ("daemon.started", Info, "daemon started"),
    ("daemon.stopped", Info, "daemon stopped"),
    ("pool.created", Info, "pool created"),
    ("pool.imported", Info, "pool imported"),
    ("pool.exported", Info, "pool exported"),
    ("pool.destroyed", Info, "pool destroyed"),
    ("pool.not-closed", Warning, "pool not closed cleanly"),
    ("pool.waiting", Error, "pool not in service"),
    ("pool.older-state", Warning, "pool imported at an older state"),
    ("pool.degraded", Warning, "pool degraded"),
    ("pool.faulted", Error, "pool stopped"),
    ("pool.silent", Warning, "pool does not answer"),
    ("pool.healthy", Info, "pool healthy again"),
    ("pool.space", Warning, "pool nearly full"),
    ("pool.full", Error, "pool full"),
    ("pool.has-room", Info, "pool has free space again"),
    ("pool.devices-added", Info, "devices added to pool"),
    ("pool.replacing", Info, "replacement of a device started in pool"),
    ("pool.removing", Info, "removal of a device started in pool"),
    ("pool.removal-ended", Warning, "removal of a device ended without success in pool"),
    ("pool.removal-waits", Warning, "removal of a device waits in pool"),
    ("pool.unreclaimed", Warning, "space of pool cannot be freed"),
    ("pool.rebalancing", Info, "rebalance started in pool"),
    ("pool.wiping", Info, "wipe started in pool"),
    ("pool.scrubbing", Info, "scrub started in pool"),
    ("device.failed", Error, "device failed"),
    ("device.missing", Warning, "device missing"),
    ("device.silent", Warning, "device does not answer"),
    ("device.slow", Warning, "device slow"),
    ("device.errors", Warning, "device with errors"),
    ("device.full", Warning, "no space below a device"),
    ("device.returned", Warning, "device back, and not in use"),
    ("device.recovered", Info, "device recovered"),
    ("device.spare-used", Warning, "spare in use"),
    ("device.released", Info, "device released"),
    ("device.limited", Info, "device limited"),
    ("job.began", Info, "job started automatically"),
    ("job.ended", Info, "job ended"),
    ("scrub.ended", Info, "scrub ended"),
    ("export.created", Info, "export created"),
    ("export.removed", Info, "export removed"),
    ("export.stopped", Error, "export not served"),
    ("export.restored", Info, "export served again"),
    ("host.nearly-full", Warning, "filesystem below a pool nearly full"),
    ("host.has-room", Info, "filesystem below a pool has free space again"),
    ("state.unsaved", Error, "state not saved"),
    ("volume.created", Info, "volume created"),
    ("volume.changed", Info, "volume changed"),
    ("volume.resized", Info, "volume resized"),
    ("volume.rolled-back", Info, "volume rolled back"),
    ("volume.promoted", Info, "clone promoted"),
    ("volume.copied", Info, "full copy complete"),
    ("volume.copy-failed", Warning, "full copy failed"),
    ("snapshot.created", Info, "snapshot created"),
    ("snapshot.expired", Info, "snapshot expired"),
    ("snapshot.held", Info, "snapshot held"),
    ("snapshot.released", Info, "snapshot released"),
    ("renamed", Info, "renamed"),
    ("destroyed", Info, "destroyed"),
];

fn find(kind: &str) -> Option<&'static (&'static str, Severity, &'static str)> {
    KINDS.iter().find(|(name, ..)| *name == kind)
}

/// Returns the severity of a kind.
pub(super) fn severity(kind: &str) -> Severity {
    find(kind).map_or(Info, |(_, severity, _)| *severity)
}

/// Returns the meaning of a kind.
pub(super) fn words(kind: &str) -> &str {
    find(kind).map_or(kind, |(_, _, words)| words)
}
