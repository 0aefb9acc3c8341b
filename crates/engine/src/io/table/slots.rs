//! Which device is which member: the one place where the numbers of members meet the slots of the
//! program that carries operations out.
//!
//! A member without a device has no slot. Nothing is sent for it: its operations end at once, as of
//! a device that is gone.

use millpond_block::{DeviceSlot, MemberId};

use super::IoTable;
use crate::DeviceCounters;
use crate::io::Health;

/// One of the devices that a member has while it is being replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replica {
    /// The device that is the member.
    Current,
    /// The one that takes its place once it has all data.
    Replacement,
}

impl<C> IoTable<C> {
    /// Slot of each member's device.
    pub(crate) fn slots(&self) -> &[Option<DeviceSlot>] {
        &self.slots
    }

    /// Slot of a member's device, if it has one.
    pub(crate) fn slot_of(&self, member: MemberId) -> Option<DeviceSlot> {
        self.slots.get(member.index()).copied().flatten()
    }

    /// Adds members with devices in these slots.
    pub(crate) fn add_members(&mut self, slots: impl IntoIterator<Item = DeviceSlot>, health: Health) {
        self.slots.extend(slots.into_iter().map(Some));
        let n = self.slots.len();
        self.replacements.resize(n, None);
        self.counters.resize(n, DeviceCounters::default());
        self.errors.resize(n, 0);
        self.failures.resize(n, 0);
        self.repaired.resize(n, 0);
        self.written.resize(n, 1);
        self.flushed.resize(n, 0);
        self.trouble.resize(n, None);
        self.health = health;
    }

    /// Sets the member's replacement: from now on, all writes to segments go to the device in
    /// `slot`, too. `None` ends that.
    pub(crate) fn set_replacement(&mut self, member: MemberId, slot: Option<DeviceSlot>) {
        if let Some(replacement) = self.replacements.get_mut(member.index()) {
            *replacement = slot;
        }
    }

    /// Makes the device in another slot, or none, the member: errors of the one before it, past and
    /// future, do not count for it (INV-SPARE-1).
    pub(crate) fn set_slot(&mut self, member: MemberId, slot: Option<DeviceSlot>) {
        let at = member.index();
        self.failures.get_mut(at).into_iter().for_each(|failures| *failures = 0);
        if let (Some(place), Some(errors), Some(repaired), Some(trouble), Some(written)) =
            (self.slots.get_mut(at), self.errors.get_mut(at), self.repaired.get_mut(at), self.trouble.get_mut(at), self.written.get_mut(at))
        {
            (*place, *errors, *repaired, *trouble) = (slot, 0, 0, None);
            // this table has not flushed the data that is on it already
            *written += 1;
        }
    }

    /// Slot of the member's replacement.
    pub(crate) fn replacement(&self, member: MemberId) -> Option<DeviceSlot> {
        self.replacements.get(member.index()).copied().flatten()
    }

    /// Slot of a device of a member, if the member has that device.
    pub(super) fn slot_for(&self, member: MemberId, replica: Replica) -> Option<DeviceSlot> {
        match replica {
            Replica::Current => self.slot_of(member),
            Replica::Replacement => self.replacement(member),
        }
    }

    /// True when a device of a member is in service.
    pub(super) fn is_usable(&self, member: MemberId, replica: Replica) -> bool {
        match replica {
            Replica::Current => self.health.is_up(member),
            Replica::Replacement => self.replacement(member).is_some(),
        }
    }

    /// All members, with and without a device.
    pub(super) fn members(&self) -> impl Iterator<Item = MemberId> {
        (0..self.slots.len()).map(MemberId::at)
    }

    /// Returns the member that the device in a slot belongs to, and which of its devices it is.
    pub(super) fn user(&self, slot: DeviceSlot) -> Option<(MemberId, Replica)> {
        let of = |place: &Option<DeviceSlot>| *place == Some(slot);
        let member = self.slots.iter().position(of).map(|at| (at, Replica::Current));
        let replacement = || self.replacements.iter().position(of).map(|at| (at, Replica::Replacement));
        let (at, replica) = member.or_else(replacement)?;
        Some((MemberId::at(at), replica))
    }
}
