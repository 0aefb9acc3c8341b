//! Guests that see files: some of a world's requests begin and end inside blocks and sectors, and go to the entrance for that.

use millpond_block::{ByteRange, Op};

use crate::grid::Grid;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::workload::Ask;

/// Percent of the requests that come from them.
const SHARE: u64 = 50;

/// The guests, with a chance of their own: worlds without them are as they were.
#[derive(Clone, Debug)]
pub struct Files {
    rng: Rng,
    grid: Grid,
}

impl Files {
    /// Those of a seed's world.
    pub fn new(seed: u64) -> Files {
        let mut rng = Rng::new(seed ^ 0x000F_11E5);
        let grid = Grid::of_bytes(&mut rng);
        Files { rng, grid }
    }

    /// What their requests cover.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Makes a request one of theirs, now and then: with less at both ends, and without regard to sectors.
    pub fn take_over(&mut self, ask: &mut Ask, oracle: &Oracle) {
        if !self.rng.percent(SHARE) || oracle.is_refused(ask.target, &ask.request) {
            return;
        }
        ask.bytes = true;
        let cells = self.grid.range(ask.request.range);
        if ask.request.op == Op::Flush || cells.is_empty() {
            return;
        }
        let mut less = |most: u64| self.rng.below(most.min(self.grid.per_block()));
        let first = cells.start + less(cells.end - cells.start);
        let end = cells.end - less(cells.end - first);
        let offset = self.grid.start(first);
        ask.request.range = ByteRange { offset, length: self.grid.start(end) - offset };
    }
}
