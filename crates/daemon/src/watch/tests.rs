//! Each change is one event, and says what has changed.

use millpond_api::instant::from_millis;
use millpond_api::sample::{export, pool};
use millpond_block::MemberId;

use super::*;

/// Looks again and returns the events: severity, kind, message.
struct Look {
    watches: Watches,
    now: Instant,
}

impl Look {
    fn new() -> Look {
        Look { watches: Watches::default(), now: Instant::now() }
    }

    fn at(&mut self, pool: &Pool, jobs: &[Job]) -> Vec<(Severity, EventKind, String)> {
        let path_of = |_: &str, member: MemberId| Some(format!("/member{member}"));
        let news = self.watches.look_at_pools(std::slice::from_ref(pool), jobs, path_of, self.now);
        news.iter().map(|news| (news.severity(), news.kind().clone(), news.message().to_owned())).collect()
    }

    fn kinds(&mut self, pool: &Pool) -> Vec<EventKind> {
        self.at(pool, &[]).into_iter().map(|(_, kind, _)| kind).collect()
    }
}

fn job(kind: &str, member: Option<u16>) -> Job {
    let id = member.map_or_else(|| format!("{kind}:tank"), |member| format!("{kind}:tank:{member}"));
    let job = serde_json::json!({ "id": id, "pool": "tank", "kind": kind, "state": "running", "remaining_bytes": 1 });
    serde_json::from_value(job).expect("a job")
}

#[test]
fn a_pool_that_loses_a_device_and_gets_it_back_says_so_once_each() {
    let mut look = Look::new();
    assert_eq!(look.at(&pool("opening", &[("/a", "unavailable", "ok")]), &[]), []);
    let whole = pool("online", &[("/a", "online", "ok"), ("/b", "online", "ok")]);
    assert_eq!(look.at(&whole, &[]), []);
    let failed = pool("degraded", &[("/a", "online", "ok"), ("/b", "failed", "failed")]);
    let news = look.at(&failed, &[]);
    assert_eq!(
        news,
        [
            (Severity::Error, EventKind::DeviceFailed, "data device /b of pool 'tank' failed: why failed".to_owned()),
            (Severity::Warning, EventKind::PoolDegraded, "pool 'tank' is degraded: why degraded".to_owned()),
        ]
    );
    assert_eq!(look.at(&failed, &[]), []);
    let filling = pool("degraded", &[("/a", "online", "ok"), ("/b", "resilvering", "filling")]);
    assert_eq!(look.at(&filling, &[]), []);
    assert_eq!(look.kinds(&whole), [EventKind::DeviceRecovered, EventKind::PoolHealthy]);
    assert_eq!(look.kinds(&whole), []);
}

#[test]
fn a_pool_that_comes_without_a_device_says_so_at_the_first_look() {
    let mut look = Look::new();
    let missing = pool("degraded", &[("/a", "missing", "missing"), ("/b", "online", "ok")]);
    assert_eq!(look.kinds(&missing), [EventKind::DeviceMissing, EventKind::PoolDegraded]);
    // a replacement is another device
    assert_eq!(look.kinds(&pool("online", &[("/c", "online", "ok"), ("/b", "online", "ok")])), [EventKind::PoolHealthy]);
}

#[test]
fn a_missing_device_whose_path_another_one_has_is_reported_once() {
    for rows in [[("/a", "missing", "missing"), ("/a", "online", "ok")], [("/a", "online", "ok"), ("/a", "missing", "missing")]] {
        let (mut look, doubled) = (Look::new(), pool("degraded", &rows));
        assert_eq!(look.kinds(&doubled), [EventKind::DeviceMissing, EventKind::PoolDegraded]);
        assert_eq!(look.kinds(&doubled), []);
    }
}

