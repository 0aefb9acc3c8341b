//! The labels that an import read: both copies of each device, the copy that counts, and the copies
//! that have to be written again.

use millpond_block::{Buf, BufSlice, DeviceError, DeviceSlot, MemberId};
use millpond_format::{FeatureSet, FormatError, Label, PoolId, SECTOR_BYTES, second_area};

use super::{Import, ImportIo};
use crate::open::members::Members;
use crate::{OpenErrorKind, Unlabelled};

/// The copies of the label of a device, in its first and in its second area. `None` before a copy
/// is read.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelCopies {
    copies: [Option<Result<Label, Unlabelled>>; 2],
    /// Pool of the second one if a later program wrote it.
    second_of: Option<PoolId>,
}

impl LabelCopies {
    /// Returns the label that counts of the intact ones ([`Label::or_newer`]). If either is of a later
    /// program none counts: the other one may be older than the change that made it (INV-LABEL-3). A
    /// second one of another pool is left from an earlier use of the device.
    fn valid(&self) -> Result<Label, Unlabelled> {
        let [first, second] = &self.copies;
        let left = match (first, self.second_of) {
            (Some(Ok(label)), Some(pool)) => label.pool != pool,
            _ => false,
        };
        let read = || first.iter().chain(second.iter().filter(|_| !left));
        let later = |why: &Unlabelled| matches!(why, Unlabelled::OtherProgram(error) if error.is_newer_label());
        if let Some(why) = read().filter_map(|copy| copy.as_ref().err()).find(|why| later(why)) {
            return Err(*why);
        }
        let intact = read().filter_map(|copy| copy.as_ref().ok()).cloned();
        intact.reduce(Label::or_newer).ok_or_else(|| read().find_map(|copy| copy.as_ref().err()).copied().unwrap_or_default())
    }

    /// Returns the areas, false for the first, whose label is not intact; with `equal`, also those that
    /// lack the label that counts.
    fn lacking(&self, equal: bool) -> Vec<bool> {
        let Ok(valid) = self.valid() else { return Vec::new() };
        let has = |copy: &Option<Result<Label, Unlabelled>>| matches!(copy, Some(Ok(label)) if !equal || *label == valid);
        [false, true].into_iter().zip(&self.copies).filter(|(_, copy)| !has(copy)).map(|(second, _)| second).collect()
    }
}

/// Copies of labels that an import writes again, from the other copy on the same device.
///
/// A label that is the only one of its device is not overwritten before that: a power cut would leave
/// the device without any. The order is that of a root (INV-RING-1): the copies that were read may
/// be in a cache only, so devices are flushed first.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelRepair {
    /// Members and areas, false for the first, that lack the label in the other area.
    lacking: Vec<(MemberId, bool)>,
    /// Copies that could not be written, in the same way.
    pub(super) failed: Vec<(MemberId, bool)>,
    /// Devices that the pool can do without lack copies, or labels differ in descriptions of devices:
    /// all labels are written, unless that would overwrite the only label of a device.
    pub(super) optional: bool,
}

impl LabelRepair {
    /// Returns whether there is a copy to write.
    pub(super) fn is_needed(&self) -> bool {
        !self.lacking.is_empty()
    }
}

impl Import {
    /// Handles the end of the read of a label.
    pub(super) fn label_read(&mut self, slot: DeviceSlot, second: bool, result: Result<(), DeviceError>, buf: Option<&Buf>) {
        if self.silent.contains(&slot) {
            return;
        }
        let copy = match (result, buf) {
            (Ok(()), Some(buf)) => Label::decode_knowing(buf.bytes(), self.tuning.features).map_err(|error| match error {
                FormatError::Version(_) | FormatError::Incompatible(_) => Unlabelled::OtherProgram(error),
                _ => Unlabelled::NotAPool(error),
            }),
            (Err(error), _) => Err(Unlabelled::Unreadable(error)),
            (Ok(()), None) => Err(Unlabelled::Unreadable(DeviceError::Gone)),
        };
        let at = slot.index();
        let other_pool = buf.filter(|_| second).and_then(|buf| Label::of_other_program(buf.bytes())).map(|(pool, ..)| pool);
        let Some(copies) = self.copies.get_mut(at) else { return };
        copies.second_of = copies.second_of.or(other_pool);
        if let Some(place) = copies.copies.get_mut(usize::from(second)) {
            *place = Some(copy);
        }
        let (label, why) = match copies.valid() {
            Ok(label) => (Some(label), Unlabelled::default()),
            Err(why) => (None, why),
        };
        if let (Some(label_of_slot), Some(why_not)) = (self.labels.get_mut(at), self.unlabelled.get_mut(at)) {
            (*label_of_slot, *why_not) = (label, why);
        }
    }

