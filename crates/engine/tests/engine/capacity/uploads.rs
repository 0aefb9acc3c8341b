//! Data moves from the log to objects of a bucket: what survives a crash at each step of an upload.

mod crashes;
mod limits;

use std::collections::BTreeSet;

use millpond_engine::{BucketError, BucketState, Fault, PoolState, SnapshotId, UploadLimits};
use millpond_format::{Holder, ObjectHead, ObjectName, Term};

use super::*;

/// Pages of an object at most, with its head.
const PAGES: u64 = EXTENT / 4096;

fn uploading() -> Tuning {
    Tuning { log_percent: 5, ..tuning() }
}

fn ready(term: u32) -> BucketState {
    BucketState::Ready { term: Term(term), holder: Holder { host: [3; 16], name: "host".into(), session: [4; 16] } }
}

fn name(term: u32, count: u64) -> ObjectName {
    ObjectName::Segment { term: Term(term), import: 0, count }
}

/// A pool whose data may go to the bucket, a volume of round 1, and a snapshot of it.
fn with_data(tuning: Tuning) -> (Harness, VolumeId, SnapshotId) {
    let mut harness = pool(&[48], Layout::Linear, tuning);
    let volume = volume(&mut harness);
    let snapshot = harness.snapshot(volume, "one");
    (harness, volume, snapshot)
}

/// Such a pool whose creates are held, and are as many as may be under way.
fn with_uploads(tuning: Tuning) -> (Harness, VolumeId, SnapshotId) {
    let most = tuning.uploads.under_way;
    let (mut harness, volume, snapshot) = with_data(tuning);
    harness.bucket.holds = true;
    harness.engine.set_bucket(ready(1)).unwrap();
    harness.settle();
    assert_eq!(harness.bucket.held.len(), most);
    (harness, volume, snapshot)
}

/// Creates the held objects, and reports that, without a turn.
fn answer_held(harness: &mut Harness) {
    for (id, name, object) in std::mem::take(&mut harness.bucket.held) {
        let result = harness.bucket.create(name, object).map(|()| None);
        harness.engine.bucket_done(id, result);
    }
}

/// Goes on until no create is left.
fn finish_uploads(harness: &mut Harness) {
    harness.bucket.holds = false;
    answer_held(harness);
    harness.settle();
}

/// Number of blocks of a volume or snapshot that are in objects: they cannot be read without these.
fn blocks_in_bucket(harness: &mut Harness, target: Target) -> usize {
    let objects = std::mem::take(&mut harness.bucket.objects);
    harness.reopen();
    let lost = (0..SIZE).step_by(4096).filter(|at| harness.request(target, Op::Read, *at, 4096, &[]).is_err()).count();
    harness.bucket.objects = objects;
    harness.reopen();
    lost
}

/// Restarts the daemon, and compares everything.
fn check_after_crash(harness: &mut Harness, (volume, round): (VolumeId, u8), snapshot: SnapshotId) {
    harness.reopen();
    DATA.check(harness, Target::Head(volume), round);
    DATA.check(harness, Target::Snapshot(snapshot), 1);
    harness.audit();
}

#[test]
fn data_moves_to_the_bucket_and_is_read_there() {
    let (mut harness, volume, snapshot) = with_data(uploading());
    harness.settle();
    assert!(harness.bucket.created.is_empty() && harness.engine.pop_bucket_work().is_none(), "no import has taken a term");
    harness.engine.set_bucket(ready(1)).unwrap();
    harness.settle();
    let created = harness.bucket.created.clone();
    assert!(created.len() > 20, "{created:?}");
    // counts grow by one, and objects are nearly full: each has a head and a header, and blocks
    assert!(created.iter().zip(0..).all(|(created, count)| *created == name(1, count)));
    let pages: u64 = harness.bucket.objects.values().map(|object| object.len() as u64 / 4096).sum();
    let objects = harness.bucket.objects.len() as u64;
    assert!(pages <= objects * PAGES && pages * 10 > objects * PAGES * 8, "{pages} pages in {objects} objects");
    // nothing is copied twice
    assert!(pages < SIZE / 4096 * 12 / 10, "{pages}");
    let head = ObjectHead::decode(&harness.bucket.objects[&name(1, 0)]).unwrap();
    assert_eq!((head.pool, head.term, head.holder.session), (PoolId([7; 16]), Term(1), [4; 16]));
    DATA.check(&mut harness, Target::Head(volume), 1);
    assert!(!harness.bucket.reads.is_empty());
    harness.audit();
    // after a crash the log says where they are; the import asks the bucket for nothing
    harness.command(Command::Checkpoint).unwrap();
    harness.bucket.reads.clear();
    harness.reopen();
    assert!(harness.bucket.reads.is_empty());
    let there = blocks_in_bucket(&mut harness, Target::Head(volume));
    assert!(there * 4096 > SIZE as usize / 2, "{there} blocks");
    check_after_crash(&mut harness, (volume, 1), snapshot);
    // a later import has another term
    harness.engine.set_bucket(ready(2)).unwrap();
    DATA.write(&mut harness, volume, 2);
    harness.settle();
    assert!(harness.bucket.objects.contains_key(&name(2, 0)));
    check_after_crash(&mut harness, (volume, 2), snapshot);
    harness.command(Command::Close).unwrap();
    check_after_crash(&mut harness, (volume, 2), snapshot);
}

