//! Ids of chunks are never used twice (I11).

use std::collections::{BTreeMap, BTreeSet};

use millpond_engine::{Aim, Command, Compression, Layout, PoolState, Target, Tuning, VolumeId};
use millpond_format::{BatchHeader, ChunkId, MAX_HEADER_PAGES};

use crate::harness::Harness;

const PAGE: usize = 4096;
const SIZE: u64 = 4 << 20;

/// Imports a pool, and performs operations until it is in service.
fn import(media: Vec<Vec<u8>>, aim: Aim, like: &Harness) -> Harness {
    let tuning = Tuning { aim, ..like.tuning.clone() };
    let mut harness = Harness::begin_import(media, tuning, like.now);
    for _ in 0..10_000 {
        if *harness.engine.state() == PoolState::Online {
            return harness;
        }
        harness.turn();
        // one by one, so that nothing is done that comes after
        if let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
    }
    panic!("it is not in service: {:?}", harness.engine.state());
}

/// Writes until that is answered.
fn write(harness: &mut Harness, volume: VolumeId, byte: u8) {
    harness.write(Target::Head(volume), 0, &vec![byte; 256 << 10]);
    while harness.engine.pop_completion().is_none() {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
    }
}

/// Chunks of guests in the batches on a device, with the import that each was written by.
fn chunks(media: &[u8]) -> BTreeMap<ChunkId, u32> {
    let header = |at| BatchHeader::decode(&media[at..media.len().min(at + MAX_HEADER_PAGES * PAGE)]).ok();
    let headers = (0..media.len()).step_by(PAGE).filter_map(header).map(|(header, _)| header);
    headers.filter(|header| header.chunk.0 > 0).map(|header| (header.chunk, header.incarnation)).collect()
}

/// A pool, and the chunks that were ever on its device, with the import that wrote each.
struct Pool {
    harness: Harness,
    volume: VolumeId,
    seen: BTreeMap<ChunkId, u32>,
}

impl Pool {
    /// A pool with a checkpoint, and batches after it.
    fn new() -> Pool {
        let mut harness = Harness::new(&[64], Layout::Linear);
        let volume = harness.volume("disk", SIZE, Compression::Off);
        harness.command(Command::Checkpoint).unwrap();
        let mut pool = Pool { harness, volume, seen: BTreeMap::new() };
        pool.write();
        pool
    }

    /// Writes, and checks that no chunk was there before.
    fn write(&mut self) {
        write(&mut self.harness, self.volume, self.seen.len() as u8);
        let now = chunks(&self.harness.media[0]);
        let newest = now.values().max().copied().unwrap_or(0);
        for (chunk, import) in now.into_iter().filter(|(_, import)| *import == newest) {
            if let Some(other) = self.seen.insert(chunk, import) {
                assert_eq!(other, import, "chunk {chunk} is of two imports");
            }
        }
    }

    /// Imports the pool, which writes before its first checkpoint, and returns the devices as they are
    /// if that is lost.
    fn import(&mut self, media: Vec<Vec<u8>>, aim: Aim) -> Vec<Vec<u8>> {
        self.harness = import(media, aim, &self.harness);
        let before = self.harness.media.clone();
        self.write();
        before
    }

    /// Generations of the pool's roots, the newest first.
    fn generations(&self) -> Vec<u64> {
        Harness::survey(&self.harness.media).unwrap().points.iter().map(|point| point.id).collect()
    }
}

/// The power fails while the first batches of an import are written: the next import does not find them,
/// and there was no checkpoint in between. The device may have them nevertheless.
#[test]
fn batches_that_an_import_does_not_find_keep_their_chunks() {
    let mut pool = Pool::new();
    let mut media = pool.harness.media.clone();
    for _ in 0..6 {
        media = pool.import(media, Aim::Newest);
    }
    let imports: BTreeSet<u32> = pool.seen.values().copied().collect();
    assert_eq!(imports.len(), 7, "{:?}", pool.seen);
}

/// A rewind gives up what imports wrote, and so do the imports after it if they end before a checkpoint.
#[test]
fn what_a_rewind_gave_up_keeps_its_chunks() {
    for imports in [0, 1, 4] {
        for newest in [false, true] {
            let mut pool = Pool::new();
            let first = pool.generations()[0];
            let mut media = pool.harness.media.clone();
            for _ in 0..imports {
                media = pool.import(media, Aim::Newest);
            }
            for _ in 0..3 {
                pool.harness.media.clone_from(&media);
                let to = if newest { pool.generations()[0] } else { first };
                media = pool.import(media, Aim::To(to));
                media = pool.import(media, Aim::Newest);
                media = pool.import(media, Aim::Newest);
            }
        }
    }
}
