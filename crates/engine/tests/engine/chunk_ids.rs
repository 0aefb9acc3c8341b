//! Ids of chunks are never used twice (I11).

use std::collections::BTreeMap;

use millpond_engine::{Command, Compression, Layout, PoolState, Target, VolumeId};
use millpond_format::{BatchHeader, ChunkId, MAX_HEADER_PAGES};

use crate::harness::Harness;

const PAGE: usize = 4096;
const SIZE: u64 = 4 << 20;

/// Imports a pool, and performs operations until it is in service.
fn import(media: Vec<Vec<u8>>, like: &Harness) -> Harness {
    let mut harness = Harness::begin_import(media, like.tuning.clone(), like.now);
    for _ in 0..1_000 {
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

/// The power fails while the first batches of an import are written: the next import does not find them,
/// and there was no checkpoint in between. The device may have them nevertheless.
#[test]
fn batches_that_an_import_does_not_find_keep_their_chunks() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = harness.volume("disk", SIZE, Compression::Off);
    harness.command(Command::Checkpoint).unwrap();
    write(&mut harness, volume, 1);
    let (mut media, mut seen) = (harness.media.clone(), chunks(&harness.media[0]));
    for byte in 2..8 {
        harness = import(media, &harness);
        media = harness.media.clone();
        write(&mut harness, volume, byte);
        let now = chunks(&harness.media[0]);
        let newest = now.values().max().copied().unwrap_or(0);
        for (chunk, import) in now.into_iter().filter(|(_, import)| *import == newest) {
            assert!(!seen.contains_key(&chunk), "chunk {chunk} of import {import} is of import {}, too", seen[&chunk]);
            seen.insert(chunk, import);
        }
    }
    assert!(seen.values().max() >= seen.values().min().map(|first| first + 6).as_ref(), "{seen:?}");
}
