//! Blocks that the caller compresses and decompresses: whatever happens in between, guests read
//! what was written.

use millpond_block::{DiskError, Op};
use millpond_engine::{
    CatalogCommand, Codec, CodecWork, Command, Compression, GroupSpec, Layout, PoolState, Reply, Target, Tuning, VolumeId,
};

use crate::harness::Harness;

const BLOCK: u64 = 4096;
const SIZE: u64 = 4 << 20;
/// Blocks of a long request: three works and a part of one.
const LONG: u64 = 27;

/// A compressed volume in a pool whose engine codes `at_once` blocks itself in a turn.
fn disk(at_once: usize) -> (Harness, VolumeId) {
    let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, codec_at_once: at_once, ..Tuning::default() };
    let mut harness = Harness::with_extents(&[128], vec![GroupSpec::data(Layout::Linear)], tuning, Some(1 << 20));
    let volume = harness.volume("disk", SIZE, Compression::Zstd);
    (harness, volume)
}

/// Blocks that differ, and can be compressed.
fn content(first: u64, count: u64, times: u8) -> Vec<u8> {
    let block = |block: u64| {
        let mut bytes = vec![times; BLOCK as usize];
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        bytes
    };
    (first..first + count).flat_map(block).collect()
}

fn works(harness: &mut Harness) -> Vec<CodecWork> {
    std::iter::from_fn(|| harness.engine.pop_codec_work()).collect()
}

/// Does work, the last first.
fn finish(harness: &mut Harness, works: Vec<CodecWork>) {
    let mut codec = Codec::default();
    for mut work in works.into_iter().rev() {
        work.run(&mut codec);
        harness.engine.codec_done(work);
    }
    harness.settle();
}

/// Does all work until there is none, and returns the result of the one request.
fn answer(harness: &mut Harness) -> Result<Vec<u8>, DiskError> {
    loop {
        harness.settle();
        let works = works(harness);
        if works.is_empty() {
            break;
        }
        finish(harness, works);
    }
    let done = harness.engine.pop_completion().expect("an answer");
    assert!(harness.engine.pop_completion().is_none());
    done.result.map(|data| data.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat())
}

fn read(harness: &mut Harness, target: Target, first: u64, count: u64) -> Vec<u8> {
    harness.submit(target, Op::Read, first * BLOCK, count * BLOCK);
    answer(harness).unwrap()
}

#[test]
fn work_that_ends_in_any_order_is_the_request() {
    let (mut harness, volume) = disk(0);
    let target = Target::Head(volume);
    let bytes = content(0, LONG, 1);
    harness.write(target, 0, &bytes);
    harness.settle();
    let parts = works(&mut harness);
    assert_eq!(parts.iter().map(CodecWork::blocks).collect::<Vec<_>>(), [8, 8, 8, 3]);
    assert!(harness.engine.pop_completion().is_none(), "nothing of it is in the log");
    finish(&mut harness, parts);
    assert_eq!(answer(&mut harness), Ok(Vec::new()));
    let stored = harness.engine.metrics().user_bytes;
    assert!(stored < LONG * BLOCK / 4, "{stored} bytes for {LONG} blocks");
    assert!(read(&mut harness, target, 0, LONG) == bytes);
    harness.audit();
}

#[test]
fn a_small_request_does_not_wait_and_many_do() {
    let (mut harness, volume) = disk(16);
    let target = Target::Head(volume);
    harness.turn();
    for block in 0..6 {
        harness.write(target, block * BLOCK, &content(block, 1, 1));
    }
    assert_eq!(works(&mut harness).len(), 2, "four blocks are compressed at once");
    harness.turn();
    harness.write(target, 0, &content(0, 1, 2));
    assert!(works(&mut harness).is_empty(), "a new turn");
}

#[test]
fn blocks_written_together_are_read_together() {
    let (mut harness, volume) = disk(usize::MAX);
    let target = Target::Head(volume);
    let bytes = content(0, 64, 1);
    harness.request(target, Op::Write, 0, 64 * BLOCK, &bytes).unwrap();
    let before = harness.engine.metrics().data_reads;
    assert!(harness.request(target, Op::Read, 0, 64 * BLOCK, &[]).unwrap() == bytes);
    assert_eq!(harness.engine.metrics().data_reads - before, 1);
}

/// A write that covers its first and last block in part, whose work is under way; what they held
/// was read before.
fn ragged(harness: &mut Harness, target: Target) -> Vec<CodecWork> {
    harness.write(target, 512, &content(0, LONG, 2)[512..(LONG * BLOCK) as usize - 512]);
    harness.settle();
    // the old content of the edges is decompressed first
    let edges = works(harness);
    assert_eq!(edges.len(), 2);
    finish(harness, edges);
    let parts = works(harness);
    assert_eq!(parts.len(), 4);
    parts
}

