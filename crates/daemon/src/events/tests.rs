//! Events are remembered over a restart, within bounds.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::time::Instant;

use millpond_api::ConditionKind;

use super::file::SLACK;
use super::*;

/// Number of events that the logs of these tests keep.
const KEPT: usize = 100;
const BOUNDS: EventBounds = EventBounds { count: KEPT, bytes: 4 << 20 };
const LINES: usize = SLACK * KEPT;

fn open(dir: &Path) -> EventLog {
    EventLog::open(dir, BOUNDS, None)
}

fn event(nth: usize) -> Event {
    Event {
        time: instant::from_millis(nth as u64),
        ..Happened::to_pool(EventKind::PoolDegraded, "tank", format!("nth {nth}")).into_event()
    }
}

fn messages(log: &EventLog, since: u64) -> Vec<String> {
    log.listen(From::Time(instant::from_millis(since))).0.into_iter().map(|event| event.message).collect()
}

#[test]
fn events_outlive_a_restart_and_a_line_that_was_cut_off() {
    let dir = tempfile::tempdir().expect("directory");
    let log = open(dir.path());
    (0..3).for_each(|nth| log.record(event(nth)));
    drop(log);
    let file = dir.path().join(FILE);
    File::options().append(true).open(&file).and_then(|mut file| file.write_all(b"{\"time\":\"20")).expect("half a line");
    let log = open(dir.path());
    assert_eq!(messages(&log, 1), ["nth 1", "nth 2"]);
    log.record(event(3));
    drop(log);
    assert_eq!(messages(&open(dir.path()), 0), ["nth 0", "nth 1", "nth 2", "nth 3"]);
}

#[test]
fn memory_and_file_are_bounded() {
    let dir = tempfile::tempdir().expect("directory");
    let log = open(dir.path());
    (0..LINES + KEPT / 2).for_each(|nth| log.record(event(nth)));
    let lines = || fs::read_to_string(dir.path().join(FILE)).expect("reads").lines().count();
    assert_eq!(messages(&log, 0).len(), KEPT);
    assert!(lines() <= LINES, "{}", lines());
    drop(log);
    let last = messages(&open(dir.path()), 0);
    assert_eq!((last.len(), last.last().map(String::as_str)), (KEPT, Some(format!("nth {}", LINES + KEPT / 2 - 1).as_str())));
}

/// Returns the messages in the file.
fn written(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str::<Event>(line).expect("an event").message).collect()
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_that_was_rotated_or_removed_is_begun_anew() {
    let dir = tempfile::tempdir().expect("directory");
    let (file, rotated) = (dir.path().join(FILE), dir.path().join("rotated"));
    let log = open(dir.path());
    log.record(event(0));
    eventually("the first", || written(&file) == ["nth 0"]);
    fs::rename(&file, &rotated).expect("rotates");
    log.record(event(1));
    eventually("a new file", || written(&file) == ["nth 1"]);
    fs::remove_file(&file).expect("removes");
    log.record(event(2));
    eventually("another one", || written(&file) == ["nth 2"]);
    assert_eq!(written(&rotated), ["nth 0"]);
    assert_eq!(messages(&log, 0), ["nth 0", "nth 1", "nth 2"]);
}

#[test]
fn events_that_could_not_be_written_are_written_when_the_file_can_be() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join(FILE);
    let log = open(dir.path());
    log.record(event(0));
    eventually("the first", || written(&file) == ["nth 0"]);
    // a non-empty directory at the path makes every write fail
    fs::remove_file(&file).and_then(|()| fs::create_dir_all(file.join("in the way"))).expect("in the way");
    log.record(event(1));
    eventually("it was tried", || log.shared.remembered().taken == 2);
    fs::remove_dir_all(&file).expect("out of the way");
    log.record(event(2));
    drop(log);
    assert_eq!(written(&file).last().map(String::as_str), Some("nth 2"));
    assert_eq!(messages(&open(dir.path()), 0).last().map(String::as_str), Some("nth 2"));
}

#[test]
fn nobody_waits_for_a_file_that_hangs_and_what_overflows_is_left_out() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join(FILE);
    let log = open(dir.path());
    log.record(event(0));
    eventually("the first", || written(&file) == ["nth 0"]);
    // opening it hangs until there is a reader
    fs::remove_file(&file).expect("removes");
    assert!(Command::new("mkfifo").arg(&file).status().expect("mkfifo").success());
    log.record(event(1));
    eventually("it hangs", || log.shared.remembered().taken == 2);
    (2..KEPT + 7).for_each(|nth| log.record(event(nth)));
    assert_eq!(messages(&log, 0).len(), KEPT, "what happened lately is known all the same");
    let reading = File::open(&file).expect("reads");
    // the end of the daemon waits for the remaining events
    let lines = thread::spawn(move || BufReader::new(reading).lines().count());
    drop(log);
    assert_eq!(lines.join().expect("reads"), 1 + KEPT, "five were left out");
}

