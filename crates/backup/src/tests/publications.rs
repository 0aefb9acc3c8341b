//! Targets of publications, and their border to those of backups.

use super::*;

pub fn memory() -> (Arc<Mutex<Shared>>, impl Fn() -> Box<dyn Store>) {
    let shared = Arc::new(Mutex::new(Shared::default()));
    let own = Arc::clone(&shared);
    (shared, move || Box::new(Memory::new(&own)) as Box<dyn Store>)
}

pub fn content(values: Vec<u8>) -> Content {
    Content::of(Purpose::Publications, values)
}

pub fn publish(target: &Target, number: u64, values: Vec<u8>) -> Result<Record, BackupError> {
    let content = content(values);
    let size = content.size();
    create(target, &Served { content, older: None }, published(number, size, None), None, &CopyProgress::default())
}

fn chunks(shared: &Arc<Mutex<Shared>>) -> usize {
    shared.lock().expect("no panic").now.keys().filter(|name| name.starts_with("chunks/")).count()
}

#[test]
fn a_target_has_backups_or_publications() {
    use Purpose::{Backups, Publications};
    for (own, other) in [(Backups, Publications), (Publications, Backups)] {
        let (shared, store) = memory();
        assert!(target_of(own, &store).is_ok_and(|target| target.purpose() == own));
        let refused = target_of(other, &store).err();
        assert!(matches!(refused, Some(BackupError::Other(of)) if of == own), "{refused:?}");
        // two commands that prepared it at the same time did not see each other: neither writes anything
        let mut both = shared.lock().expect("no panic");
        let head = both.now[own.head()].clone();
        both.now.insert(other.head().into(), head);
        drop(both);
        for purpose in [own, other] {
            let refused = target_of(purpose, &store).err();
            assert!(matches!(refused, Some(BackupError::Other(of)) if of == purpose.other()), "{refused:?}");
        }
    }
}

#[test]
fn a_target_of_chunks_of_another_size_is_refused() {
    let (shared, store) = memory();
    target_of(Purpose::Publications, &store).expect("a target");
    let head = TargetHead { format: 1, id: "00".repeat(16), chunk: 1 << 20, created: Timestamp::UNIX_EPOCH };
    shared.lock().expect("no panic").now.insert(Purpose::Publications.head().into(), crate::record::encode(&head));
    assert!(matches!(target_of(Purpose::Publications, &store), Err(BackupError::Newer(_))));
}

#[test]
fn a_publication_has_small_chunks_and_is_there_once() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let made = publish(&target, 1, vec![1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]).expect("a publication");
    // two chunks of data, a page and a root
    assert_eq!((made.read, chunks(&shared)), (2 * (256 << 10), 4));
    let name = made.name.parse().expect("a name");
    assert_eq!(target.complete(&name, &identity(1)).expect("read"), Some(made.clone()));
    assert_eq!(target.complete(&name, &identity(2)).expect("read"), None);
    let again = create(
        &target,
        &Served { content: content(vec![9]), older: None },
        Record { publication: Some("f".repeat(32)), ..published(1, 4096, None) },
        None,
        &CopyProgress::default(),
    );
    assert_eq!(again.expect("the same"), made);
    let other = Record { identity: identity(7), ..published(1, 4096, None) };
    let other = create(&target, &Served { content: content(vec![9]), older: None }, other, None, &CopyProgress::default());
    assert!(matches!(other, Err(BackupError::Exists { of: Purpose::Publications, .. })), "{other:?}");
}

#[test]
fn a_damaged_publication_is_made_again_and_stays_the_same_one() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let made = publish(&target, 1, vec![1; 4]).expect("a publication");
    let name = made.name.parse().expect("a name");
    let chunk = ChunkId::of(&[1; 256 << 10]).path();
    shared.lock().expect("no panic").now.insert(chunk, b"rot".to_vec());
    let found = verify(&target, None, Timestamp::UNIX_EPOCH, &CopyProgress::default()).expect("a verification");
    assert_eq!(found.damaged.iter().map(|one| one.ranges.clone()).collect::<Vec<_>>(), [vec![(0, 256 << 10)]]);
    assert_eq!(target.complete(&name, &identity(1)).expect("read"), None);
    let record = Record { publication: Some("f".repeat(32)), ..published(1, made.size, None) };
    let whole = Served { content: content(vec![1; 4]), older: None };
    let again = create(&target, &whole, record, None, &CopyProgress::default()).expect("a publication");
    assert_eq!((again.publication, again.root, again.stored > 0), (made.publication, made.root, true));
    assert_eq!(target.complete(&name, &identity(1)).expect("read").map(|record| record.root), Some(made.root));
}