#[test]
fn another_device_at_the_path_of_one_that_failed_is_another_one() {
    let mut look = Look::new();
    let with_id = |id: &str, state: &str, health: &str| {
        let mut pool = pool("online", &[("/a", state, health)]);
        pool.devices.iter_mut().for_each(|device| id.clone_into(&mut device.id));
        pool
    };
    assert_eq!(look.kinds(&with_id("0001", "online", "failing")), [EventKind::DeviceErrors]);
    assert_eq!(look.kinds(&with_id("0002", "online", "ok")), [], "the old one is not well again");
    assert_eq!(look.kinds(&with_id("0002", "online", "failing")), [EventKind::DeviceErrors], "the new one has its own errors");
}

#[test]
fn a_pool_that_does_not_answer_is_reported_when_it_lasts() {
    let mut look = Look::new();
    let whole = pool("online", &[("/a", "online", "ok")]);
    let silent = Pool { silent_since: Some(from_millis(1)), ..pool("unavailable", &[("/a", "unavailable", "ok")]) };
    assert_eq!(look.kinds(&whole), []);
    assert_eq!(look.kinds(&silent), [], "its thread may be busy");
    look.now += SILENCE / 2;
    assert_eq!(look.kinds(&whole), []);
    assert_eq!(look.kinds(&silent), []);
    look.now += SILENCE;
    assert_eq!(look.kinds(&silent), [EventKind::PoolSilent]);
    assert_eq!(look.kinds(&silent), []);
    assert_eq!(look.kinds(&whole), [EventKind::PoolHealthy]);
    // its exports wait as well
    let mut watches = Watches::default();
    watches.expect_export(1);
    let now = look.now + 10 * RESTORE;
    assert_eq!(watches.look_at_exports(&[export("unavailable")], std::slice::from_ref(&silent), |_| false, now), []);
    // other code reports why a pool is out of service
    assert_eq!(Look::new().kinds(&pool("unavailable", &[])), []);
}

#[test]
fn a_full_pool_is_an_error_until_it_has_room() {
    let mut look = Look::new();
    let filled = |allocated: u64| Pool { allocated, free: 1000 - allocated, ..pool("online", &[]) };
    assert_eq!(look.kinds(&filled(970)), [EventKind::PoolSpace]);
    let news = look.at(&filled(995), &[]);
    assert!(matches!(news.as_slice(), [(Severity::Error, EventKind::PoolFull, message)] if message.contains("ENOSPC")), "{news:?}");
    assert_eq!(look.kinds(&filled(999)), []);
    assert_eq!(look.kinds(&filled(900)), [EventKind::PoolHasRoom]);
    assert_eq!(look.kinds(&filled(970)), [EventKind::PoolSpace]);
}

#[test]
fn a_pool_that_stops_is_an_error_until_it_is_imported_again() {
    let mut look = Look::new();
    let whole = pool("online", &[("/a", "online", "ok")]);
    assert_eq!(look.kinds(&whole), []);
    let stopped = look.at(&pool("faulted", &[("/a", "faulted", "failed")]), &[]);
    assert_eq!(
        stopped.iter().map(|(severity, kind, _)| (*severity, kind.clone())).collect::<Vec<_>>(),
        [(Severity::Error, EventKind::DeviceFailed), (Severity::Error, EventKind::PoolFaulted),]
    );
    // the pool is exported, and imported again
    assert_eq!(look.watches.look_at_pools(&[], &[], |_, _| None, look.now), []);
    assert_eq!(look.kinds(&whole), [EventKind::DeviceRecovered, EventKind::PoolHealthy]);
}

#[test]
fn slow_and_silent_devices_are_warned_of() {
    let mut look = Look::new();
    for (health, kind) in [
        ("slow", EventKind::DeviceSlow),
        ("silent", EventKind::DeviceSilent),
        ("failing", EventKind::DeviceErrors),
        ("full", EventKind::DeviceFull),
    ] {
        let news = look.at(&pool("online", &[("/a", "online", health)]), &[]);
        assert_eq!(news.iter().map(|(severity, kind, _)| (*severity, kind.clone())).collect::<Vec<_>>(), [(Severity::Warning, kind)]);
    }
    assert_eq!(look.kinds(&pool("online", &[("/a", "online", "ok")])), [EventKind::DeviceRecovered]);
}