/// Compressed blocks, unlike blocks that have a slot each, are in chunks of many slots.
#[test]
fn compressed_blocks_move_to_the_bucket() {
    let mut harness = pool(&[48], Layout::Linear, Tuning { log_percent: 1, ..tuning() });
    let volume = harness.volume("disk0", SIZE, Compression::Lz4);
    let bytes = |at: u64| (0..DATA.step).map(|byte| ((at + byte) / 512 % 251) as u8).collect::<Vec<u8>>();
    for at in (0..SIZE).step_by(DATA.step as usize) {
        harness.request(Target::Head(volume), Op::Write, at, DATA.step, &bytes(at)).unwrap();
    }
    harness.engine.set_bucket(ready(1)).unwrap();
    harness.settle();
    assert!(harness.bucket.created.len() > 1);
    for _ in 0..2 {
        for at in (0..SIZE).step_by(DATA.step as usize) {
            let read = harness.request(Target::Head(volume), Op::Read, at, DATA.step, &[]).unwrap();
            assert!(read == bytes(at), "at {at}");
        }
        harness.audit();
        harness.reopen();
    }
    assert!(!harness.bucket.reads.is_empty());
}

/// A log that has space keeps new blocks, until they are old.
#[test]
fn old_blocks_move_although_the_log_has_space() {
    let limits = UploadLimits { after_millis: 60_000, ..UploadLimits::default() };
    let (mut harness, volume, snapshot) = with_data(Tuning { log_percent: 90, uploads: limits, ..tuning() });
    harness.engine.set_bucket(ready(1)).unwrap();
    harness.settle();
    harness.now += 30_000;
    harness.settle();
    assert!(harness.bucket.created.is_empty());
    // those of before the import, too, whose age is not known
    for _ in 0..12 {
        harness.now += 10_000;
        harness.settle();
    }
    let full = harness.bucket.created.len();
    assert!(full > 20, "{full}");
    // what is left in an object that is not full follows
    harness.now += 60_000;
    harness.settle();
    assert!(harness.bucket.created.len() > full);
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

#[test]
fn a_chunk_that_dies_meanwhile_is_in_no_place() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    // some die, of some chunks all
    for at in (0..SIZE / 2).step_by(DATA.step as usize) {
        harness.request(Target::Head(volume), Op::Write, at, DATA.step, &DATA.bytes(at, 2)).unwrap();
    }
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }).unwrap();
    for _ in 0..5 {
        harness.settle();
        harness.now += 100;
    }
    finish_uploads(&mut harness);
    let check = |harness: &mut Harness| {
        for at in (0..SIZE).step_by(DATA.step as usize) {
            let read = harness.request(Target::Head(volume), Op::Read, at, DATA.step, &[]).unwrap();
            assert!(read == DATA.bytes(at, if at < SIZE / 2 { 2 } else { 1 }), "at {at}");
        }
        harness.audit();
    };
    check(&mut harness);
    harness.reopen();
    check(&mut harness);
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    check(&mut harness);
}

#[test]
fn an_object_without_chunks_is_doomed() {
    let (mut harness, volume, _) = with_uploads(uploading());
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    for _ in 0..10 {
        harness.settle();
        harness.now += 1000;
    }
    let held: BTreeSet<ObjectName> = harness.bucket.held.iter().map(|(_, name, _)| *name).collect();
    finish_uploads(&mut harness);
    harness.audit();
    harness.command(Command::Checkpoint).unwrap();
    let image = &harness.media[0];
    let list = placed::checkpoint(image).doomed.expect("a list of doomed names");
    let doomed = millpond_format::DoomedName::decode_list(placed::object(image, list)).unwrap();
    let generation = placed::newest_root(image).generation;
    assert!(doomed.iter().all(|doomed| doomed.generation <= generation));
    assert_eq!(doomed.iter().map(|doomed| ObjectName::from(doomed.name)).collect::<BTreeSet<_>>(), held);
    assert_eq!(placed::names(image), []);
    harness.reopen();
    harness.audit();
}

/// A bucket that is away: chunks of uploads are moved within the log, and placed later nevertheless.
#[test]
fn chunks_may_move_within_the_log_meanwhile() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    harness.engine.set_bucket(BucketState::Away).unwrap();
    harness.audit();
    let before = harness.engine.metrics().cleaner_bytes;
    let mut random = Random::new(1);
    for _ in 0..40 {
        for at in (0..SIZE).step_by(DATA.step as usize).filter(|_| random.once_in(3)) {
            harness.request(Target::Head(volume), Op::Write, at, DATA.step, &DATA.bytes(at, 2)).unwrap();
        }
    }
    DATA.write(&mut harness, volume, 2);
    assert!(harness.engine.metrics().cleaner_bytes > before + (1 << 20), "the cleaner goes on within the log");
    assert_eq!(harness.bucket.held.len(), 8, "and uploads nothing");
    harness.audit();
    let objects = harness.bucket.held.len();
    finish_uploads(&mut harness);
    assert_eq!(harness.bucket.objects.len(), objects);
    assert!(blocks_in_bucket(&mut harness, Target::Snapshot(snapshot)) > 200);
    check_after_crash(&mut harness, (volume, 2), snapshot);
    // an import begins without its bucket
    harness.engine.set_bucket(ready(2)).unwrap();
    harness.settle();
    assert!(harness.bucket.objects.contains_key(&name(2, 0)));
    harness.audit();
}
