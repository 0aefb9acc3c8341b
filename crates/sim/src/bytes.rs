//! Guests with files: some requests of a world begin and end inside blocks and sectors, and are
//! submitted as byte-granular.

use millpond_block::{ByteRange, Op};

use crate::grid::Grid;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::workload::Ask;

/// Percent of requests that are byte-granular.
const SHARE: u64 = 50;

/// The guests with files. They have their own generator, so that worlds without them stay
/// unchanged.
#[derive(Clone, Debug)]
pub struct Files {
    rng: Rng,
    grid: Grid,
}

impl Files {
    /// Makes the guests of a seed's world.
    pub fn new(seed: u64) -> Files {
        let mut rng = Rng::new(seed ^ 0x000F_11E5);
        let grid = Grid::of_bytes(&mut rng);
        Files { rng, grid }
    }

    /// Returns the grid that their requests align to.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Makes some requests byte-granular: shortens them at both ends, regardless of sectors.
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
