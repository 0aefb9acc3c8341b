//! Worlds of their own for long chunk tables: every block of a volume is a chunk, what checkpoints say of them fills a good part of a log, and a
//! device leaves rows with parity.

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{Compression, GroupSpec, Layout};

use super::{Config, Era, KIB, MIB, Mirrored, VolumeSpec, device};
use crate::machine::Latency;
use crate::rng::Rng;

/// Of each device such a part is a log.
const LOG_SHARE: u64 = 16;

/// What makes a world one of these.
#[derive(Clone, Copy, Debug)]
pub struct Long {
    /// Who leaves.
    pub member: u16,
    /// Times that all of the volume is written over before.
    pub rounds: u64,
    /// Time that a turn takes at least, in microseconds.
    pub turn: u64,
    /// Blocks of a write at most.
    pub most: u64,
}

impl Config {
    /// Turns a world into one of long tables; all chance is from `rng`.
    pub(super) fn lengthen(&mut self, rng: &mut Rng) {
        (self.fault, self.second_hand, self.tight, self.extent) = (None, false, false, 64 * KIB);
        let parity = if rng.percent(25) { 1 } else { 2 };
        let count = parity + if rng.percent(25) { 3 } else { 4 };
        let log = rng.between(96, 104);
        let extents = LOG_SHARE * (log * (parity + 1)).div_ceil(count);
        self.devices = (0..count).map(|_| device(extents * self.extent, rng)).collect();
        let layout = Layout::Parity { width: 16, parity: parity as u8, unit: 64 * KIB as u32 };
        let groups = vec![GroupSpec::data(layout)];
        self.usable = extents * (LOG_SHARE - 1) / LOG_SHARE * (count - parity) * self.extent;
        // a snapshot holds all of it once more: nearly half of the pool is taken, which is all that may be for a device to leave
        let size = self.usable * rng.between(225, 240) / 1000 / MIB * MIB;
        let cache = *rng.pick(&[CacheMode::Writeback, CacheMode::Writeback, CacheMode::None, CacheMode::Unsafe]);
        self.volumes = vec![VolumeSpec { size, sector: SectorProfile::S4kn, cache, compression: Compression::Off }];
        self.eras = vec![Era { requests: 0, end: super::End::Kill }];
        (self.depth, self.eager) = (*rng.pick(&[16, 16, 32]), 100);
        let base = rng.between(500, 3000);
        self.latency = Latency { base, spread: 2 * base, tail: 2, read_part: *rng.pick(&[1, 10, 10]) };
        self.tuning.log_percent = 50;
        self.tuning.map_memory = 64 * MIB;
        self.tuning.checkpoint_log_bytes = *rng.pick(&[1 << 30, 1 << 30, 16 * MIB]);
        self.tuning.piece_bytes = 64 * KIB as u32;
        self.mirrored = Some(Mirrored {
            groups,
            copies: parity as usize + 1,
            fate: 0,
            removals: false,
            jobs: false,
            spares: 0,
            hangs: false,
            damage: false,
        });
        let rounds = rng.between(1, 2);
        let turn = *rng.pick(&[100, 200, 500]);
        self.kind = super::Kind::Long(Long { member: rng.below(count) as u16, rounds, turn, most: *rng.pick(&[4, 16, 16]) });
    }
}
