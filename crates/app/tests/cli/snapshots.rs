//! Snapshots: create, rollback, clone, diff, hold, destroy.

use std::path::Path;

use crate::harness::{Daemon, each, eventually, keys};
use crate::nbd;

const BLOCK: usize = 4096;

fn write(socket: &Path, block: u64, byte: u8) {
    let mut nbd = nbd::connect(socket).expect("connect");
    nbd.write(block * BLOCK as u64, &[byte; BLOCK]).expect("write");
    nbd.flush().expect("flush");
}

fn read(socket: &Path, block: u64) -> u8 {
    let mut bytes = [0; BLOCK];
    nbd::connect(socket).expect("connect").read(block * BLOCK as u64, &mut bytes).expect("read");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn block");
    bytes[0]
}

/// Starts a daemon with `tank/v`, which is exported.
fn served() -> (Daemon, std::path::PathBuf) {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    (daemon, socket)
}

#[test]
fn snapshots_have_the_agreed_keys_and_order() {
    let (daemon, socket) = served();
    write(&socket, 0, 1);
    for name in ["zz", "aa", "mm"] {
        daemon.run(&["snapshot", &format!("tank/v@{name}")]).ok();
    }
    let snapshots = daemon.json(&["list", "-t", "snapshot"]);
    assert_eq!(keys(&snapshots[0]), ["clones", "created", "epoch", "hold_tags", "holds", "name", "referenced_bytes", "unique_bytes"]);
    assert_eq!(each(&snapshots, "name"), ["tank/v@zz", "tank/v@aa", "tank/v@mm"]);
    let created = snapshots[0]["created"].as_str().expect("a time");
    assert!(created.starts_with("20") && created.ends_with('Z') && created.contains('T'), "{created}");
    assert_eq!(snapshots[0]["referenced_bytes"], BLOCK);
    assert_eq!(daemon.json(&["list", "tank/v"])[0]["snapshots"], 3);
    daemon.run(&["snapshot", "tank/v@aa"]).refused(1, "exists");
    daemon.run(&["snapshot", "tank/w@a"]).refused(1, "no volume 'tank/w'");
    assert_eq!(daemon.json(&["get", "epoch", "tank/v@zz"])[0]["value"], snapshots[0]["epoch"]);
}

#[test]
fn a_group_is_one_instant() {
    let daemon = Daemon::with_pool();
    for name in ["tank/a", "tank/b"] {
        daemon.run(&["create", name, "-L", "16M"]).ok();
    }
    daemon.run(&["snapshot", "--group", "--description", "both", "tank/a@g", "tank/b@g"]).ok();
    let snapshots = daemon.json(&["list", "-t", "snapshot"]);
    assert_eq!(snapshots[0]["epoch"], snapshots[1]["epoch"]);
    assert_eq!(daemon.json(&["get", "description", "tank/b@g"])[0]["value"], "both");
    daemon.run(&["snapshot", "tank/a@x", "tank/b@x"]).ok();
    daemon.run(&["snapshot", "--group", "tank/a@y", "tank/none@y"]).refused(1, "tank/none");
    assert!(!each(&daemon.json(&["list", "-t", "snapshot"]), "name").contains(&"tank/a@y"), "half a group");
}

#[test]
fn a_rollback_brings_the_snapshot_back_and_keeps_the_rest() {
    let (daemon, socket) = served();
    write(&socket, 5, 1);
    daemon.run(&["snapshot", "tank/v@one"]).ok();
    write(&socket, 5, 2);
    daemon.run(&["snapshot", "tank/v@two"]).ok();
    write(&socket, 5, 3);
    let out = daemon.run(&["rollback", "tank/v@one"]).ok().out;
    assert!(out.contains("tank/v@pre-rollback-"), "{out}");
    assert_eq!(read(&socket, 5), 1);
    let names = daemon.json(&["list", "-t", "snapshot", "tank/v"]);
    let names = each(&names, "name");
    assert!(names.contains(&"tank/v@two") && names.len() == 3, "{names:?}");
    let kept = names.iter().find(|name| name.contains("pre-rollback")).expect("kept");
    let kept_socket = daemon.export(kept, "kept.sock");
    assert_eq!(read(&kept_socket, 5), 3);
    daemon.run(&["rollback", "tank/v@none"]).refused(1, "no snapshot");
}

