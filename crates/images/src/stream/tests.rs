//! Frames, and receives in a simulated world: a target in memory that loses what is not durable,
//! stops at any step, and is written by others.

use std::io;

use jiff::Timestamp;
use millpond_api::identity::SnapshotIdentity;
use millpond_api::{VolumeCache, VolumeCompression, VolumeSector};
use millpond_testing::Random;

use super::head::BLOCK;
use super::*;
use crate::copy::CopyProgress;
use crate::source::{Kind, Run, Source};

mod format;
mod world;

/// A snapshot of the sender: one byte value for each block.
#[derive(Clone, Debug)]
pub struct State {
    pub snapshot: StreamSnapshot,
    pub blocks: Vec<u8>,
}

/// The history of a volume.
pub fn history(rng: &mut Random, snapshots: usize) -> Vec<State> {
    let mut blocks: Vec<u8> = (0..8 + rng.below(40)).map(|_| if rng.once_in(2) { 0 } else { byte(rng) }).collect();
    let mut states = Vec::new();
    for n in 0..snapshots {
        if n > 0 {
            for _ in 0..rng.below(12) {
                let at = rng.below(blocks.len() as u64) as usize;
                blocks[at] = if rng.once_in(3) { 0 } else { byte(rng) };
            }
            if rng.once_in(3) {
                blocks.resize(8 + rng.below(40) as usize, 0);
            }
        }
        let identity = SnapshotIdentity::new(&"5".repeat(32), n as u64 + 1, n as u64 + 1, 1_000 + n as u64);
        let size = blocks.len() as u64 * BLOCK;
        let snapshot =
            StreamSnapshot { identity, name: format!("s{n}"), created: Timestamp::UNIX_EPOCH, description: format!("number {n}"), size };
        states.push(State { snapshot, blocks: blocks.clone() });
    }
    states
}

fn byte(rng: &mut Random) -> u8 {
    1 + rng.below(255) as u8
}

/// A snapshot as its sender reads it: all, or what differs from a base.
struct Sent<'a> {
    state: &'a State,
    base: Option<&'a State>,
}

impl Source for Sent<'_> {
    fn size(&self) -> u64 {
        self.state.snapshot.size
    }

    fn runs(&mut self, offset: u64, _length: u64) -> io::Result<Vec<Run>> {
        let at = (offset / BLOCK) as usize;
        let value = self.state.blocks[at];
        let kind = match self.base {
            Some(base) if base.blocks.get(at).copied().unwrap_or(0) == value => Kind::Keep,
            _ if value == 0 => Kind::Zero,
            _ => Kind::Data,
        };
        Ok(vec![Run { offset, length: BLOCK, kind }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (n, block) in into.chunks_mut(BLOCK as usize).enumerate() {
            block.fill(self.state.blocks[(offset / BLOCK) as usize + n]);
        }
        Ok(())
    }
}

/// Writes the stream of `states` on `base`, of the first from `position` on, beginning with the one
/// at `first`.
pub fn stream(base: Option<&State>, states: &[State], compression: VolumeCompression, (first, position): (usize, u64)) -> Vec<u8> {
    let head = StreamHead {
        volume: "tank/vm1".to_owned(),
        sector: VolumeSector::S512e,
        cache: VolumeCache::Writeback,
        compression,
        base: base.map(|base| base.snapshot.clone()),
        snapshots: states.iter().map(|state| state.snapshot.clone()).collect(),
    };
    let mut out = FrameWriter::new(Vec::new(), &head).expect("memory");
    for (index, state) in states.iter().enumerate().skip(first) {
        let base = if index == 0 { base } else { states.get(index - 1) };
        let mut source = Sent { state, base };
        let from = if index == first { position } else { 0 };
        send_snapshot(&mut out, &mut source, base.is_none(), (index, from), &CopyProgress::default()).expect("memory");
    }
    out.end().expect("memory")
}
