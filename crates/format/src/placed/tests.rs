use super::*;
use crate::Term;

fn chunk() -> PlacedChunk {
    PlacedChunk { chunk: ChunkId(70), page: 9, header: 1, present: vec![0b1011, 1] }
}

fn placed() -> Placed {
    let name = SegmentName { term: Term(3), import: 0, count: 17 };
    let second = PlacedChunk { chunk: ChunkId(71), page: 299, header: 200, present: vec![u64::MAX] };
    Placed { segment: SegmentId(5), name, pages: 300, class: 4, chunks: vec![chunk(), second] }
}

fn decoded(placed: &Placed) -> Result<Placed, FormatError> {
    let mut e = Encoder::default();
    placed.encode(&mut e);
    let mut d = Decoder::new(e.bytes());
    let read = Placed::decode(&mut d)?;
    d.end().map(|()| read)
}

#[test]
fn an_item_has_the_bytes_of_its_table() {
    let mut e = Encoder::default();
    placed().encode(&mut e);
    assert_eq!(e.len(), 4 + 12 + 2 + 1 + 4 + (20 + 2 * 8) + (20 + 8));
    assert_eq!(decoded(&placed()), Ok(placed()));
    assert_eq!(Placed::decode(&mut Decoder::new(&e.bytes()[..e.len() - 1])), Err(FormatError::Truncated));
    // eight whole chunks of 2 MiB, a full object
    let whole = PlacedChunk { present: vec![u64::MAX; 8], ..chunk() };
    let full = Placed { pages: 4096, chunks: vec![whole; 8], ..placed() };
    let mut e = Encoder::default();
    full.encode(&mut e);
    assert_eq!(e.len() + 1, 696);
}

#[test]
fn items_out_of_range_are_refused() {
    let refused = Err(FormatError::Field("placed"));
    assert_eq!(decoded(&Placed { segment: NO_SEGMENT, ..placed() }), refused);
    assert_eq!(decoded(&Placed { pages: 1, ..placed() }), refused);
    assert_eq!(decoded(&Placed { pages: 4097, ..placed() }), refused);
    assert_eq!(decoded(&Placed { pages: 299, ..placed() }), refused, "a chunk begins behind the end");
    assert_eq!(decoded(&Placed { class: 3, ..placed() }), refused, "a stream of guests");
    assert_eq!(decoded(&Placed { class: 8, ..placed() }), refused);
    assert_eq!(decoded(&Placed { chunks: vec![], ..placed() }), refused);
    let with = |chunk| decoded(&Placed { chunks: vec![chunk], ..placed() }).map(|_| ());
    let refused = Err(FormatError::Field("placed"));
    assert_eq!(with(chunk()), Ok(()));
    assert_eq!(with(PlacedChunk { chunk: ChunkId(0), ..chunk() }), refused);
    assert_eq!(with(PlacedChunk { chunk: ChunkId(1 << 40), ..chunk() }), Err(FormatError::Field("chunk")));
    assert_eq!(with(PlacedChunk { header: 0, ..chunk() }), refused, "in the head of the object");
    assert_eq!(with(PlacedChunk { header: 9, ..chunk() }), refused, "at its own header");
    assert_eq!(with(PlacedChunk { page: 300, ..chunk() }), refused);
    assert_eq!(with(PlacedChunk { present: vec![0; MAX_SLOT_WORDS + 1], ..chunk() }), refused);
}
