//! Events are remembered over a restart, within bounds; kinds are listed and described.

use super::*;

fn event(nth: usize) -> Event {
    Event { time: instant::from_millis(nth as u64), ..Happened::to_pool("pool.degraded", "tank", format!("nth {nth}")).into_event() }
}

fn messages(log: &EventLog, since: u64) -> Vec<String> {
    log.listen(Some(instant::from_millis(since))).0.into_iter().map(|event| event.message).collect()
}

#[test]
fn events_outlive_a_restart_and_a_line_that_was_cut_off() {
    let dir = tempfile::tempdir().expect("directory");
    let log = EventLog::open(dir.path(), None);
    (0..3).for_each(|nth| log.record(event(nth)));
    drop(log);
    let file = dir.path().join(FILE);
    File::options().append(true).open(&file).and_then(|mut file| file.write_all(b"{\"time\":\"20")).expect("half a line");
    let log = EventLog::open(dir.path(), None);
    assert_eq!(messages(&log, 1), ["nth 1", "nth 2"]);
    log.record(event(3));
    drop(log);
    assert_eq!(messages(&EventLog::open(dir.path(), None), 0), ["nth 0", "nth 1", "nth 2", "nth 3"]);
}

#[test]
fn memory_and_file_are_bounded() {
    let dir = tempfile::tempdir().expect("directory");
    let log = EventLog::open(dir.path(), None);
    (0..LINES + KEPT / 2).for_each(|nth| log.record(event(nth)));
    let lines = || fs::read_to_string(dir.path().join(FILE)).expect("reads").lines().count();
    assert_eq!(messages(&log, 0).len(), KEPT);
    assert!(lines() <= LINES, "{}", lines());
    drop(log);
    let last = messages(&EventLog::open(dir.path(), None), 0);
    assert_eq!((last.len(), last.last().map(String::as_str)), (KEPT, Some(format!("nth {}", LINES + KEPT / 2 - 1).as_str())));
}

#[test]
fn a_listener_that_looks_back_misses_none_and_gets_none_twice() {
    let dir = tempfile::tempdir().expect("directory");
    let log = EventLog::open(dir.path(), None);
    log.record(event(0));
    let (before, mut coming) = log.listen(Some(Timestamp::UNIX_EPOCH));
    log.record(event(1));
    assert_eq!(before, [event(0)]);
    assert_eq!(coming.try_recv().expect("an event"), event(1));
    assert!(coming.try_recv().is_err());
    assert_eq!(log.listen(None).0, []);
}

#[test]
fn messages_are_one_line_and_pools_are_named() {
    assert_eq!(one_line("a\nb\u{1b}[1m"), "a b [1m");
    assert_eq!(one_line(&"x".repeat(3 * LONGEST)).len(), LONGEST);
    for (kind, subject, pool) in [
        ("pool.created", "tank", Some("tank")),
        ("snapshot.created", "tank/v@a", Some("tank")),
        ("snapshot.expired", "tank: a", Some("tank")),
        ("export.created", "3 tank/v", Some("tank")),
        ("renamed", "tank/a tank/b", Some("tank")),
        ("device.released", "/dev/sdx", None),
        ("state.unsaved", "no room", None),
    ] {
        assert_eq!(pool_of(kind, subject).as_deref(), pool, "{kind} {subject}");
    }
}

/// The text of every source file below a directory.
fn sources(dir: &Path, into: &mut String) {
    for entry in fs::read_dir(dir).expect("reads").map(|entry| entry.expect("entry").path()) {
        if entry.is_dir() {
            sources(&entry, into);
        } else if entry.extension().is_some_and(|ending| ending == "rs") && entry.file_name().is_some_and(|name| name != "tests.rs") {
            *into += &fs::read_to_string(&entry).expect("reads");
        }
    }
}

#[test]
fn every_kind_is_listed_and_described() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&root.join("src/daemon"), &mut text);
    for call in ["tell(\"", "to_pool(\"", "to_device(\""] {
        for kind in text.split(call).skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(kinds::KINDS.iter().any(|(name, ..)| *name == kind), "{kind} is not listed in events/kinds.rs");
        }
    }
    let page = fs::read_to_string(root.join("../../docs/events.md")).expect("docs/events.md");
    for (kind, severity, _) in kinds::KINDS {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{kind}` |")));
        assert!(row.is_some_and(|row| row.contains(severity.name())), "{kind} has no row with '{}' in docs/events.md", severity.name());
    }
}