#[test]
fn clones_stand_on_their_origin() {
    let (daemon, socket) = served();
    write(&socket, 1, 7);
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    daemon.run(&["clone", "tank/v@a", "tank/c"]).ok();
    let clone = daemon.json(&["list", "tank/c"]);
    assert_eq!(clone[0]["origin"], "tank/v@a");
    let clone_socket = daemon.export("tank/c", "c.sock");
    write(&clone_socket, 1, 8);
    assert_eq!((read(&socket, 1), read(&clone_socket, 1)), (7, 8));
    assert_eq!(daemon.json(&["list", "-t", "snapshot", "tank/v"])[0]["clones"], 1);
    daemon.run(&["destroy", "-y", "tank/v@a"]).refused(1, "-R");
    daemon.run(&["clone", "tank/v@a", "other/c"]).refused(1, "same pool");
    daemon.run(&["destroy", "-n", "-R", "tank/v@a"]).refused(1, "'tank/c' is exported");
    daemon.run(&["unexport", "2"]).ok();
    let out = daemon.run(&["destroy", "-n", "-R", "tank/v@a"]).ok().out;
    assert!(out.contains("would destroy tank/c") && out.contains("would destroy tank/v@a"), "{out}");
}

#[test]
fn diff_tells_data_from_zeroes() {
    let (daemon, socket) = served();
    write(&socket, 0, 1);
    write(&socket, 9, 1);
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    write(&socket, 2, 2);
    write(&socket, 9, 0);
    daemon.run(&["snapshot", "tank/v@b"]).ok();
    write(&socket, 4, 4);
    let between = daemon.json(&["diff", "tank/v@a", "tank/v@b"]);
    assert_eq!(keys(&between[0]), ["kind", "length", "offset"]);
    let touched = |diff: &serde_json::Value, block: u64| {
        let at = block * BLOCK as u64;
        let covers = |e: &&serde_json::Value| {
            let (offset, length) = (e["offset"].as_u64().expect("offset"), e["length"].as_u64().expect("length"));
            offset <= at && at < offset + length
        };
        diff.as_array().and_then(|all| all.iter().find(covers)).map(|e| e["kind"].as_str().expect("kind").to_owned())
    };
    assert_eq!(touched(&between, 2).as_deref(), Some("data"));
    assert!(touched(&between, 9).is_some() && touched(&between, 0).is_none() && touched(&between, 4).is_none(), "{between}");
    let head = daemon.json(&["diff", "tank/v@a"]);
    assert_eq!(touched(&head, 4).as_deref(), Some("data"));
    daemon.run(&["diff", "tank/v@a", "tank/v@none"]).refused(1, "no snapshot");
}

#[test]
fn held_snapshots_stay() {
    let (daemon, _) = served();
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    daemon.run(&["hold", "tank/v@a", "--until", "2099-01-01"]).ok();
    assert_eq!(daemon.json(&["list", "-t", "snapshot"])[0]["holds"], 1);
    daemon.run(&["destroy", "-y", "tank/v@a"]).refused(1, "snapshots with holds");
    daemon.run(&["release", "tank/v@a"]).ok();
    daemon.run(&["release", "tank/v@a"]).refused(1, "no hold");
    daemon.run(&["destroy", "-y", "tank/v@a"]).ok();
    daemon.run(&["hold", "tank/v@a"]).refused(1, "no snapshot");
    daemon.run(&["hold", "tank/v@a", "--until", "soon"]).refused(2, "not a time");
}

