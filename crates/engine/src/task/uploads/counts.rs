//! Counts in the names of objects, and which of them the devices know.
//!
//! An import after a crash knows the names in the log and in the checkpoint. Objects of other counts may
//! exist, or appear later. So that these are few, no count is given that is more than [`IN_DOUBT`] above
//! the highest one that is known to be on stable media.

use std::collections::VecDeque;

use millpond_format::Lsn;

/// Counts above the highest one that is on stable media.
const IN_DOUBT: u64 = 64;

/// Where the devices will have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// In this batch.
    Logged(Lsn),
    /// In the checkpoint of this generation, as a doomed name.
    Listed(u64),
}

/// Counts of one term.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The next count.
    next: u64,
    /// One more than the highest count that is on stable media.
    known: u64,
    /// Counts that will be there.
    coming: VecDeque<(u64, Known)>,
}

impl Counts {
    /// Returns whether no count may be given before others are known.
    pub(super) fn are_exhausted(&self) -> bool {
        self.next >= self.known + IN_DOUBT
    }

    /// Gives a count, which is never given again.
    pub(super) fn give(&mut self) -> u64 {
        assert!(!self.are_exhausted(), "INV-OBJ-1: an import finds all names that may be in doubt");
        self.next += 1;
        self.next - 1
    }

    /// Takes note of where a count will be known.
    pub(super) fn note(&mut self, count: u64, known: Known) {
        self.coming.push_back((count, known));
    }

    /// Takes note that the log is durable up to a batch, and of the generation of the newest durable
    /// checkpoint.
    pub(super) fn settle(&mut self, durable: Lsn, checkpoint: u64) {
        let Counts { known, coming, .. } = self;
        coming.retain(|(count, at)| {
            let is_there = match at {
                Known::Logged(lsn) => *lsn <= durable,
                Known::Listed(generation) => *generation <= checkpoint,
            };
            *known = if is_there { (*known).max(count + 1) } else { *known };
            !is_there
        });
    }

    /// Returns whether counts become known when the log is flushed.
    pub(super) fn wait_for_log(&self) -> bool {
        self.coming.iter().any(|(_, known)| matches!(known, Known::Logged(_)))
    }

    /// Returns whether counts become known with the next checkpoint.
    pub(super) fn wait_for_checkpoint(&self) -> bool {
        self.coming.iter().any(|(_, known)| matches!(known, Known::Listed(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_names_are_in_doubt() {
        let mut counts = Counts::default();
        let given: Vec<u64> = (0..IN_DOUBT).map(|_| counts.give()).collect();
        assert!(given.iter().copied().eq(0..IN_DOUBT) && counts.are_exhausted());
        counts.note(3, Known::Logged(Lsn(10)));
        counts.note(9, Known::Listed(7));
        assert!(counts.wait_for_log() && counts.wait_for_checkpoint());
        counts.settle(Lsn(9), 6);
        assert!(counts.are_exhausted(), "neither is durable");
        counts.settle(Lsn(10), 6);
        assert!(!counts.are_exhausted() && !counts.wait_for_log() && counts.wait_for_checkpoint());
        // up to 64 above count 3
        assert!((0..4).map(|_| counts.give()).eq(64..68) && counts.are_exhausted());
        counts.settle(Lsn(10), 7);
        assert!((0..6).map(|_| counts.give()).eq(68..74) && counts.are_exhausted());
        // a lower count that is known later opens nothing
        counts.note(5, Known::Logged(Lsn(11)));
        counts.settle(Lsn(11), 7);
        assert!(counts.are_exhausted());
    }
}
