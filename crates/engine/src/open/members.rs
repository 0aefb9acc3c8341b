//! Assigns devices to members by their labels, and decides whether the pool can do without missing
//! ones.

use std::collections::BTreeSet;

use millpond_block::{DeviceSlot, MemberId};
use millpond_format::{Class, Label, MemberState, Shape};

use crate::io::Health;
use crate::{Missing, NewestLabel, OpenErrorKind, Planted, Unlabelled};

/// The members of a pool that were found.
#[derive(Debug)]
pub(crate) struct Members {
    /// The valid label.
    pub(crate) newest: Label,
    /// Slot of each member's device; `None` when it is missing.
    pub(crate) slots: Vec<Option<DeviceSlot>>,
    /// Members with a replacement, and the slots of the replacement devices.
    pub(crate) replacements: Vec<(MemberId, DeviceSlot)>,
    /// Members that are present again after the pool did without them.
    pub(crate) stale: Vec<MemberId>,
    /// Special members that are given up for good, together with data that is only there.
    pub(crate) lost: BTreeSet<MemberId>,
    /// Planted bug: devices that were written to separately are joined.
    joins: bool,
}

/// Returns whether a label is that of a cache device.
fn is_cache(label: &Label) -> bool {
    label.shape.is_cache(label.member)
}

impl Members {
    /// Assigns devices to members. `unlabelled`: why a device has no label, by position.
    ///
    /// # Errors
    /// A device has no label, belongs to another pool, is given twice, or was removed; a
    /// member is missing and needed, or is missing for the first time, unless `degraded`. With
    /// `rebuild`, special devices are not needed; cache devices and spares never are. A device with
    /// a label of another program is refused in any case.
    pub(super) fn choose(
        labels: &[Option<Label>],
        unlabelled: &[Unlabelled],
        (degraded, rebuild): (bool, bool),
        planted: Option<Planted>,
    ) -> Result<Members, OpenErrorKind> {
        let why = |slot: DeviceSlot| unlabelled.get(slot.index()).copied().unwrap_or_default();
        let refused = |slot: DeviceSlot| OpenErrorKind::NoLabel { device: slot, why: why(slot) };
        let mut bare: Vec<DeviceSlot> = by_slot(labels).filter(|(_, label)| label.is_none()).map(|(slot, _)| slot).collect();
        // the label of another program may be newer than all others
        if let Some(slot) = bare.iter().find(|slot| matches!(why(**slot), Unlabelled::OtherProgram(_))) {
            return Err(refused(*slot));
        }
        let mut reference: Option<&Label> = None;
        let mut newest: Option<&Label> = None;
        for (slot, label) in by_slot(labels) {
            let Some(label) = label else { continue };
            let reference = reference.get_or_insert(label);
            if reference.pool != label.pool {
                return Err(OpenErrorKind::OtherPool {
                    device: slot,
                    pool: label.name.clone(),
                    id: label.pool,
                    wanted: reference.name.clone(),
                    wanted_id: reference.pool,
                });
            }
            // the label of a cache device never decides: it may have been missing unnoticed; that
            // of a spare only if no other one has the generation
            let order = |label: &Label| (label.shape.generation, !label.shape.is_auxiliary(label.member));
            if !is_cache(label) && newest.is_none_or(|newest| order(newest) < order(label)) {
                newest = Some(label);
            }
        }
        // a readable device without a label is less likely to be a member than a dead one
        bare.sort_by_key(|slot| matches!(why(*slot), Unlabelled::Unreadable(_) | Unlabelled::Silent));
        let Some(newest) = newest.cloned() else {
            return Err(bare.first().map_or(OpenErrorKind::OnlyCache, |slot| refused(*slot)));
        };
        bare.retain(|slot| why(*slot) != Unlabelled::Silent);
        let slots = vec![None; newest.shape.members.len()];
        let joins = cfg!(feature = "planted") && planted == Some(Planted::JoinApart);
        let mut found = Members { slots, replacements: Vec::new(), stale: Vec::new(), lost: BTreeSet::new(), joins, newest };
        for (slot, label) in by_slot(labels) {
            label.iter().try_for_each(|label| found.place(slot, label))?;
        }
        // devices without a label may be missing cache devices or spares, up to their number
        if let Some(slot) = bare.first().filter(|_| bare.len() > found.missing_asides()) {
            return Err(refused(*slot));
        }
        found.check_missing(degraded, rebuild)?;
        Ok(found)
    }

