//! Terms, names, and how much is uploaded at a time.

use millpond_block::IoKind;
use millpond_engine::{Busy, UploadLimits};
use millpond_format::SegmentId;

use super::*;

#[test]
fn an_import_takes_one_term_which_is_later_than_all_before() {
    let mut plain = Harness::create(&[64], spec(vec![GroupSpec::data(Layout::Linear)], None), tuning());
    assert_eq!(plain.engine.set_bucket(ready(1)), Err(CommandError::Invalid(Invalid::NoBucket)));
    let (mut harness, volume, snapshot) = with_data(uploading());
    let refused = |term, recorded| Err(CommandError::Invalid(Invalid::BucketTerm { term: Term(term), recorded: Term(recorded) }));
    assert_eq!(harness.engine.set_bucket(ready(0)), refused(0, 0));
    harness.engine.set_bucket(BucketState::Away).unwrap();
    harness.engine.set_bucket(ready(5)).unwrap();
    assert_eq!(harness.engine.set_bucket(ready(6)), refused(6, 5), "before it is logged");
    harness.settle();
    for state in [BucketState::Away, ready(5), BucketState::Full, ready(5)] {
        harness.engine.set_bucket(state).unwrap();
        harness.settle();
    }
    assert_eq!(harness.engine.set_bucket(ready(6)), refused(6, 5));
    let objects = harness.bucket.objects.len();
    assert!(objects > 0 && harness.bucket.created.iter().all(|name| name.term() == Some(Term(5))));
    for reopen in [Harness::reopen, |harness: &mut Harness| {
        harness.command(Command::Checkpoint).unwrap();
        harness.reopen();
    }] {
        reopen(&mut harness);
        assert_eq!(harness.engine.set_bucket(ready(5)), refused(5, 5));
    }
    check_after_crash(&mut harness, (volume, 1), snapshot);
    let media = harness.media.clone();
    let mut reader = Harness::import_with(media, Tuning { read_only: true, ..uploading() }, 1_000).unwrap();
    assert_eq!(reader.engine.set_bucket(ready(6)), Err(CommandError::Busy(Busy::ReadOnly)));
}

#[test]
fn nothing_is_created_before_the_term_is_durable() {
    let (mut harness, ..) = with_data(uploading());
    harness.engine.set_bucket(ready(1)).unwrap();
    let mut flushes = Vec::new();
    for _ in 0..2000 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            match io.kind {
                IoKind::Flush => flushes.push(io),
                _ => harness.perform(io),
            }
        }
        assert!(harness.engine.pop_bucket_work().is_none());
    }
    // the record is written; a crash now may lose it
    assert!(!flushes.is_empty());
    flushes.into_iter().for_each(|io| harness.perform(io));
    harness.settle();
    assert!(harness.bucket.objects.contains_key(&name(1, 0)));
}

