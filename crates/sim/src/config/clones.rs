//! Worlds with many clones, which are made, rolled back, promoted and destroyed across crashes.

use super::Config;
use crate::rng::Rng;

/// Maximum blocks of a first volume. Clones have the same size, and there are up to eight volumes.
const BLOCKS: u64 = 200;

impl Config {
    /// Turns this world into one of them, drawing only from `rng`.
    pub(super) fn branch(&mut self, rng: &mut Rng) {
        (self.tight, self.mirrored, self.cached) = (false, None, None);
        self.volumes.truncate(2);
        for volume in &mut self.volumes {
            volume.size = rng.between(8, BLOCKS) * 4096;
        }
        // Few requests in flight and many flushes: the content of most snapshots is certain, so
        // they can be cloned.
        self.mix.requests = [20, 40, 10, 4, 20, 0, 0];
        (self.mix.commands, self.mix.clones) = (rng.between(60, 200), true);
        self.depth = rng.between(1, 6) as usize;
    }
}
