//! Worlds with many clones: made, rolled back, promoted and destroyed, over crashes.

use super::Config;
use crate::rng::Rng;

/// Blocks of the first volumes at most: clones have their size, and there are up to eight volumes.
const BLOCKS: u64 = 200;

impl Config {
    /// Turns a world into one of these; all chance is from `rng`.
    pub(super) fn branch(&mut self, rng: &mut Rng) {
        (self.tight, self.mirrored, self.cached) = (false, None, None);
        self.volumes.truncate(2);
        for volume in &mut self.volumes {
            volume.size = rng.between(8, BLOCKS) * 4096;
        }
        // most snapshots are certain, so that clones can be made of them
        self.mix.requests = [20, 40, 10, 4, 20, 0, 0];
        (self.mix.commands, self.mix.clones) = (rng.between(60, 200), true);
        self.depth = rng.between(1, 6) as usize;
    }
}