#[test]
fn few_objects_are_under_way_and_none_is_copied_twice() {
    let limits = UploadLimits { open: 1, under_way: 3, ..UploadLimits::default() };
    let (mut harness, volume, snapshot) = with_uploads(Tuning { uploads: limits, ..uploading() });
    for _ in 0..100 {
        harness.now += 100;
        harness.settle();
    }
    assert_eq!(harness.bucket.held.len(), 3);
    let copied = harness.engine.metrics().cleaner_bytes;
    assert!(copied < 5 * EXTENT, "{copied}");
    // each that ends makes room for another one
    for round in 0..10 {
        let (id, name, object) = harness.bucket.held.remove(round % 3);
        let result = harness.bucket.create(name, object).map(|()| None);
        harness.engine.bucket_done(id, result);
        harness.settle();
        assert_eq!(harness.bucket.held.len(), 3);
    }
    finish_uploads(&mut harness);
    let pages: usize = harness.bucket.objects.values().map(|object| object.len() / 4096).sum();
    assert!(pages < SIZE as usize / 4096 * 12 / 10, "{pages}");
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

/// Segments whose chunks are in uploads are left alone until these have ended.
#[test]
fn nothing_is_copied_twice_while_uploads_are_under_way() {
    let limits = UploadLimits { under_way: 60, ..UploadLimits::default() };
    let (mut harness, volume, snapshot) = with_data(Tuning { uploads: limits, ..uploading() });
    harness.bucket.holds = true;
    harness.engine.set_bucket(ready(1)).unwrap();
    for _ in 0..20 {
        harness.now += 100;
        harness.settle();
    }
    let copied = harness.engine.metrics().cleaner_bytes;
    assert!((SIZE * 3 / 4..SIZE * 11 / 10).contains(&copied), "{copied}");
    finish_uploads(&mut harness);
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

/// No count is more than 64 above the highest one that is known, and more follow when that one grows.
#[test]
fn names_go_on_when_earlier_ones_are_logged() {
    let limits = UploadLimits { under_way: 1000, ..UploadLimits::default() };
    let mut harness = pool(&[96], Layout::Linear, Tuning { uploads: limits, ..uploading() });
    let size = 24 << 20;
    let data = Steps { size, ..DATA };
    let volume = harness.volume("disk0", size, Compression::Off);
    data.write(&mut harness, volume, 1);
    harness.bucket.holds = true;
    harness.engine.set_bucket(ready(1)).unwrap();
    harness.settle();
    // 64 are full, and the caller takes a few of them at a time
    let reserved = harness.engine.space_report();
    assert_eq!(harness.bucket.held.len(), 12, "{reserved}");
    assert!((64..68).any(|open| reserved.contains(&format!("uploads {open};"))), "{reserved}");
    finish_uploads(&mut harness);
    assert!(harness.bucket.created.len() > 68, "{}", harness.bucket.created.len());
    harness.reopen();
    data.check(&mut harness, Target::Head(volume), 1);
    harness.audit();
}

/// A bucket of few segments, whose objects die and are doomed: a segment gets another object only when a
/// durable checkpoint is without the first one. Replay refuses two objects of one segment.
#[test]
fn a_segment_that_still_has_a_name_is_not_used() {
    let groups = vec![GroupSpec::data(Layout::Bucket { segments: 12 }), group(Class::Log, Layout::Linear, 1)];
    let limits = UploadLimits { open: 1, under_way: 2, ..UploadLimits::default() };
    let tuning = Tuning { rewind_checkpoints: 0, rewind_millis: 0, uploads: limits, ..uploading() };
    let mut harness = Harness::create(&[48], spec(groups, Some(EXTENT)), tuning);
    let size = 3 << 20;
    let data = Steps { size, ..DATA };
    let volume = harness.volume("disk0", size, Compression::Off);
    let mut segments = BTreeSet::new();
    let mut random = Random::new(5);
    for term in 1..25 {
        harness.engine.set_bucket(ready(term)).unwrap();
        for round in 0..1 + random.below(3) {
            data.write(&mut harness, volume, (term * 3 + round as u32) as u8);
            harness.settle();
            harness.now += 4000;
            harness.settle();
            harness.audit();
            if random.once_in(2) {
                harness.command(Command::Checkpoint).unwrap();
                segments.extend(placed::names_of(&harness.media[0], 12).into_iter().map(|named| (named.segment, named.name)));
            }
        }
        harness.reopen();
        harness.audit();
    }
    let first: BTreeSet<SegmentId> = segments.iter().map(|(segment, _)| *segment).collect();
    assert!(segments.len() > first.len() * 2, "segments get several objects, one after another: {segments:?}");
}

#[test]
fn a_removal_waits_for_no_open_upload() {
    for member in [0, 1] {
        let mut harness = pool(&[32, 32], Layout::Linear, Tuning { log_percent: 0, ..tuning() });
        let volume = volume(&mut harness);
        let device = harness.new_device(64);
        let groups = vec![group(Class::Log, Layout::Linear, 1)];
        harness.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).unwrap();
        harness.engine.set_bucket(ready(1)).unwrap();
        harness.settle();
        let begun = harness.now;
        harness.command(DeviceCommand::Remove { member: MemberId(member), dry_run: false }).unwrap();
        harness.finish_jobs();
        assert!(harness.now < begun + UploadLimits::default().after_millis, "member {member}");
        DATA.check(&mut harness, Target::Head(volume), 1);
        harness.audit();
    }
}
