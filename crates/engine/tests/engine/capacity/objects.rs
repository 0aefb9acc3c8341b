//! Reads of blocks in objects of a bucket.

use millpond_block::{Buf, DiskError};
use millpond_format::{Item, ObjectName, Record, Term};

use super::placed::{NAME, append, at_rest, place, placed, some_chunk, unreadable};
use super::*;

const PAGE: usize = 4096;

/// A pool whose newest batch places a chunk in an object, the blocks of that chunk, and the number of those
/// that are live. The object has them in order, behind its head and a header.
fn with_object() -> (Harness, VolumeId, u32) {
    let (mut harness, volume) = at_rest();
    let record = some_chunk(&harness.media[0]);
    let mut object = vec![0; 64 * PAGE];
    let live = (0..record.slots).filter(|slot| record.live[*slot as usize / 64] >> (slot % 64) & 1 == 1);
    let mut blocks = 0;
    for (nth, slot) in live.enumerate() {
        let from = place(record.segment) + (record.base + slot) as usize * PAGE;
        let to = (2 + nth) * PAGE;
        let bytes = harness.media[0][from..from + PAGE].to_vec();
        object[to..to + PAGE].copy_from_slice(&bytes);
        // they are read from the object alone
        harness.media[0][from..from + PAGE].fill(0xee);
        blocks += 1;
    }
    append(&mut harness.media[0], &[Item::Record(Record::Term { term: Term(1) }), Item::Placed(placed(&record))]);
    harness.reopen();
    harness.bucket.objects.insert(ObjectName::from(NAME), object);
    (harness, volume, blocks)
}

/// Offset in the volume of the first block that cannot be read.
fn first_lost(harness: &mut Harness, volume: VolumeId) -> u64 {
    let objects = std::mem::take(&mut harness.bucket.objects);
    let lost = |harness: &mut Harness, at: u64| harness.request(Target::Head(volume), Op::Read, at, 4096, &[]).is_err();
    let first = (0..SIZE).step_by(4096).find(|at| lost(harness, *at)).unwrap();
    harness.bucket.objects = objects;
    first
}

#[test]
fn blocks_are_read_from_their_object() {
    let (mut harness, volume, blocks) = with_object();
    assert!(blocks > 1);
    assert_eq!(unreadable(&mut harness, volume), 0);
    // one unit has them all, and is kept
    assert_eq!(harness.bucket.reads, [(ObjectName::from(NAME), 0, 64 * PAGE)]);
}

#[test]
fn a_read_waits_for_a_bucket_that_is_away() {
    let (mut harness, volume, _) = with_object();
    let at = first_lost(&mut harness, volume);
    harness.bucket.away = true;
    harness.submit(Target::Head(volume), Op::Read, at, 4096);
    harness.settle();
    harness.now += 3_600_000;
    harness.settle();
    assert!(harness.engine.pop_completion().is_none(), "an hour is no error");
    // blocks in the log are not delayed
    let other = (at + SIZE / 2) % SIZE;
    assert!(harness.request(Target::Head(volume), Op::Read, other, 4096, &[]).is_ok());
    harness.bucket.away = false;
    harness.settle();
    let data = harness.engine.pop_completion().unwrap().result.unwrap();
    let read: Vec<u8> = data.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat();
    assert!(read == DATA.bytes(at / DATA.step * DATA.step, 1)[(at % DATA.step) as usize..][..4096]);
}

#[test]
fn wrong_bytes_are_read_once_more() {
    let (mut harness, volume, _) = with_object();
    let at = first_lost(&mut harness, volume);
    for (rots, sound) in [(1, true), (2, false)] {
        harness.reopen();
        (harness.bucket.rots, harness.bucket.reads) = (rots, Vec::new());
        let read = harness.request(Target::Head(volume), Op::Read, at, 4096, &[]);
        assert_eq!(read.err(), (!sound).then_some(DiskError::Io));
        assert_eq!(harness.bucket.reads.len(), 2);
    }
    // the next read asks the bucket again
    assert!(harness.request(Target::Head(volume), Op::Read, at, 4096, &[]).is_ok());
}

#[test]
fn a_close_waits_for_no_bucket() {
    let (mut harness, volume, _) = with_object();
    let at = first_lost(&mut harness, volume);
    harness.bucket.away = true;
    harness.submit(Target::Head(volume), Op::Read, at, 4096);
    harness.settle();
    let work = harness.engine.pop_bucket_work().expect("the read of the object");
    harness.command(Command::Close).unwrap();
    assert!(harness.engine.pop_completion().unwrap().result.is_err());
    assert!(harness.engine.pop_bucket_work().is_none());
    // the result of a read of another import
    harness.reopen();
    harness.engine.bucket_done(work.id, Ok(Some(Buf::zeroed(64 * PAGE))));
    harness.bucket.away = false;
    assert_eq!(unreadable(&mut harness, volume), 0);
}