    /// Compares the labels with the newest one. Returns whether one of them is behind, so that all
    /// have to be written again; the features of the newest that one lacks (INV-LABEL-3); and the
    /// copies to write.
    ///
    /// A copy that is not intact is written from the other copy; in a pool with features also one that
    /// is older, which in other pools stays until the next change of the labels. So a device with one
    /// valid label is used, also where the other copy can be neither read nor written. A device that
    /// may be given up for that, such as a spare, gets both copies with those of all devices.
    pub(super) fn compare_labels(&self, found: &Members) -> (bool, FeatureSet, LabelRepair) {
        let newest = &found.newest;
        // labels that a crash left behind would be the newest again if those that precede them were
        // missing
        let is_behind = |other: &Label| {
            other.features != newest.features || other.pool != newest.pool || other.shape.generation != newest.shape.generation
        };
        let (mut behind, mut everywhere) = (false, newest.features);
        for label in self.labels.iter().flatten() {
            let lacking = everywhere.without(label.features);
            everywhere = everywhere.without(lacking);
            behind |= is_behind(label);
        }
        let featured = !newest.features.is_empty();
        let lacking = |slot: DeviceSlot| self.copies.get(slot.index()).map(|copies| copies.lacking(featured)).unwrap_or_default();
        let members = (0..).map(MemberId).zip(&found.slots).filter_map(|(member, slot)| Some((member, (*slot)?)));
        let (spared, kept): (Vec<_>, Vec<_>) = members.partition(|(member, _)| newest.shape.is_auxiliary(*member));
        let others = spared.iter().chain(&found.replacements).any(|(_, slot)| !lacking(*slot).is_empty());
        if others {
            everywhere = FeatureSet::default();
        }
        let areas = kept.into_iter().flat_map(|(member, slot)| lacking(slot).into_iter().map(move |second| (member, second)));
        let optional = others || self.labels.iter().flatten().any(|label| label.notes != newest.notes);
        (behind, newest.features.without(everywhere), LabelRepair { lacking: areas.collect(), failed: Vec::new(), optional })
    }

    /// Writes the copies that lack the label of their device.
    pub(super) fn repair_labels(&mut self) {
        for (member, second) in std::mem::take(&mut self.label_repair.lacking) {
            let Some(config) = &self.config else { continue };
            let area = if second { second_area(config.size_of(member)) } else { 0 };
            let slot = self.slots.get(member.index()).copied().flatten();
            let Some(label) = slot.and_then(|slot| self.labels.get(slot.index())?.as_ref()) else { continue };
            let mut buf = self.bufs.take(SECTOR_BYTES);
            if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
                to.copy_from_slice(&label.encode());
            }
            self.io.write_loose(ImportIo::LabelCopy(member, second), member, area, BufSlice::new(buf, 0..SECTOR_BYTES));
        }
    }

    /// Handles the end of such a write. The pool is imported without the copy; features that it may
    /// lack are not in force.
    pub(super) fn label_copied(&mut self, member: MemberId, second: bool, result: Result<(), DeviceError>) {
        if result.is_err() {
            self.label_repair.failed.push((member, second));
        }
    }

    /// Checks that this program may write to a pool with these features, if it is going to.
    pub(super) fn check_features(&self) -> Result<(), OpenErrorKind> {
        let of_writers = |label: &Label| Some((label.name.clone(), label.unknown_to_writers(self.tuning.features)?));
        match self.labels.iter().flatten().find_map(of_writers) {
            Some((pool, unknown)) if !self.tuning.read_only && !self.surveying => Err(OpenErrorKind::OnlyReadable { pool, unknown }),
            _ => Ok(()),
        }
    }
}
