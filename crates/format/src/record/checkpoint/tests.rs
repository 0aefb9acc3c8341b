use super::*;
use crate::{SegmentId, SegmentName, Term};

fn bucket() -> BucketRecord {
    BucketRecord { source: "s3://data/pond".into(), quota: 1 << 40, term: Term(3), settled: 70 }
}

fn at(segment: u32) -> ObjectRef {
    ObjectRef { segment: SegmentId(segment), offset: 4, length: 100, crc: 5 }
}

fn version(checkpoint: &Checkpoint) -> u16 {
    let bytes = checkpoint.encode();
    assert_eq!(Checkpoint::decode(&bytes).as_ref(), Ok(checkpoint));
    u16::from_le_bytes([bytes[4], bytes[5]])
}

/// Older programs can read a pool that has nothing which they do not know.
#[test]
fn the_oldest_version_that_has_all_fields_is_written() {
    let plain = Checkpoint { name: "pond".into(), ..Checkpoint::default() };
    let base = BaseRecord { volume: VolumeId(1), unit: 4096, source: "x".into() };
    assert_eq!(version(&plain), 7);
    assert_eq!(version(&Checkpoint { reordered: 1, ..plain.clone() }), 8);
    assert_eq!(version(&Checkpoint { bases: vec![base], ..plain.clone() }), 9);
    assert_eq!(version(&Checkpoint { bucket: Some(bucket()), ..plain.clone() }), 10);
    let full = Checkpoint { name_pages: vec![(0, at(7)), (9, at(8))], doomed: Some(at(9)), bucket: Some(bucket()), ..plain };
    assert_eq!(version(&full), 10);
    let mut later = full.encode();
    later[4] = 11;
    assert_eq!(Checkpoint::decode(&later), Err(FormatError::Version(11)));
    assert_eq!(Checkpoint::decode(&full.encode()[..full.encode().len() - 1]), Err(FormatError::Truncated));
}

#[test]
fn a_bucket_out_of_range_is_refused() {
    let refused = |checkpoint: Checkpoint| Checkpoint::decode(&checkpoint.encode()).map(|_| ());
    let with = |bucket| refused(Checkpoint { bucket: Some(bucket), ..Checkpoint::default() });
    let field = Err(FormatError::Field("bucket"));
    assert_eq!(with(bucket()), Ok(()));
    assert_eq!(refused(Checkpoint { name_pages: vec![(0, at(7))], ..Checkpoint::default() }), field, "names without a bucket");
    assert_eq!(refused(Checkpoint { doomed: Some(at(7)), ..Checkpoint::default() }), field, "names without a bucket");
    assert_eq!(with(BucketRecord { source: "s".repeat(513), ..bucket() }), field);
    assert_eq!(with(BucketRecord { quota: 1 << 62, ..bucket() }), field);
    assert_eq!(with(BucketRecord { settled: SegmentName::COUNTS, ..bucket() }), Ok(()));
    assert_eq!(with(BucketRecord { settled: SegmentName::COUNTS + 1, ..bucket() }), field);
}
