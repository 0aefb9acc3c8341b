//! Kinds of events: words that scripts may rely on, with severity and meaning. `docs/events.md` has
//! the same table.

use super::Severity;
use crate::words::words;

/// Defines the kinds from one table: variant, word, severity of events without one of their own, and
/// meaning. The meaning documents the variant, and begins the messages of events without one of
/// their own.
macro_rules! kinds {
    ($($variant:ident = $word:literal, $severity:ident, $meaning:literal;)+) => {
        words! {
            /// Kind of an event. Words of kinds do not change.
            pub enum EventKind {
                $(#[doc = $meaning] $variant = $word,)+
            }
        }

        impl EventKind {
            /// All kinds that this version knows.
            pub const ALL: &[EventKind] = &[$(EventKind::$variant),+];

            /// Returns the severity of events of the kind, unless an event has its own. A kind that
            /// this version does not know has [`Severity::Info`].
            pub fn severity(&self) -> Severity {
                match self {
                    $(EventKind::$variant => Severity::$severity,)+
                    EventKind::Other(_) => Severity::Info,
                }
            }

            /// Returns the meaning in a few words. A kind that this version does not know has its
            /// word.
            pub fn meaning(&self) -> &str {
                match self {
                    $(EventKind::$variant => $meaning,)+
                    EventKind::Other(word) => word,
                }
            }
        }
    };
}

kinds! {
    DaemonStarted = "daemon.started", Info, "daemon started";
    DaemonStopped = "daemon.stopped", Info, "daemon stopped";
    AccessRefused = "access.refused", Warning, "requests with wrong credentials";
    TokenCreated = "token.created", Info, "token created";
    TokenDestroyed = "token.destroyed", Info, "token destroyed";
    PoolCreated = "pool.created", Info, "pool created";
    PoolImported = "pool.imported", Info, "pool imported";
    PoolExported = "pool.exported", Info, "pool exported";
    PoolDestroyed = "pool.destroyed", Info, "pool destroyed";
    PoolNotClosed = "pool.not-closed", Warning, "pool not closed cleanly";
    PoolWaiting = "pool.waiting", Error, "pool not in service";
    PoolOlderState = "pool.older-state", Warning, "pool imported at an older state";
    PoolDegraded = "pool.degraded", Warning, "pool degraded";
    PoolFaulted = "pool.faulted", Error, "pool stopped";
    PoolSilent = "pool.silent", Warning, "pool does not answer";
    PoolHealthy = "pool.healthy", Info, "pool healthy again";
    PoolSpace = "pool.space", Warning, "pool nearly full";
    PoolFull = "pool.full", Error, "pool full";
    PoolHasRoom = "pool.has-room", Info, "pool has free space again";
    PoolDevicesAdded = "pool.devices-added", Info, "devices added to pool";
    PoolReplacing = "pool.replacing", Info, "replacement of a device started in pool";
    PoolRemoving = "pool.removing", Info, "removal of a device started in pool";
    PoolRemovalEnded = "pool.removal-ended", Warning, "removal of a device ended without success in pool";
    PoolRemovalWaits = "pool.removal-waits", Warning, "removal of a device waits in pool";
    PoolUnreclaimed = "pool.unreclaimed", Warning, "space of pool cannot be freed";
    PoolRebalancing = "pool.rebalancing", Info, "rebalance started in pool";
    PoolWiping = "pool.wiping", Info, "wipe started in pool";
    PoolUpgraded = "pool.upgraded", Info, "pool upgraded";
    PoolChanged = "pool.changed", Info, "pool changed";
    PoolScrubbing = "pool.scrubbing", Info, "scrub started in pool";
    DeviceFailed = "device.failed", Error, "device failed";
    DeviceMissing = "device.missing", Warning, "device missing";
    DeviceSilent = "device.silent", Warning, "device does not answer";
    DeviceSlow = "device.slow", Warning, "device slow";
    DeviceErrors = "device.errors", Warning, "device with errors";
    DeviceFull = "device.full", Warning, "no space below a device";
    DeviceReturned = "device.returned", Warning, "device back, and not in use";
    DeviceRecovered = "device.recovered", Info, "device recovered";
    DeviceSpareUsed = "device.spare-used", Warning, "spare in use";
    DeviceReleased = "device.released", Info, "device released";
    DeviceLimited = "device.limited", Info, "device limited";
    JobBegan = "job.began", Info, "job started automatically";
    JobStopped = "job.stopped", Info, "job stopped by a command";
    JobEnded = "job.ended", Info, "job ended";
    ScrubEnded = "scrub.ended", Info, "scrub ended";
    ExportCreated = "export.created", Info, "export created";
    ExportRemoved = "export.removed", Info, "export removed";
    ExportStopped = "export.stopped", Error, "export not served";
    ExportRestored = "export.restored", Info, "export served again";
    ConditionBegan = "condition.began", Warning, "condition began";
    ConditionEnded = "condition.ended", Info, "condition ended";
    HostNearlyFull = "host.nearly-full", Warning, "filesystem below a pool nearly full";
    HostHasRoom = "host.has-room", Info, "filesystem below a pool has free space again";
    StateUnsaved = "state.unsaved", Error, "state not saved";
    VolumeCreated = "volume.created", Info, "volume created";
    VolumeChanged = "volume.changed", Info, "volume changed";
    VolumeResized = "volume.resized", Info, "volume resized";
    VolumeRolledBack = "volume.rolled-back", Info, "volume rolled back";
    VolumePromoted = "volume.promoted", Info, "clone promoted";
    VolumeCopied = "volume.copied", Info, "full copy complete";
    VolumeCopyFailed = "volume.copy-failed", Warning, "full copy failed";
    VolumeUnreadable = "volume.unreadable", Error, "blocks of a publication are missing or damaged";
    SnapshotCreated = "snapshot.created", Info, "snapshot created";
    SnapshotExpired = "snapshot.expired", Info, "snapshot expired";
    SnapshotHeld = "snapshot.held", Info, "snapshot held";
    SnapshotReleased = "snapshot.released", Info, "snapshot released";
    SnapshotReceived = "snapshot.received", Info, "snapshot received";
    SnapshotSent = "snapshot.sent", Info, "snapshot sent";
    SnapshotPruned = "snapshot.pruned", Warning, "snapshot of a policy destroyed before its time";
    PolicyCreated = "policy.created", Info, "policy created";
    PolicyChanged = "policy.changed", Info, "policy changed";
    PolicyDestroyed = "policy.destroyed", Info, "policy destroyed";
    PolicyAttached = "policy.attached", Info, "volume attached to a policy";
    PolicyDetached = "policy.detached", Info, "volume detached from a policy";
    PolicyMissed = "policy.missed", Warning, "runs of a policy missed";
    PolicyResumed = "policy.resumed", Info, "policy runs again";
    PolicyNotSent = "policy.not-sent", Warning, "snapshots of a policy not sent";
    PolicySent = "policy.sent", Info, "snapshots of a policy are sent again";
    GuestNotFrozen = "guest.not-frozen", Warning, "guest not frozen for a snapshot";
    GuestFreezes = "guest.freezes", Info, "guests are frozen for snapshots again";
    GuestStuck = "guest.stuck", Error, "guest may be frozen";
    GuestThawed = "guest.thawed", Info, "guest thawed";
    Renamed = "renamed", Info, "renamed";
    Destroyed = "destroyed", Info, "destroyed";
}

#[cfg(test)]
mod tests {
    //! The table and `docs/events.md` have the same kinds.
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_is_listed_and_described() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
        let page = fs::read_to_string(page).expect("docs/events.md");
        let (_, kinds) = page.split_once("\n## Kinds\n").expect("a section");
        let rows: Vec<(&str, &str)> = kinds.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).collect();
        for kind in EventKind::ALL {
            let row = rows.iter().find(|(word, _)| *word == kind.as_str());
            let severities = row.and_then(|(_, rest)| rest.split('|').next()).unwrap_or_default();
            let severity = kind.severity().name();
            assert!(severities.contains(severity), "{kind} has no row with '{severity}' in docs/events.md");
            assert!(!kind.meaning().is_empty(), "{kind}");
        }
        for (word, _) in rows {
            assert!(!matches!(EventKind::from(word.to_owned()), EventKind::Other(_)), "docs/events.md describes {word}, which is no kind");
        }
    }

    #[test]
    fn a_kind_of_a_later_version_is_information_with_its_word() {
        let kind = EventKind::from("pool.sings".to_owned());
        assert_eq!((kind.severity(), kind.meaning(), kind.as_str()), (Severity::Info, "pool.sings", "pool.sings"));
    }
}
