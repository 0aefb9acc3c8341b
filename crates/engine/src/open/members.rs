//! Assigns devices to members by their labels, and decides whether the pool can do without missing
//! ones.

use std::collections::BTreeSet;

use millpond_block::{DeviceSlot, MemberId};
use millpond_format::{Class, Label, MemberState, Shape};

use crate::io::Health;
use crate::{NewestLabel, Planted};

/// The members of a pool that were found.
#[derive(Debug)]
pub(crate) struct Members {
    /// The valid label.
    pub(crate) newest: Label,
    /// Slot of each member's device; `None` when it is missing.
    pub(crate) slots: Vec<Option<DeviceSlot>>,
    /// Members with a replacement, and the slots of the replacement devices.
    pub(crate) twins: Vec<(u16, DeviceSlot)>,
    /// Members that are present again after the pool did without them.
    pub(crate) stale: Vec<u16>,
    /// Special members that are given up for good, together with data that is only there.
    pub(crate) lost: BTreeSet<u16>,
    /// Planted bug: devices that were written to separately are joined.
    joins: bool,
}

/// The reason why a device has no usable label.
#[derive(Clone, Debug, Default)]
pub(crate) struct NoLabel {
    /// Text for messages, after the name of the device.
    pub(crate) why: String,
    /// It could not be read.
    pub(crate) dead: bool,
    /// It did not answer, and is treated as missing.
    pub(crate) silent: bool,
}

/// Returns whether a label is that of a cache device.
fn is_cache(label: &Label) -> bool {
    label.shape.is_cache(label.member)
}

impl Members {
    /// Assigns devices to members. `unlabelled`: why a device has no label, by position.
    ///
    /// # Errors
    /// One line: a device has no label, belongs to another pool, is given twice, or was removed; a
    /// member is missing and needed, or is missing for the first time, unless `degraded`. With
    /// `rebuild`, special devices are not needed; cache devices and spares never are.
    pub(crate) fn choose(
        labels: &[Option<Label>],
        unlabelled: &[NoLabel],
        (degraded, rebuild): (bool, bool),
        planted: Option<Planted>,
    ) -> Result<Members, String> {
        let mut reference: Option<&Label> = None;
        let mut newest: Option<&Label> = None;
        for (position, label) in labels.iter().enumerate() {
            let Some(label) = label else { continue };
            let reference = reference.get_or_insert(label);
            if reference.pool != label.pool {
                return Err(format!(
                    "device {position} belongs to pool '{}' ({}), not to '{}' ({})",
                    label.name, label.pool, reference.name, reference.pool
                ));
            }
            // the label of a cache device never decides: it may have been missing unnoticed; that
            // of a spare only if no other one has the generation
            let order = |label: &Label| (label.shape.generation, !label.shape.is_aside(label.member));
            if !is_cache(label) && newest.is_none_or(|newest| order(newest) < order(label)) {
                newest = Some(label);
            }
        }
        let told = |position: usize| {
            let why = unlabelled.get(position).map_or("", |no_label| no_label.why.as_str());
            let why = if why.is_empty() { "is too small to hold a pool; leave it out or name the right device" } else { why };
            format!("device {position} {why}")
        };
        let mut bare: Vec<usize> = labels.iter().enumerate().filter(|(_, label)| label.is_none()).map(|(position, _)| position).collect();
        // a readable device without a label is less likely to be a member than a dead one
        bare.sort_by_key(|position| unlabelled.get(*position).is_some_and(|no_label| no_label.dead));
        let Some(newest) = newest.cloned() else {
            let why = "only devices of the pool's cache were given; name the others too".to_owned();
            return Err(bare.first().map_or(why, |position| told(*position)));
        };
        bare.retain(|position| unlabelled.get(*position).is_none_or(|no_label| !no_label.silent));
        let slots = vec![None; newest.shape.members.len()];
        let joins = cfg!(feature = "planted") && planted == Some(Planted::JoinApart);
        let mut found = Members { slots, twins: Vec::new(), stale: Vec::new(), lost: BTreeSet::new(), joins, newest };
        for (slot, label) in (0u16..).map(DeviceSlot).zip(labels) {
            label.iter().try_for_each(|label| found.place(slot, label))?;
        }
        // devices without a label may be missing cache devices or spares, up to their number
        if let Some(position) = bare.first().filter(|_| bare.len() > found.missing_asides()) {
            return Err(told(*position));
        }
        found.check_missing(degraded, rebuild)?;
        Ok(found)
    }

