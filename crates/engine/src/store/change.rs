//! Checks of commands that change the devices of a pool.

use millpond_block::{DeviceGeometry, MemberId};
use millpond_format::{MAX_DEVICES, Member, MemberState, Shape};

use super::Store;
use super::shape::{add_groups, check_layouts, extent_space, new_members, take_more};
use crate::{Absent, Busy, CommandError, DeviceChange, GroupSpec, Invalid};

impl Store {
    /// Checks whether devices could be changed as described, by the checks of the real commands.
    pub(crate) fn check_change(&self, change: &DeviceChange) -> Result<(), CommandError> {
        // the real command stops a running rejoin first
        self.check_no_change(self.evacuation.is_some() && !self.is_rejoining())?;
        match change {
            DeviceChange::Add { groups, devices } => self.plan_groups(groups, devices).map(drop),
            DeviceChange::Replace { member, device } if self.config.shape.is_auxiliary(*member) => self.aside_extents(device).map(drop),
            DeviceChange::Replace { member, device } => self.check_replacement(*member, device),
        }
    }

    /// Checks that no other change is in progress: a removal has planned the shape that it leaves,
    /// and labels have one shape until they are durable.
    pub(crate) fn check_unchanging(&self) -> Result<(), CommandError> {
        self.check_no_change(self.evacuation.is_some())
    }

    fn check_no_change(&self, moving: bool) -> Result<(), CommandError> {
        if moving || self.member_leaving().is_some() {
            return Err(CommandError::Busy(Busy::Removing));
        }
        if self.labels.busy() {
            return Err(CommandError::Busy(Busy::Relabeling));
        }
        Ok(())
    }

    /// Returns the shape with groups of new devices.
    pub(crate) fn plan_groups(&self, specs: &[GroupSpec], devices: &[DeviceGeometry]) -> Result<Shape, CommandError> {
        let mut shape = self.config.shape.clone();
        shape.generation += 1;
        let first = shape.members.len();
        let members = new_members(&shape, devices, self.tuning.holder.as_ref())?;
        shape.members.extend(members);
        let groups = take_more(specs, devices.len())?.into_iter();
        let groups = groups.map(|(spec, range)| (spec, range.start + first..range.end + first)).collect();
        let groups = check_layouts(&shape, groups)?;
        if shape.members.len() > MAX_DEVICES {
            return refuse(Invalid::LabelFullOfGroups);
        }
        add_groups(&mut shape, &groups);
        if !shape.fits() {
            return refuse(Invalid::LabelFullOfGroups);
        }
        shape.generation -= 1;
        Ok(shape)
    }

    /// Checks whether a device can replace a member that holds data.
    pub(crate) fn check_replacement(&self, member: MemberId, device: &DeviceGeometry) -> Result<(), CommandError> {
        let extent_bytes = self.config.shape.extent_bytes;
        let known = self.config.shape.member(member).filter(|m| m.state != MemberState::Gone);
        let Some(known) = known else { return Err(CommandError::NotFound(Absent::Member(member))) };
        if known.replacement.is_some() {
            return Err(CommandError::Busy(Busy::Replacing));
        }
        if extent_space(device.size) / extent_bytes < u64::from(known.extents) {
            let least = u64::from(known.extents) * extent_bytes + 2 * millpond_format::AREA_BYTES;
            return refuse(Invalid::ReplacementTooSmall(least));
        }
        Ok(())
    }

    /// Returns the number of extents of a cache device or a spare.
    pub(crate) fn aside_extents(&self, device: &DeviceGeometry) -> Result<u32, CommandError> {
        let extents = u32::try_from(extent_space(device.size) / self.config.shape.extent_bytes).unwrap_or(u32::MAX);
        if extents == 0 {
            return refuse(Invalid::AuxiliaryTooSmall);
        }
        Ok(extents)
    }

    /// Returns the smallest spare that has room for a member's extents.
    pub(crate) fn spare_for(&self, member: MemberId) -> Option<MemberId> {
        let shape = &self.config.shape;
        let needed = shape.member(member)?.extents;
        let room = |at: MemberId| extent_space(self.config.size_of(at)) / shape.extent_bytes;
        let fits = |(at, m): &(MemberId, &Member)| {
            let there = m.state == MemberState::Present && self.io.health.is_up(*at) && shape.is_spare(*at);
            there && room(*at) >= u64::from(needed)
        };
        shape.numbered().filter(fits).map(|(at, _)| at).min_by_key(|at| room(*at))
    }
}

pub(crate) fn refuse<T>(why: Invalid) -> Result<T, CommandError> {
    Err(CommandError::Invalid(why))
}
