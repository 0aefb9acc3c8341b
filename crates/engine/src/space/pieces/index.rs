//! The index of a piece that stays in memory: where its epochs begin, some bytes for each epoch.

use millpond_format::{DeadGroup, Epoch};

/// Epochs between marks, which are searched one by one.
const RUNS_PER_MARK: usize = 32;
/// Entries and units of data that an epoch directly after a mark has unless the index says
/// otherwise.
const USUAL: (u32, u64) = (1, 8);
/// Epoch after those of all entries.
const AFTER_ALL: Epoch = Epoch(u64::MAX);

/// The first entry of an epoch, or the end of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boundary {
    epoch: Epoch,
    pub(super) first: u32,
    /// Units of data in all entries before it.
    pub(super) units: u64,
}

/// The epochs of a piece.
#[derive(Debug)]
pub(super) struct Index {
    oldest: Epoch,
    end: Boundary,
    /// Every 32nd epoch, from the 33rd on, and its offset in `runs`.
    marks: Box<[(Boundary, u32)]>,
    /// For each epoch: the difference to the epoch before, and its entries and units of data where
    /// they differ from those of the epoch before. Starts anew at each mark.
    runs: Box<[u8]>,
}

impl Index {
    pub(super) fn new(groups: &[DeadGroup]) -> Index {
        let (mut marks, mut runs) = (Vec::new(), Vec::new());
        let mut end = Boundary { epoch: AFTER_ALL, first: 0, units: 0 };
        let (mut before, mut usual) = (Epoch(0), USUAL);
        for (number, run) in groups.chunk_by(|a, b| a.epoch == b.epoch).enumerate() {
            let Some(epoch) = run.first().map(|group| group.epoch) else { continue };
            if number % RUNS_PER_MARK == 0 {
                (before, usual) = (epoch, USUAL);
                if number > 0 {
                    marks.push((Boundary { epoch, ..end }, runs.len() as u32));
                }
            }
            let held = run.iter().fold((0, 0), |(entries, units), group| (entries + group.count, units + group.units));
            put(&mut runs, (epoch.0 - before.0) << 1 | u64::from(held == usual));
            if held != usual {
                put(&mut runs, u64::from(held.0));
                put(&mut runs, held.1);
            }
            (end.first, end.units) = (end.first + held.0, end.units + held.1);
            (before, usual) = (epoch, held);
        }
        let oldest = groups.first().map_or(AFTER_ALL, |group| group.epoch);
        Index { oldest, end, marks: marks.into(), runs: runs.into() }
    }

    /// Bytes of its heap memory.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.marks) + self.runs.len()
    }

    /// Returns the end of the piece.
    pub(super) fn end(&self) -> Boundary {
        self.end
    }

    /// Returns the first entry born after `epoch`.
    pub(super) fn after(&self, epoch: Epoch) -> Boundary {
        self.find(|boundary| boundary.epoch > epoch)
    }

    /// Returns the boundary at entry `first`, if an epoch begins there.
    pub(super) fn at(&self, first: u32) -> Option<Boundary> {
        Some(self.find(|boundary| boundary.first >= first)).filter(|boundary| boundary.first == first)
    }

    /// Returns the first boundary for which `reached` is true; it is also true for all later ones.
    fn find(&self, reached: impl Fn(&Boundary) -> bool) -> Boundary {
        let next = self.marks.partition_point(|(mark, _)| !reached(mark));
        let begin = Boundary { epoch: self.oldest, first: 0, units: 0 };
        let (mut boundary, from) = next.checked_sub(1).and_then(|at| self.marks.get(at)).copied().unwrap_or((begin, 0));
        let (after, to) = self.marks.get(next).copied().unwrap_or((self.end, self.runs.len() as u32));
        let mut runs = self.runs.get(from as usize..to as usize).unwrap_or_default();
        let mut held = USUAL;
        while !runs.is_empty() {
            let head = take(&mut runs);
            boundary.epoch.0 += head >> 1;
            if reached(&boundary) {
                return boundary;
            }
            if head & 1 == 0 {
                held = (take(&mut runs) as u32, take(&mut runs));
            }
            (boundary.first, boundary.units) = (boundary.first + held.0, boundary.units + held.1);
        }
        after
    }
}

/// Appends a number with seven bits a byte, the lowest first.
fn put(to: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        to.push(n as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

fn take(from: &mut &[u8]) -> u64 {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = from.split_first() else { break };
        *from = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use millpond_format::{ChunkId, DeadRecord};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the index with a search over all groups.
        #[test]
        fn boundaries_are_those_of_the_groups(runs in prop::collection::vec((1..400u64, prop_oneof![Just(1), 1..300u64], prop_oneof![Just(8), 0..9000u32]), 1..200)) {
            let (mut records, mut epoch) = (Vec::new(), 0);
            for (older, entries, units) in runs {
                epoch += older;
                records.extend((0..entries).map(|chunk| DeadRecord {
                    epoch: Epoch(epoch), chunk: ChunkId(chunk), units, first: 0, slots: vec![1].into(),
                }));
            }
            let (_, groups) = DeadRecord::encode_groups(&records);
            let index = Index::new(&groups);
            let units = |to: usize| records[..to].iter().map(|record| u64::from(record.units)).sum::<u64>();
            prop_assert_eq!((index.end().first as usize, index.end().units), (records.len(), units(records.len())));
            for wanted in (0..=epoch).step_by(1 + epoch as usize / 500) {
                let at = records.partition_point(|record| record.epoch.0 <= wanted);
                let found = index.after(Epoch(wanted));
                prop_assert_eq!((found.first as usize, found.units), (at, units(at)));
            }
            for entry in (0..=records.len()).step_by(1 + records.len() / 500) {
                let begins = entry == 0 || entry == records.len() || records[entry - 1].epoch != records[entry].epoch;
                let found = index.at(entry as u32);
                prop_assert_eq!(found.map(|found| found.units), begins.then(|| units(entry)));
            }
        }
    }
}
