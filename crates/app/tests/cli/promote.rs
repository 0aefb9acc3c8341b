//! `promote`: a clone becomes independent, and its former origin becomes a clone.

use std::path::Path;

use crate::harness::{Daemon, each};
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
    bytes[0]
}

/// Starts a daemon with `tank/golden`, its snapshots v1 to v3, and `tank/vm`, a clone of v2.
fn golden() -> Daemon {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/golden", "-L", "16M"]).ok();
    let socket = daemon.export("tank/golden", "golden.sock");
    for version in 1..=3 {
        write(&socket, 0, version);
        daemon.run(&["snapshot", &format!("tank/golden@v{version}")]).ok();
    }
    write(&socket, 0, 4);
    daemon.run(&["clone", "tank/golden@v2", "tank/vm"]).ok();
    daemon
}

fn origin(daemon: &Daemon, name: &str) -> Option<String> {
    daemon.json(&["list", name])[0]["origin"].as_str().map(str::to_owned)
}

#[test]
fn a_golden_image_can_go_when_its_clone_is_promoted() {
    let mut daemon = golden();
    daemon.run(&["hold", "tank/golden@v1", "--tag", "audit"]).ok();
    let kept = daemon.export("tank/golden@v2", "v2.sock");
    daemon.run(&["destroy", "-y", "-r", "tank/golden"]).refused(1, "");
    let planned = daemon.run(&["promote", "-n", "tank/vm"]).ok().out;
    assert!(planned.contains("would move tank/golden@v1 to tank/vm@v1\nwould move tank/golden@v2 to tank/vm@v2\n"), "{planned}");
    assert!(planned.contains("tank/golden would become a clone of tank/vm") && !planned.contains("v3"), "{planned}");
    assert_eq!(origin(&daemon, "tank/vm").as_deref(), Some("tank/golden@v2"), "nothing was done");
    let done = daemon.run(&["promote", "tank/vm"]).ok().out;
    assert_eq!(done, planned.replace("would move", "moved").replace("would become", "is now"));
    assert_eq!((origin(&daemon, "tank/vm"), origin(&daemon, "tank/golden").as_deref()), (None, Some("tank/vm@v2")));
    let names = |daemon: &Daemon| -> Vec<String> {
        each(&daemon.json(&["list", "-t", "snapshot"]), "name").into_iter().map(str::to_owned).collect()
    };
    assert_eq!(names(&daemon), ["tank/golden@v3", "tank/vm@v1", "tank/vm@v2"]);
    // clients of the snapshot continue, and the export has the new name
    assert_eq!(read(&kept, 0), 2);
    assert!(each(&daemon.json(&["exports"]), "name").contains(&"tank/vm@v2"));
    assert_eq!(daemon.stop("KILL"), -1);
    daemon.restart();
    assert_eq!((origin(&daemon, "tank/vm"), read(&kept, 0)), (None, 2));
    // the former origin is destroyed without -R
    daemon.run(&["unexport", "tank/golden"]).ok();
    daemon.run(&["destroy", "-y", "-r", "tank/golden"]).ok();
    assert_eq!(names(&daemon), ["tank/vm@v1", "tank/vm@v2"]);
    daemon.run(&["destroy", "-y", "tank/vm@v1"]).refused(1, "audit");
    let socket = daemon.export("tank/vm", "vm.sock");
    assert_eq!(read(&socket, 0), 2);
    daemon.run(&["unexport", "tank/vm@v2"]).ok();
    daemon.run(&["destroy", "-y", "tank/vm@v2"]).ok();
    assert_eq!(read(&socket, 0), 2);
    let events = daemon.run(&["events", "--since", "1h"]).ok().out;
    assert!(events.contains("volume.promoted"), "{events}");
}

#[test]
fn what_cannot_be_promoted_is_refused_with_the_reason() {
    let daemon = golden();
    daemon.run(&["promote", "tank/golden"]).refused(1, "it is not a clone");
    daemon.run(&["promote", "tank/none"]).refused(1, "no volume 'tank/none'");
    for dry_run in [true, false] {
        let words: Vec<&str> = ["promote"].into_iter().chain(dry_run.then_some("-n")).chain(["tank/vm"]).collect();
        if dry_run {
            daemon.run(&["snapshot", "tank/vm@v1"]).ok();
        }
        daemon.run(&words).refused(1, "both volumes have snapshots named 'v1'");
    }
    daemon.run(&["rename", "tank/vm@v1", "tank/vm@mine"]).ok();
    daemon.run(&["promote", "tank/vm"]).ok();
    // the promotion can be reversed
    daemon.run(&["promote", "tank/golden"]).ok();
    assert_eq!(origin(&daemon, "tank/vm").as_deref(), Some("tank/golden@v2"));
}

#[test]
fn a_reservation_that_could_not_be_kept_is_named() {
    let daemon = golden();
    let socket = daemon.path("golden.sock");
    let mut nbd = nbd::connect(&socket).expect("connect");
    nbd.write(0, &vec![9; 8 << 20]).expect("write");
    nbd.flush().expect("flush");
    daemon.run(&["snapshot", "tank/golden@v4"]).ok();
    daemon.run(&["clone", "tank/golden@v4", "tank/late"]).ok();
    let free = daemon.json(&["pool", "list"])[0]["free"].as_u64().expect("bytes");
    // the largest reservation that is accepted, in steps of the size of the moved data
    let fits = (1..64u64)
        .map(|part| free.saturating_sub(part << 20))
        .find(|bytes| daemon.run(&["set", &format!("reservation={}", bytes + (8 << 20)), "tank/golden"]).code == 0);
    assert!(fits.is_some(), "something can be promised");
    daemon.run(&["promote", "tank/late"]).refused(1, "reservation");
    daemon.run(&["set", "reservation=0", "tank/golden"]).ok();
    daemon.run(&["promote", "tank/late"]).ok();
}
