//! Which device is which member of the pool, by their labels, and whether the pool can do without those that are missing.

use std::collections::BTreeSet;

use millpond_format::{Class, Label, MemberState, Shape};

use crate::io::Health;
use crate::{NewestLabel, Planted};

/// "No device" in a table of positions.
pub(crate) const NOWHERE: u16 = u16::MAX;

/// The members of a pool that were found.
#[derive(Debug)]
pub(crate) struct Members {
    /// The label that holds.
    pub(crate) newest: Label,
    /// Position of each member in the caller's vector; [`NOWHERE`] when it is missing.
    pub(crate) positions: Vec<u16>,
    /// Members and the positions of devices that are taking their places.
    pub(crate) twins: Vec<(u16, u16)>,
    /// Members that are there again after the pool did without them.
    pub(crate) stale: Vec<u16>,
    /// Special ones that are given up for good, and with them what was there alone.
    pub(crate) lost: BTreeSet<u16>,
    /// Devices that were written to apart from the others are taken, too: a bug that tests plant.
    joins: bool,
}

/// Why a device has no label that can be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct NoLabel {
    /// In words, after the name of the device.
    pub(crate) why: String,
    /// It could not be read.
    pub(crate) dead: bool,
    /// It did not answer, and is as good as not there.
    pub(crate) silent: bool,
}

/// Is a label that of a device of the cache?
fn is_cache(label: &Label) -> bool {
    label.shape.is_cache(label.member)
}

impl Members {
    /// Puts devices in their places. `unlabelled`: why a device has no label, by position.
    ///
    /// # Errors
    /// One line: a device without a label or of another pool, given twice, or removed; a member that is missing and needed, or that
    /// is missing and was not before, unless `degraded`. With `rebuild`, special devices are needed no more; those of the cache and spares never are.
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
            // what a cache says of the pool never counts: it may have been away, and nobody missed it; of a spare, when others say something else
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
        // one that can be read and has none is rather not of the pool than one that is dead
        bare.sort_by_key(|position| unlabelled.get(*position).is_some_and(|no_label| no_label.dead));
        let Some(newest) = newest.cloned() else {
            let why = "only devices of the pool's cache were given; name the others too".to_owned();
            return Err(bare.first().map_or(why, |position| told(*position)));
        };
        bare.retain(|position| unlabelled.get(*position).is_none_or(|no_label| !no_label.silent));
        let positions = vec![NOWHERE; newest.shape.members.len()];
        let joins = cfg!(feature = "planted") && planted == Some(Planted::JoinApart);
        let mut found = Members { positions, twins: Vec::new(), stale: Vec::new(), lost: BTreeSet::new(), joins, newest };
        for (position, label) in (0u16..).zip(labels) {
            label.iter().try_for_each(|label| found.place(position, label))?;
        }
        // as many as devices are missing that nobody needs may be those
        if let Some(position) = bare.first().filter(|_| bare.len() > found.missing_asides()) {
            return Err(told(*position));
        }
        found.check_missing(degraded, rebuild)?;
        Ok(found)
    }

    /// Is the newest label as new as the caller knows that there is one, and on a device that the caller trusts?
    ///
    /// # Errors
    /// One line, when it is not: a device that has it could not be read.
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

    fn place(&mut self, position: u16, label: &Label) -> Result<(), String> {
        let (shape, at) = (&self.newest.shape, label.member_in(&self.newest.shape));
        let member = usize::from(at);
        if is_cache(label) {
            // one that is not in use any more is left alone
            let known = shape.members.get(member).filter(|m| m.device == label.device && shape.is_cache(at));
            if let (Some(_), Some(place @ &mut NOWHERE)) = (known, self.positions.get_mut(member)) {
                *place = position;
            }
            return Ok(());
        }
        let parted = shape.parted_from(&label.shape, member) && !self.joins;
        let contradicts = label.shape.generation == shape.generation && label.shape != *shape && !self.joins;
        if (parted || contradicts) && shape.is_aside(at) && shape.members.get(member).is_some_and(|m| m.device == label.device) {
            // a spare has nothing that anybody needs: it is missing
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
        match self.positions.get_mut(member) {
            Some(place) if *place == NOWHERE => *place = position,
            _ => return Err(format!("device {position} is given twice, or is a copy of another")),
        }
        if known.state != MemberState::Present && !shape.is_aside(at) {
            self.stale.push(at);
        }
        Ok(())
    }

    /// True when no device is this member.
    pub(crate) fn is_missing(&self, member: usize) -> bool {
        self.positions.get(member).is_none_or(|position| *position == NOWHERE)
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
        self.stale.iter().for_each(|member| health.set(*member, MemberState::Filling));
        missing.iter().for_each(|(member, _)| health.set(*member, MemberState::Down));
        let needed = missing.iter().filter(|(member, _)| !health.can_spare(*member)).map(|(member, _)| *member);
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

/// Is a device in groups of special ones alone?
fn is_special(shape: &Shape, member: u16) -> bool {
    let mut groups = shape.groups.iter().filter(|group| group.columns.iter().any(|column| column.member == member)).peekable();
    groups.peek().is_some() && groups.all(|group| group.class == Class::Special)
}