#[test]
fn levels_of_room_are_said_once_each_with_a_forecast() {
    let mut look = Look::new();
    let mut filled = |percent: u64, minutes: u64| {
        look.now += Duration::from_secs(60 * minutes);
        let full = Pool { allocated: 10 * percent, free: 1000 - 10 * percent, ..pool("online", &[]) };
        look.at(&full, &[]).into_iter().map(|(_, kind, message)| format!("{kind} {message}")).collect::<Vec<_>>()
    };
    assert_eq!(filled(79, 0), [""; 0]);
    assert_eq!(filled(80, 10), ["pool.space pool 'tank' is 80 % full, 200B of 1000B are free; full in about 3 h at the present rate"]);
    assert_eq!(filled(80, 1), [""; 0]);
    // changes around a level are not repeated
    for percent in [79, 81, 76, 84, 80] {
        assert_eq!(filled(percent, 1), [""; 0], "{percent}");
    }
    assert_eq!(filled(96, 1).len(), 1, "90 and 95 are one event");
    assert_eq!(filled(91, 1), [""; 0]);
    assert_eq!(filled(89, 1), [""; 0], "below 90: the level is 80 now");
    assert_eq!(filled(90, 1).len(), 1);
    assert_eq!(filled(74, 1), ["pool.has-room pool 'tank' is 74 % full"]);
    assert_eq!(filled(85, 1).len(), 1);
}

#[test]
fn a_pool_that_does_not_fill_has_no_forecast() {
    let mut room = Room::default();
    let (now, full) = (Instant::now(), Pool { allocated: 850, free: 150, ..pool("online", &[]) });
    let event = room.look(&full, now).expect("an event");
    assert!(event.message().ends_with("free"), "{event:?}");
    assert_eq!(room.full_in(&full, now + SAMPLE), None, "nothing was written");
    let fuller = Pool { allocated: 900, free: 100, ..full };
    assert_eq!(room.full_in(&fuller, now + SAMPLE), Some(2 * SAMPLE));
    assert_eq!(room.full_in(&fuller, now + SAMPLE / 2), None, "too short to tell");
}

const SAMPLE: Duration = Duration::from_secs(60);

#[test]
fn jobs_that_begin_by_themselves_are_said_and_all_that_end() {
    let mut look = Look::new();
    let whole = pool("online", &[("/member1", "online", "ok")]);
    let messages =
        |news: Vec<(Severity, EventKind, String)>| news.into_iter().map(|(_, kind, message)| (kind, message)).collect::<Vec<_>>();
    let begun = messages(look.at(&whole, &[job("resilver", Some(1)), job("reclaim", None)]));
    assert_eq!(begun, [(EventKind::JobBegan, "resilver of /member1 in pool 'tank' begins".to_owned())]);
    assert_eq!(messages(look.at(&whole, &[job("resilver", Some(1))])), []);
    assert_eq!(messages(look.at(&whole, &[])), [(EventKind::JobEnded, "resilver of /member1 in pool 'tank' has ended".to_owned())]);
    // a job that a command has begun, and a look that came before it was listed
    look.watches.expect_job("7", JobKind::Remove, Some(MemberId(1)), Some("/member1".to_owned()));
    assert_eq!(messages(look.at(&whole, &[])), []);
    assert_eq!(messages(look.at(&whole, &[job("remove", Some(1))])), []);
    let stays = "remove of /member1 in pool 'tank' has ended; the device stays in the pool and is online".to_owned();
    assert_eq!(messages(look.at(&whole, &[])), [(EventKind::JobEnded, stays)]);
    // a job that ended between two looks
    look.watches.expect_job("7", JobKind::Wipe, None, None);
    assert_eq!(messages(look.at(&whole, &[])), []);
    assert_eq!(messages(look.at(&whole, &[])), [(EventKind::JobEnded, "wipe in pool 'tank' has ended".to_owned())]);
    // a spare that has just taken a place is named, and not the lost device
    let filling = pool("degraded", &[("/spare", "resilvering", "filling"), ("/member1", "online", "ok")]);
    let begun = look.at(&filling, &[job("resilver", Some(0))]);
    assert!(begun.iter().any(|(_, _, message)| message == "resilver of /spare in pool 'tank' begins"), "{begun:?}");
    look.at(&whole, &[]);
    // unreadable pieces make the event an error
    assert_eq!(look.at(&whole, &[Job { errors: 3, ..job("rebalance", None) }]).len(), 1);
    let ended = look.at(&whole, &[]);
    assert_eq!(ended.first().map(|(severity, kind, _)| (*severity, kind.clone())), Some((Severity::Error, EventKind::JobEnded)));
}

