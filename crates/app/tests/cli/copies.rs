//! `clone --full`: independent copies, in the same pool and in another one.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::harness::{Daemon, each, eventually};
use millpond_testing::Random;

const SIZE: u64 = 64 << 20;
const DATA: u64 = 12 << 20;

/// Starts a daemon with `tank/v`, which has data, holes and zeroes, its snapshot `a`, and the pool
/// `other`. Returns the daemon and the volume's content.
fn filled() -> (Daemon, Vec<u8>) {
    let daemon = Daemon::with_pool();
    let file = fs::File::create_new(daemon.path("in.raw")).expect("made");
    file.set_len(SIZE).expect("sized");
    let mut random = Random::new(1);
    for at in [0, 20 << 20, 50 << 20] {
        file.write_all_at(&random.bytes(DATA as usize / 3), at).expect("written");
    }
    file.write_all_at(&random.bytes(4096), SIZE - 4096).expect("written");
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v", "-o", "iops=5000", "-o", "cache=writeback"]).code, 0);
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    // later writes are not in the copy
    let socket = daemon.export("tank/v", "v.sock");
    let mut nbd = crate::nbd::connect(&socket).expect("connect");
    nbd.write(4096, &[1; 8192]).expect("write");
    nbd.flush().expect("flush");
    let device = format!("{}:256M", daemon.text("other.img"));
    daemon.run(&["pool", "create", "other", &device]).ok();
    let bytes = fs::read(daemon.path("in.raw")).expect("read");
    (daemon, bytes)
}

fn volumes(daemon: &Daemon) -> Vec<String> {
    each(&daemon.json(&["list"]), "name").into_iter().map(str::to_owned).collect()
}

fn holds(daemon: &Daemon) -> Option<u64> {
    daemon.json(&["list", "-t", "snapshot", "tank/v"])[0]["holds"].as_u64()
}

#[test]
fn a_full_copy_depends_on_nothing_in_any_pool() {
    let (daemon, bytes) = filled();
    let planned = daemon.run(&["clone", "--full", "-n", "tank/v@a", "other/w"]).ok().out;
    assert!(planned.starts_with("would copy 12.0") && planned.contains("of tank/v@a to other/w"), "{planned}");
    assert_eq!(volumes(&daemon), ["tank/v"]);
    for new in ["other/w", "tank/w"] {
        let ended = daemon.run(&["clone", "--full", "tank/v@a", new]).waited();
        let last = ended.err.lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with(&format!("copy {new}: done, 12.0")) && last.contains("/s, "), "{last}");
        assert!(daemon.content(new) == bytes, "{new} differs");
        let listed = daemon.json(&["list", new]);
        assert_eq!(listed[0]["origin"].as_str(), None, "{listed}");
        assert_eq!(listed[0]["size"], SIZE);
        let held = listed[0]["referenced_bytes"].as_u64().expect("bytes");
        assert!((DATA..DATA + (1 << 20)).contains(&held), "holes were written: {listed}");
        for (property, value) in [("iops", "5000"), ("cache", "writeback"), ("sector", "512e")] {
            assert_eq!(daemon.run(&["get", "-H", "-o", "value", property, new]).ok().out, format!("{value}\n"), "{property}");
        }
    }
    assert_eq!((volumes(&daemon), holds(&daemon)), (vec!["other/w".to_owned(), "tank/v".to_owned(), "tank/w".to_owned()], Some(0)));
    daemon.run(&["clone", "--full", "tank/v@a", "other/w"]).refused(1, "exists");
    daemon.run(&["clone", "--full", "tank/v@none", "other/x"]).refused(1, "no snapshot");
    daemon.run(&["clone", "--full", "tank/v@a", "none/x"]).refused(1, "no pool 'none'");
    assert_eq!(daemon.run(&["clone", "-n", "tank/v@a", "tank/x"]).code, 2, "it is for full copies alone");
    // the copy does not depend on its source
    daemon.run(&["unexport", "tank/v"]).ok();
    daemon.run(&["destroy", "-y", "-r", "tank/v"]).ok();
    assert!(daemon.content("tank/w") == bytes, "the copy needed its origin");
    let events = daemon.run(&["events", "--since", "1h"]).ok().out;
    assert!(events.contains("volume.copied"), "{events}");
}