    /// Checks that the newest label is as new as the caller expects, and on a device that the
    /// caller trusts.
    ///
    /// # Errors
    /// When it is not: a device with the expected label could not be read.
    pub(super) fn check_newest(&self, labels: &[Option<Label>], expected: &NewestLabel) -> Result<(), OpenErrorKind> {
        let generation = self.newest.shape.generation;
        let mut newest = labels.iter().flatten().filter(|label| !is_cache(label) && label.shape.generation == generation);
        if generation >= expected.generation && newest.any(|label| expected.devices.contains(&label.device)) {
            return Ok(());
        }
        Err(OpenErrorKind::LabelsOlder { pool: self.newest.name.clone() })
    }

    fn missing_asides(&self) -> usize {
        let shape = &self.newest.shape;
        shape.ids().filter(|member| shape.is_auxiliary(*member) && self.is_missing(*member)).count()
    }

    fn place(&mut self, slot: DeviceSlot, label: &Label) -> Result<(), OpenErrorKind> {
        let (shape, member) = (&self.newest.shape, label.member_in(&self.newest.shape));
        if is_cache(label) {
            // a cache device that is no longer in use is ignored
            let known = shape.member(member).filter(|m| m.device == label.device && shape.is_cache(member));
            if let (Some(_), Some(place @ &mut None)) = (known, self.slots.get_mut(member.index())) {
                *place = Some(slot);
            }
            return Ok(());
        }
        let parted = shape.parted_from(&label.shape, member) && !self.joins;
        // each change of the features has a generation of its own, too
        let differs = label.shape != *shape || label.features != self.newest.features;
        let contradicts = label.shape.generation == shape.generation && differs && !self.joins;
        if (parted || contradicts) && shape.is_auxiliary(member) && shape.member(member).is_some_and(|m| m.device == label.device) {
            // a spare has no data that is needed: it counts as missing
            return Ok(());
        }
        if contradicts {
            return Err(OpenErrorKind::Contradicts { device: slot });
        }
        let known = shape.member(member).filter(|m| m.state != MemberState::Gone);
        let removed = || OpenErrorKind::Removed { device: slot, pool: self.newest.name.clone() };
        let known = known.ok_or_else(removed)?;
        if known.replacement == Some(label.device) {
            self.replacements.push((member, slot));
            return Ok(());
        }
        if known.device != label.device {
            return Err(removed());
        }
        if parted {
            return Err(OpenErrorKind::WrittenApart { device: slot });
        }
        match self.slots.get_mut(member.index()) {
            Some(place @ &mut None) => *place = Some(slot),
            _ => return Err(OpenErrorKind::Duplicate { device: slot }),
        }
        if known.state != MemberState::Present && !shape.is_auxiliary(member) {
            self.stale.push(member);
        }
        Ok(())
    }

    /// Returns whether no device is this member.
    pub(super) fn is_missing(&self, member: MemberId) -> bool {
        self.slots.get(member.index()).is_none_or(Option::is_none)
    }

    fn check_missing(&mut self, degraded: bool, rebuild: bool) -> Result<(), OpenErrorKind> {
        let shape = &self.newest.shape;
        let gone = shape.numbered().filter(|(member, m)| self.is_missing(*member) && m.state != MemberState::Gone);
        let needed = gone.filter(|(member, _)| !shape.is_auxiliary(*member));
        let missing: Vec<(MemberId, bool)> = needed.map(|(member, m)| (member, m.state == MemberState::Down)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let lacking = |need: Missing| OpenErrorKind::MemberMissing {
            pool: self.newest.name.clone(),
            members: missing.iter().map(|(member, _)| *member).collect(),
            of: shape.members.len(),
            need,
        };
        let mut health = Health::of(shape);
        self.stale.iter().for_each(|member| health.set(*member, MemberState::Filling));
        missing.iter().for_each(|(member, _)| health.set(*member, MemberState::Down));
        let needed = missing.iter().filter(|(member, _)| !health.can_spare(*member)).map(|(member, _)| *member);
        let needed: BTreeSet<MemberId> = needed.collect();
        if !needed.is_empty() {
            if !needed.iter().all(|member| is_special(shape, *member)) {
                return Err(lacking(Missing::Needed));
            }
            if !rebuild {
                return Err(lacking(Missing::Special));
            }
            self.lost = needed;
            return Ok(());
        }
        if !degraded && !rebuild && missing.iter().any(|(_, known)| !known) {
            return Err(lacking(Missing::Redundant));
        }
        Ok(())
    }
}

fn by_slot(labels: &[Option<Label>]) -> impl Iterator<Item = (DeviceSlot, &Option<Label>)> {
    (0u16..).map(DeviceSlot).zip(labels)
}

/// Returns whether a member is only in special groups.
fn is_special(shape: &Shape, member: MemberId) -> bool {
    let mut groups = shape.groups.iter().filter(|group| group.columns.iter().any(|column| column.member == member)).peekable();
    groups.peek().is_some() && groups.all(|group| group.class == Class::Special)
}
