//! Commands about devices: adding, replacing and removing them.

use millpond_block::{MemberId, Tag};
use millpond_format::{Class, DeviceId, MemberState};

use super::requests::Requests;
use super::state::Pool;
use crate::io::{Health, Replica};
use crate::store::{Store, device_id};
use crate::task::{begin_removal, rehearse_removal};
use crate::{CommandError, DeviceCommand, GroupSpec, NewDevice, Reply};

impl Requests {
    /// Replaces a cache device, which begins empty, or a spare.
    fn replace_aside(&mut self, store: &mut Store, member: MemberId, device: NewDevice) -> Result<(), CommandError> {
        let at = member.index();
        let extents = store.aside_extents(&device.geometry)?;
        let shape = &mut store.config.shape;
        let id = device_id(shape.generation + 1, at, store.tuning.holder.as_ref());
        let columns = shape.groups.iter_mut().flat_map(|group| &mut group.columns);
        columns.filter(|column| column.member == member).for_each(|column| column.extents = extents);
        if let Some(known) = shape.members.get_mut(at) {
            (known.device, known.extents, known.state) = (id, extents, MemberState::Present);
        }
        if let Some(size) = store.config.sizes.get_mut(at) {
            *size = device.geometry.size;
        }
        self.cache.detach(member, &mut store.bufs);
        store.io.slot_of(member).into_iter().for_each(|slot| store.io.abandon(slot));
        store.io.set_slot(member, Some(device.slot));
        store.io.health.set(member, MemberState::Present);
        store.labels.fresh.insert(member);
        Ok(())
    }
}

impl Pool {
    /// Starts a command about devices.
    pub(super) fn device_command(&mut self, tag: Tag, command: DeviceCommand) {
        match command {
            DeviceCommand::AddDevices { groups, devices } => self.change_devices(tag, |pool| pool.add_groups(&groups, &devices)),
            DeviceCommand::Replace { member, device } => self.change_devices(tag, |pool| pool.replace(member, device)),
            DeviceCommand::CheckDevices(change) => {
                let checked = self.store.check_change(&change).map(|()| Reply::Done);
                self.store.replies.push_back((tag, checked));
            }
            DeviceCommand::Remove { member, dry_run: true } => {
                let plan = rehearse_removal(&self.store, &self.resilver, member).map(Reply::Removal);
                self.store.replies.push_back((tag, plan));
            }
            DeviceCommand::Remove { member, dry_run: false } => self.change_devices(tag, |pool| pool.remove_member(member)),
            DeviceCommand::TurnFeaturesOn => self.store.turn_features_on(tag),
            DeviceCommand::StopRemoving => self.change_devices(tag, |pool| pool.store.stop_removing()),
        }
    }

    /// Executes a command about devices; its reply is sent when the labels contain the change.
    fn change_devices(&mut self, tag: Tag, change: impl FnOnce(&mut Pool) -> Result<(), CommandError>) {
        match change(self) {
            Ok(()) => self.store.relabel(Some(tag)),
            Err(error) => self.store.replies.push_back((tag, Err(error))),
        }
    }

    /// Adds groups of new devices. Their space is used once every label lists them.
    fn add_groups(&mut self, specs: &[GroupSpec], devices: &[NewDevice]) -> Result<(), CommandError> {
        self.rejoiner.put_off_rejoin(&mut self.store);
        self.store.check_unchanging()?;
        let geometries: Vec<_> = devices.iter().map(|d| d.geometry).collect();
        let first = self.store.config.shape.members.len();
        let shape = self.store.plan_groups(specs, &geometries)?;
        self.store.config.sizes.extend(geometries.iter().map(|g| g.size));
        self.store.io.add_members(devices.iter().map(|d| d.slot), Health::of(&shape));
        self.store.labels.fresh.extend(shape.ids().skip(first));
        self.store.config.shape = shape;
        Ok(())
    }

    /// Replaces a member's device: the data that the member holds, or should hold, is copied to the
    /// new one.
    fn replace(&mut self, member: MemberId, device: NewDevice) -> Result<(), CommandError> {
        self.rejoiner.put_off_rejoin(&mut self.store);
        self.store.check_unchanging()?;
        let at = member.index();
        if self.store.config.shape.is_auxiliary(member) {
            return self.requests.replace_aside(&mut self.store, member, device);
        }
        self.store.check_replacement(member, &device.geometry)?;
        let id: DeviceId = device_id(self.store.config.shape.generation + 1, at, self.store.tuning.holder.as_ref());
        let Some(known) = self.store.config.shape.members.get_mut(at) else { return Ok(()) };
        if known.state == MemberState::Present {
            known.replacement = Some(id);
            self.store.config.replacements.insert(member, device.geometry.size);
            self.store.io.set_replacement(member, Some(device.slot));
            self.resilver.fill(member, Replica::Replacement);
        } else {
            self.resilver.stop_filling(&mut self.store, member, Replica::Current);
            // INV-SPARE-1: no operation waits for the device that is replaced, and none of its
            // answers counts for the new one
            self.store.io.slot_of(member).into_iter().for_each(|slot| self.store.io.abandon(slot));
            let Some(known) = self.store.config.shape.members.get_mut(at) else { return Ok(()) };
            (known.device, known.state) = (id, MemberState::Filling);
            if let Some(size) = self.store.config.sizes.get_mut(at) {
                *size = device.geometry.size;
            }
            self.store.io.set_slot(member, Some(device.slot));
            self.store.judge_member(member);
            self.store.io.health.set(member, MemberState::Filling);
            self.resilver.fill(member, Replica::Current);
        }
        Ok(())
    }

    /// Begins to remove a member. The caller must have the labels written.
    fn remove_member(&mut self, member: MemberId) -> Result<(), CommandError> {
        if self.store.config.shape.is_auxiliary(member) {
            return self.remove_aside(member);
        }
        begin_removal(&mut self.store, &mut self.rejoiner, &self.resilver, member)
    }

    /// Removes a cache device or a spare, which has no data to move.
    fn remove_aside(&mut self, member: MemberId) -> Result<(), CommandError> {
        self.rejoiner.put_off_rejoin(&mut self.store);
        self.store.check_unchanging()?;
        self.requests.cache.detach(member, &mut self.store.bufs);
        let class = self.store.config.shape.class_of(member).unwrap_or(Class::Data);
        self.store.labels.left.insert(member, class);
        self.store.config.shape.drop_auxiliary(member);
        self.store.io.health.set(member, MemberState::Gone);
        Ok(())
    }
}
