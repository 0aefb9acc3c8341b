//! A directory as target.

use std::fs;
use std::time::Duration;

use super::*;

fn store(dir: &std::path::Path) -> Box<dyn Store> {
    Box::new(Directory::new(dir).with_patience(Duration::from_millis(300)))
}

#[test]
fn backups_of_a_directory_share_chunks_and_go_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = target(|| store(dir.path())).expect("a target");
    let old = Content::new(vec![1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]);
    let new = Content::new(vec![1, 1, 1, 1, 2, 3, 2, 2, 0, 0, 0, 0, 9]);
    let progress = CopyProgress::default();
    let whole = Served { content: old.clone(), older: None };
    let first = create(&target, &whole, record(1, old.size(), None), None, &progress).expect("a backup");
    assert_eq!(first.read, 2 * CHUNK);
    let changed = Served { content: new.clone(), older: Some(old.clone()) };
    let second = create(&target, &changed, record(2, new.size(), Some(&first)), Some(&first), &progress).expect("a backup");
    assert_eq!(second.read, CHUNK + PART, "one chunk changed, one is new");
    let again = create(&target, &changed, record(2, new.size(), Some(&first)), Some(&first), &progress).expect("the same");
    assert_eq!(again, second);
    let other = Record { identity: identity(7), ..record(2, new.size(), None) };
    assert!(matches!(create(&target, &changed, other, None, &progress), Err(BackupError::Exists { .. })));

    let names = target.names().expect("names");
    let gone: Vec<_> = names.iter().filter(|name| name.snapshot == "s1").cloned().collect();
    let planned = prune(&target, &gone, true, &progress).expect("a plan");
    assert_eq!(planned, prune(&target, &gone, false, &progress).expect("a prune"));
    // a chunk, a page and a root are of the first one alone
    assert_eq!(planned.chunks, 3);
    let target = Arc::new(target);
    let image = BackupImage::new(
        Arc::clone(&target),
        &target.record(&names[1]).expect("a record"),
        &target.share(&AtomicBool::new(false)).expect("a lock"),
    )
    .expect("an image");
    assert!(new.is(&image));
    assert_eq!(fs::read_dir(dir.path().join("incoming")).expect("a directory").count(), 0);
}

#[test]
fn other_directories_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("letter.txt"), b"x").expect("a file");
    assert!(matches!(target(|| store(dir.path())), Err(BackupError::NotATarget(Purpose::Backups))));
    assert!(matches!(target(|| store(&dir.path().join("away"))), Err(BackupError::Store(_))));
}

#[test]
fn a_prune_waits_for_backups_and_keeps_them_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let of = |alone| store(dir.path()).lock(alone, &AtomicBool::new(false));
    let (first, second) = (of(false).expect("shared"), of(false).expect("shared"));
    assert!(matches!(of(true), Err(StoreError::Busy(_))));
    drop((first, second));
    let alone = of(true).expect("alone");
    assert!(matches!(of(false), Err(StoreError::Busy(_))));
    drop(alone);
    // what killed commands left goes with the next one that is alone
    fs::create_dir_all(dir.path().join("incoming")).expect("a directory");
    fs::write(dir.path().join("incoming/part-x"), b"x").expect("a file");
    drop(of(false).expect("shared"));
    assert!(dir.path().join("incoming/part-x").exists());
    drop(of(true).expect("alone"));
    assert!(!dir.path().join("incoming/part-x").exists());
}

#[test]
fn a_chunk_that_cannot_be_read_is_found_and_made_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = target(|| store(dir.path())).expect("a target");
    let content = Content::new(vec![5, 5, 5, 5, 6, 6]);
    let whole = Served { content: content.clone(), older: None };
    let progress = CopyProgress::default();
    let made = create(&target, &whole, record(1, content.size(), None), None, &progress).expect("a backup");
    let names = target.names().expect("names");
    let look = |target: &Target| verify(target, Some(&names), Timestamp::UNIX_EPOCH, &progress).expect("a verification");
    assert_eq!(look(&target).damaged, []);
    let chunk = dir.path().join(ChunkId::of(&[5; CHUNK as usize]).path());
    fs::write(&chunk, b"no chunk").expect("a file");
    let found = look(&target).damaged;
    assert_eq!(found.iter().map(|one| one.ranges.clone()).collect::<Vec<_>>(), [vec![(0, CHUNK)]]);
    // with what changed since another one it stays as it is, whole it is made again
    assert!(target.base(&names[0].of, &[identity(1)]).expect("no base").is_none());
    let again = create(&target, &whole, record(1, content.size(), None), None, &progress).expect("a backup");
    assert_eq!((again.root, again.stored > 0), (made.root, true));
    assert_eq!(look(&target).damaged, []);
    let target = Arc::new(target);
    assert!(
        content
            .is(&BackupImage::new(Arc::clone(&target), &again, &target.share(&AtomicBool::new(false)).expect("a lock")).expect("an image"))
    );
}

