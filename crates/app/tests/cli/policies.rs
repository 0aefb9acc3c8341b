//! Policies: verbs, runs, thinning, restarts, locks.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, each, eventually, keys};

/// A daemon with the volume `tank/v`.
fn with_volume() -> Daemon {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon
}

/// Names of the snapshots of a volume, without the volume.
fn snapshots(daemon: &Daemon, volume: &str) -> Vec<String> {
    let listed = daemon.json(&["list", "-t", "snapshot", volume]);
    each(&listed, "name").iter().filter_map(|name| Some(name.split_once('@')?.1.to_owned())).collect()
}

/// Runs a policy and returns the names of snapshots that it took, destroyed, and kept.
fn run(daemon: &Daemon, words: &[&str]) -> [Vec<String>; 3] {
    let done = daemon.json(&[&["policy", "run"], words].concat());
    ["taken", "destroyed", "kept"].map(|key| {
        let names = done[key].as_array().expect("a list");
        names.iter().map(|name| name.as_str().unwrap_or_default().split('@').nth(1).unwrap_or_default().to_owned()).collect()
    })
}

#[test]
fn a_policy_is_created_shown_changed_and_destroyed() {
    let mut daemon = with_volume();
    daemon.run(&["policy", "create", "p", "--keep", "1d:60d 1h:7d", "--at", "hourly", "--zone", "UTC", "--group", "--lock", "1h"]).ok();
    daemon.run(&["policy", "create", "p", "--keep", "1h:1d"]).refused(1, "exists already");
    daemon.run(&["policy", "attach", "p", "tank/v"]).ok();
    daemon.run(&["policy", "attach", "p", "tank/v"]).refused(1, "is under it already");
    daemon.run(&["policy", "attach", "p", "tank/none"]).refused(1, "no volume 'tank/none'");
    let shown = daemon.json(&["policy", "show", "p"]);
    for key in ["name", "keep", "group", "at", "zone", "lock_seconds", "expire_seconds", "template", "state", "volumes", "taken", "missed"]
    {
        assert!(keys(&shown).contains(&key), "{key}: {shown}");
    }
    assert_eq!(
        (shown["keep"].as_str(), shown["lock_seconds"].as_u64(), shown["keeps"].as_u64()),
        (Some("1h:7d 1d:60d"), Some(3600), Some(228))
    );
    daemon.run(&["policy", "set", "keep=1h:1d", "at=none", "lock=none", "group=off", "p"]).ok();
    eventually("the next run is known", || daemon.json(&["policy", "show", "p"])["volumes"][0]["next"].is_string());
    let before = daemon.json(&["policy", "list"]);
    assert_eq!(
        (before[0]["at"].clone(), before[0]["lock_seconds"].clone(), before[0]["state"].as_str()),
        (Value::Null, Value::Null, Some("ok"))
    );
    let table = daemon.run(&["policy", "show", "p"]).ok().out;
    assert!(table.contains("tank/v") && table.contains("1h:1d"), "{table}");
    assert_eq!(
        daemon.run(&["policy", "list", "-H", "-o", "name,volumes,state"]).ok().out.split_whitespace().collect::<Vec<_>>(),
        ["p", "1", "ok"]
    );
    // it survives a kill
    assert_eq!(daemon.stop("KILL"), -1);
    daemon.restart();
    let after = daemon.json(&["policy", "list"]);
    assert_eq!((&after[0]["keep"], &after[0]["volumes"][0]["name"]), (&before[0]["keep"], &before[0]["volumes"][0]["name"]));
    daemon.run(&["policy", "detach", "p", "tank/v"]).ok();
    daemon.run(&["policy", "detach", "p", "tank/v"]).refused(1, "is not under it");
    daemon.run(&["policy", "run", "p"]).refused(1, "policy attach");
    assert!(daemon.run(&["policy", "destroy", "-n", "p"]).ok().out.contains("would destroy policy p"));
    daemon.run(&["policy", "destroy", "p"]).ok();
    daemon.run(&["policy", "show", "p"]).refused(1, "no policy 'p'");
    let events = daemon.run(&["events", "-H", "-o", "event"]).ok().out;
    for kind in ["policy.created", "policy.attached", "policy.changed", "policy.detached", "policy.destroyed"] {
        assert!(events.contains(kind), "{kind}: {events}");
    }
}

