//! The rings of roots: which root is valid, and whether falling back to it is legal.
//!
//! A root is written to the first area of every device, flushed, written to the second areas,
//! flushed; only then the next one begins (INV-RING-1: when the first write of root g starts, every
//! copy of g - 1 is durable; an import repairs copies of the newest that a crash damaged). A ring
//! begins as zeroes when its device joins the pool, at whatever root. So if power fails while root
//! g is written, slot g mod 128 is in one of two states: the first copies are old, torn or new, and
//! every second copy is old; or every first copy is new, and the second ones are old, torn or new.
//!
//! INV-RING-2: with n the newest readable root, root n + 1 is provably not committed when a first
//! copy of its slot is old (some device never got it) or every second copy is (the second writes
//! never began). Otherwise it was committed and is damaged. A slot of zeroes is old: whether its
//! device joined less than 128 roots ago cannot be read from the ring, and zeroes in place of a
//! root that was written are no fault that devices are known for.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{DeviceSlot, MemberId};
use millpond_format::{FormatError, ObjectRef, PoolId, RING_SLOTS, Root, SECTOR_BYTES};

use crate::OpenErrorKind;

/// The content of a slot of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Zeroes: never written since the device joined the pool.
    Blank,
    /// The root of this generation, in its proper slot.
    Root(u64),
    /// Anything else, or unreadable.
    Damaged,
}

/// The rings of all members.
pub(crate) struct Rings {
    pool: PoolId,
    /// By member: the slots of the first and of the second area.
    slots: Vec<[Vec<Slot>; 2]>,
    roots: BTreeMap<u64, Root>,
    /// Members whose rings do not count: missing and out-of-date ones.
    left_out: Vec<bool>,
    /// Newest generation and incarnation of roots that were replaced by [`Self::replace`].
    above: u64,
    incarnations: u32,
    /// A slot that a newer program wrote: member, slot, and why it cannot be used.
    newer: Option<(MemberId, usize, FormatError)>,
}

impl Rings {
    /// Creates rings that have not been read.
    pub(super) fn new(pool: PoolId, members: usize) -> Rings {
        let unread = || vec![Slot::Damaged; RING_SLOTS as usize];
        let slots = (0..members).map(|_| [unread(), unread()]).collect();
        Rings { pool, slots, roots: BTreeMap::new(), left_out: vec![false; members], above: 0, incarnations: 0, newer: None }
    }

    /// Excludes a member's ring.
    pub(super) fn leave_out(&mut self, member: MemberId) {
        if let Some(place) = self.left_out.get_mut(member.index()) {
            *place = true;
        }
    }

    /// Returns the rings that count, by member.
    fn counting(&self) -> impl Iterator<Item = (MemberId, &[Vec<Slot>; 2])> + Clone {
        (0..).map(MemberId).zip(&self.slots).zip(&self.left_out).filter(|(_, out)| !**out).map(|(ring, _)| ring)
    }

    /// Takes in a ring that was read from an area of a member.
    pub(super) fn take(&mut self, member: MemberId, second: bool, ring: &[u8]) {
        let Some(slots) = self.slots.get_mut(member.index()).and_then(|areas| areas.get_mut(usize::from(second))) else { return };
        for ((at, slot), sector) in slots.iter_mut().enumerate().zip(ring.chunks_exact(SECTOR_BYTES)) {
            *slot = match Root::decode(sector) {
                Ok(root) if root.pool == self.pool && root.generation % RING_SLOTS == at as u64 => {
                    let generation = root.generation;
                    self.roots.insert(generation, root);
                    Slot::Root(generation)
                }
                Err(why @ FormatError::Version(_)) => {
                    self.newer = Some((member, at, why));
                    Slot::Damaged
                }
                _ if sector.iter().all(|byte| *byte == 0) => Slot::Blank,
                _ => Slot::Damaged,
            };
        }
    }

    /// Checks that this program knows all roots.
    fn check_format(&self, slots: &[Option<DeviceSlot>]) -> Result<(), OpenErrorKind> {
        let Some((member, slot, error)) = self.newer else { return Ok(()) };
        Err(OpenErrorKind::NewerRoot { member, device: device(slots, member), slot, error })
    }