#[test]
fn a_command_that_others_did_not_see_makes_no_backup() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = target(|| store(dir.path())).expect("a target");
    let (stop, progress) = (AtomicBool::new(false), CopyProgress::default());
    let shared = target.store().lock(false, &stop).expect("shared");
    shared.check().expect("nothing happened");
    // a host whose lock the server forgot
    fs::write(dir.path().join("generation"), b"of another host").expect("a file");
    assert!(matches!(shared.check(), Err(StoreError::Late)));

    /// A volume that is read while another host prunes.
    struct Slow(Served, std::path::PathBuf);
    impl Image for Slow {
        fn open(&self) -> io::Result<Box<dyn Source>> {
            fs::write(self.1.join("generation"), b"of a third host")?;
            self.0.open()
        }
    }
    let content = Content::new(vec![1, 2, 3]);
    let slow = Slow(Served { content: content.clone(), older: None }, dir.path().to_owned());
    let made = create(&target, &slow, record(1, content.size(), None), None, &progress);
    assert!(matches!(made, Err(BackupError::Store(StoreError::Late))), "{made:?}");
    assert_eq!(target.names().expect("names"), []);
}

#[test]
fn links_and_pipes_are_no_files_of_a_target() {
    let dir = tempfile::tempdir().expect("a directory");
    let outside = tempfile::tempdir().expect("a directory");
    fs::write(outside.path().join("part-1"), b"of somebody").expect("a file");
    let target = target(|| store(dir.path())).expect("a target");
    std::os::unix::fs::symlink(outside.path(), dir.path().join("incoming")).unwrap_or_default();
    let _ = fs::remove_dir_all(dir.path().join("incoming"));
    std::os::unix::fs::symlink(outside.path(), dir.path().join("incoming")).expect("a link");
    assert!(prune(&target, &[], false, &CopyProgress::default()).is_err());
    assert!(outside.path().join("part-1").exists());
    fs::remove_file(dir.path().join("incoming")).expect("the link");
    let content = Content::new(vec![5; 4]);
    let whole = Served { content: content.clone(), older: None };
    create(&target, &whole, record(1, content.size(), None), None, &CopyProgress::default()).expect("a backup");
    let chunk = dir.path().join(ChunkId::of(&[5; CHUNK as usize]).path());
    fs::remove_file(&chunk).expect("the chunk");
    rustix::fs::mknodat(rustix::fs::CWD, &chunk, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("a pipe");
    // neither waits for a writer
    let found = verify(&target, None, Timestamp::UNIX_EPOCH, &CopyProgress::default()).expect("a verification");
    assert_eq!(found.damaged.len(), 1);
}

#[test]
fn damage_is_noted_for_all_backups_that_share_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = target(|| store(dir.path())).expect("a target");
    let content = Content::new(vec![5, 5, 5, 5, 6, 6]);
    let whole = Served { content: content.clone(), older: None };
    let progress = CopyProgress::default();
    for number in [1, 2] {
        create(&target, &whole, record(number, content.size(), None), None, &progress).expect("a backup");
    }
    let names = target.names().expect("names");
    fs::write(dir.path().join(ChunkId::of(&[5; CHUNK as usize]).path()), b"no chunk").expect("a file");
    verify(&target, Some(&names[..1]), Timestamp::UNIX_EPOCH, &progress).expect("a verification");
    assert!(target.base(&names[0].of, &[identity(1), identity(2)]).expect("no base").is_none());
    // a third one finds the bad chunk, and does not believe it
    let third = create(&target, &whole, record(3, content.size(), None), None, &progress).expect("a backup");
    assert!(third.stored > 0);
    assert_eq!(verify(&target, None, Timestamp::UNIX_EPOCH, &progress).expect("a verification").damaged, []);
}

#[test]
fn lists_that_are_lost_are_damage_of_their_backup_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = target(|| store(dir.path())).expect("a target");
    let progress = CopyProgress::default();
    let mut made = Vec::new();
    for number in [1, 2] {
        let content = Content::new(vec![number as u8; 4]);
        let whole = Served { content: content.clone(), older: None };
        made.push(create(&target, &whole, record(number, content.size(), None), None, &progress).expect("a backup"));
    }
    // the list of the second, which is not verified, and a chunk of the first
    fs::remove_file(dir.path().join(made[1].root.path())).expect("the list");
    fs::remove_file(dir.path().join(ChunkId::of(&[1; CHUNK as usize]).path())).expect("the chunk");
    let names = target.names().expect("names");
    let found = verify(&target, Some(&names[..1]), Timestamp::UNIX_EPOCH, &progress).expect("a verification");
    assert_eq!(found.damaged.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["tank/vm1@s1"]);
    assert!(target.base(&names[0].of, &[identity(1), identity(2)]).expect("no base").is_none());
}