#[test]
fn the_end_of_a_scrub_says_what_it_found() {
    let mut look = Look::new();
    let scrubbed = |begun: u64, state: &str, errors: u64, repaired: u64, lost_blocks: u64| {
        let (begun, lost) = (from_millis(begun), Vec::new());
        let scrub = Scrub { state: state.to_owned().into(), begun, ended: None, errors, repaired, lost_blocks, lost_nodes: 0, lost };
        Pool { scrub: Some(scrub), ..pool("online", &[]) }
    };
    // a scrub that ended before the pool was imported was reported then
    let mut before = scrubbed(0, "done", 5, 5, 0);
    before.imported = Some(from_millis(2));
    before.scrub.iter_mut().for_each(|scrub| scrub.ended = Some(from_millis(1)));
    assert_eq!(look.kinds(&before), []);
    assert_eq!(look.kinds(&scrubbed(1, "running", 0, 0, 0)), []);
    let ended =
        |news: Vec<(Severity, EventKind, String)>| news.into_iter().map(|(severity, _, message)| (severity, message)).collect::<Vec<_>>();
    assert_eq!(ended(look.at(&scrubbed(1, "done", 0, 0, 0), &[])), [(Severity::Info, "scrub of pool 'tank' done: 0 errors".to_owned())]);
    assert_eq!(ended(look.at(&scrubbed(1, "done", 0, 0, 0), &[])), []);
    let repaired = "scrub of pool 'tank' done: 5 errors, all repaired (5 pieces written again)".to_owned();
    assert_eq!(ended(look.at(&scrubbed(2, "done", 5, 5, 0), &[])), [(Severity::Warning, repaired)]);
    let lost = ended(look.at(&scrubbed(3, "stopped", 5, 3, 2), &[]));
    assert!(
        matches!(lost.as_slice(), [(Severity::Error, message)] if message.contains("stopped") && message.contains("2 blocks")),
        "{lost:?}"
    );
}

/// Exports of pools, in one look after another.
struct Exports {
    watches: Watches,
    now: Instant,
    restoring: bool,
}

impl Exports {
    fn new() -> Exports {
        Exports { watches: Watches::default(), now: Instant::now(), restoring: false }
    }

    fn look(&mut self, state: &str, pools: &[Pool]) -> Vec<(EventKind, String)> {
        let news = self.watches.look_at_exports(&[export(state)], pools, |_| self.restoring, self.now);
        news.iter().map(|news| (news.kind().clone(), news.message().to_owned())).collect()
    }
}

#[test]
fn exports_stop_with_their_pool_and_come_back() {
    let mut exports = Exports::new();
    let (whole, stopped, away) = ([pool("online", &[])], [pool("faulted", &[])], [pool("unavailable", &[])]);
    // a pool that waits for its devices, and then comes into service
    assert_eq!(exports.look("unavailable", &[pool("opening", &[])]), []);
    assert_eq!(exports.look("unavailable", &away), []);
    assert_eq!(exports.look("online", &whole), [(EventKind::ExportRestored, "export 1 (tank/v) is served again".to_owned())]);
    let stopping = (EventKind::ExportStopped, "export 1 (tank/v) is not served: why not".to_owned());
    assert_eq!(exports.look("stopped", &stopped), std::slice::from_ref(&stopping));
    assert_eq!(exports.look("stopped", &stopped), []);
    // the user exports the pool and imports it again
    assert_eq!(exports.look("unavailable", &[]), []);
    assert_eq!(exports.look("online", &whole).len(), 1);
    // an export that stops before the first look
    exports = Exports::new();
    exports.watches.expect_export(1);
    assert_eq!(exports.look("stopped", &stopped), [stopping]);
    assert_eq!(exports.look("online", &whole).len(), 1);
    // an export whose end a command reports
    assert_eq!(exports.look("unavailable", &[pool("closing", &[])]), []);
    exports.watches.expect_stop(1);
    assert_eq!(exports.look("online", &whole).len(), 1);
}

