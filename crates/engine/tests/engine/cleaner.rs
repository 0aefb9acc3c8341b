use millpond_block::{ByteRange, Op, Payload, Request, Tag};
use millpond_engine::{Compression, Layout, Target, Time};

use crate::harness::Harness;

/// Pages of the device that are filled with a byte, except at most one other byte.
fn pages(harness: &Harness, byte: u8) -> Vec<usize> {
    let pages = harness.media[0].chunks_exact(4096).enumerate();
    pages.filter(|(_, page)| page[64..128].iter().all(|b| *b == byte) && page[4000] == byte).map(|(at, _)| at).collect()
}

/// Runs a turn and its device operations. True when the page of this byte is now at another place.
fn turn_and_look(harness: &mut Harness, byte: u8, at: &[usize]) -> bool {
    harness.now += 1;
    harness.engine.turn(Time(harness.now));
    while let Some(io) = harness.engine.pop_io() {
        harness.perform(io);
    }
    pages(harness, byte) != at
}

fn write(harness: &mut Harness, target: Target, tag: u64, block: u64, content: &[u8], fua: bool) {
    let request = Request { op: Op::Write, range: ByteRange { offset: block * 4096, length: 4096 }, fua };
    harness.engine.submit(target, Tag(tag), request, Payload::Copy(content));
}

/// Rot in a block of a segment that is cleaned damages that block only. If the block were moved
/// with its identity, the batch of the move would look torn, and an import would end the log before
/// it, although later writes are durable.
#[test]
fn a_rotten_block_does_not_take_durable_writes_with_it() {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
    let blocks = 1100u64;
    // every eighth block stays, the others are overwritten again and again
    let (rotten, sound) = (80u64, 88u64);
    for block in 0..blocks {
        let byte = if block == rotten {
            0xee
        } else if block == sound {
            0xdd
        } else {
            0x11
        };
        harness.request(head, Op::Write, block * 4096, 4096, &[byte; 4096]).unwrap();
    }
    harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
    let (at, before) = (pages(&harness, 0xee), pages(&harness, 0xdd));
    assert_eq!((at.len(), before.len()), (1, 1));
    harness.media[0][at[0] * 4096 + 7] ^= 1;
    let mut block = 0;
    for i in 0..4_000u64 {
        block = (block + 1) % blocks;
        block += u64::from(block % 8 == 0);
        write(&mut harness, head, 1 << 40, block, &[1; 4096], false);
        let mut moved = false;
        for _ in 0..12 {
            moved = moved || turn_and_look(&mut harness, 0xee, &at);
            if moved {
                break;
            }
        }
        while harness.engine.pop_completion().is_some() {}
        if moved || i % 500 == 0 {
            let content = vec![0x77; 4096];
            write(&mut harness, head, 2 << 40, block, &content, true);
            while harness.engine.pop_completion().is_none_or(|done| done.tag != Tag(2 << 40)) {
                turn_and_look(&mut harness, 0xee, &at);
            }
            let mut crashed = Harness::import(harness.media.clone()).unwrap();
            assert!(crashed.request(head, Op::Read, block * 4096, 4096, &[]) == Ok(content), "write {i} was durable");
        }
    }
    harness.settle();
    assert_ne!(pages(&harness, 0xdd), before, "the cleaner moved other blocks that stayed");
    assert!(harness.request(head, Op::Read, rotten * 4096, 4096, &[]).is_err(), "wrong data is never shown");
    assert_eq!(harness.request(head, Op::Read, sound * 4096, 4096, &[]), Ok(vec![0xdd; 4096]));
}
