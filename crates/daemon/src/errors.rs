//! Errors of devices, kept over restarts until a device is replaced, or a scrub that began after
//! its last error finds none.

use std::time::{Duration, Instant};

use millpond_api::instant;

use super::look::PoolLook;
use super::service::Daemon;
use super::shard::ShardStatus;
use super::state::PoolRecord;
use super::view::errors_of;

/// Least time between two saves while errors go on. The first error of a device, and the last ones
/// at the end of the daemon, are saved at once.
const SAVE: Duration = Duration::from_secs(60);

/// Errors of a pool's devices that are not saved yet.
#[derive(Debug, Default)]
pub(super) struct ErrorsUnsaved {
    /// True when there are some.
    changed: bool,
    /// Time of the last save.
    saved: Option<Instant>,
}

/// Changes of the errors of a pool's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Noted {
    /// There are new errors.
    more: bool,
    /// A device has its first errors, or has none any more.
    edge: bool,
    /// No device has errors.
    none: bool,
}

/// Adds the errors that devices had since the last look. A scrub that began after the last error of
/// a device was noticed, and found none, clears the device's errors.
fn note(record: &mut PoolRecord, status: &ShardStatus) -> Noted {
    let scrub = status.pool.scrub.as_ref();
    let begun = scrub.map(|scrub| instant::from_millis(scrub.begun.0));
    let clean = scrub.is_some_and(|scrub| scrub.complete && scrub.ended.is_some() && scrub.errors == 0);
    let mut noted = Noted { none: true, ..Noted::default() };
    for device in &status.pool.devices {
        let Some(seen) = record.seen.get_mut(&device.member.0).filter(|seen| seen.id == device.id.0) else { continue };
        let (before, live) = (seen.errors, errors_of(device, status));
        (seen.errors, seen.repaired) = seen.with(live);
        seen.counted = live;
        if seen.errors > before {
            (seen.scrub, noted.more) = (begun, true);
        }
        if clean && seen.scrub != begun {
            (seen.errors, seen.repaired, seen.scrub) = (0, 0, None);
        }
        noted.none &= seen.errors == 0;
        noted.edge |= (before == 0) != (seen.errors == 0);
    }
    noted
}

impl Daemon {
    /// Records the errors of the devices of the pools in `looks`, and saves them.
    pub(super) fn note_errors(&self, looks: &[PoolLook], now: Instant) {
        let mut save = false;
        {
            let mut registry = self.registry();
            for look in looks {
                let (Some(entry), Some(answer)) = (registry.pools.get_mut(&look.record.name), look.answer()) else { continue };
                // counts of an earlier import do not apply to this one
                if entry.since != look.since {
                    continue;
                }
                let noted = note(&mut entry.record, &answer.status);
                let unsaved = &mut entry.errors;
                unsaved.changed |= noted.more || noted.edge;
                let due = unsaved.saved.is_none_or(|saved| now.saturating_duration_since(saved) >= SAVE);
                if unsaved.changed && (noted.edge || due) {
                    *unsaved = ErrorsUnsaved { changed: false, saved: Some(now) };
                    save = true;
                }
                if noted.none && noted.edge {
                    entry.device_health.forget_errors();
                }
            }
        }
        if save && let Err(error) = self.save() {
            tracing::error!(%error, "the errors of devices are not remembered");
        }
    }

    /// Records the errors of one pool now: before it is closed, and before a scrub, so that earlier
    /// errors are not taken for errors after it.
    pub(super) async fn note_errors_of(&self, name: &str) {
        let look = self.look_at(name, self.options.deadlines.look).await;
        self.note_errors(look.as_slice(), Instant::now());
    }

    /// Records the last errors before pools are closed. True when there is something to save.
    pub(super) fn note_last_errors(&self, looks: &[PoolLook]) -> bool {
        self.note_errors(looks, Instant::now());
        self.registry().pools.values().any(|entry| entry.errors.changed)
    }
}