    /// Returns the newest root, if nothing newer was committed. `slots` names members' devices in
    /// errors.
    pub(super) fn newest(&self, slots: &[Option<DeviceSlot>]) -> Result<&Root, OpenErrorKind> {
        self.check_format(slots)?;
        let (generation, root) = self.roots.last_key_value().ok_or(OpenErrorKind::NoRoot)?;
        let next = generation.saturating_add(1);
        let as_before = |slot: Slot| is_as_before(slot, next);
        let mut copies = self.counting().map(|(member, [first, second])| (member, copy(first, next), copy(second, next)));
        let begun = copies.clone().all(|(_, first, _)| !as_before(first));
        if let Some((member, ..)) = copies.find(|(_, _, second)| !as_before(*second)).filter(|_| begun) {
            return Err(OpenErrorKind::RootDamaged { generation: next, member, device: device(slots, member), slot: next % RING_SLOTS });
        }
        Ok(root)
    }

    /// Returns all readable roots, the oldest first, with the number of copies of each. `slots`
    /// names members' devices in errors.
    ///
    /// # Errors
    /// A root of a newer program, or no root at all.
    pub(super) fn roots(&self, slots: &[Option<DeviceSlot>]) -> Result<Vec<(Root, u32)>, OpenErrorKind> {
        self.check_format(slots)?;
        if self.roots.is_empty() {
            return Err(OpenErrorKind::NoRoot);
        }
        let count = |generation: u64| {
            let all = self.counting().flat_map(|(_, areas)| areas.iter());
            u32::try_from(all.filter(|slots| copy(slots, generation) == Slot::Root(generation)).count()).unwrap_or(u32::MAX)
        };
        Ok(self.roots.values().map(|root| (root.clone(), count(root.generation))).collect())
    }

    /// Returns the root of a generation.
    pub(super) fn root(&self, generation: u64) -> Option<&Root> {
        self.roots.get(&generation)
    }

    /// Returns the newest readable root, whether it is valid or not.
    pub(super) fn last(&self) -> Option<&Root> {
        self.roots.last_key_value().map(|(_, root)| root)
    }

    /// Returns the oldest generation whose root names this checkpoint.
    pub(super) fn begun(&self, checkpoint: ObjectRef) -> Option<u64> {
        self.roots.values().find(|root| root.checkpoint == checkpoint).map(|root| root.generation)
    }

    /// Returns generations and times of all readable roots, the oldest first.
    pub(super) fn times(&self) -> VecDeque<(u64, u64)> {
        self.roots.values().map(|root| (root.generation, root.time)).collect()
    }

    /// Returns the highest incarnation of all roots.
    pub(super) fn incarnation(&self) -> u32 {
        self.roots.values().map(|root| root.incarnation).max().unwrap_or(0).max(self.incarnations)
    }

    /// Replaces the roots by those that a scan found, because the rings are of no use.
    pub(super) fn replace(&mut self, roots: BTreeMap<u64, Root>) {
        self.newer = None;
        // a ring may still have later roots than these; no generation is used twice
        let above = self.roots.last_key_value().map_or(0, |(generation, _)| *generation);
        self.above = above.max(self.above);
        self.incarnations = self.incarnation();
        self.roots = roots;
    }

    /// Returns a generation for a root that is newer than all others, including damaged ones, and
    /// is valid as soon as it is written: the slot after its own is old.
    pub(super) fn superseding(&self) -> u64 {
        let newest = self.roots.last_key_value().map_or(0, |(generation, _)| *generation).max(self.above);
        let counts = |generation: &u64| {
            let next = generation.saturating_add(1);
            self.counting().any(|(_, [first, _])| is_as_before(copy(first, next), next))
        };
        (newest + 1..=newest + RING_SLOTS).find(counts).unwrap_or(newest + 1)
    }

    /// Returns the members whose rings count.
    pub(super) fn members(&self) -> Vec<MemberId> {
        self.counting().map(|(member, _)| member).collect()
    }

    /// Returns the members without a copy of a root in the first or the second area.
    pub(super) fn lacking(&self, generation: u64, second: bool) -> Vec<MemberId> {
        let areas = self.counting().filter_map(|(member, areas)| Some((member, areas.get(usize::from(second))?)));
        areas.filter(|(_, slots)| copy(slots, generation) != Slot::Root(generation)).map(|(member, _)| member).collect()
    }
}

fn device(slots: &[Option<DeviceSlot>], member: MemberId) -> Option<DeviceSlot> {
    slots.get(member.index()).copied().flatten()
}

/// Returns whether a slot is as it was before the root of this generation was written to it.
fn is_as_before(slot: Slot, generation: u64) -> bool {
    match slot {
        Slot::Blank => true,
        Slot::Root(old) => old.checked_add(RING_SLOTS) == Some(generation),
        Slot::Damaged => false,
    }
}

fn copy(slots: &[Slot], generation: u64) -> Slot {
    let at = usize::try_from(generation % RING_SLOTS).ok().and_then(|at| slots.get(at));
    at.copied().unwrap_or(Slot::Damaged)
}

#[cfg(test)]
mod tests;