#[test]
fn wrong_properties_are_refused_with_2_and_the_reason() {
    let daemon = Daemon::start();
    let create = |words: &[&str]| daemon.run(&[&["policy", "create", "p"], words].concat());
    create(&["--keep", "1h"]).refused(2, "give EVERY:FOR");
    create(&["--keep", "1h:1d", "--at", "sometimes"]).refused(2, "not a calendar time");
    create(&["--keep", "1h:1d", "--zone", "Mars/Olympus"]).refused(2, "no time zone 'Mars/Olympus'");
    create(&["--keep", "1h:1d", "--template", "auto"]).refused(2, "{time}");
    create(&["--keep", "1h:1d", "--template", "a b {time}"]).refused(2, "U+0020");
    create(&["--keep", "1s:1h", "--lock", "30d"]).refused(2, "locked snapshots at a time");
    create(&["--keep", "1h:1d", "--lock", "2d", "--expire", "1d"]).refused(2, "before their lock ends");
    daemon.run(&["policy", "create", "a/b", "--keep", "1h:1d"]).refused(2, "U+002F");
    daemon.run(&["policy", "set", "p"]).refused(2, "nothing is set");
    daemon.run(&["policy", "set", "keep=1h:1d", "p"]).refused(1, "no policy 'p'");
    assert_eq!(daemon.json(&["policy", "list"]), Value::Array(Vec::new()));
}

#[test]
fn a_policy_takes_a_snapshot_each_second_and_thins() {
    let mut daemon = with_volume();
    daemon.run(&["create", "tank/w", "-L", "16M"]).ok();
    daemon.run(&["policy", "create", "quick", "--keep", "1s:4s 10s:1m", "--group", "--zone", "UTC"]).ok();
    daemon.run(&["policy", "attach", "quick", "tank/v", "tank/w"]).ok();
    let taken = |daemon: &Daemon| daemon.json(&["policy", "show", "quick"])["taken"].as_u64().unwrap_or(0);
    eventually("ten seconds of snapshots", || taken(&daemon) >= 20);
    let listed = daemon.json(&["list", "-t", "snapshot", "tank"]);
    let epochs = |volume: &str| -> Vec<u64> {
        let rows = listed.as_array().expect("a list").iter();
        rows.filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with(volume)))
            .filter_map(|row| row["epoch"].as_u64())
            .collect()
    };
    assert_eq!(epochs("tank/v@"), epochs("tank/w@"), "one instant");
    eventually("it thins", || daemon.json(&["policy", "show", "quick"])["destroyed"].as_u64() > Some(0));
    // up to 4 + 2 in ten seconds, and those since the last thinning
    let count = snapshots(&daemon, "tank/v").len();
    assert!((3..=12).contains(&count), "{count}");
    // killed between two runs, or between taking and thinning: it goes on, and thins what is there
    assert_eq!(daemon.stop("KILL"), -1);
    std::thread::sleep(Duration::from_secs(2));
    daemon.restart();
    eventually("it goes on", || taken(&daemon) >= 6);
    eventually("it thins again", || {
        snapshots(&daemon, "tank/v").len() <= 12 && daemon.json(&["policy", "show", "quick"])["destroyed"].as_u64() > Some(0)
    });
    // a rename changes nothing, a destroyed volume leaves the policy
    daemon.run(&["rename", "tank/w", "tank/x"]).ok();
    let before = snapshots(&daemon, "tank/x").last().cloned();
    eventually("snapshots of the renamed volume", || snapshots(&daemon, "tank/x").last().cloned() > before);
    daemon.run(&["destroy", "-r", "-y", "tank/v"]).ok();
    eventually("the volume leaves", || each(&daemon.json(&["policy", "show", "quick"])["volumes"], "name") == ["tank/x"]);
    assert!(
        daemon
            .run(&["events", "-H", "-o", "event,message"])
            .ok()
            .out
            .contains("volume 'tank/v' is destroyed, and no longer under policy 'quick'")
    );
    let metrics = daemon.json(&["policy", "list"]);
    assert_eq!(metrics[0]["state"], "ok");
}

