//! The rings of roots: which root holds, and whether falling back to it is legal.
//!
//! A root is written to the first area of every device, flushed, written to the second areas, flushed; only then does the next one begin
//! (INV-RING-1: when the first write of root g starts, every copy of g - 1 is durable; an import mends what a crash left of the newest).
//! A ring begins as zeroes. So of a root g under way a power cut leaves in slot g mod 128: the first copies as before, torn or new, and
//! every second copy as before; or every first copy new, and the second ones as before, torn or new.
//!
//! INV-RING-2: with n the newest readable root, root n + 1 is provably not committed when a first copy of its slot is as before
//! (some device never got it) or every second copy is (the second writes never began). Otherwise it was committed and is damaged.

use std::collections::{BTreeMap, VecDeque};

use millpond_format::{FormatError, PoolId, RING_SLOTS, Root, SECTOR_BYTES};

/// What a slot of a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Zeroes: never written since the pool was made.
    Blank,
    /// The root of this generation, where it belongs.
    Root(u64),
    /// Anything else, or nothing that can be read.
    Damaged,
}

/// The rings of all members.
pub(crate) struct Rings {
    pool: PoolId,
    /// By member: the slots of the first and of the second area.
    slots: Vec<[Vec<Slot>; 2]>,
    roots: BTreeMap<u64, Root>,
    /// Members whose rings say nothing: missing ones, and those that are out of date.
    left_out: Vec<bool>,
    /// Generation and incarnation of the newest root that does not count.
    above: u64,
    incarnations: u32,
    /// A slot that a newer program wrote: member, slot, why it cannot be used.
    newer: Option<(usize, usize, FormatError)>,
}

impl Rings {
    /// Rings of which nothing was read yet.
    pub(crate) fn new(pool: PoolId, members: usize) -> Rings {
        let unread = || vec![Slot::Damaged; RING_SLOTS as usize];
        let slots = (0..members).map(|_| [unread(), unread()]).collect();
        Rings { pool, slots, roots: BTreeMap::new(), left_out: vec![false; members], above: 0, incarnations: 0, newer: None }
    }

    /// This member's ring says nothing.
    pub(crate) fn leave_out(&mut self, member: usize) {
        if let Some(place) = self.left_out.get_mut(member) {
            *place = true;
        }
    }

    /// The rings that count, by member.
    fn counting(&self) -> impl Iterator<Item = (u16, &[Vec<Slot>; 2])> + Clone {
        (0u16..).zip(&self.slots).zip(&self.left_out).filter(|(_, out)| !**out).map(|(ring, _)| ring)
    }

    /// Takes a ring in that was read from an area of a member.
    pub(crate) fn take(&mut self, member: usize, second: bool, ring: &[u8]) {
        let Some(slots) = self.slots.get_mut(member).and_then(|areas| areas.get_mut(usize::from(second))) else { return };
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

    /// The newest root, when nothing newer was committed. `position`: how the user knows a member.
    pub(crate) fn newest(&self, position: impl Fn(usize) -> u16) -> Result<&Root, String> {
        if let Some((member, at, why)) = self.newer {
            return Err(format!("device {}, slot {at} of its roots: {why}", position(member)));
        }
        let (generation, root) = self
            .roots
            .last_key_value()
            .ok_or("no root of the pool is readable: the devices were overwritten or never finished being made")?;
        let next = generation.saturating_add(1);
        let as_before = |slot: Slot| is_as_before(slot, next);
        let mut copies = self.counting().map(|(member, [first, second])| (member, copy(first, next), copy(second, next)));
        let begun = copies.clone().all(|(_, first, _)| !as_before(first));
        if let Some((member, ..)) = copies.find(|(_, _, second)| !as_before(*second)).filter(|_| begun) {
            return Err(format!(
                "root {next} was committed and is damaged in both copies (device {}, slot {}): an older root would lose what came after it",
                position(usize::from(member)),
                next % RING_SLOTS
            ));
        }
        Ok(root)
    }

    /// All roots that can be read, the oldest first, and how many copies of each. `position`: how the user knows a member.
    ///
    /// # Errors
    /// A root of a newer program, or none at all.
    pub(crate) fn roots(&self, position: impl Fn(usize) -> u16) -> Result<Vec<(Root, u32)>, String> {
        if let Some((member, at, why)) = self.newer {
            return Err(format!("device {}, slot {at} of its roots: {why}", position(member)));
        }
        if self.roots.is_empty() {
            return Err("no root of the pool is readable: the devices were overwritten or never finished being made".to_owned());
        }
        let count = |generation: u64| {
            let all = self.counting().flat_map(|(_, areas)| areas.iter());
            u32::try_from(all.filter(|slots| copy(slots, generation) == Slot::Root(generation)).count()).unwrap_or(u32::MAX)
        };
        Ok(self.roots.values().map(|root| (root.clone(), count(root.generation))).collect())
    }

    /// The root of a generation.
    pub(crate) fn root(&self, generation: u64) -> Option<&Root> {
        self.roots.get(&generation)
    }

    /// The newest one that can be read, whether it counts or not.
    pub(crate) fn last(&self) -> Option<&Root> {
        self.roots.last_key_value().map(|(_, root)| root)
    }

    /// Generations and times of all that can be read, the oldest first.
    pub(crate) fn times(&self) -> VecDeque<(u64, u64)> {
        self.roots.values().map(|root| (root.generation, root.time)).collect()
    }

    /// The highest incarnation of all roots.
    pub(crate) fn incarnation(&self) -> u32 {
        self.roots.values().map(|root| root.incarnation).max().unwrap_or(0).max(self.incarnations)
    }

    /// The rings tell nothing: these are the roots.
    pub(crate) fn replace(&mut self, roots: BTreeMap<u64, Root>) {
        self.newer = None;
        // what a ring still says may be of a time before; no generation is used twice
        let above = self.roots.last_key_value().map_or(0, |(generation, _)| *generation);
        self.above = above.max(self.above);
        self.incarnations = self.incarnation();
        self.roots = roots;
    }

    /// The generation of a root that is newer than all, those that were damaged included, and that counts as soon as it is written: the slot after
    /// its own is as before.
    pub(crate) fn superseding(&self) -> u64 {
        let newest = self.roots.last_key_value().map_or(0, |(generation, _)| *generation).max(self.above);
        let counts = |generation: &u64| {
            let next = generation.saturating_add(1);
            self.counting().any(|(_, [first, _])| is_as_before(copy(first, next), next))
        };
        (newest + 1..=newest + RING_SLOTS).find(counts).unwrap_or(newest + 1)
    }

    /// Members whose rings count.
    pub(crate) fn members(&self) -> Vec<u16> {
        self.counting().map(|(member, _)| member).collect()
    }

    /// Members whose copy of a root in the first or the second areas is not there.
    pub(crate) fn lacking(&self, generation: u64, second: bool) -> Vec<u16> {
        let areas = self.counting().filter_map(|(member, areas)| Some((member, areas.get(usize::from(second))?)));
        areas.filter(|(_, slots)| copy(slots, generation) != Slot::Root(generation)).map(|(member, _)| member).collect()
    }
}

/// Does a slot hold what it held before the root of this generation was written there?
fn is_as_before(slot: Slot, generation: u64) -> bool {
    match slot {
        Slot::Blank => generation <= RING_SLOTS,
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