#[test]
fn a_copy_without_room_is_refused_with_figures() {
    let (daemon, _) = filled();
    let free = daemon.json(&["pool", "list"]);
    let of = |name: &str| free.as_array().and_then(|all| all.iter().find(|pool| pool["name"] == name)).expect("listed")["free"].as_u64();
    let kept = of("other").expect("bytes") - (DATA / 2) - (8 << 20);
    daemon.run(&["create", "other/kept", "-L", "256M", "-o", &format!("reservation={kept}")]).ok();
    for words in [&["clone", "--full", "tank/v@a", "other/w"][..], &["clone", "--full", "-n", "tank/v@a", "other/w"]] {
        let ended = daemon.run(words).refused(1, "it needs 12.0");
        assert!(ended.err.contains("pool 'other' has") && ended.err.contains("free"), "{ended:?}");
    }
    assert_eq!((volumes(&daemon), holds(&daemon)), (vec!["other/kept".to_owned(), "tank/v".to_owned()], Some(0)));
}

/// Starts a copy that takes long, because its target device is limited.
fn slow(daemon: &Daemon) -> crate::harness::Running {
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "400k"]).ok();
    let copy = daemon.begin(&["clone", "--full", "tank/v@a", "other/w"]);
    eventually("the copy is under way", || {
        let jobs = daemon.json(&["pool", "jobs"]);
        jobs.as_array().is_some_and(|jobs| jobs.iter().any(|job| job["id"] == "copy:other/w"))
    });
    assert_eq!(holds(daemon), Some(1), "the snapshot stays as long as it is read");
    daemon.run(&["destroy", "-y", "tank/v@a"]).refused(1, "snapshots with holds");
    assert!(!volumes(daemon).contains(&"other/w".to_owned()), "it has its name when it is complete");
    copy
}

#[test]
fn an_interrupted_copy_is_taken_back() {
    let (daemon, _) = filled();
    let mut copy = slow(&daemon);
    copy.signal("INT");
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "none"]);
    assert_eq!(copy.wait(), 1);
    assert_eq!((volumes(&daemon), holds(&daemon)), (vec!["tank/v".to_owned()], Some(0)));
    let events = daemon.run(&["events", "--since", "1h"]).ok().out;
    assert!(events.contains("volume.copy-failed") && events.contains("interrupted"), "{events}");
}

#[test]
fn a_killed_daemon_takes_half_a_copy_back_when_it_starts_again() {
    let (mut daemon, bytes) = filled();
    let mut copy = slow(&daemon);
    assert_eq!(daemon.stop("KILL"), -1);
    assert_ne!(copy.wait(), 0);
    daemon.restart();
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "none"]);
    eventually("half a copy goes", || volumes(&daemon) == ["tank/v"] && holds(&daemon) == Some(0));
    daemon.run(&["clone", "--full", "tank/v@a", "other/w"]).waited();
    assert!(daemon.content("other/w") == bytes, "the second copy differs");
}

/// The pool with the unfinished copy is missing when the daemon starts. The copy is destroyed when
/// the pool is back.
#[test]
fn half_a_copy_waits_for_its_pool() {
    let (mut daemon, _) = filled();
    let _copy = slow(&daemon);
    assert_eq!(daemon.stop("KILL"), -1);
    fs::rename(daemon.path("other.img"), daemon.path("away.img")).expect("moved");
    daemon.restart();
    assert_eq!(volumes(&daemon), ["tank/v"]);
    fs::rename(daemon.path("away.img"), daemon.path("other.img")).expect("moved");
    daemon.run(&["pool", "import", "other", "-d", daemon.path("").to_str().expect("UTF-8")]);
    eventually("half a copy goes", || {
        let pools = daemon.json(&["pool", "list"]);
        let served = pools.as_array().is_some_and(|pools| pools.iter().all(|pool| pool["health"] == "online"));
        served && volumes(&daemon) == ["tank/v"] && holds(&daemon) == Some(0)
    });
}
