//! Every problem is a condition with its cause, and each begins and ends once.

use std::time::Duration;

use millpond_api::instant::from_millis;
use millpond_api::sample::{export, pool};
use millpond_api::{DeviceClass, Scrub};

use super::*;
use crate::state::replace_file;

fn causes_of(pools: &[Pool], exports: &[Export]) -> Vec<(Severity, String)> {
    let found = find::find(pools, exports, &Signs::default()).into_iter().filter(|found| !found.covered);
    found.map(|found| (found.severity, found.cause)).collect()
}

#[test]
fn a_healthy_pool_has_no_condition() {
    for health in ["online", "readonly"] {
        assert_eq!(causes_of(&[pool(health, &[("/a", "online", "ok"), ("/b", "available", "ok")])], &[export("online")]), [], "{health}");
    }
}

#[test]
fn a_degraded_pool_is_one_cause_with_its_devices() {
    let degraded = pool("degraded", &[("/a", "missing", "missing"), ("/b", "online", "ok"), ("/c", "resilvering", "filling")]);
    assert_eq!(causes_of(&[degraded], &[export("online")]), [(Severity::Error, "pool tank is degraded: why degraded".to_owned())]);
    let stopped = pool("faulted", &[("/a", "faulted", "ok")]);
    let causes = causes_of(&[stopped], &[export("stopped")]);
    assert_eq!(causes, [(Severity::Error, "pool tank is faulted: why faulted".to_owned())]);
}

#[test]
fn devices_and_room_are_warned_of() {
    let mut unwell = pool("online", &[("/a", "online", "slow"), ("/b", "missing", "missing"), ("/c", "online", "silent")]);
    if let Some(device) = unwell.devices.get_mut(1) {
        device.class = DeviceClass::Spare;
    }
    (unwell.allocated, unwell.free, unwell.full_in_seconds) = (910, 90, Some(7200));
    let causes = causes_of(&[unwell], &[]);
    assert!(causes.iter().all(|(severity, _)| *severity == Severity::Warning));
    let lines: Vec<&str> = causes.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "pool tank: data device /a is slow: why slow",
            "pool tank: spare device /b is missing: why missing",
            "pool tank: data device /c is silent: why silent",
            "pool tank is 91 % full, 90B of 1000B are free; full in about 2 h",
        ]
    );
}

#[test]
fn an_export_that_is_not_served_is_a_cause_of_its_own() {
    let cause = "export 1 (tank/v) is unavailable: why not".to_owned();
    assert_eq!(causes_of(&[pool("online", &[])], &[export("unavailable")]), [(Severity::Error, cause.clone())]);
    // the user has exported the pool, so this is a warning only
    assert_eq!(causes_of(&[], &[export("unavailable")]), [(Severity::Warning, cause)]);
}

#[test]
fn what_was_lost_and_what_waits_is_warned_of() {
    let mut pool = pool("online", &[("/a", "online", "ok")]);
    pool.fell_back = Some("a map node is damaged".to_owned());
    pool.removal_waits = Some("member 1 is away".to_owned());
    let lines: Vec<String> = causes_of(&[pool], &[]).into_iter().map(|(_, line)| line).collect();
    assert_eq!(
        lines,
        [
            "pool tank: the removal of a device waits: member 1 is away",
            "pool tank went back to an older checkpoint, without the log after it: a map node is damaged",
        ]
    );
}

