use millpond_block::{ByteRange, Op, Payload, Request, Tag};
use millpond_engine::{Compression, Layout, Target, Time};

use crate::rig::Rig;

/// Pages of the device that are filled with a byte, except at most one other byte.
fn pages(rig: &Rig, byte: u8) -> Vec<usize> {
    let pages = rig.media[0].chunks_exact(4096).enumerate();
    pages.filter(|(_, page)| page[64..128].iter().all(|b| *b == byte) && page[4000] == byte).map(|(at, _)| at).collect()
}

/// Runs a turn and its device operations. True when the page of this byte is now at another place.
fn turn_and_look(rig: &mut Rig, byte: u8, at: &[usize]) -> bool {
    rig.now += 1;
    rig.engine.turn(Time(rig.now));
    while let Some(io) = rig.engine.pop_io() {
        rig.perform(io);
    }
    pages(rig, byte) != at
}

fn write(rig: &mut Rig, target: Target, tag: u64, block: u64, content: &[u8], fua: bool) {
    let request = Request { op: Op::Write, range: ByteRange { offset: block * 4096, length: 4096 }, fua };
    rig.engine.submit(target, Tag(tag), request, Payload::Copy(content));
}

/// Rot in a block of a segment that is cleaned damages that block only. If the block were moved
/// with its identity, the batch of the move would look torn, and an import would end the log before
/// it, although later writes are durable.
#[test]
fn a_rotten_block_does_not_take_durable_writes_with_it() {
    let mut rig = Rig::new(&[16], Layout::Linear);
    let head = Target::Head(rig.volume("disk0", 8 << 20, Compression::Off));
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
        rig.request(head, Op::Write, block * 4096, 4096, &[byte; 4096]).unwrap();
    }
    rig.request(head, Op::Flush, 0, 0, &[]).unwrap();
    let (at, before) = (pages(&rig, 0xee), pages(&rig, 0xdd));
    assert_eq!((at.len(), before.len()), (1, 1));
    rig.media[0][at[0] * 4096 + 7] ^= 1;
    let mut block = 0;
    for i in 0..4_000u64 {
        block = (block + 1) % blocks;
        block += u64::from(block % 8 == 0);
        write(&mut rig, head, 1 << 40, block, &[1; 4096], false);
        let mut moved = false;
        for _ in 0..12 {
            moved = moved || turn_and_look(&mut rig, 0xee, &at);
            if moved {
                break;
            }
        }
        while rig.engine.pop_completion().is_some() {}
        if moved || i % 500 == 0 {
            let content = vec![0x77; 4096];
            write(&mut rig, head, 2 << 40, block, &content, true);
            while rig.engine.pop_completion().is_none_or(|done| done.tag != Tag(2 << 40)) {
                turn_and_look(&mut rig, 0xee, &at);
            }
            let mut crashed = Rig::import(rig.media.clone()).unwrap();
            assert!(crashed.request(head, Op::Read, block * 4096, 4096, &[]) == Ok(content), "write {i} was durable");
        }
    }
    rig.settle();
    assert_ne!(pages(&rig, 0xdd), before, "the cleaner moved other blocks that stayed");
    assert!(rig.request(head, Op::Read, rotten * 4096, 4096, &[]).is_err(), "wrong data is never shown");
    assert_eq!(rig.request(head, Op::Read, sound * 4096, 4096, &[]), Ok(vec![0xdd; 4096]));
}