#[test]
fn only_snapshots_of_the_policy_are_thinned() {
    // INV-POLICY-2
    let daemon = with_volume();
    // runs are due at New Year only; the first snapshot of the year and the newest one stay
    daemon.run(&["policy", "create", "p", "--keep", "1y:1y", "--zone", "UTC"]).ok();
    daemon.run(&["policy", "create", "other", "--keep", "1y:1y", "--zone", "UTC"]).ok();
    daemon.run(&["policy", "attach", "p", "tank/v"]).ok();
    daemon.run(&["policy", "attach", "other", "tank/v"]).ok();
    daemon.run(&["snapshot", "tank/v@auto-p-20200101T000000Z"]).ok();
    let [first, ..] = run(&daemon, &["p"]);
    let [of_other, ..] = run(&daemon, &["other"]);
    let [renamed, destroyed, _] = run(&daemon, &["p"]);
    assert_eq!(destroyed, Vec::<String>::new(), "the first one and the newest one");
    daemon.run(&["rename", &format!("tank/v@{}", renamed[0]), "tank/v@mine"]).ok();
    let [held, ..] = run(&daemon, &["p"]);
    let [cloned, would, _] = run(&daemon, &["-n", "p"]);
    assert_eq!((cloned.len(), &would), (1, &held), "a dry run");
    daemon.run(&["hold", &format!("tank/v@{}", held[0])]).ok();
    let [cloned, destroyed, kept] = run(&daemon, &["p"]);
    assert_eq!((destroyed.len(), &kept), (0, &held));
    daemon.run(&["clone", &format!("tank/v@{}", cloned[0]), "tank/c"]).ok();
    let [exported, destroyed, kept] = run(&daemon, &["p"]);
    assert_eq!((destroyed.len(), kept), (0, [held.clone(), cloned.clone()].concat()));
    daemon.export(&format!("tank/v@{}", exported[0]), "snapshot.sock");
    daemon.run(&["rollback", &format!("tank/v@{}", first[0])]).ok();
    let [_, destroyed, kept] = run(&daemon, &["p"]);
    assert_eq!((destroyed.len(), kept), (0, [held.clone(), cloned.clone(), exported.clone()].concat()));
    // what kept them ends
    daemon.run(&["release", &format!("tank/v@{}", held[0])]).ok();
    daemon.run(&["destroy", "-y", "tank/c"]).ok();
    daemon.run(&["unexport", "1"]).ok();
    let [newest, destroyed, kept] = run(&daemon, &["p"]);
    assert!(kept.is_empty() && [&held[0], &cloned[0], &exported[0]].iter().all(|name| destroyed.contains(name)), "{destroyed:?}");
    let left = snapshots(&daemon, "tank/v");
    for name in ["auto-p-20200101T000000Z", "mine", &first[0], &of_other[0], &newest[0]] {
        assert!(left.iter().any(|other| other == name), "{name} is gone: {left:?}");
    }
    assert!(left.iter().any(|name| name.starts_with("pre-rollback-")), "{left:?}");
    assert_eq!(left.len(), 6, "{left:?}");
}

#[test]
fn locked_snapshots_of_a_policy_stay_with_whatever_is_done() {
    let mut daemon = with_volume();
    daemon.run(&["policy", "create", "safe", "--keep", "1y:1y", "--lock", "1h", "--zone", "UTC"]).ok();
    daemon.run(&["policy", "attach", "safe", "tank/v"]).ok();
    run(&daemon, &["safe"]);
    let [locked, ..] = run(&daemon, &["safe"]);
    let [_, destroyed, kept] = run(&daemon, &["safe"]);
    assert_eq!((destroyed.len(), &kept), (0, &locked), "superfluous, and locked");
    let name = format!("tank/v@{}", locked[0]);
    daemon.run(&["destroy", "-y", "-R", &name]).refused(1, "tag lock, locked until");
    daemon.run(&["release", &name, "--tag", "lock"]).refused(1, "is locked until");
    daemon.run(&["destroy", "-y", "-R", "-r", "tank/v"]).refused(1, "locked");
    daemon.run(&["pool", "destroy", "-y", "tank"]).refused(1, "3 locked snapshots");
    daemon.run(&["policy", "set", "lock=none", "safe"]).ok();
    daemon.run(&["policy", "destroy", "safe"]).ok();
    assert_eq!(daemon.stop("KILL"), -1);
    daemon.restart();
    daemon.run(&["destroy", "-y", "-R", &name]).refused(1, "tag lock, locked until");
    assert_eq!(snapshots(&daemon, "tank/v").len(), 3);
}

#[test]
fn missed_runs_are_reported_and_made_up() {
    let daemon = with_volume();
    daemon.run(&["policy", "create", "quick", "--keep", "1s:1m", "--zone", "UTC"]).ok();
    daemon.run(&["policy", "attach", "quick", "tank/v"]).ok();
    let state = || daemon.json(&["policy", "show", "quick"])["state"].clone();
    eventually("a snapshot", || !snapshots(&daemon, "tank/v").is_empty());
    // a pool that is exported makes nothing late
    daemon.run(&["pool", "export", "tank"]).ok();
    eventually("it waits", || state() == "waiting");
    daemon.run(&["pool", "import", "tank", "--readonly"]).ok();
    eventually("it is late", || state() == "late");
    let shown = daemon.json(&["policy", "show", "quick"]);
    assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("read-only")), "{shown}");
    let checked = daemon.run(&["status", "--check"]);
    assert!(checked.code == 1 && checked.out.contains("policy 'quick' is late"), "{checked:?}");
    assert!(daemon.run(&["status"]).ok().out.contains("policy 'quick' is late: "));
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "import", "tank"]).ok();
    eventually("it runs again", || state() == "ok" && daemon.json(&["policy", "show", "quick"])["missed"].as_u64() > Some(0));
    let events = daemon.run(&["events", "-H", "-o", "event,severity"]).ok().out;
    assert!(events.lines().any(|line| line.starts_with("policy.missed") && line.ends_with("warning")), "{events}");
}

