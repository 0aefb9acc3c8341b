//! The labels that an import read: both copies of each device, the copy that counts, and the copies
//! that have to be written again.

use millpond_block::{Buf, DeviceError, DeviceSlot};
use millpond_format::{FeatureSet, FormatError, Label};

use super::Import;
use crate::open::members::Members;
use crate::{OpenErrorKind, Unlabelled};

/// The copies of the label of a device, in its first and in its second area. `None` before a copy
/// is read.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelCopies([Option<Result<Label, Unlabelled>>; 2]);

impl LabelCopies {
    /// Returns the label that counts: the first intact copy. With a first copy of another program
    /// none counts: the second copy may be older than the change that made the first one
    /// (INV-LABEL-3).
    fn valid(&self) -> Result<&Label, Unlabelled> {
        let mut why = Unlabelled::default();
        for copy in self.0.iter().flatten() {
            match copy {
                Ok(label) => return Ok(label),
                Err(other @ Unlabelled::OtherProgram(_)) => return Err(*other),
                Err(other) if why == Unlabelled::default() => why = *other,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// Returns both copies; `None` for one that has no intact label.
    fn intact(&self) -> impl Iterator<Item = Option<&Label>> {
        self.0.iter().map(|copy| copy.as_ref()?.as_ref().ok())
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
        let Some(copies) = self.copies.get_mut(at) else { return };
        if let Some(place) = copies.0.get_mut(usize::from(second)) {
            *place = Some(copy);
        }
        let (label, why) = match copies.valid() {
            Ok(label) => (Some(label.clone()), Unlabelled::default()),
            Err(why) => (None, why),
        };
        if let (Some(label_of_slot), Some(why_not)) = (self.labels.get_mut(at), self.unlabelled.get_mut(at)) {
            (*label_of_slot, *why_not) = (label, why);
        }
    }

    /// Compares the labels with the newest one. Returns whether one of them has to be written again,
    /// and the features of the newest that another lacks (INV-LABEL-3). Both copies of each device
    /// in use count in a pool with features: a power cut between the writes of first and second
    /// areas leaves second copies that do not name them. In other pools a second copy that is
    /// behind stays until the next change of the labels.
    pub(super) fn compare_labels(&self, found: &Members) -> (bool, FeatureSet) {
        let newest = &found.newest;
        // labels that a crash left behind would be the newest again if those that precede them were
        // missing
        let is_behind = |other: &Label| {
            let differs = other.notes != newest.notes || other.features != newest.features || other.pool != newest.pool;
            differs || other.shape.generation != newest.shape.generation
        };
        let in_use = found.slots.iter().flatten().chain(found.replacements.iter().map(|(_, slot)| slot));
        let in_use = in_use.filter(|_| !newest.features.is_empty()).filter_map(|slot| self.copies.get(slot.index()));
        let (mut behind, mut everywhere) = (false, newest.features);
        for label in self.labels.iter().flatten().map(Some).chain(in_use.flat_map(LabelCopies::intact)) {
            let lacking = everywhere.without(label.map_or(FeatureSet::default(), |label| label.features));
            everywhere = everywhere.without(lacking);
            behind |= label.is_none_or(is_behind);
        }
        (behind, newest.features.without(everywhere))
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
