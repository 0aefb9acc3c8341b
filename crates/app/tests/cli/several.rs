//! Several names, patterns, and the order of lists.

use crate::harness::{Daemon, each};

/// Starts a daemon with the volumes `vm1`, `vm2`, `db` of the pool `tank`, and `vm1` of the pool
/// `pond`.
fn two_pools() -> Daemon {
    let daemon = Daemon::with_pool();
    let device = format!("{}:256M", daemon.text("pond.img"));
    daemon.run(&["pool", "create", "pond", &device]).ok();
    for (name, size) in [("tank/vm1", "48M"), ("tank/vm2", "8M"), ("tank/db", "160M"), ("pond/vm1", "16M")] {
        daemon.run(&["create", name, "-L", size]).ok();
    }
    daemon
}

fn names(daemon: &Daemon, words: &[&str]) -> String {
    let words: Vec<&str> = ["list"].iter().chain(words).copied().collect();
    each(&daemon.json(&words), "name").join(" ")
}

#[test]
fn lists_take_names_and_patterns_and_an_order() {
    let daemon = two_pools();
    daemon.run(&["snapshot", "tank/vm1@auto-1", "tank/vm1@hand", "tank/vm2@auto-1"]).ok();
    let list = |words: &[&str]| names(&daemon, words);
    assert_eq!(list(&["tank/vm*"]), "tank/vm1 tank/vm2");
    assert_eq!(list(&["tank/vm2", "tank/vm?", "tank/db"]), "tank/vm2 tank/vm1 tank/db");
    assert_eq!(list(&["*/vm1"]), "pond/vm1 tank/vm1");
    assert_eq!(list(&["p*"]), "pond/vm1");
    assert_eq!(list(&["tank/vm1@auto-*"]), "tank/vm1@auto-1");
    assert_eq!(list(&["-t", "snapshot", "tank/vm*"]), "tank/vm1@auto-1 tank/vm1@hand tank/vm2@auto-1");
    assert_eq!(list(&["*/*@auto-*"]), "tank/vm1@auto-1 tank/vm2@auto-1");
    daemon.run(&["list", "tank/web*"]).refused(1, "nothing matches 'tank/web*'");
    daemon.run(&["list", "tank/v m*"]).refused(2, "not allowed");
    // sorted by value: as text, 160M would come before 48M, and 48M before 8M
    assert_eq!(list(&["tank", "-s", "size"]), "tank/vm2 tank/vm1 tank/db");
    assert_eq!(list(&["-S", "size"]), "tank/db tank/vm1 pond/vm1 tank/vm2");
    assert_eq!(list(&["-t", "snapshot", "-S", "name"]), "tank/vm2@auto-1 tank/vm1@hand tank/vm1@auto-1");
    daemon.run(&["list", "-s", "sise"]).refused(2, "no column 'sise' to sort by; choose from name,size");
}

