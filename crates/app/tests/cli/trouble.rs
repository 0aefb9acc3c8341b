//! Import after failures: restore points, rewinds, and read-only imports.

use std::fs;

use crate::harness::{Daemon, each};

/// Returns the ids of the restore points, newest first.
fn points(daemon: &Daemon, words: &[&str]) -> Vec<u64> {
    let listed = daemon.json(&[&["pool", "checkpoints", "tank"], words].concat());
    listed.as_array().expect("an array").iter().map(|point| point["id"].as_u64().expect("a number")).collect()
}

#[test]
fn a_pool_goes_back_to_a_checkpoint_when_agreed() {
    let daemon = Daemon::with_pool();
    let dir = daemon.text("");
    daemon.run(&["create", "tank/first", "-L", "16M"]).ok();
    daemon.run(&["pool", "export", "tank"]).ok();
    let old = points(&daemon, &["-d", &dir])[0];
    daemon.run(&["pool", "import", "tank"]).ok();
    daemon.run(&["create", "tank/second", "-L", "16M"]).ok();
    assert!(points(&daemon, &[]).contains(&old), "a pool in service lists what it has on its devices");
    daemon.run(&["pool", "export", "tank"]).ok();

    daemon.run(&["pool", "import", "tank", "--to", "99999", "-y"]).refused(1, "99999");
    assert_eq!(daemon.run(&["pool", "import", "--to", "1"]).code, 2, "of which pool?");
    assert_eq!(daemon.run(&["pool", "import", "tank", "--rewind", "--to", "1"]).code, 2);
    daemon.run(&["pool", "import", "tank", "--to", &old.to_string()]).refused(1, "-y");
    let planned = daemon.json(&["pool", "import", "tank", "--to", &old.to_string(), "-n"]);
    assert_eq!(planned[0]["checkpoint"]["id"], old, "{planned}");
    assert!(planned[0]["checkpoint"]["lost_bytes"].is_u64() && planned[0]["checkpoint"]["lost_millis"].is_u64(), "{planned}");
    daemon.run(&["pool", "import", "tank"]).ok();
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/first", "tank/second"]);
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "import", "tank", "--to", &old.to_string(), "-y"]).ok();
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/first"]);
    daemon.run(&["create", "tank/third", "-L", "16M"]).ok();
    daemon.run(&["pool", "export", "tank"]).ok();
    // an undamaged pool loses nothing by a rewind, so no confirmation is needed
    daemon.run(&["pool", "import", "tank", "--rewind"]).ok();
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/first", "tank/third"]);
}

#[test]
fn a_pool_that_is_only_read_is_not_written_to() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["pool", "export", "tank"]).ok();
    let before = fs::read(daemon.path("tank.img")).expect("reads");
    daemon.run(&["pool", "import", "tank", "--readonly"]).ok();
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "readonly");
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/v"]);
    daemon.run(&["snapshot", "tank/v@s"]).refused(1, "read-only");
    daemon.run(&["destroy", "tank/v", "-y"]).refused(1, "read-only");
    daemon.run(&["resize", "tank/v", "32M"]).refused(1, "read-only");
    daemon.run(&["pool", "destroy", "tank", "-y"]).refused(1, "read-only");
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "readonly", "it stays so over a restart");
    daemon.run(&["pool", "export", "tank"]).ok();
    assert!(fs::read(daemon.path("tank.img")).expect("reads") == before, "the device was written to");
    daemon.run(&["pool", "import", "tank"]).ok();
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online");
    daemon.run(&["snapshot", "tank/v@s"]).ok();
}