#[test]
fn a_guest_that_cannot_be_frozen_is_reported_and_the_snapshot_is_taken_or_not() {
    let daemon = with_volume();
    // no client, and no agent: no guest runs
    let none = daemon.text("none.sock");
    let ended = daemon.run(&["snapshot", "tank/v@off", "--freeze", &none, "--freeze-required"]);
    assert!(ended.code == 0 && ended.err.is_empty(), "{ended:?}");
    daemon.run(&["snapshot", "tank/v@x", "--freeze", "run.sock"]).refused(2, "absolute path");
    daemon.run(&["snapshot", "tank/v@x", "--freeze", "/run/{vmid}.qga", "--freeze-required"]).refused(1, "no number of a guest");
    assert_eq!(daemon.run(&["snapshot", "tank/v@x", "--freeze-required"]).code, 2, "it needs --freeze");

    // an agent that never answers
    let _agent = std::os::unix::net::UnixListener::bind(daemon.path("agent.sock")).expect("bound");
    let agent = daemon.text("agent.sock");
    daemon.run(&["snapshot", "tank/v@x", "--freeze", &agent, "--freeze-required"]).refused(1, "no answer to guest-sync-delimited");
    let ended = daemon.run(&["snapshot", "tank/v@taken", "--freeze", &agent]);
    assert!(ended.code == 0 && ended.err.contains("taken without freezing a guest: guest agent"), "{ended:?}");
    assert_eq!(snapshots(&daemon, "tank/v"), ["off", "taken"]);

    daemon.run(&["policy", "create", "p", "--keep", "1y:3y", "--zone", "UTC", "--freeze", &agent]).ok();
    daemon.run(&["policy", "attach", "p", "tank/v"]).ok();
    let ended = daemon.run(&["policy", "run", "p"]);
    assert!(ended.code == 0 && ended.err.contains("a guest was not frozen: guest agent"), "{ended:?}");
    let shown = daemon.json(&["policy", "show", "p"]);
    assert_eq!(
        (shown["freeze"].as_str(), shown["freeze_required"].as_bool(), shown["not_frozen"].as_u64()),
        (Some(&*agent), Some(false), Some(1))
    );
    assert!(shown["volumes"][0]["not_frozen"].as_str().is_some_and(|reason| reason.contains("no answer")), "{shown}");
    for words in [&["status"][..], &["pool", "status", "tank"], &["status", "--check"]] {
        assert!(daemon.run(words).out.contains("policy 'p' does not freeze a guest"), "{words:?}");
    }
    daemon.run(&["policy", "set", "freeze_required=on", "p"]).ok();
    daemon.run(&["policy", "run", "p"]).refused(1, "a guest was not frozen");
    assert_eq!(snapshots(&daemon, "tank/v").len(), 3, "one of the policy, without freezing");
    daemon.run(&["policy", "set", "freeze=none", "p"]).ok();
    daemon.run(&["policy", "run", "p"]).ok();
    let events = daemon.run(&["events", "-H", "-o", "event"]).ok().out;
    // two of snapshots, one of the policy, whose second failure is no news
    assert_eq!(events.matches("guest.not-frozen").count(), 3, "{events}");
}

#[test]
fn a_change_shows_before_what_it_destroys() {
    let daemon = with_volume();
    daemon.run(&["policy", "create", "p", "--keep", "1s:1h", "--zone", "UTC"]).ok();
    daemon.run(&["policy", "attach", "p", "tank/v"]).ok();
    eventually("three snapshots", || snapshots(&daemon, "tank/v").len() >= 3);
    let planned = daemon.run(&["policy", "set", "-n", "keep=1y:2y", "p"]).ok().out;
    assert!(planned.contains("would destroy") && planned.contains("tank/v@auto-p-"), "{planned}");
    daemon.run(&["policy", "set", "-n", "keep=1y", "p"]).refused(2, "1y");
    assert_eq!(daemon.json(&["policy", "show", "p"])["keep"].as_str(), Some("1s:1h"), "nothing is changed");
    let before = snapshots(&daemon, "tank/v").len();
    assert!(before >= 3, "nothing is destroyed");
    daemon.run(&["policy", "set", "keep=1y:2y", "p"]).ok();
    daemon.run(&["policy", "run", "p"]).ok();
    assert!(snapshots(&daemon, "tank/v").len() < before);
}
