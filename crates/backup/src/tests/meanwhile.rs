//! Commands that another one meets at any of their steps.

use super::*;

const BOTH: [Purpose; 2] = [Purpose::Backups, Purpose::Publications];

fn open(purpose: Purpose, shared: &Arc<Mutex<Shared>>) -> Target {
    target_of(purpose, || Box::new(Memory::new(shared))).expect("a target")
}

fn record_of(purpose: Purpose, number: u64, size: u64, base: Option<&Record>) -> Record {
    match purpose {
        Purpose::Backups => record(number, size, base),
        Purpose::Publications => published(number, size, base),
    }
}

fn make(target: &Target, number: u64, content: &Content, base: Option<(&Record, &Content)>) -> Result<Record, BackupError> {
    let served = Served { content: content.clone(), older: base.map(|(_, older)| older.clone()) };
    let base = base.map(|(base, _)| base);
    create(target, &served, record_of(target.purpose(), number, content.size(), base), base, &CopyProgress::default())
}

fn restores(target: Target, record: &Record, content: &Content) -> bool {
    let target = Arc::new(target);
    let image = target.share(&AtomicBool::new(false)).and_then(|lock| BackupImage::new(Arc::clone(&target), record, &lock));
    image.is_ok_and(|image| content.is(&image))
}

#[test]
fn a_base_that_was_deleted_or_damaged_meanwhile_is_refused() {
    for purpose in BOTH {
        let shared = Arc::default();
        let target = open(purpose, &shared);
        let (old, new) = (Content::of(purpose, vec![1; 8]), Content::of(purpose, vec![1, 1, 1, 1, 2, 2, 2, 2]));
        let first = make(&target, 1, &old, None).expect("a record");
        let name: SnapshotName = first.name.parse().expect("a name");
        let verified = Verified { at: Timestamp::UNIX_EPOCH, damaged: vec![(0, 4096)] };
        target.put_verified(&name, verified).expect("a note");
        let refused = make(&target, 2, &new, Some((&first, &old)));
        assert!(matches!(refused, Err(BackupError::Changed { .. })), "{refused:?}");
        // it was killed after the record: the lists of the base are still there
        target.delete_records(std::slice::from_ref(&name)).expect("deleted");
        let refused = make(&target, 2, &new, Some((&first, &old)));
        assert!(matches!(refused, Err(BackupError::Changed { .. })), "{refused:?}");
        assert!(!restores(target, &first, &old), "it has no record");
    }
}

#[test]
fn a_verification_meanwhile_marks_what_is_made_on_a_damaged_base() {
    let all = BOTH.into_iter().flat_map(|purpose| (0..40).map(move |steps| (purpose, steps)));
    for ((purpose, steps), noted) in all.flat_map(|one| [(one, false), (one, true)]) {
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let target = open(purpose, &shared);
        let (old, new) = (Content::of(purpose, vec![1; 8]), Content::of(purpose, vec![1, 1, 1, 1, 2, 2, 2, 2]));
        let first = make(&target, 1, &old, None).expect("a record");
        let chunk = ChunkId::of(&vec![1; purpose.chunk_bytes() as usize]).path();
        let other = Arc::clone(&shared);
        let meanwhile = move || {
            let found = verify(&open(purpose, &other), None, Timestamp::UNIX_EPOCH, &CopyProgress::default());
            assert!(!found.expect("a verification").damaged.is_empty());
        };
        shared.lock().expect("no panic").now.insert(chunk, b"rot".to_vec());
        if noted {
            // it has noted the chunk, and not yet marked the base
            let found = (0..40).find(|left| {
                shared.lock().expect("no panic").left = Some(*left);
                drop(verify(&target, None, Timestamp::UNIX_EPOCH, &CopyProgress::default()));
                shared.lock().expect("no panic").left = None;
                !target.suspects().expect("notes").is_empty()
            });
            assert!(found.is_some());
        }
        shared.lock().expect("no panic").meanwhile = Some((steps, Box::new(meanwhile)));
        match make(&target, 2, &new, Some((&first, &old))) {
            Err(BackupError::Changed { .. }) => {}
            Err(error) => panic!("{steps} steps: {error}"),
            Ok(second) => {
                let over = shared.lock().expect("no panic").meanwhile.is_none();
                let name = second.name.parse().expect("a name");
                let marked = target.is_damaged(&name).expect("a note");
                assert!(marked || !over || restores(open(purpose, &shared), &second, &new), "{steps} steps");
            }
        }
    }
}

#[test]
fn of_two_snapshots_of_one_name_one_is_refused() {
    for (purpose, steps) in BOTH.into_iter().flat_map(|purpose| (0..40).map(move |steps| (purpose, steps))) {
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let target = open(purpose, &shared);
        let (mine, theirs) = (Content::of(purpose, vec![1; 8]), Content::of(purpose, vec![2; 8]));
        let (other, content) = (Arc::clone(&shared), theirs.clone());
        let made = Arc::new(Mutex::new(None));
        let told = Arc::clone(&made);
        let meanwhile = move || {
            let record = Record { identity: identity(7), ..record_of(purpose, 1, content.size(), None) };
            let served = Served { content, older: None };
            let target = open(purpose, &other);
            let made = create(&target, &served, record, None, &CopyProgress::default());
            if let Ok(made) = &made {
                let verified = Verified { at: Timestamp::UNIX_EPOCH, damaged: vec![(0, 4096)] };
                target.put_verified(&made.name.parse().expect("a name"), verified).expect("a result");
            }
            *told.lock().expect("no panic") = Some(made);
        };
        shared.lock().expect("no panic").meanwhile = Some((steps, Box::new(meanwhile)));
        let first = make(&target, 1, &mine, None);
        let second = made.lock().expect("no panic").take();
        let is_refused = |made: &Result<Record, BackupError>| matches!(made, Err(BackupError::Exists { .. }));
        match second {
            None => assert!(first.is_ok(), "{steps} steps"),
            Some(second) => {
                assert!(is_refused(&first) != is_refused(&second), "{steps} steps: {first:?} {second:?}");
                // steps 1 to 3 read the suspects, the record and the result of an older one
                if is_refused(&first) && steps > 3 {
                    assert!(target.is_damaged(&"tank/vm1@s1".parse().expect("a name")).expect("a result"), "{steps} steps");
                }
                let (kept, content) = if is_refused(&first) { (second, theirs) } else { (first, mine) };
                assert!(restores(open(purpose, &shared), &kept.expect("a record"), &content), "{steps} steps");
            }
        }
    }
}

#[test]
fn a_target_that_is_prepared_for_both_has_one_purpose() {
    for (purpose, steps) in BOTH.into_iter().flat_map(|purpose| (0..12).map(move |steps| (purpose, steps))) {
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let other = Arc::clone(&shared);
        let meanwhile = move || drop(target_of(purpose.other(), || Box::new(Memory::new(&other))));
        shared.lock().expect("no panic").meanwhile = Some((steps, Box::new(meanwhile)));
        drop(target_of(purpose, || Box::new(Memory::new(&shared))));
        shared.lock().expect("no panic").meanwhile = None;
        let opened = BOTH.map(|purpose| Target::open(Box::new(Memory::new(&shared)), purpose).is_ok());
        assert!(opened[0] != opened[1], "{steps} steps: {opened:?}");
    }
}
