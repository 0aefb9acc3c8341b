//! Chunks that the log places in a bucket: a batch is written to the devices by hand, with any content.

use millpond_format::{
    AREA_BYTES, BatchHeader, Checkpoint, ChunkId, ChunkRecord, DoomedName, Encoder, HEADER_PAGE, Item, Lsn, NO_SEGMENT, NameRecord,
    ObjectRef, Placed, PlacedChunk, RING_SLOTS, Record, Root, SegmentId, SegmentName, Term,
};

use super::*;

pub(super) const NAME: SegmentName = SegmentName { term: Term(1), import: 0, count: 5 };
const STREAM: usize = 7;

pub(super) fn newest_root(image: &[u8]) -> Root {
    let at = |slot| Root::slot_offset(slot) as usize;
    let roots = (0..RING_SLOTS).filter_map(|slot| Root::decode(&image[at(slot)..at(slot) + SECTOR_BYTES]).ok());
    roots.max_by_key(|root| root.generation).unwrap()
}

/// Offset of a segment of the log, which is on one device.
pub(super) fn place(segment: SegmentId) -> usize {
    place_behind(segment, SEGMENTS)
}

/// The same, with so many segments in the bucket.
fn place_behind(segment: SegmentId, in_bucket: u32) -> usize {
    (AREA_BYTES + u64::from(segment.0 - in_bucket) * EXTENT) as usize
}

pub(super) fn object(image: &[u8], at: ObjectRef) -> &[u8] {
    object_behind(image, at, SEGMENTS)
}

fn object_behind(image: &[u8], at: ObjectRef, in_bucket: u32) -> &[u8] {
    assert!(!at.is_index());
    let from = place_behind(at.segment, in_bucket) + at.offset as usize * ObjectRef::STEP;
    &image[from..from + at.bytes() as usize]
}

pub(super) fn checkpoint(image: &[u8]) -> Checkpoint {
    Checkpoint::decode(object(image, newest_root(image).checkpoint)).unwrap()
}

/// The names in the newest checkpoint.
pub(super) fn names(image: &[u8]) -> Vec<NameRecord> {
    names_of(image, SEGMENTS)
}

/// The same, with so many segments in the bucket.
pub(super) fn names_of(image: &[u8], in_bucket: u32) -> Vec<NameRecord> {
    let checkpoint = Checkpoint::decode(object_behind(image, newest_root(image).checkpoint, in_bucket)).unwrap();
    checkpoint.name_pages.iter().flat_map(|(_, at)| NameRecord::decode_page(object_behind(image, *at, in_bucket)).unwrap()).collect()
}

/// A whole chunk of guests' blocks in the newest checkpoint.
pub(super) fn some_chunk(image: &[u8]) -> ChunkRecord<'static> {
    let pages = checkpoint(image).chunk_pages;
    let mut records = pages.iter().flat_map(|(_, at)| ChunkRecord::decode_page(object(image, *at)).unwrap());
    records.find(|record| record.grain == 8 && record.class < 4 && record.live.iter().any(|word| *word != 0)).unwrap()
}

pub(super) fn placed(record: &ChunkRecord<'_>) -> Placed {
    let chunk = PlacedChunk { chunk: record.chunk, page: 2, header: 1, present: record.live.to_vec() };
    Placed { segment: SegmentId(0), name: NAME, pages: 64, class: 4, chunks: vec![chunk] }
}

/// Appends a batch with these items to the log of a pool that had a checkpoint, and nothing after it.
pub(super) fn append(image: &mut [u8], items: &[Item]) {
    let root = newest_root(image);
    let start = root.log_tails.last().unwrap().streams[STREAM];
    let (segment, offset) = if start.segment == NO_SEGMENT { (start.next, 0) } else { (start.segment, start.offset) };
    let header = BatchHeader {
        stream: STREAM as u8,
        pages: 1,
        pool: root.pool,
        incarnation: root.incarnation,
        next: NO_SEGMENT,
        lsn: Lsn(root.lsn.0 + 1),
        durable: root.lsn,
        epoch: checkpoint(image).epoch,
        chunk: ChunkId(0),
        birth: 0,
        segment,
        offset,
        base: offset,
        payload: 0,
        grain: 8,
    };
    let mut e = Encoder::default();
    items.iter().for_each(|item| item.encode(&mut e));
    let from = place(segment) + offset as usize * HEADER_PAGE;
    header.encode(e.bytes(), &mut image[from..from + HEADER_PAGE]);
}

