//! State of the labels that others than the task that writes them need.

use millpond_block::{BufSlice, MemberId, Tag};
use millpond_format::{Class, DeviceId, ENCRYPTION, FeatureNames, FeatureSet, Label, MemberState, SECTOR_BYTES};
use std::collections::{BTreeMap, BTreeSet};

use super::Store;
use crate::io::Replica;
use crate::{Busy, CommandError, Reply};

/// Progress of writing labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LabelStep {
    #[default]
    Idle,
    /// New devices get their labels: from then on the pool is whole under the new shape, too.
    Fresh,
    FreshFlush,
    First,
    FirstFlush,
    Second,
    SecondFlush,
}

/// State of the labels.
#[derive(Debug, Default)]
pub(crate) struct LabelState {
    pub(crate) step: LabelStep,
    /// Commands to answer when the next labels are durable.
    pub(crate) waiting: Vec<Tag>,
    /// The shape has changed since the last write of labels began.
    pub(crate) wanted: bool,
    /// Members that are new in the pool: they also get an empty ring.
    pub(crate) fresh: BTreeSet<MemberId>,
    /// Members that have become whole; reported as whole once the labels say so.
    pub(crate) filled: BTreeSet<MemberId>,
    /// Removed members and their classes, listed until the labels say that they are removed: their
    /// devices may not be taken away before.
    pub(crate) left: BTreeMap<MemberId, Class>,
    /// Members whose replacement is whole, and their old devices. Until the labels name the
    /// replacement both get all writes.
    pub(crate) switching: BTreeMap<MemberId, DeviceId>,
    /// Features that not every label names yet.
    pub(crate) turning_on: FeatureSet,
    /// Copies of labels that could not be written, or are wrong: members and areas, false for the
    /// first. The other copy is the only label of the device. It is overwritten for changes of the
    /// shape alone, and after another try to write this copy.
    pub(crate) unwritten: BTreeSet<(MemberId, bool)>,
    /// Writes of single copies in flight; no labels are written meanwhile.
    pub(crate) copying: usize,
    /// Groups of writes of the current step that have not ended.
    pub(crate) in_flight: usize,
    /// Commands to answer when no such features are left, and the features that each turned on.
    pub(crate) upgrading: Vec<(Tag, FeatureSet)>,
}

impl LabelState {
    /// Returns whether labels are being written, or will be.
    pub(crate) fn busy(&self) -> bool {
        self.wanted || self.step != LabelStep::Idle
    }

    /// Returns whether flushed data does not count as durable yet. INV-LABEL-1: no data counts as
    /// durable that is missing on a device which the labels still call whole; it counts once they
    /// no longer do. A new pool, whose roots have no number yet, has promised nothing.
    pub(crate) fn holds_flushes(&self, generation: u64) -> bool {
        self.busy() && generation > 0
    }
}

impl Store {
    /// Requests labels of the changed shape, and answers `tag` when they are durable.
    pub(crate) fn relabel(&mut self, tag: Option<Tag>) {
        self.config.shape.generation += 1;
        self.labels.wanted = true;
        self.labels.waiting.extend(tag);
    }

    /// Turns on every feature that this program has and the pool lacks; with the answer to `tag`,
    /// which has those that it turned on, all are in force. INV-LABEL-3: a feature is in force once
    /// both labels of every device in use name it, so nothing that older programs do not know is on
    /// devices whose labels do not say so. The commit point is the first write of a label with the
    /// feature: an import that finds one writes the others again before the feature is in force.
    pub(crate) fn turn_features_on(&mut self, tag: Tag) {
        let known = self.tuning.features;
        let lacking = FeatureSet::of(known.iter().filter(|feature| !feature.automatic)).without(self.config.features);
        if lacking.is_empty() && self.labels.turning_on.is_empty() {
            self.replies.push_back((tag, Ok(Reply::TurnedOn(lacking))));
            return;
        }
        // labels that are being written have one set of features
        if !lacking.is_empty() && self.labels.busy() {
            self.replies.push_back((tag, Err(CommandError::Busy(Busy::Relabeling))));
            return;
        }
        // that would overwrite the only label of a device, and the features would not be in force
        if let Some((member, _)) = self.labels.unwritten.first().filter(|_| !self.labels.busy()) {
            self.replies.push_back((tag, Err(CommandError::Busy(Busy::LabelUnwritten(*member)))));
            return;
        }
        if lacking.has(&ENCRYPTION) && !self.keys.is_laid() {
            // the space of the table may have old bytes: it is empty before a label says that it is there
            return self.keys.lay(Some(tag));
        }
        self.config.features = self.config.features.with(lacking);
        let on = self.config.features;
        self.config.feature_names = FeatureNames::of(known.iter().filter(|feature| on.has(feature)));
        self.labels.turning_on = self.labels.turning_on.with(lacking);
        self.labels.upgrading.push((tag, lacking));
        if !self.labels.busy() {
            self.relabel(None);
        }
    }