#[test]
fn a_listener_that_looks_back_misses_none_and_gets_none_twice() {
    let dir = tempfile::tempdir().expect("directory");
    let log = open(dir.path());
    log.record(event(0));
    let numbered = |nth: usize| Event { number: nth as u64 + 1, ..event(nth) };
    let (before, mut coming) = log.listen(From::Time(Timestamp::UNIX_EPOCH));
    log.record(event(1));
    assert_eq!(before, [numbered(0)]);
    assert_eq!(coming.try_recv().expect("an event"), numbered(1));
    assert!(coming.try_recv().is_err());
    assert_eq!(log.listen(From::Now).0, []);
    assert_eq!(log.listen(From::After(1)).0, [numbered(1)]);
    assert_eq!(log.listen(From::After(2)).0, []);
    assert_eq!(log.listen(From::After(9)).0, [numbered(0), numbered(1)], "the log was begun anew");
}

#[test]
fn numbers_continue_after_a_restart_and_a_kill() {
    let dir = tempfile::tempdir().expect("directory");
    let log = open(dir.path());
    (0..3).for_each(|nth| log.record(event(nth)));
    eventually("they are written", || written(&dir.path().join(FILE)).len() == 3);
    // a log that is never dropped ends as a killed process does
    std::mem::forget(log);
    let log = open(dir.path());
    log.record(event(3));
    let numbers: Vec<u64> = log.listen(From::After(0)).0.iter().map(|event| event.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[test]
fn bytes_are_bounded_as_well() {
    let dir = tempfile::tempdir().expect("directory");
    let bytes = 20_000;
    let log = EventLog::open(dir.path(), EventBounds { count: 1_000, bytes }, None);
    let long = |nth: usize| Event { message: "x".repeat(1_000), ..event(nth) };
    for nth in 0..200 {
        log.record(long(nth));
        let size = fs::metadata(dir.path().join(FILE)).map_or(0, |meta| meta.len());
        assert!(size <= (SLACK * bytes) as u64, "{size}");
    }
    let kept = log.listen(From::After(0)).0;
    assert!((10..=20).contains(&kept.len()), "{}", kept.len());
    assert_eq!(kept.last().map(|event| event.number), Some(200));
    drop(log);
    let size = fs::metadata(dir.path().join(FILE)).expect("a file").len();
    assert!(size <= (SLACK * bytes) as u64, "{size}");
}

#[tokio::test]
async fn an_answer_waits_until_its_events_are_in_the_file() {
    let dir = tempfile::tempdir().expect("directory");
    let log = open(dir.path());
    for nth in 0..50 {
        log.record(event(nth));
        log.until_written().await;
        assert_eq!(written(&dir.path().join(FILE)).len(), nth + 1);
    }
}

#[test]
fn messages_are_one_line_and_pools_are_named() {
    assert_eq!(one_line("a\nb\u{1b}[1m"), "a b [1m");
    assert_eq!(one_line(&"x".repeat(3 * LONGEST)).len(), LONGEST);
    for (kind, subject, pool) in [
        (EventKind::PoolCreated, "tank", Some("tank")),
        (EventKind::SnapshotCreated, "tank/v@a", Some("tank")),
        (EventKind::SnapshotExpired, "tank/v@a", Some("tank")),
        (EventKind::ExportCreated, "3 tank/v", Some("tank")),
        (EventKind::Renamed, "tank/a tank/b", Some("tank")),
        (EventKind::DeviceReleased, "/dev/sdx", None),
        (EventKind::StateUnsaved, "no room", None),
    ] {
        assert_eq!(pool_of(&kind, subject).as_deref(), pool, "{kind} {subject}");
    }
}

/// Adds the text of the daemon's files below `dir` to `text`, but for tests and `events.rs`, which
/// names every kind.
fn gather(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).expect("sources").map(|entry| entry.expect("an entry").path()) {
        match entry.file_name().and_then(|name| name.to_str()) {
            Some("tests" | "tests.rs" | "events.rs") => {}
            _ if entry.is_dir() => gather(&entry, text),
            _ if entry.extension().is_some_and(|extension| extension == "rs") => {
                *text += &fs::read_to_string(&entry).expect("a source file");
            }
            _ => {}
        }
    }
}

#[test]
fn every_kind_is_reported_somewhere() {
    let mut text = String::new();
    gather(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    for kind in EventKind::ALL {
        let name = format!("EventKind::{kind:?}");
        // a pattern only handles the kind
        let reported = text.match_indices(&name).any(|(at, _)| {
            let rest = &text[at + name.len()..];
            !rest.starts_with(char::is_alphanumeric) && ![" =>", " |"].iter().any(|pattern| rest.starts_with(pattern))
        });
        let begins = ConditionKind::ALL.iter().any(|condition| condition.begins() == *kind);
        assert!(reported || begins, "{kind} is a kind of event that the daemon never reports");
    }
}