/// A pool after a checkpoint.
pub(super) fn at_rest() -> (Harness, VolumeId) {
    let tuning = Tuning { rewind_checkpoints: 0, rewind_millis: 0, ..tuning() };
    let mut harness = pool(&[64], Layout::Linear, tuning);
    let volume = volume(&mut harness);
    harness.command(Command::Checkpoint).unwrap();
    (harness, volume)
}

/// Number of blocks of the volume that cannot be read; all others are as they were written.
pub(super) fn unreadable(harness: &mut Harness, volume: VolumeId) -> u32 {
    let mut count = 0;
    for at in (0..SIZE).step_by(4096) {
        match harness.request(Target::Head(volume), Op::Read, at, 4096, &[]) {
            Ok(read) => {
                let whole = DATA.bytes(at / DATA.step * DATA.step, 1);
                assert!(read == whole[(at % DATA.step) as usize..][..4096], "at {at}: {} bytes, after {count}", read.len());
            }
            Err(_) => count += 1,
        }
    }
    count
}

#[test]
fn checkpoints_and_imports_keep_what_the_log_has_placed() {
    let (mut harness, volume) = at_rest();
    assert_eq!(unreadable(&mut harness, volume), 0);
    let record = some_chunk(&harness.media[0]);
    let blocks: u32 = record.live.iter().map(|word| word.count_ones()).sum();
    append(&mut harness.media[0], &[Item::Record(Record::Term { term: Term(1) }), Item::Placed(placed(&record))]);
    harness.reopen();
    // the bucket does not have the object
    assert_eq!(unreadable(&mut harness, volume), blocks);
    harness.command(Command::Checkpoint).unwrap();
    let named = NameRecord { segment: SegmentId(0), name: NAME, pages: 64 };
    assert_eq!(names(&harness.media[0]), [named]);
    let bucket = checkpoint(&harness.media[0]).bucket.unwrap();
    assert_eq!((bucket.term, bucket.quota), (Term(1), u64::from(SEGMENTS) * EXTENT));
    harness.reopen();
    assert_eq!(unreadable(&mut harness, volume), blocks);
    // the object is doomed once nothing needs it
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    for _ in 0..6 {
        harness.settle();
        harness.now += 1000;
        harness.command(Command::Checkpoint).unwrap();
    }
    let (image, last) = (&harness.media[0], checkpoint(&harness.media[0]));
    let doomed = DoomedName::decode_list(object(image, last.doomed.unwrap())).unwrap();
    assert_eq!((names(image), doomed.len(), doomed[0].name), (vec![], 1, NAME));
    assert!(doomed[0].generation <= newest_root(image).generation);
    harness.reopen();
    harness.audit();
    assert_eq!(checkpoint(&harness.media[0]).doomed, last.doomed);
}

#[test]
fn a_log_that_does_not_fit_the_bucket_is_refused() {
    let (harness, _) = at_rest();
    let image = harness.media[0].clone();
    let item = placed(&some_chunk(&image));
    let term = |term| Item::Record(Record::Term { term: Term(term) });
    let import = |items: &[Item]| {
        let mut image = image.clone();
        append(&mut image, items);
        Harness::import_with(vec![image], tuning(), 1).map(|_| ())
    };
    assert_eq!(import(&[term(1), Item::Placed(item.clone())]), Ok(()));
    let second = Placed { name: SegmentName { count: 6, ..NAME }, ..item.clone() };
    let elsewhere = Placed { segment: SegmentId(1), ..item.clone() };
    let local = Placed { segment: SegmentId(SEGMENTS), ..item.clone() };
    for wrong in [
        vec![Item::Placed(item.clone())],
        vec![term(1), term(1)],
        vec![term(1), Item::Placed(item.clone()), Item::Placed(second)],
        vec![term(1), Item::Placed(item), Item::Placed(elsewhere)],
        vec![term(1), Item::Placed(local)],
    ] {
        let refused = import(&wrong).unwrap_err();
        assert!(refused.contains("does not fit the bucket"), "{wrong:?}: {refused}");
    }
}
