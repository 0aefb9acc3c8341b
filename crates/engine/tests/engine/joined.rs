//! Reads of blocks that are neighbours on a device, though not in the request.

use millpond_block::Op;
use millpond_engine::{Compression, GroupSpec, Layout, Target, Tuning};
use millpond_testing::Random;

use crate::harness::Harness;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1024;
/// Blocks of a request.
const STEP: u64 = 512;

fn tuning() -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() }
}

/// The content of a block after `times` writes.
fn content(block: u64, times: u8) -> Vec<u8> {
    let mut bytes = vec![times; BLOCK as usize];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes
}

#[test]
fn scattered_blocks_are_read_together_and_as_they_were_written() {
    let layouts = [
        (vec![128], Layout::Linear),
        (vec![128, 128], Layout::Stripe { width: 2, unit: 64 << 10 }),
        (vec![128, 128], Layout::Mirror { copies: 2 }),
        (vec![128, 128, 128], Layout::Parity { width: 3, parity: 1, unit: 64 << 10 }),
    ];
    for (sizes, layout) in layouts {
        let mut harness = Harness::with_extents(&sizes, vec![GroupSpec::data(layout)], tuning(), Some(1 << 20));
        let volume = harness.volume("disk", BLOCKS * BLOCK, Compression::Off);
        let target = Target::Head(volume);
        let mut times = vec![0; BLOCKS as usize];
        let mut random = Random::new(5);
        for _ in 0..2 * BLOCKS {
            let block = random.below(BLOCKS);
            times[block as usize] += 1;
            harness.write(target, block * BLOCK, &content(block, times[block as usize]));
        }
        harness.settle();
        while harness.engine.pop_completion().is_some() {}
        let before = harness.engine.metrics().data_reads;
        for first in (0..BLOCKS).step_by(STEP as usize) {
            let read = harness.request(target, Op::Read, first * BLOCK, STEP * BLOCK, &[]).unwrap();
            for (block, bytes) in (first..).zip(read.chunks_exact(BLOCK as usize)) {
                let expected = if times[block as usize] == 0 { vec![0; BLOCK as usize] } else { content(block, times[block as usize]) };
                assert!(bytes == expected, "{layout:?}: block {block}");
            }
        }
        let reads = harness.engine.metrics().data_reads - before;
        let blocks = times.iter().filter(|times| **times > 0).count() as u64;
        assert!(reads < blocks * 3 / 5, "{layout:?}: {reads} device reads for {blocks} scattered blocks");
        harness.audit();
    }
}

#[test]
fn a_page_between_blocks_that_cannot_be_read_fails_no_request() {
    let mut harness = Harness::with_extents(&[128], vec![GroupSpec::data(Layout::Linear)], tuning(), Some(1 << 20));
    let volume = harness.volume("disk", BLOCKS * BLOCK, Compression::Off);
    let target = Target::Head(volume);
    let mut all: Vec<u8> = (0..8).flat_map(|block| content(block, 1)).collect();
    harness.request(target, Op::Write, 0, 8 * BLOCK, &all).unwrap();
    let dead = harness.media[0].chunks_exact(BLOCK as usize).position(|page| page == content(3, 1)).unwrap();
    harness.request(target, Op::Write, 3 * BLOCK, BLOCK, &content(3, 2)).unwrap();
    all[3 * BLOCK as usize..4 * BLOCK as usize].copy_from_slice(&content(3, 2));
    let reads = |harness: &mut Harness| {
        let before = harness.engine.metrics().data_reads;
        let read = harness.request(target, Op::Read, 0, 8 * BLOCK, &[]).unwrap();
        assert!(read == all);
        harness.engine.metrics().data_reads - before
    };
    assert_eq!(reads(&mut harness), 1, "all that is near");
    harness.bad = Some((0, dead as u64 * BLOCK));
    assert_eq!(reads(&mut harness), 1 + 3, "both sides of the unreadable page, and the block that replaced it, are read alone");
    // a block that is wrong itself is an error, and the others are not
    harness.bad = None;
    let place = harness.media[0].chunks_exact(BLOCK as usize).position(|page| page == content(5, 1)).unwrap();
    harness.media[0][place * BLOCK as usize + 100] ^= 1;
    assert!(harness.request(target, Op::Read, 0, 8 * BLOCK, &[]).is_err());
    let read = harness.request(target, Op::Read, 0, 4 * BLOCK, &[]).unwrap();
    assert!(read == all[..4 * BLOCK as usize]);
}
