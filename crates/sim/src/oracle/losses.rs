//! Losses in power cuts, by cache mode, counted over pieces (parts of writes in one block) that can
//! still be seen.

use std::collections::BTreeSet;

use millpond_block::CacheMode;

use super::history::Cut;
use super::{Oracle, Volume};
use crate::trace::Moment;

/// Counts of one cache mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Volumes hit by a power cut and read back.
    pub volumes: u64,
    /// Acknowledged pieces that had to survive. A lost one would be a finding.
    pub kept: u64,
    /// Acknowledged pieces that were allowed to be lost.
    pub unflushed: u64,
    /// The part of `unflushed` that was lost.
    pub lost: u64,
}

impl Losses {
    /// Adds other counts.
    pub fn add(&mut self, other: &Losses) {
        self.volumes += other.volumes;
        self.kept += other.kept;
        self.unflushed += other.unflushed;
        self.lost += other.lost;
    }
}

/// Counts of all modes, in the order of [`CacheMode::ALL`].
pub type ByMode = [Losses; CacheMode::ALL.len()];

impl Oracle {
    /// Counts the losses of the last power cut, once every head that it hit has been read.
    pub fn losses(&self, now: Moment) -> ByMode {
        let mut counts = ByMode::default();
        for volume in self.volumes.values() {
            let place = CacheMode::ALL.into_iter().position(|mode| mode == volume.cache);
            if let (Some(cut), Some(count)) = (&volume.crash, place.and_then(|place| counts.get_mut(place))) {
                self.count(volume, cut, now, count);
            }
        }
        counts
    }

    fn count(&self, volume: &Volume, cut: &Cut, now: Moment, count: &mut Losses) {
        count.volumes += 1;
        let absent: BTreeSet<_> = cut.pins().filter(|(_, present)| !present).map(|(id, _)| id).collect();
        let pieces: BTreeSet<_> = volume.cells.iter().flat_map(super::history::Cell::pieces).collect();
        for id in pieces {
            let piece = self.pieces.get(id);
            if piece.dead || piece.high > now {
                continue; // not acknowledged
            }
            if piece.durable || piece.high < volume.floor {
                count.kept += 1;
            } else {
                count.unflushed += 1;
                count.lost += u64::from(absent.contains(&id) || piece.low > cut.max);
            }
        }
    }
}