#[test]
fn what_patterns_destroy_is_listed_and_asked_for_and_goes_at_once() {
    let daemon = two_pools();
    for name in ["a", "b"] {
        daemon.run(&["snapshot", "-r", &format!("tank@auto-{name}"), &format!("pond@auto-{name}")]).ok();
    }
    let plan = daemon.json(&["destroy", "-n", "tank/vm*@auto-*", "*/vm1@auto-a"]);
    let expected = ["pond/vm1@auto-a", "tank/vm1@auto-a", "tank/vm1@auto-b", "tank/vm2@auto-a", "tank/vm2@auto-b"];
    let destroyed: Vec<&str> = plan["destroyed"].as_array().expect("a list").iter().filter_map(|name| name.as_str()).collect();
    assert_eq!(destroyed, expected);
    assert!(plan["freed_bytes"].is_u64() && plan["dry_run"] == true);
    daemon
        .run(&["destroy", "tank/vm*@auto-*"])
        .refused(1, "tank/vm1@auto-a, tank/vm1@auto-b, tank/vm2@auto-a, tank/vm2@auto-b (4 in all) would be lost; add -y");
    daemon.run(&["destroy", "-y", "tank/nothing*"]).refused(1, "nothing matches");
    daemon.run(&["destroy", "-y", "ta*"]).refused(2, "a pattern of pools");
    // a snapshot that cannot be destroyed keeps all of them
    daemon.run(&["hold", "tank/vm2@auto-b", "--tag", "keep"]).ok();
    daemon.run(&["destroy", "-y", "tank/vm*@auto-*"]).refused(1, "'tank/vm2@auto-b' (tag keep)");
    assert_eq!(names(&daemon, &["tank/vm*@*"]).split(' ').count(), 4);
    daemon.run(&["destroy", "-y", "tank/vm1@auto-a", "tank/vm1@nothing"]).refused(1, "no snapshot 'tank/vm1@nothing'");
    assert_eq!(names(&daemon, &["tank/vm*@*"]).split(' ').count(), 4);
    daemon.run(&["destroy", "-y", "tank/vm1@%", "tank/d*@auto-a%"]).ok();
    assert_eq!(names(&daemon, &["-t", "snapshot", "tank"]), "tank/vm2@auto-a tank/vm2@auto-b");
    // a clone that is named does not need -R
    daemon.run(&["clone", "tank/vm2@auto-a", "tank/copy"]).ok();
    daemon.run(&["destroy", "-y", "tank/vm2@auto-a"]).refused(1, "-R");
    let out = daemon.run(&["destroy", "-y", "tank/vm2@auto-a", "tank/copy", "tank/vm1", "pond/vm1@%"]).ok().out;
    assert_eq!(out.lines().filter(|line| line.starts_with("destroyed ")).count(), 5, "{out}");
    assert_eq!(names(&daemon, &["tank"]), "tank/db tank/vm2");
}

#[test]
fn a_pool_is_one_instant_and_names_are_checked_before_any_is_taken() {
    let daemon = two_pools();
    daemon.run(&["snapshot", "-r", "tank@all", "--description", "everything"]).ok();
    let snapshots = daemon.json(&["list", "-t", "snapshot"]);
    assert_eq!(each(&snapshots, "name"), ["tank/db@all", "tank/vm1@all", "tank/vm2@all"]);
    assert!(snapshots.as_array().expect("an array").iter().all(|s| s["epoch"] == snapshots[0]["epoch"]), "{snapshots}");
    assert_eq!(daemon.json(&["get", "description", "tank/db@all"])[0]["value"], "everything");
    daemon.run(&["snapshot", "-r", "tank/db@x"]).refused(2, "POOL@SNAP");
    daemon.run(&["snapshot", "-r", "lake@x"]).refused(1, "lake");
    daemon.run(&["snapshot", "tank/vm2@new", "tank/vm1@all"]).refused(1, "exists");
    daemon.run(&["snapshot", "tank/vm2@new", "tank/vm2@new"]).refused(1, "exists");
    assert_eq!(names(&daemon, &["-t", "snapshot", "tank/vm2"]), "tank/vm2@all");
    daemon.run(&["snapshot", "--group", "tank/vm*@both"]).ok();
    assert_eq!(names(&daemon, &["*/*@both"]), "tank/vm1@both tank/vm2@both");
    daemon.run(&["snapshot", "tank/vm1@b*"]).refused(2, "not allowed");
    daemon.run(&["snapshot", "tank/web*@a"]).refused(1, "nothing matches 'tank/web*'");
}

#[test]
fn properties_are_set_of_several_volumes_or_of_none() {
    let daemon = two_pools();
    let set = || each(&daemon.json(&["list", "-o", "name,cache"]), "cache").join(" ");
    daemon.run(&["set", "cache=none", "compression=zstd", "tank/vm1", "tank/d*"]).ok();
    assert_eq!(set(), "writeback none none writeback");
    daemon.run(&["set", "cache=unsafe", "tank/vm2", "tank/nothing"]).refused(1, "no volume 'tank/nothing'");
    assert_eq!(set(), "writeback none none writeback");
    daemon.run(&["set", "cache=unsafe", "tank/web*"]).refused(1, "nothing matches");
    daemon.run(&["set", "cache=unsafe", "cache=none"]).refused(2, "no volume is named");
    daemon.run(&["set", "cache=none", "tank/vm1@*"]).refused(2, "not a pattern of volumes");
}
