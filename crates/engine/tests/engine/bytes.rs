//! Requests of any number of bytes, as files get them: concurrent requests in one block, compared
//! with bytes in memory.

use millpond_block::{ByteRange, CacheMode, DiskError, Op, Payload, Request, SectorProfile, Tag};
use millpond_engine::{CatalogCommand, Compression, Layout, Reply, Target, VolumeId};

use crate::harness::Harness;
use millpond_testing::Random;

const SIZE: u64 = 256 << 10;

fn submit(harness: &mut Harness, target: Target, tag: u64, op: Op, range: ByteRange, payload: Payload<'_>) {
    harness.engine.submit_bytes(target, Tag(tag), Request { op, range, fua: false }, payload);
}

fn read(harness: &mut Harness, target: Target, range: ByteRange) -> Result<Vec<u8>, DiskError> {
    submit(harness, target, 1, Op::Read, range, Payload::None);
    harness.settle();
    let done = harness.engine.pop_completion().expect("an answer");
    done.result.map(|data| data.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat())
}

fn volume(harness: &mut Harness, sector: SectorProfile, compression: Compression) -> VolumeId {
    let cache = CacheMode::Writeback;
    match harness.command(CatalogCommand::CreateVolume { name: "v".into(), size: SIZE, sector, cache, compression }).unwrap() {
        Reply::Volume(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Runs several writes and zeroings at once that touch each other without overlapping, then reads
/// anywhere.
fn neighbours(seed: u64, sector: SectorProfile, compression: Compression) {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let target = Target::Head(volume(&mut harness, sector, compression));
    let mut twin = vec![0u8; SIZE as usize];
    let mut random = Random::new(seed);
    for round in 0..120 {
        let mut at = random.below(SIZE - 40_000);
        let count = 1 + random.below(8);
        for tag in 0..count {
            let length = 1 + if random.below(4) == 0 { random.below(9000) } else { random.below(700) };
            let range = ByteRange { offset: at, length: length.min(SIZE - at) };
            let place = at as usize..(at + range.length) as usize;
            if random.below(4) == 0 {
                submit(&mut harness, target, tag, Op::WriteZeroes { may_unmap: true }, range, Payload::None);
                twin[place].fill(0);
            } else {
                let byte = 1 + (random.below(255)) as u8;
                twin[place.clone()].fill(byte);
                submit(&mut harness, target, tag, Op::Write, range, Payload::Copy(&twin[place]));
            }
            at += range.length;
        }
        harness.settle();
        for _ in 0..count {
            harness.engine.pop_completion().expect("an answer").result.unwrap();
        }
        let offset = random.below(SIZE - 1);
        let range = ByteRange { offset, length: 1 + random.below(SIZE - offset).min(30_000) };
        let range = ByteRange { length: range.length.min(SIZE - offset), ..range };
        let expected = &twin[offset as usize..(offset + range.length) as usize];
        assert_eq!(read(&mut harness, target, range).unwrap(), expected, "seed {seed}, round {round}, {range:?}");
        if round == 60 {
            harness.reopen();
        }
    }
    assert_eq!(read(&mut harness, target, ByteRange { offset: 0, length: SIZE }).unwrap(), twin);
    harness.audit();
}

#[test]
fn bytes_beside_each_other_are_kept() {
    neighbours(0x1234_5671, SectorProfile::S512e, Compression::Off);
    neighbours(0x1234_5672, SectorProfile::S4kn, Compression::Off);
    neighbours(0x1234_5673, SectorProfile::S512e, Compression::Lz4);
}

#[test]
fn sectors_still_ask_for_sectors_and_bytes_for_bounds() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let target = Target::Head(volume(&mut harness, SectorProfile::S4kn, Compression::Off));
    assert_eq!(harness.request(target, Op::Write, 512, 512, &[1; 512]), Err(DiskError::Invalid));
    assert_eq!(read(&mut harness, target, ByteRange { offset: SIZE - 1, length: 2 }), Err(DiskError::OutOfBounds));
    assert_eq!(read(&mut harness, target, ByteRange { offset: u64::MAX, length: 2 }), Err(DiskError::OutOfBounds));
    assert_eq!(read(&mut harness, target, ByteRange { offset: SIZE - 1, length: 1 }), Ok(vec![0]));
}

#[test]
fn other_sectors_are_told_and_stay() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = volume(&mut harness, SectorProfile::S512e, Compression::Off);
    let target = Target::Head(volume);
    assert_eq!(harness.request(target, Op::Write, 512, 512, &[1; 512]), Ok(vec![]));
    assert_eq!(harness.command(CatalogCommand::SetSector { volume, sector: SectorProfile::S4kn }), Ok(Reply::Done));
    assert_eq!(harness.request(target, Op::Write, 512, 512, &[2; 512]), Err(DiskError::Invalid));
    harness.reopen();
    assert_eq!(harness.request(target, Op::Write, 512, 512, &[2; 512]), Err(DiskError::Invalid));
    assert_eq!(read(&mut harness, target, ByteRange { offset: 511, length: 2 }), Ok(vec![0, 1]));
    assert!(harness.command(CatalogCommand::SetSector { volume: millpond_format::VolumeId(99), sector: SectorProfile::S4kn }).is_err());
}

#[test]
fn a_directory_is_told_in_pieces_by_id() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let first = volume(&mut harness, SectorProfile::S512e, Compression::Off);
    let other = harness.volume("w", SIZE, Compression::Off);
    let all: Vec<_> = (0..5).map(|n| harness.snapshot(first, &format!("s{n}"))).collect();
    let foreign = harness.snapshot(other, "s1");
    let gone = harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![all[3]] });
    assert_eq!(gone, Ok(Reply::Done));
    // the old head becomes a snapshot of another lineage of the same volume
    harness.command(CatalogCommand::Rollback { snapshot: all[1], keep_as: "kept".into() }).unwrap();
    let late = harness.snapshot(first, "late");
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let piece = harness.engine.snapshot_images(first, after, 2);
        assert!(piece.len() <= 2);
        let Some((id, _)) = piece.last() else { break };
        assert!(after < Some(*id));
        after = Some(*id);
        names.extend(piece.into_iter().map(|(_, image)| image.name));
    }
    assert_eq!(names, ["s0", "s1", "s2", "s4", "kept", "late"]);
    assert!(harness.engine.image(Target::Snapshot(all[3])).is_none());
    assert!(harness.engine.image(Target::Snapshot(late)).is_some_and(|image| image.read_only && image.size == SIZE));
    assert_eq!(harness.engine.snapshot_images(other, None, 9).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [foreign]);
    let volumes: Vec<_> = harness.engine.volume_images(None, 9).into_iter().map(|(id, image)| (id, image.name)).collect();
    assert_eq!(volumes, [(first, "v".to_owned()), (other, "w".to_owned())]);
    assert_eq!(harness.engine.volume_images(Some(first), 9).len(), 1);
}
