//! Chunks get places in objects, and objects lose their segments.

use std::collections::BTreeSet;

use millpond_block::MemberId;
use millpond_format::{Addr, BucketRecord, ChunkId, Class, Coding, Column, Epoch, Layout, NODE_UNITS, SegmentId, SegmentName, Shape, Term};

use super::*;
use crate::space::{AllocClass, Chunk, SegmentLayout};

const BUCKET: SegmentId = SegmentId(1);
const LOG: SegmentId = SegmentId(5);

/// Four segments in a bucket, and a log of four, of 256 pages each.
fn space() -> Space {
    let mut shape =
        Shape { generation: 1, extent_bytes: 1 << 20, chunk_units: 512, next: SegmentId(0), members: Vec::new(), groups: Vec::new() };
    shape.add(Class::Data, Layout::Bucket { segments: 4 }, Vec::new());
    shape.add(Class::Log, Layout::Linear, vec![Column { member: MemberId(0), first: 0, extents: 4 }]);
    let mut space = Space::new(SegmentLayout::new(&shape));
    space.names.set_bucket(BucketRecord { source: String::new(), quota: 4 << 20, term: Term(1), settled: 0 });
    space.sealed_generation = 7;
    space
}

/// A closed chunk of blocks in a segment of the log, with eight live slots.
fn chunk(space: &mut Space, id: u64, grain: u8) -> ChunkId {
    let id = ChunkId(id);
    space.segments.set_state(LOG, SegmentState::Open);
    space.chunks.insert(id, Chunk::new(Epoch(1), 3, 0, grain));
    space.place_chunk(id, Place { segment: LOG, page: id.0 as u32 * 16 }, 0, None, None);
    space.make_live(id, 0, 8);
    space.close_chunk(id);
    space.segments.set_state(LOG, SegmentState::Sealed);
    id
}

fn placed(count: u64, chunks: &[(ChunkId, u32)]) -> Placed {
    let chunks = chunks.iter().map(|(chunk, page)| PlacedChunk { chunk: *chunk, page: *page, header: 1, present: vec![0xff] });
    Placed { segment: BUCKET, name: SegmentName { term: Term(1), import: 0, count }, pages: 100, class: 4, chunks: chunks.collect() }
}

fn state(space: &Space, id: SegmentId) -> SegmentState {
    space.segments.get(id).unwrap().state
}

#[test]
fn chunks_move_from_the_log_to_an_object_and_die_there() {
    let mut space = space();
    assert_eq!((space.targets.landing, space.targets.meta), (AllocClass::Data, AllocClass::Data));
    assert_eq!((space.layout.alloc_class(BUCKET), space.layout.alloc_class(LOG)), (AllocClass::Bucket, AllocClass::Data));
    let (first, second) = (chunk(&mut space, 1, 8), chunk(&mut space, 2, 8));
    // slots that died while the object was written
    space.free_slots(first, [0, 1]);
    assert!(space.place_in_bucket(&placed(9, &[(first, 2)])));
    assert_eq!(state(&space, BUCKET), SegmentState::Open, "more items may follow");
    assert_eq!(space.locate(Addr::new(first, 2, 8, Coding::Raw)), Some((BUCKET, 2 * 8 + 16)));
    assert_eq!(space.chunks.get(first).unwrap().live.iter().collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
    assert_eq!(space.chunks.get(first).unwrap().identities, Some(1));
    // a chunk that is gone is skipped
    assert!(space.place_in_bucket(&placed(9, &[(ChunkId(50), 10), (second, 20)])));
    space.seal_bucket_segments();
    let (bucket, log) = (space.segments.get(BUCKET).unwrap(), space.segments.get(LOG).unwrap());
    assert_eq!((bucket.state, bucket.live, bucket.placed, bucket.class), (SegmentState::Sealed, 6 * 8 + 8 * 8, 2, 4));
    assert_eq!((log.state, log.live, log.placed), (SegmentState::Retained(7), 0, 0));
    assert!(!bucket.backed && log.backed, "only one of them has space on a host");
    assert_eq!(space.segments.used_pages(), 0, "a bucket takes no pages of devices");
    space.free_slots(first, 0..8);
    space.free_slots(second, 0..8);
    assert_eq!(state(&space, BUCKET), SegmentState::Retained(7));
    assert_eq!(space.segments.pages().retained, 256, "that of the log");
    assert!(space.names.get(BUCKET).is_some());
    // its retention ends, and the next checkpoint dooms the object
    space.doom_free(8);
    assert!(space.names.doomed().next().is_none());
    space.segments.set_state(BUCKET, SegmentState::Free);
    space.doom_free(9);
    let doomed: Vec<_> = space.names.doomed().map(|doomed| (doomed.name.count, doomed.generation)).collect();
    assert_eq!((space.names.get(BUCKET), doomed), (None, vec![(9, 9)]));
    let third = chunk(&mut space, 3, 8);
    assert!(!space.place_in_bucket(&placed(9, &[(third, 2)])), "no other object gets the name");
    assert!(space.place_in_bucket(&placed(10, &[(third, 2)])));
}

#[test]
fn items_that_do_not_fit_are_refused() {
    let mut space = space();
    let (block, node, packed) = (chunk(&mut space, 1, 8), chunk(&mut space, 2, NODE_UNITS as u8), chunk(&mut space, 3, 1));
    let before = space.chunks.get(block).unwrap().place;
    let item = placed(9, &[(block, 2)]);
    assert!(!space.place_in_bucket(&Placed { segment: LOG, ..item.clone() }), "a segment on devices");
    assert!(!space.place_in_bucket(&Placed { segment: SegmentId(70), ..item.clone() }), "no segment");
    assert!(!space.place_in_bucket(&Placed { pages: 257, ..item.clone() }), "longer than a segment");
    let later = SegmentName { term: Term(2), ..item.name };
    assert!(!space.place_in_bucket(&Placed { name: later, ..item.clone() }), "nobody has taken that term");
    assert!(!space.place_in_bucket(&placed(9, &[(block, 2), (node, 20)])), "nodes stay on devices");
    assert!(!space.place_in_bucket(&placed(9, &[(block, 93)])), "eight blocks from page 93 of 100");
    assert_eq!((space.names.get(BUCKET), space.chunks.get(block).unwrap().place), (None, before), "nothing has changed");
    assert!(space.place_in_bucket(&placed(9, &[(block, 92), (packed, 91)])));
    assert!(!space.place_in_bucket(&placed(10, &[(block, 2)])), "the segment has another object");
}

/// A checkpoint may be in the middle of an object whose first chunks are dead already.
#[test]
fn objects_without_chunks_are_open_until_the_end_of_the_log() {
    let mut space = space();
    let first = chunk(&mut space, 1, 8);
    assert!(space.place_in_bucket(&placed(9, &[(first, 2)])));
    space.free_slots(first, 0..8);
    assert_eq!(state(&space, BUCKET), SegmentState::Open);
    // an import loads it: no chunk and no list of the checkpoint says that it is in use
    space.segments.set_state(BUCKET, SegmentState::Free);
    let free: BTreeSet<SegmentId> = space.segments.ids().filter(|id| state(&space, *id) == SegmentState::Free).collect();
    space.open_bucket_segments();
    let opened: Vec<SegmentId> = free.into_iter().filter(|id| state(&space, *id) == SegmentState::Open).collect();
    assert_eq!(opened, [BUCKET]);
    space.doom_free(8);
    assert!(space.names.get(BUCKET).is_some(), "it is in use");
    space.seal_bucket_segments();
    assert_eq!(state(&space, BUCKET), SegmentState::Retained(7));
}