#[test]
fn each_late_policy_of_a_pool_is_a_condition_of_its_own() {
    let late = ["daily", "hourly"].map(|policy| (policy.to_owned(), "no space".to_owned())).to_vec();
    let signs = Signs { late: BTreeMap::from([("7".to_owned(), late)]), ..Signs::default() };
    let found = find::find(&[pool("online", &[])], &[], &signs);
    let subjects: Vec<&str> = found.iter().map(|found| found.subject.as_str()).collect();
    assert_eq!(subjects, ["tank: daily", "tank: hourly"]);
    assert!(found.iter().all(|found| found.kind == ConditionKind::PolicyLate && found.remedy.contains("policy run")), "{found:?}");
    assert_eq!(found.first().map(|found| found.cause.as_str()), Some("pool tank: policy 'daily' is late: no space"));
    let mut ledger = Ledger::default();
    let begun = ledger.look(found, &[pool("online", &[])], Instant::now(), from_millis(0));
    assert_eq!(begun.len(), 2);
    assert_eq!(find::find(&[pool("unavailable", &[])], &[], &signs).len(), 1, "the pool is a condition then, not its policies");
}

/// Looks at pools one after another, with a ledger.
struct Look {
    ledger: Ledger,
    begun: Instant,
    seconds: u64,
}

impl Look {
    fn new(ledger: Ledger) -> Look {
        Look { ledger, begun: Instant::now(), seconds: 1_000_000 }
    }

    /// Looks after some seconds; returns the changes.
    fn after(&mut self, seconds: u64, pools: &[Pool]) -> Vec<String> {
        self.seconds += seconds;
        let (now, time) = (self.begun + Duration::from_secs(self.seconds), from_millis(self.seconds * 1000));
        let found = find::find(pools, &[], &Signs::default());
        let changes = self.ledger.look(found, pools, now, time);
        changes.iter().map(|change| format!("{} {}", change.state, change.condition.kind)).collect()
    }

    fn since(&self, pools: &[Pool], kind: &ConditionKind) -> Option<u64> {
        let now = from_millis(self.seconds * 1000);
        let shown = find::find(pools, &[], &Signs::default()).into_iter().filter_map(|found| self.ledger.shown(found, now));
        let since = shown.filter(|condition| condition.kind == *kind).map(|condition| condition.since).next()?;
        u64::try_from(since.as_second()).ok()
    }
}

#[test]
fn a_condition_begins_and_ends_once_and_outlives_a_restart() {
    let (whole, slow) = ([pool("online", &[("/a", "online", "ok")])], [pool("online", &[("/a", "online", "slow")])]);
    let mut look = Look::new(Ledger::default());
    assert_eq!(look.after(0, &whole), [""; 0]);
    assert_eq!(look.after(5, &slow), ["begun device.slow"]);
    assert_eq!(look.after(5, &slow), [""; 0]);
    assert_eq!(look.since(&slow, &ConditionKind::DeviceSlow), Some(1_000_005));
    // the daemon starts again
    let dir = tempfile::tempdir().expect("directory");
    let text = look.ledger.unsaved().expect("it has changed");
    assert_eq!(look.ledger.unsaved(), None);
    replace_file(&dir.path().join(ledger::FILE), text.as_bytes()).expect("saves");
    let mut look = Look { ledger: Ledger::load(dir.path()), ..look };
    assert_eq!(look.after(5, &[pool("opening", &[("/a", "unavailable", "ok")])]), [""; 0], "it is not known yet");
    assert_eq!(look.after(5, &slow), [""; 0], "it was reported");
    assert_eq!(look.since(&slow, &ConditionKind::DeviceSlow), Some(1_000_005));
    assert_eq!(look.after(5, &whole), ["ended device.slow"]);
    assert_eq!(look.after(5, &slow), ["begun device.slow"]);
    // a file that a crash has cut off
    std::fs::write(dir.path().join(ledger::FILE), &text[..text.len() / 2]).expect("writes");
    assert_eq!(Look::new(Ledger::load(dir.path())).after(0, &slow), ["begun device.slow"]);
}

