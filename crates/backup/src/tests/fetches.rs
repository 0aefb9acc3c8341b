//! Single chunks of publications, and pins.

use super::publications::{memory, publish};
use super::*;

const UNIT: usize = Purpose::Publications.chunk_bytes() as usize;

fn pin_of(pool: u8) -> Pin {
    let pool_id = format!("{pool:032x}");
    Pin { pool_id, pool: format!("pond{pool}"), host: "here".to_owned(), created: Timestamp::UNIX_EPOCH }
}

#[test]
fn chunks_are_read_one_by_one() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    // the last chunk is half a chunk
    let made = publish(&target, 1, vec![1, 1, 1, 1, 0, 0, 0, 0, 2, 2]).expect("a publication");
    let fetcher = Fetcher::new(Arc::new(target));
    let fetch = |chunk| fetcher.fetch(made.root, made.size, chunk).expect("an answer");
    assert_eq!((fetch(0), fetch(1)), (Fetched::Data(vec![1; UNIT]), Fetched::Zero));
    assert_eq!(fetch(2), Fetched::Data([vec![2; UNIT / 2], vec![0; UNIT / 2]].concat()));
    assert_eq!(fetch(3), Fetched::Zero, "beyond the end");
    assert!(matches!(fetch(5000), Fetched::Damaged(_)), "no list of it");
    // the lists are in memory now
    let path = |content: &[u8]| ChunkId::of(content).path();
    let (first, mut now) = (path(&vec![1; UNIT]), shared.lock().expect("no panic").now.clone());
    shared.lock().expect("no panic").now.insert(first.clone(), b"rot".to_vec());
    assert!(matches!(fetch(0), Fetched::Damaged(_)));
    shared.lock().expect("no panic").now.remove(&first);
    assert_eq!(fetch(0), Fetched::Missing);
    std::mem::swap(&mut shared.lock().expect("no panic").now, &mut now);
    assert_eq!(fetch(0), Fetched::Data(vec![1; UNIT]));
    assert!(matches!(fetcher.fetch(ChunkId::of(b"no root"), made.size, 0), Ok(Fetched::Damaged(_))));
}

#[test]
fn a_target_that_is_away_has_no_missing_chunks() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let made = publish(&target, 1, vec![1; 4]).expect("a publication");
    let fetcher = Fetcher::new(Arc::new(target));
    let away = std::mem::take(&mut shared.lock().expect("no panic").now);
    assert!(matches!(fetcher.fetch(made.root, made.size, 0), Err(BackupError::Empty(_))));
    // another target in its place
    target_of(Purpose::Publications, &store).expect("a target");
    let mut head: TargetHead = {
        let text = shared.lock().expect("no panic").now[Purpose::Publications.head()].clone();
        crate::record::decode(Purpose::Publications, &text, "head").expect("a head")
    };
    head.id = "7".repeat(32);
    shared.lock().expect("no panic").now.insert(Purpose::Publications.head().into(), crate::record::encode(&head));
    assert!(matches!(fetcher.fetch(made.root, made.size, 0), Err(BackupError::OtherTarget)));
    shared.lock().expect("no panic").now = away;
    assert_eq!(fetcher.fetch(made.root, made.size, 0).expect("read"), Fetched::Data(vec![1; UNIT]));
}

#[test]
fn a_pinned_publication_goes_by_force_alone() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let made = publish(&target, 1, vec![1; 4]).expect("a publication");
    let (id, stop) = (made.publication.clone().expect("an id"), AtomicBool::new(false));
    let (name, progress): (SnapshotName, _) = (made.name.parse().expect("a name"), CopyProgress::default());
    let other = target.pin(&name, &"f".repeat(32), &pin_of(1), &stop);
    assert!(matches!(other, Err(BackupError::Changed { .. })), "{other:?}");
    assert_eq!(target.head().format, 1);
    target.pin(&name, &id, &pin_of(1), &stop).expect("pinned");
    let target = target_of(Purpose::Publications, &store).expect("a target");
    assert_eq!(target.head().format, 2, "older programs refuse it");
    target.pin(&name, &id, &pin_of(2), &stop).expect("pinned");
    target.pin(&name, &id, &pin_of(1), &stop).expect("pinned again");
    assert_eq!(target.pins(&id).expect("pins"), [pin_of(1), pin_of(2)]);
    let before = shared.lock().expect("no panic").now.clone();
    for dry in [true, false] {
        let refused = unpublish(&target, &name, (dry, false), &progress).expect_err("pinned").to_string();
        assert!(refused.contains("pool 'pond1' of host here, pool 'pond2' of host here"), "{refused}");
    }
    // a pin that cannot be read is one
    shared.lock().expect("no panic").now.insert(format!("pins/{id}/{:032x}", 2), b"rot".to_vec());
    let refused = unpublish(&target, &name, (false, false), &progress).expect_err("pinned").to_string();
    assert!(refused.contains("pool 00000000000000000000000000000002"), "{refused}");
    assert_eq!(shared.lock().expect("no panic").now.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    unpublish(&target, &name, (false, true), &progress).expect("unpublished");
    assert_eq!(target.pins(&id).expect("pins"), []);
    assert_eq!(target.names().expect("names"), []);
}

/// A pin that was acknowledged survives a power cut, with the format that protects it.
#[test]
fn a_pin_is_durable_when_it_is_written() {
    for steps in 0.. {
        let (shared, store) = memory();
        let target = target_of(Purpose::Publications, &store).expect("a target");
        let made = publish(&target, 1, vec![1; 4]).expect("a publication");
        let (id, stop) = (made.publication.clone().expect("an id"), AtomicBool::new(false));
        let name: SnapshotName = made.name.parse().expect("a name");
        shared.lock().expect("no panic").left = Some(steps);
        let pinned = target.pin(&name, &id, &pin_of(1), &stop);
        drop(target);
        let mut after = shared.lock().expect("no panic");
        after.left = None;
        // the worst power cut: nothing stays that need not
        after.now = after.durable.clone();
        drop(after);
        let target = target_of(Purpose::Publications, &store).expect("a target");
        let pins = target.pins(&id).expect("pins");
        assert!(pins.is_empty() || target.head().format == 2, "a pin that older programs pass over");
        if pinned.is_ok() {
            assert_eq!(pins, [pin_of(1)]);
            return;
        }
    }
}
