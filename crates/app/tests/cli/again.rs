//! Exports that end with their volumes, and exports that are restored from a list.

use std::process::Stdio;

use crate::harness::{Daemon, each, run};
use crate::nbd;

/// Starts a daemon with `tank/v@a` and four exports: two of the volume, one of the snapshot, one of
/// another volume.
fn exported() -> Daemon {
    let daemon = Daemon::with_pool();
    for name in ["tank/v", "tank/w"] {
        daemon.run(&["create", name, "-L", "16M"]).ok();
    }
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    for words in [
        vec!["nbd", "tank/v", "--unix", "v.sock", "--mode", "0660", "--max-clients", "5"],
        vec!["vhost-user", "tank/v", "--unix", "vhost.sock", "--queues", "7", "--readonly"],
        vec!["nbd", "tank/v@a", "--unix", "a.sock"],
        vec!["nbd", "tank/w", "--unix", "w.sock", "--tcp", "127.0.0.1:0"],
    ] {
        let words: Vec<&str> = ["export"].into_iter().chain(words).collect();
        daemon.run(&words).ok();
    }
    daemon
}

#[test]
fn a_destroy_names_all_exports_and_ends_them_when_asked() {
    let daemon = exported();
    let refusal =
        "'tank/v@a' is exported (export 3) and 'tank/v' is exported (exports 1 and 2); run 'millpond unexport tank/v@a tank/v' first";
    daemon.run(&["destroy", "-y", "-r", "tank/v"]).refused(1, refusal);
    let client = nbd::connect(&daemon.path("v.sock")).expect("connect");
    daemon.run(&["destroy", "-y", "-r", "--unexport", "tank/v"]).refused(1, "clients are connected: export 1");
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(4), "none has ended");
    drop(client);
    assert_eq!(daemon.run(&["destroy", "-y", "--force", "tank/v"]).code, 2, "--force alone");
    let plan = daemon.json(&["destroy", "-n", "-r", "--unexport", "tank/v"]);
    assert_eq!(plan["unexported"].to_string(), "[3,1,2]");
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(4), "it was only asked");
    let _client = nbd::connect(&daemon.path("v.sock")).expect("connect");
    let done = daemon.run(&["destroy", "-y", "-r", "--unexport", "--force", "tank/v"]).ok().out;
    assert!(done.contains("ended export 2\n") && done.contains("destroyed tank/v\n"), "{done}");
    assert_eq!(each(&daemon.json(&["exports"]), "name"), ["tank/w"]);
}

#[test]
fn several_exports_end_by_name_and_pattern() {
    let daemon = exported();
    daemon.run(&["unexport", "tank/w", "tank/none"]).refused(1, "no export 'tank/none'");
    daemon.run(&["unexport", "tank/x*"]).refused(1, "no export 'tank/x*'");
    assert_eq!(daemon.json(&["exports", "tank/w"])["name"], "tank/w");
    assert_eq!(each(&daemon.json(&["exports", "tank/v*"]), "name").len(), 2);
    daemon.run(&["exports", "tank/none"]).refused(1, "no export 'tank/none'");
    daemon.run(&["unexport", "tank/v*", "4"]).ok();
    assert_eq!(each(&daemon.json(&["exports"]), "name"), ["tank/v@a"]);
}

#[test]
fn exports_of_a_list_are_made_where_they_are_missing() {
    let daemon = exported();
    let list = daemon.run(&["exports", "--format", "json"]).ok().out;
    std::fs::write(daemon.path("list.json"), &list).expect("a list");
    let out = daemon.run(&["export", "--from", "list.json"]).ok().out;
    assert_eq!(out.lines().filter(|line| line.ends_with("is there already")).count(), 4, "{out}");
    daemon.run(&["unexport", "tank/*", "tank/v@a"]).ok();
    // from standard input
    let file = std::fs::File::open(daemon.path("list.json")).expect("the list");
    let mut command = crate::harness::command(&["export", "--from", "-"]);
    command.env("MILLPOND_SOCKET", daemon.socket()).stdin(Stdio::from(file));
    run(command).ok();
    let (before, after): (serde_json::Value, _) = (serde_json::from_str(&list).expect("JSON"), daemon.json(&["exports"]));
    assert_eq!(after.as_array().map(Vec::len), Some(4));
    for (old, new) in before.as_array().into_iter().flatten().zip(after.as_array().into_iter().flatten()) {
        for key in ["kind", "name", "address", "unix", "tcp", "readonly", "mode", "queues", "max_clients", "state"] {
            assert_eq!(old[key], new[key], "{key} of {}", old["name"]);
        }
    }
    nbd::connect(&daemon.path("w.sock")).expect("connect");
    // on a host without one of the volumes no export is created
    daemon.run(&["unexport", "tank/*", "tank/v@a"]).ok();
    daemon.run(&["destroy", "-y", "tank/w"]).ok();
    daemon.run(&["export", "--from", "list.json"]).refused(1, "no volume 'tank/w'");
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
    daemon.run(&["export", "--from", "none.json"]).refused(1, "cannot read none.json");
    std::fs::write(daemon.path("list.json"), "{}").expect("a list");
    daemon.run(&["export", "--from", "list.json"]).refused(1, "not a list of exports");
    daemon.run(&["export"]).refused(2, "give nbd, vhost-user or fuse");
}

#[test]
fn an_export_that_is_there_is_not_made_again() {
    let daemon = exported();
    let same = |words: &[&str]| {
        let words: Vec<&str> = ["export"].iter().chain(words).chain(&["--if-missing"]).copied().collect();
        daemon.run(&words).ok().out
    };
    assert!(same(&["nbd", "tank/v"]).starts_with("export 1 "));
    assert!(same(&["nbd", "tank/v", "--unix", "v.sock"]).starts_with("export 1 "));
    assert!(same(&["nbd", "tank/v@a"]).starts_with("export 3 "));
    assert!(same(&["vhost-user", "tank/v", "--readonly"]).starts_with("export 2 "));
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(4));
    // an export with another address or other permissions is a different one
    assert!(same(&["nbd", "tank/v", "--readonly", "--unix", "other.sock"]).starts_with("export 5 "));
    daemon.run(&["export", "nbd", "tank/v", "--unix", "elsewhere.sock", "--if-missing"]).refused(1, "lets clients write");
    daemon.run(&["export", "nbd", "tank/v"]).refused(1, "lets clients write");
}
