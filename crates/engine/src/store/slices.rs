//! How much background work a turn does beside requests.

use super::Store;

/// Slices per turn after that.
const QUIET_SLICES: usize = 16;

/// Slices per turn when log or space run short.
const PRESSED_SLICES: usize = 4;

/// Most slices per turn: a record has room for the snapshots that are destroyed in one turn of this
/// length.
const MOST_SLICES: usize = 64;

/// Milliseconds without a request after which a longer turn disturbs no guest.
pub(super) const QUIET_MILLIS: u64 = 20;

impl Store {
    /// Returns how many slices of some 20 microseconds background work may take in a turn, while
    /// requests wait.
    pub(crate) fn slices(&self) -> usize {
        // guests dirty nodes while a checkpoint writes them: the checkpoint has to be faster,
        // the more so the closer memory is to its limit
        let nodes = &self.core.nodes;
        let memory = (1 + 8 * nodes.dirty() / nodes.limit().max(1)).pow(2);
        let behind = self.log.since_checkpoint >= self.checkpoint_log_bytes() / 2 || self.records_lack_room();
        let quiet = self.now.0 > self.last_activity.0 + QUIET_MILLIS;
        let least = match (quiet, behind) {
            (true, _) => QUIET_SLICES,
            (false, true) => PRESSED_SLICES,
            (false, false) => 1,
        };
        memory.clamp(least, MOST_SLICES)
    }
}
