//! Checks of commands against the catalog: names and sizes of volumes and snapshots.

use millpond_format::{ObjectRef, SnapshotId, VolumeId};

use super::Store;
use crate::core::{Promotion, Reservations};
use crate::{Absent, Busy, CommandError, Invalid, NameFlaw};

/// Most names in a message.
const NAMES_SHOWN: usize = 4;

/// Largest volume in bytes. The format's bound is 2^54 blocks; larger volumes than this were never
/// tested.
pub(crate) const MAX_VOLUME_BYTES: u64 = 1 << 56;

/// Checks a pool's, volume's or snapshot's name: 1 to 255 characters of `A-Z a-z 0-9 . _ : -`, the
/// first a letter, digit or `_`.
///
/// # Errors
/// `Invalid` with the reason.
pub fn check_name(name: &str) -> Result<(), CommandError> {
    let invalid = |flaw| Err(CommandError::Invalid(Invalid::Name { name: name.to_owned(), flaw }));
    if name.is_empty() || name.len() > 255 {
        return invalid(NameFlaw::Length);
    }
    if let Some(odd) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))) {
        return invalid(NameFlaw::Character(odd));
    }
    if name.starts_with(['-', '.', ':']) {
        return invalid(NameFlaw::Start);
    }
    Ok(())
}

impl Store {
    /// Checks that the pool is not full, for commands that create versions; commands that release
    /// space skip this.
    pub(crate) fn check_growth(&self) -> Result<(), CommandError> {
        let space = &self.core.space;
        if space.live_units() > space.usable_units() { Err(CommandError::NoSpace) } else { Ok(()) }
    }

    pub(crate) fn check_size(&self, size: u64) -> Result<(), CommandError> {
        if size == 0 || !size.is_multiple_of(4096) || size > MAX_VOLUME_BYTES {
            return Err(CommandError::Invalid(Invalid::VolumeSize(size)));
        }
        Ok(())
    }

    pub(crate) fn known_volume(&self, volume: VolumeId) -> Result<(), CommandError> {
        self.core.catalog.volumes.get(&volume).map(|_| ()).ok_or(CommandError::NotFound(Absent::Volume))
    }

    /// Checks that a volume exists and is no base.
    pub(crate) fn changeable(&self, volume: VolumeId) -> Result<(), CommandError> {
        self.known_volume(volume)?;
        if self.core.catalog.bases.contains_key(&volume) { Err(CommandError::Busy(Busy::Base)) } else { Ok(()) }
    }

    pub(crate) fn known_snapshot(&self, snapshot: SnapshotId) -> Result<&crate::core::Snapshot, CommandError> {
        self.core.catalog.listed(snapshot).ok_or(CommandError::NotFound(Absent::Snapshot))
    }

    pub(crate) fn free_volume_name(&self, name: &str) -> Result<(), CommandError> {
        check_name(name)?;
        match self.core.catalog.volume_named(name) {
            Some(_) => Err(CommandError::Exists(name.to_owned())),
            None => Ok(()),
        }
    }

    pub(crate) fn free_snapshot_name(&self, volume: VolumeId, name: &str) -> Result<(), CommandError> {
        check_name(name)?;
        match self.core.catalog.snapshot_named(volume, name) {
            Some(_) => Err(CommandError::Exists(name.to_owned())),
            None => Ok(()),
        }
    }

    /// Returns the bytes of the pages that hold these snapshots.
    pub(crate) fn bytes_to_store(&self, snapshots: impl Iterator<Item = SnapshotId>) -> usize {
        let stored = snapshots.filter_map(|id| self.core.catalog.snapshots.page_at(id)).map(|at| ((at.segment, at.offset), at.bytes()));
        let pages: std::collections::BTreeMap<_, u32> = stored.collect();
        pages.values().map(|bytes| *bytes as usize + ObjectRef::STEP).sum()
    }

    /// Returns the snapshots that a promotion would move, after checking that it is possible.
    pub(crate) fn plan_promotion(&self, volume: VolumeId) -> Result<Promotion, CommandError> {
        self.known_volume(volume)?;
        let catalog = &self.core.catalog;
        let promotion = catalog.promotion(volume).ok_or(CommandError::Invalid(Invalid::NotAClone))?;
        self.changeable(promotion.from)?;
        let moved = promotion.snapshots.iter().filter_map(|id| catalog.snapshots.get(id));
        let taken: Vec<&str> =
            moved.map(|s| s.name.as_str()).filter(|name| catalog.snapshot_named(volume, name).is_some()).take(NAMES_SHOWN + 1).collect();
        if !taken.is_empty() {
            let names = taken.iter().take(NAMES_SHOWN).map(|name| (*name).to_owned()).collect();
            return Err(CommandError::Busy(Busy::SnapshotNames { names, more: taken.len() > NAMES_SHOWN }));
        }
        let owned = |id| catalog.owned_units(id);
        let missing = |id, owned| Reservations::missing_for(catalog.options_of(id).reservation, owned);
        let (from, units) = (promotion.from, promotion.units);
        let before = missing(from, owned(from)) + missing(volume, owned(volume));
        let after = missing(from, owned(from).saturating_sub(units)) + missing(volume, owned(volume) + units);
        let kept = catalog.reservations.missing_of_others(volume) + missing(volume, owned(volume)) + after - before;
        if after > before && self.core.space.live_units() + kept > self.core.space.usable_units() {
            return Err(CommandError::NoSpace);
        }
        Ok(promotion)
    }
}