    /// Notes that a copy of the label of a member, in the second area if true, could not be written, as
    /// an error of its device.
    pub(crate) fn label_copy_failed(&mut self, member: MemberId, second: bool) {
        self.labels.unwritten.insert((member, second));
        let counts = [self.io.errors.get_mut(member.index()), self.io.failures.get_mut(member.index())];
        counts.into_iter().flatten().for_each(|count| *count += 1);
    }

    /// Puts features in force once every label names them, and answers the commands that wait for
    /// that. To be called when the labels of all devices in use are durable, except for the copies
    /// that could not be written (INV-LABEL-3).
    pub(crate) fn labels_durable(&mut self) {
        let in_use = |member: MemberId| {
            self.config.shape.member(member).is_some_and(|m| matches!(m.state, MemberState::Present | MemberState::Filling))
        };
        // labels of a device that takes the place of another one were written with all others
        let switching = &self.labels.switching;
        self.labels.unwritten.retain(|(member, _)| in_use(*member) && !switching.contains_key(member));
        let Some((member, _)) = self.labels.unwritten.first().copied() else {
            self.labels.turning_on = FeatureSet::default();
            return;
        };
        self.labels.turning_on = self.config.features;
        let upgrades = std::mem::take(&mut self.labels.upgrading);
        self.replies.extend(upgrades.into_iter().map(|(tag, _)| (tag, Err(CommandError::Busy(Busy::LabelUnwritten(member))))));
    }

    /// Returns the features that the newest label names, in force or not, without `cache` and `spare`.
    /// Reading goes by these: content of a feature that was in force stays when an
    /// import writes labels again, and the feature is out of force until they are written.
    pub(crate) fn features_named(&self) -> FeatureSet {
        self.config.features
    }

    /// Returns the features in force, without `cache` and `spare`: those that may be used for what is
    /// written.
    pub(crate) fn features_in_force(&self) -> FeatureSet {
        self.config.features.without(self.labels.turning_on)
    }

    /// Returns the label of a member, or of its replacement device.
    pub(crate) fn label(&self, member: MemberId, replacement: Option<DeviceId>) -> Label {
        let shape = &self.config.shape;
        let own = shape.member(member).map_or(DeviceId(0), |m| m.device);
        let (pool, name, device) = (self.config.id, self.config.name.clone(), replacement.unwrap_or(own));
        let (features, feature_names) = (self.config.features, self.config.feature_names);
        let label = Label { pool, name, device, member, features, feature_names, shape: shape.clone(), notes: Vec::new() };
        label.with_notes(&self.config.notes)
    }

    pub(crate) fn label_sector(&mut self, member: MemberId, replacement: Option<DeviceId>) -> BufSlice {
        let label = self.label(member, replacement).encode();
        let mut buf = self.bufs.take(SECTOR_BYTES);
        if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
            to.copy_from_slice(&label);
        }
        BufSlice::new(buf, 0..SECTOR_BYTES)
    }

    /// Puts replacements into their members' places, once the labels say so.
    pub(crate) fn switch(&mut self) {
        for member in std::mem::take(&mut self.labels.switching).into_keys() {
            let at = member.index();
            let (Some(slot), Some(size)) = (self.io.replacement(member), self.config.replacements.remove(&member)) else { continue };
            if let Some(place) = self.config.sizes.get_mut(at) {
                *place = size;
            }
            self.io.set_slot(member, Some(slot));
            self.judge_member(member);
            self.io.set_replacement(member, None);
            self.io.health.set(member, MemberState::Present);
        }
    }

    /// Size of a device of a member in bytes.
    pub(crate) fn size_of(&self, member: MemberId, replica: Replica) -> u64 {
        match replica {
            Replica::Current => self.config.size_of(member),
            Replica::Replacement => self.config.replacements.get(&member).copied().unwrap_or(0),
        }
    }
}