    /// Checks that the newest label is as new as the caller expects, and on a device that the
    /// caller trusts.
    ///
    /// # Errors
    /// One line, when it is not: a device with the expected label could not be read.
    pub(crate) fn check_newest(&self, labels: &[Option<Label>], expected: &NewestLabel) -> Result<(), String> {
        let generation = self.newest.shape.generation;
        let mut newest = labels.iter().flatten().filter(|label| !is_cache(label) && label.shape.generation == generation);
        if generation >= expected.generation && newest.any(|label| expected.devices.contains(&label.device)) {
            return Ok(());
        }
        Err(format!(
            "the newest labels of pool '{}' cannot be read any more, and the others are of an older state; check the devices and try again",
            self.newest.name
        ))
    }

    fn missing_asides(&self) -> usize {
        let shape = &self.newest.shape;
        (0u16..).take(shape.members.len()).filter(|member| shape.is_aside(*member) && self.is_missing(usize::from(*member))).count()
    }

    fn place(&mut self, position: DeviceSlot, label: &Label) -> Result<(), String> {
        let (shape, at) = (&self.newest.shape, label.member_in(&self.newest.shape));
        let member = usize::from(at);
        if is_cache(label) {
            // a cache device that is no longer in use is ignored
            let known = shape.members.get(member).filter(|m| m.device == label.device && shape.is_cache(at));
            if let (Some(_), Some(place @ &mut None)) = (known, self.slots.get_mut(member)) {
                *place = Some(position);
            }
            return Ok(());
        }
        let parted = shape.parted_from(&label.shape, member) && !self.joins;
        let contradicts = label.shape.generation == shape.generation && label.shape != *shape && !self.joins;
        if (parted || contradicts) && shape.is_aside(at) && shape.members.get(member).is_some_and(|m| m.device == label.device) {
            // a spare has no data that is needed: it counts as missing
            return Ok(());
        }
        if contradicts {
            return Err(format!(
                "the label of device {position} contradicts the others: it was written to without them; leave it out or leave them out"
            ));
        }
        let known = shape.members.get(member).filter(|m| m.state != MemberState::Gone);
        let removed = || format!("device {position} was removed from pool '{}'; leave it out", self.newest.name);
        let known = known.ok_or_else(removed)?;
        if known.successor == Some(label.device) {
            self.twins.push((at, position));
            return Ok(());
        }
        if known.device != label.device {
            return Err(removed());
        }
        if parted {
            return Err(format!(
                "device {position} was written to without the others, and they without it; leave it out, or leave them out"
            ));
        }
        match self.slots.get_mut(member) {
            Some(place @ &mut None) => *place = Some(position),
            _ => return Err(format!("device {position} is given twice, or is a copy of another")),
        }
        if known.state != MemberState::Present && !shape.is_aside(at) {
            self.stale.push(at);
        }
        Ok(())
    }

    /// Returns whether no device is this member.
    pub(crate) fn is_missing(&self, member: usize) -> bool {
        self.slots.get(member).is_none_or(Option::is_none)
    }

    fn check_missing(&mut self, degraded: bool, rebuild: bool) -> Result<(), String> {
        let shape = &self.newest.shape;
        let gone = (0u16..).zip(&shape.members).filter(|(member, m)| self.is_missing(usize::from(*member)) && m.state != MemberState::Gone);
        let needed = gone.filter(|(member, _)| !shape.is_aside(*member));
        let missing: Vec<(u16, bool)> = needed.map(|(member, m)| (member, m.state == MemberState::Down)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let told = missing.iter().map(|(member, _)| member.to_string()).collect::<Vec<_>>().join(", ");
        let (of, name) = (shape.members.len(), &self.newest.name);
        let mut health = Health::of(shape);
        self.stale.iter().for_each(|member| health.set(MemberId(*member), MemberState::Filling));
        missing.iter().for_each(|(member, _)| health.set(MemberId(*member), MemberState::Down));
        let needed = missing.iter().filter(|(member, _)| !health.can_spare(MemberId(*member))).map(|(member, _)| *member);
        let needed: BTreeSet<u16> = needed.collect();
        if !needed.is_empty() {
            if !needed.iter().all(|member| is_special(shape, *member)) {
                return Err(format!("member {told} of the {of} devices of pool '{name}' is missing; name it too"));
            }
            if !rebuild {
                return Err(format!(
                    "member {told} of the {of} devices of pool '{name}' is missing, a special one; name it too, or do without it for good \
                     with --rebuild, which says with -n what would be lost"
                ));
            }
            self.lost = needed;
            return Ok(());
        }
        if !degraded && !rebuild && missing.iter().any(|(_, known)| !known) {
            return Err(format!(
                "member {told} of the {of} devices of pool '{name}' is missing; name it too, or import without it with --degraded"
            ));
        }
        Ok(())
    }
}

/// Returns whether a member is only in special groups.
fn is_special(shape: &Shape, member: u16) -> bool {
    let mut groups = shape.groups.iter().filter(|group| group.columns.iter().any(|column| column.member == member)).peekable();
    groups.peek().is_some() && groups.all(|group| group.class == Class::Special)
}