#[test]
fn unpublish_keeps_what_others_need() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let first = publish(&target, 1, vec![1, 1, 1, 1, 2, 2, 2, 2]).expect("a publication");
    publish(&target, 2, vec![1, 1, 1, 1, 3, 3, 3, 3]).expect("a publication");
    let before = chunks(&shared);
    let (name, progress) = (first.name.parse().expect("a name"), CopyProgress::default());
    let planned = unpublish(&target, &name, (true, false), &progress).expect("a plan");
    assert_eq!((planned.pruned.chunks, chunks(&shared)), (3, before));
    assert_eq!(unpublish(&target, &name, (false, false), &progress).expect("unpublished").pruned, planned.pruned);
    assert_eq!(chunks(&shared), before - 3);
    let gone = unpublish(&target, &name, (false, true), &progress);
    assert!(matches!(gone, Err(BackupError::NotThere { .. })), "{gone:?}");
    assert_eq!(verify(&target, None, Timestamp::UNIX_EPOCH, &progress).expect("a verification").damaged, []);
}

#[test]
fn a_record_that_cannot_be_read_goes_by_force_alone() {
    let (shared, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let (progress, damaged) = (CopyProgress::default(), publish(&target, 1, vec![1; 4]).expect("a publication"));
    let whole = publish(&target, 2, vec![2; 4]).expect("a publication");
    shared.lock().expect("no panic").now.insert("publications/tank/vm1/s1.json".into(), b"{}\n".to_vec());
    let (damaged, whole) = (damaged.name.parse().expect("a name"), whole.name.parse().expect("a name"));
    // what the damaged one needs is not known, so nothing is deleted for another one either
    for name in [&whole, &damaged] {
        let refused = unpublish(&target, name, (false, false), &progress);
        assert!(matches!(&refused, Err(BackupError::Unreadable { name, .. }) if *name == damaged.to_string()), "{refused:?}");
    }
    assert_eq!(target.names().expect("names").len(), 2);
    // of two that are damaged, one has to go first
    let before = chunks(&shared);
    assert!(unpublish(&target, &whole, (true, true), &progress).expect("a plan").kept.is_some());
    assert_eq!(target.names().expect("names").len(), 2);
    assert!(unpublish(&target, &whole, (false, true), &progress).expect("unpublished").kept.is_some());
    assert_eq!((target.names().expect("names"), chunks(&shared)), (vec![damaged.clone()], before));
    let unpublished = unpublish(&target, &damaged, (false, true), &progress).expect("unpublished");
    assert_eq!((unpublished.pruned.chunks as usize, chunks(&shared)), (before, 0));
    // a newer program may know reasons to keep it
    publish(&target, 3, vec![3; 4]).expect("a publication");
    let newer = Record { format: 2, ..published(3, 4096, None) };
    shared.lock().expect("no panic").now.insert("publications/tank/vm1/s3.json".into(), crate::record::encode(&newer));
    let name = newer.name.parse().expect("a name");
    let refused = unpublish(&target, &name, (false, true), &progress);
    assert!(matches!(refused, Err(BackupError::Newer(_))), "{refused:?}");
}

#[test]
fn a_volume_that_is_too_large_is_refused() {
    let (_, store) = memory();
    let target = target_of(Purpose::Publications, &store).expect("a target");
    let record = published(1, Purpose::Publications.largest_volume() + 4096, None);
    let refused = create(&target, &Served { content: content(vec![1]), older: None }, record, None, &CopyProgress::default());
    assert_eq!(refused.expect_err("too large").to_string(), "the volume is larger than 8 TiB");
}
