//! Samples of what a pool stores about its bucket.

use super::{batch, object};
use crate::{
    BatchHeader, BucketRecord, Checkpoint, ChunkId, Doomed, DoomedName, Item, NameRecord, Placed, PlacedChunk, Record, SegmentId,
    SegmentName, Term,
};

fn segment_name(term: u32, count: u64) -> SegmentName {
    SegmentName { term: Term(term), import: 0, count }
}

pub(super) fn name_page() -> Vec<u8> {
    let record = |segment, count, pages| NameRecord { segment: SegmentId(segment), name: segment_name(3, count), pages };
    NameRecord::encode_page(&[record(384, 0xbc9a_7856_3412, 4096), record(385, 7, 2), record(511, 8, 300)])
}

pub(super) fn doomed_list() -> Vec<u8> {
    let doomed = |term, count, object| DoomedName { name: segment_name(term, count), object, generation: 129 };
    DoomedName::encode_list(&[
        doomed(2, 9, Doomed::There { pages: 4096 }),
        doomed(3, 10, Doomed::InDoubt { deleted: false }),
        doomed(3, 11, Doomed::InDoubt { deleted: true }),
    ])
}

pub(super) fn checkpoint(without: Checkpoint) -> Checkpoint {
    let bucket = BucketRecord { source: "s3://data/pond".into(), quota: 1 << 40, term: Term(3), settled: 70 };
    Checkpoint { name_pages: vec![(3, object(11)), (8, object(12))], doomed: Some(object(13)), bucket: Some(bucket), ..without }
}

/// A term, and an object whose two headers have an item each.
pub(super) fn placed(like: &BatchHeader) -> Vec<u8> {
    let chunk = |chunk, page, header, present| PlacedChunk { chunk: ChunkId(chunk), page, header, present };
    let first = vec![chunk(70, 3, 1, vec![0b1011]), chunk(71, 4, 1, vec![u64::MAX, 1 << 63])];
    let placed = |chunks| Item::Placed(Placed { segment: SegmentId(384), name: segment_name(3, 70), pages: 300, class: 5, chunks });
    let header = BatchHeader { stream: 7, chunk: ChunkId(0), payload: 0, ..like.clone() };
    let term = Item::Record(Record::Term { term: Term(3) });
    batch(&header, &[term, placed(first), placed(vec![chunk(72, 203, 201, vec![1])])])
}