#[test]
fn a_rollback_in_between_does_not_bring_back_what_it_removed() {
    let (mut harness, volume) = disk(0);
    let target = Target::Head(volume);
    harness.write(target, 0, &content(0, LONG, 1));
    answer(&mut harness).unwrap();
    let snapshot = harness.snapshot(volume, "before");
    harness.write(target, 0, &content(0, LONG, 9));
    answer(&mut harness).unwrap();
    let parts = ragged(&mut harness, target);
    harness.command(CatalogCommand::Rollback { snapshot, keep_as: "old".to_owned() }).unwrap();
    finish(&mut harness, parts);
    assert_eq!(answer(&mut harness), Ok(Vec::new()));
    let mut expected = content(0, LONG, 1);
    expected[512..(LONG * BLOCK) as usize - 512].copy_from_slice(&content(0, LONG, 2)[512..(LONG * BLOCK) as usize - 512]);
    assert!(read(&mut harness, target, 0, LONG) == expected, "the edges are those of the snapshot");
    harness.audit();
}

#[test]
fn a_snapshot_in_between_has_the_state_before_the_write() {
    let (mut harness, volume) = disk(0);
    let target = Target::Head(volume);
    harness.write(target, 0, &content(0, LONG, 1));
    answer(&mut harness).unwrap();
    harness.write(target, 0, &content(0, LONG, 2));
    harness.settle();
    let parts = works(&mut harness);
    let snapshot = harness.snapshot(volume, "before");
    finish(&mut harness, parts);
    assert_eq!(answer(&mut harness), Ok(Vec::new()));
    assert!(read(&mut harness, Target::Snapshot(snapshot), 0, LONG) == content(0, LONG, 1));
    assert!(read(&mut harness, target, 0, LONG) == content(0, LONG, 2));
    harness.audit();
}

#[test]
fn a_volume_that_is_destroyed_or_shrunk_in_between_fails_the_write() {
    let (mut harness, volume) = disk(0);
    let target = Target::Head(volume);
    harness.write(target, SIZE - LONG * BLOCK, &content(0, LONG, 1));
    harness.settle();
    let parts = works(&mut harness);
    harness.command(CatalogCommand::ResizeVolume { volume, size: SIZE / 2 }).unwrap();
    finish(&mut harness, parts);
    assert_eq!(answer(&mut harness), Err(DiskError::OutOfBounds));
    harness.audit();
}

#[test]
fn a_close_waits_for_work() {
    let (mut harness, volume) = disk(0);
    let bytes = content(0, LONG, 1);
    harness.write(Target::Head(volume), 0, &bytes);
    harness.settle();
    let parts = works(&mut harness);
    harness.start(Command::Close);
    harness.settle();
    assert!(harness.engine.pop_reply().is_none() && *harness.engine.state() == PoolState::Closing);
    finish(&mut harness, parts);
    assert!(matches!(harness.engine.pop_reply(), Some((_, Ok(Reply::Done)))), "{:?}", harness.engine.state());
    assert!(harness.engine.pop_completion().is_some_and(|done| done.result.is_ok()));
    let mut harness = Harness::import(harness.media).unwrap();
    assert!(harness.request(Target::Head(volume), Op::Read, 0, LONG * BLOCK, &[]).unwrap() == bytes);
}

#[test]
fn a_pool_that_stops_in_between_fails_the_write_and_answers_reads() {
    let (mut harness, volume) = disk(0);
    let target = Target::Head(volume);
    harness.write(target, 0, &content(0, LONG, 1));
    answer(&mut harness).unwrap();
    harness.write(target, 0, &content(0, LONG, 2));
    harness.submit(target, Op::Read, 0, LONG * BLOCK);
    harness.settle();
    let parts = works(&mut harness);
    assert_eq!(parts.len(), 8);
    harness.dead = vec![0];
    harness.write(target, SIZE / 2, &[7; BLOCK as usize]);
    harness.settle();
    let last = works(&mut harness);
    finish(&mut harness, last);
    assert!(matches!(harness.engine.state(), PoolState::Faulted(_)), "{:?}", harness.engine.state());
    finish(&mut harness, parts);
    let mut results: Vec<bool> = std::iter::from_fn(|| harness.engine.pop_completion()).map(|done| done.result.is_ok()).collect();
    results.sort_unstable();
    assert_eq!(results, [false, false, true], "both writes failed, and the read has its data");
}