#[test]
fn exports_that_come_late_are_given_time() {
    let (whole, away) = ([pool("online", &[])], [pool("unavailable", &[])]);
    let mut exports = Exports::new();
    let stopped = [EventKind::ExportStopped];
    let kinds = |news: Vec<(EventKind, String)>| news.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(exports.look("unavailable", &away), []);
    // no event, however many looks follow
    for _ in 0..10 {
        assert_eq!(exports.look("unavailable", &whole), []);
    }
    exports.now += GRACE;
    assert_eq!(kinds(exports.look("unavailable", &whole)), stopped);
    assert_eq!(exports.look("unavailable", &whole), []);
    assert_eq!(exports.look("online", &whole).len(), 1);
    // restoring has a longer limit, but not an endless one
    exports.restoring = true;
    assert_eq!(exports.look("unavailable", &whole), []);
    exports.now += 2 * GRACE;
    assert_eq!(exports.look("unavailable", &whole), []);
    exports.now += RESTORE;
    assert_eq!(kinds(exports.look("unavailable", &whole)), stopped);
    assert_eq!(exports.look("online", &whole).len(), 1);
    // restoring has ended, and this export is not served
    assert_eq!(exports.look("unavailable", &whole), []);
    exports.now += 2 * GRACE;
    exports.restoring = false;
    assert_eq!(kinds(exports.look("unavailable", &whole)), stopped);
}

#[test]
fn a_removal_that_ended_is_reported_once_and_not_again_after_a_restart() {
    let mut ended = pool("online", &[("/a", "online", "ok")]);
    (ended.removal_ended, ended.imported) = (Some("no room".to_owned()), Some(from_millis(1_000)));
    let mut look = Look::new();
    assert_eq!(look.kinds(&ended), [EventKind::PoolRemovalEnded]);
    ended.removal_ended_at = Some(from_millis(2_000));
    assert_eq!(look.kinds(&ended), []);
    // the daemon starts again: at first the pool is not in service
    let mut look = Look::new();
    ended.imported = None;
    assert_eq!(look.kinds(&ended), []);
    ended.imported = Some(from_millis(3_000));
    assert_eq!(look.kinds(&ended), []);
}

#[test]
fn an_older_state_and_a_removal_that_waits_are_reported_once() {
    let mut look = Look::new();
    let mut pool = pool("online", &[("/a", "online", "ok")]);
    assert_eq!(look.kinds(&pool), []);
    pool.fell_back = Some("a map node does not match".to_owned());
    let news = look.at(&pool, &[]);
    let message = "pool 'tank': it went back to an older checkpoint, without the log after it: a map node does not match".to_owned();
    assert_eq!(news, [(Severity::Warning, EventKind::PoolOlderState, message)]);
    assert_eq!(look.kinds(&pool), []);
    pool.removal_waits = Some("member 1 is away".to_owned());
    let news = look.at(&pool, &[]);
    let message = "pool 'tank': the removal of a device waits: member 1 is away".to_owned();
    assert_eq!(news, [(Severity::Warning, EventKind::PoolRemovalWaits, message)]);
    // the removal goes on for a moment, then waits for the same reason again
    for waits in [None, pool.removal_waits.clone()] {
        pool.removal_waits = waits;
        assert_eq!(look.kinds(&pool), []);
    }
}