#[test]
fn destroy_takes_ranges_and_says_what_it_frees() {
    let (daemon, socket) = served();
    for (name, byte) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        write(&socket, 0, byte);
        daemon.run(&["snapshot", &format!("tank/v@{name}")]).ok();
    }
    let left =
        || each(&daemon.json(&["list", "-t", "snapshot"]), "name").iter().map(|name| name[7..].to_owned()).collect::<Vec<_>>().concat();
    daemon.run(&["destroy", "tank/v@b"]).refused(1, "add -y");
    let plan = daemon.json(&["destroy", "-n", "tank/v@b"]);
    assert_eq!((each_text(&plan["destroyed"]), plan["freed_bytes"].as_u64()), (vec!["tank/v@b".to_owned()], Some(BLOCK as u64)));
    assert_eq!(left(), "abcd");
    daemon.run(&["destroy", "-y", "tank/v@d%b"]).refused(1, "older");
    let out = daemon.run(&["destroy", "-y", "tank/v@b%c", "--wait"]);
    assert!(out.code == 0 && out.out.contains("destroyed tank/v@c") && out.out.contains("bytes"), "{out:?}");
    assert_eq!(left(), "ad");
    daemon.run(&["destroy", "-y", "tank/v@%"]).ok();
    assert_eq!(left(), "");
    daemon.run(&["destroy", "-y", "tank/v@%"]).ok();
    assert_eq!(read(&socket, 0), 4);
    daemon.run(&["snapshot", "tank/v@e"]).ok();
    daemon.run(&["destroy", "-y", "tank/v"]).refused(1, "-r");
    daemon.run(&["destroy", "-y", "-r", "tank/v"]).refused(1, "unexport");
    daemon.run(&["unexport", "1"]).ok();
    daemon.run(&["destroy", "-y", "-r", "tank/v"]).ok();
    assert_eq!(daemon.json(&["list", "-t", "all"]).as_array().map(Vec::len), Some(0));
    daemon.run(&["destroy", "-y", "tank/v"]).refused(1, "no volume");
}

fn each_text(list: &serde_json::Value) -> Vec<String> {
    list.as_array().expect("an array").iter().map(|entry| entry.as_str().expect("text").to_owned()).collect()
}

#[test]
fn clones_go_with_capital_r_and_held_snapshots_never() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    daemon.run(&["clone", "tank/v@a", "tank/c"]).ok();
    daemon.run(&["snapshot", "tank/c@x"]).ok();
    daemon.run(&["hold", "tank/c@x"]).ok();
    daemon.run(&["destroy", "-y", "-r", "tank/v"]).refused(1, "-R");
    for words in [["destroy", "-n", "-R", "tank/v"], ["destroy", "-y", "-R", "tank/v"], ["destroy", "-y", "-R", "tank/v@a"]] {
        daemon.run(&words).refused(1, "snapshots with holds: 'tank/c@x' (no tag); run 'millpond release tank/c@x' first");
    }
    assert_eq!(daemon.json(&["list", "-t", "all"]).as_array().map(Vec::len), Some(4), "nothing is gone");
    daemon.run(&["release", "tank/c@x"]).ok();
    let plan = daemon.json(&["destroy", "-n", "-R", "tank/v"]);
    assert_eq!(each_text(&plan["destroyed"]), ["tank/c@x", "tank/c", "tank/v@a", "tank/v"]);
    daemon.run(&["destroy", "-y", "-R", "tank/v"]).ok();
    assert_eq!(daemon.json(&["list"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn snapshots_expire_by_themselves() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/v@held", "--expire", "1s"]).ok();
    daemon.run(&["hold", "tank/v@held"]).ok();
    daemon.run(&["snapshot", "tank/v@soon", "--expire", "1s"]).ok();
    daemon.run(&["snapshot", "tank/v@later", "--expire", "24h"]).ok();
    daemon.run(&["snapshot", "tank/v@never"]).ok();
    let left = || each(&daemon.json(&["list", "-t", "snapshot"]), "name").into_iter().map(str::to_owned).collect::<Vec<_>>();
    eventually("the snapshot expires", || left() == ["tank/v@held", "tank/v@later", "tank/v@never"]);
    daemon.run(&["release", "tank/v@held"]).ok();
    eventually("what was held expires", || left() == ["tank/v@later", "tank/v@never"]);
    daemon.run(&["snapshot", "tank/v@x", "--expire", "soon"]).refused(2, "not a time span");
}
