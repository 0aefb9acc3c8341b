//! Worlds with bases: volumes whose blocks are fetched from a store when they are read, and clones
//! of them.

use millpond_block::SectorProfile;
use millpond_engine::{BaseInfo, CatalogCommand, Compression};
use millpond_format::{BASES, BUCKET, FEATURES, Feature};

use super::{Config, End, KIB};
use crate::grid::BLOCK;
use crate::rng::Rng;

/// Maximum bytes of all volumes of such a world, whatever the size of its pool: clones take little.
pub const MOST_BYTES: u64 = 14 << 20;

/// Features of the engine of these worlds: no release knows bases yet.
static WITH_BASES: &[Feature] = &[FEATURES[0], FEATURES[1], BASES, BUCKET];

/// Bases of a world, and the manners of their store.
#[derive(Clone, Copy, Debug)]
pub struct Bases {
    /// Bases made at the start.
    pub count: u64,
    /// Clones of each, made at the start.
    pub clones: u64,
    /// Maximum blocks of a base.
    pub blocks: u64,
    /// Longest time until an answer of a store that is present, in microseconds.
    pub latency: u64,
    /// Per thousand fetches, those of chunks that are missing or damaged for a while.
    pub bad: u64,
    /// Per thousand steps, those in which the store goes away.
    pub away: u64,
    /// Percent of the answers that are repeated, or come after the end of the pool's service.
    pub late: u64,
    /// A base is asked for before the pool has the feature.
    pub early: bool,
}

impl Config {
    /// Turns this world into one of them, drawing only from `rng`.
    pub(super) fn publish(&mut self, rng: &mut Rng) {
        (self.mirrored, self.cached) = (None, None);
        self.tuning.features = WITH_BASES;
        // Such pools also run full, but by guests alone: a base that is larger than its pool would
        // leave no other space.
        self.volumes.truncate(if self.tight { 2 } else { 1 });
        let blocks = [rng.between(4, 128), rng.between(128, 512), rng.between(512, 1300)];
        self.bases = Some(Bases {
            count: rng.between(1, 2),
            clones: rng.between(1, 3),
            blocks: blocks[rng.weighted(&[5, 3, 2])],
            latency: *rng.pick(&[500, 5_000, 100_000]),
            bad: *rng.pick(&[0, 20, 100, 300]),
            away: *rng.pick(&[0, 2, 10]),
            late: *rng.pick(&[0, 5, 30]),
            early: rng.percent(20),
        });
        let reading = [50, 20, 8, 6, 6, 1, 1];
        let changing = [30, 35, 12, 10, 10, 1, 1];
        self.mix.requests = *rng.pick(&[reading, changing]);
        (self.mix.commands, self.mix.bases) = (rng.between(20, 150), true);
        (self.mix.unaligned, self.mix.hot) = (*rng.pick(&[0, 20, 60]), rng.between(0, 50));
        self.depth = rng.between(2, 16) as usize;
        for era in &mut self.eras {
            if rng.percent(20) {
                era.end = End::Close;
            }
        }
    }
}

/// Returns the command that makes a base of at most this number of blocks.
pub fn base(name: String, blocks: u64, rng: &mut Rng) -> CatalogCommand {
    let unit = (4 * KIB) << rng.below(7);
    let blocks = rng.between(blocks.div_ceil(3), blocks);
    // Most bases end inside a chunk.
    let whole = rng.percent(25);
    let size = if whole { (blocks * BLOCK).next_multiple_of(unit) } else { blocks * BLOCK };
    CatalogCommand::CreateBase {
        name,
        size,
        sector: *rng.pick(&SectorProfile::ALL),
        compression: *rng.pick(&[Compression::Off, Compression::Lz4, Compression::Zstd]),
        source: BaseInfo { unit: unit as u32, source: format!("{:016x}", rng.next()) },
    }
}