#[test]
fn a_pool_out_of_service_says_nothing_about_its_devices() {
    let missing = [pool("degraded", &[("/a", "missing", "missing"), ("/b", "online", "ok")])];
    let (filling, whole) = (
        [pool("degraded", &[("/a", "resilvering", "filling"), ("/b", "online", "ok")])],
        [pool("online", &[("/a", "online", "ok"), ("/b", "online", "ok")])],
    );
    let mut look = Look::new(Ledger::default());
    assert_eq!(look.after(0, &missing), ["begun pool.degraded", "begun device.missing"]);
    let away = [pool("unavailable", &[("/a", "missing", "missing")])];
    assert_eq!(look.after(5, &away), [""; 0], "it may come back at once");
    assert_eq!(look.after(40, &away), ["begun pool.unavailable"]);
    // it is exported for a while
    assert_eq!(look.after(5, &[]), [""; 0]);
    assert_eq!(look.after(600, &filling), ["ended pool.unavailable"]);
    assert_eq!(look.after(5, &whole), ["ended device.missing", "ended pool.degraded"]);
    // a pool that is destroyed
    assert_eq!(look.after(5, &missing).len(), 2);
    look.ledger.forget("7");
    assert_eq!(look.after(5, &[]).len(), 2);
    // and one that is exported for long
    assert_eq!(look.after(5, &missing).len(), 2);
    assert_eq!(look.after(5, &[]), [""; 0]);
    assert_eq!(look.after(3_600, &[]).len(), 2);
}

#[test]
fn a_forecast_is_reported_when_it_lasts() {
    let filling = [Pool { allocated: 500, free: 500, full_in_seconds: Some(3600), ..pool("online", &[]) }];
    let far = [Pool { full_in_seconds: Some(200_000), ..pool("online", &[]) }];
    let mut look = Look::new(Ledger::default());
    assert_eq!(look.after(0, &filling), [""; 0]);
    assert_eq!(look.since(&filling, &ConditionKind::PoolFillsSoon), None, "a burst is no trend");
    assert_eq!(look.after(300, &far), [""; 0]);
    assert_eq!(look.after(5, &filling), [""; 0]);
    assert_eq!(look.after(600, &filling), ["begun pool.fills-soon"]);
    assert!(look.since(&filling, &ConditionKind::PoolFillsSoon).is_some());
    assert_eq!(look.after(5, &far), [""; 0]);
    assert_eq!(look.after(5, &filling), [""; 0]);
    assert_eq!(look.after(5, &far), [""; 0]);
    assert_eq!(look.after(600, &far), ["ended pool.fills-soon"]);
}

#[test]
fn a_scrub_is_overdue_after_the_last_complete_one() {
    const DAY: u64 = 86_400_000;
    let limit = Duration::from_secs(35 * 86_400);
    let mut ledger = Ledger::default();
    let scrubbed = |state: &str, ended: Option<u64>| {
        let (begun, ended) = (from_millis(0), ended.map(from_millis));
        let scrub =
            Scrub { state: state.to_owned().into(), begun, ended, errors: 0, repaired: 0, lost_blocks: 0, lost_nodes: 0, lost: Vec::new() };
        [Pool { scrub: Some(scrub), ..pool("online", &[]) }]
    };
    let mut overdue = |pools: &[Pool], day: u64| {
        ledger.note_scrubs(pools, from_millis(day * DAY));
        ledger.overdue(pools, limit, from_millis(day * DAY)).into_values().next()
    };
    let never = [pool("online", &[])];
    assert_eq!(overdue(&never, 10), None, "it is known since today");
    assert_eq!(overdue(&never, 45), None);
    assert_eq!(overdue(&never, 46), Some(36));
    assert_eq!(overdue(&scrubbed("running", None), 46), None, "one runs");
    assert_eq!(overdue(&scrubbed("stopped", Some(47 * DAY)), 47), Some(37), "it was not complete");
    assert_eq!(overdue(&scrubbed("done", Some(48 * DAY)), 50), None);
    assert_eq!(overdue(&never, 83), None, "the pool has forgotten the scrub");
    assert_eq!(overdue(&never, 84), Some(36));
    // a clock that was set back
    assert_eq!(overdue(&never, 20), None);
    assert_eq!(overdue(&never, 56), Some(36));
}
