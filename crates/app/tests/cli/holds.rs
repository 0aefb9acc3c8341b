//! Holds with tags, and locks.

use crate::harness::{Daemon, each, eventually};

/// Starts a daemon with `tank/v@a` and `tank/v@b`.
fn two_snapshots() -> Daemon {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/v@a", "tank/v@b"]).ok();
    daemon
}

#[test]
fn each_tag_is_a_hold_of_its_own() {
    let mut daemon = two_snapshots();
    daemon.run(&["hold", "tank/v@a", "--tag", "audit", "--until", "2099-01-01"]).ok();
    daemon.run(&["hold", "tank/v@a", "--tag", "backup"]).ok();
    daemon.run(&["hold", "tank/v@a"]).ok();
    daemon.run(&["hold", "tank/v@a", "--tag", "audit"]).refused(1, "held with tag 'audit' already");
    daemon.run(&["hold", "tank/v@a", "--tag", "late", "--until", "2020-01-01"]).refused(1, "is in the past");
    daemon.run(&["hold", "tank/v@a", "--tag", "no/tag"]).refused(1, "not a name");
    let listed = || daemon.json(&["list", "-t", "snapshot", "tank/v@a"])[0].clone();
    assert_eq!((listed()["holds"].as_u64(), listed()["hold_tags"].to_string()), (Some(3), r#"["audit","backup"]"#.to_owned()));
    let out = daemon.run(&["show", "tank/v@a"]).ok().out;
    let line = out.lines().find(|line| line.starts_with("hold audit")).expect("a line");
    assert!(line.contains("since 20") && line.ends_with("until 2099-01-01T00:00:00Z"), "{out}");
    assert!(out.contains("hold -  since -  until -\n"), "{out}");
    let refused = daemon.run(&["destroy", "-y", "-R", "tank/v@a"]);
    for word in ["no tag", "tag audit until 2099-01-01T00:00:00Z", "millpond release tank/v@a --tag backup"] {
        assert!(refused.err.contains(word), "{refused:?}");
    }
    refused.refused(1, "cannot destroy 'tank/v@a'");

    // a release removes only the hold with its tag
    daemon.run(&["release", "tank/v@a", "--tag", "bakup"]).refused(1, "its tags are audit, backup");
    daemon.run(&["release", "tank/v@a"]).ok();
    daemon.run(&["release", "tank/v@a"]).refused(1, "no hold without a tag; give --tag with one of audit, backup");
    assert_eq!(listed()["holds"], 2);
    daemon.run(&["release", "tank/v@a", "--tag", "backup"]).ok();
    let before = daemon.json(&["show", "tank/v@a"])["hold_list"].clone();
    assert_eq!(daemon.stop("KILL"), -1);
    daemon.restart();
    assert_eq!(daemon.json(&["show", "tank/v@a"])["hold_list"], before);
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(daemon.json(&["show", "tank/v@a"])["hold_list"], before);
    daemon.run(&["release", "tank/v@a", "--tag", "audit"]).ok();
    daemon.run(&["release", "tank/v@a", "--tag", "audit"]).refused(1, "no hold with tag 'audit', and none with another");
    daemon.run(&["destroy", "-y", "tank/v@a"]).ok();
}

#[test]
fn a_hold_that_ended_makes_room_for_the_next_of_its_tag() {
    let daemon = two_snapshots();
    daemon.run(&["hold", "tank/v@a", "--tag", "short", "--until", "1s"]).ok();
    daemon.run(&["destroy", "-y", "tank/v@a"]).refused(1, "tag short until 20");
    eventually("the hold ends", || daemon.json(&["list", "tank/v@a"])[0]["holds"] == 0);
    daemon.run(&["hold", "tank/v@a", "--tag", "short"]).ok();
    daemon.run(&["release", "tank/v@a", "--tag", "short"]).ok();
    daemon.run(&["destroy", "-y", "tank/v@a"]).ok();
}

#[test]
fn a_lock_is_released_by_nobody_before_its_time() {
    let daemon = two_snapshots();
    daemon.run(&["snapshot", "tank/v@l", "--lock", "30d"]).ok();
    assert_eq!(daemon.json(&["show", "tank/v@l"])["hold_list"][0]["locked"], true);
    daemon.run(&["release", "tank/v@l", "--tag", "lock"]).refused(1, "locked until 20");
    daemon.run(&["release", "tank/v@l"]).refused(1, "no hold without a tag");
    daemon.run(&["destroy", "-y", "-R", "tank/v"]).refused(1, "wait until the locks end");
    daemon.run(&["hold", "tank/v@a", "--tag", "lock"]).refused(1, "choose another");
    daemon.run(&["snapshot", "tank/v@m", "--lock", "1s"]).ok();
    eventually("the lock ends", || daemon.run(&["destroy", "-y", "tank/v@m"]).code == 0);
}

#[test]
fn several_snapshots_are_held_and_released_or_none() {
    let daemon = two_snapshots();
    daemon.run(&["create", "tank/w", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/w@a"]).ok();
    daemon.run(&["hold", "tank/v@b", "--tag", "x"]).ok();
    let held = || {
        let snapshots = daemon.json(&["list", "-t", "snapshot"]);
        let all = snapshots.as_array().expect("an array");
        all.iter()
            .filter(|s| s["holds"] != 0)
            .map(|s| s["name"].as_str().expect("a name")["tank/".len()..].to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    daemon.run(&["hold", "tank/*@*", "--tag", "x"]).refused(1, "cannot hold 'tank/v@b'");
    assert_eq!(held(), "v@b");
    daemon.run(&["hold", "tank/*@a", "tank/w@a", "--tag", "x"]).ok();
    assert_eq!(held(), "v@a v@b w@a");
    daemon.run(&["release", "tank/*@?"]).refused(1, "cannot release 'tank/v@a': it has no hold without a tag");
    daemon.run(&["release", "tank/v@?", "--tag", "x"]).ok();
    assert_eq!(held(), "w@a");
    daemon.run(&["hold", "tank/v*"]).refused(2, "not a pattern of snapshots");
    daemon.run(&["hold", "tank/x*@a"]).refused(1, "nothing matches 'tank/x*@a'");
    assert_eq!(each(&daemon.json(&["list", "-t", "snapshot"]), "name").len(), 3);
}
