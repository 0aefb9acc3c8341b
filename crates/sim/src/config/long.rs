//! Worlds with large chunk tables: every block of a volume is a chunk, the chunk table in
//! checkpoints fills a good part of a log, and a device is removed from a group with parity.

use millpond_block::{CacheMode, MemberId, SectorProfile};
use millpond_engine::{Compression, GroupSpec, Layout};

use super::{Config, CrashInterval, KIB, MIB, Mirrored, VolumeSpec, device};
use crate::machine::Latency;
use crate::rng::Rng;

/// Share of each device that is log, as 1/N.
const LOG_SHARE: u64 = 16;

/// Settings of such a world.
#[derive(Clone, Copy, Debug)]
pub struct Long {
    /// Member that is removed.
    pub member: MemberId,
    /// Times that the whole volume is overwritten before the removal.
    pub rounds: u64,
    /// Minimum duration of a turn, in microseconds.
    pub turn: u64,
    /// Maximum blocks of a write.
    pub most: u64,
}

impl Config {
    /// Turns this world into one with a large chunk table, drawing only from `rng`.
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
        // A snapshot doubles the space used: nearly half of the pool, the most with which a device
        // can still be removed.
        let size = self.usable * rng.between(225, 240) / 1000 / MIB * MIB;
        let cache = *rng.pick(&[CacheMode::Writeback, CacheMode::Writeback, CacheMode::None, CacheMode::Unsafe]);
        self.volumes = vec![VolumeSpec { size, sector: SectorProfile::S4kn, cache, compression: Compression::Off }];
        self.eras = vec![CrashInterval { requests: 0, end: super::End::Kill }];
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
        self.kind = super::Kind::Long(Long { member: MemberId(rng.below(count) as u16), rounds, turn, most: *rng.pick(&[4, 16, 16]) });
    }
}
