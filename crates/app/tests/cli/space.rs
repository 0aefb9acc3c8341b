//! Space that pools take from their host, and return.

use std::fs::{File, metadata};
use std::io::{Read, Write, copy, repeat};
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use crate::harness::{Daemon, eventually};

const MIB: u64 = 1 << 20;

/// Returns a value of the pool's space.
fn segments(daemon: &Daemon, what: &str) -> u64 {
    let status: Value = daemon.json(&["pool", "status", "tank"]);
    status[0]["space"][what].as_u64().expect("a number")
}

fn taken(daemon: &Daemon) -> u64 {
    metadata(daemon.path("tank.img")).expect("the file").blocks() * 512
}

#[test]
fn a_new_pool_on_a_sparse_file_has_some_of_it_ready() {
    let mut daemon = Daemon::start();
    let before = daemon.run(&["pool", "create", "tank", &format!("{}:512M", daemon.text("tank.img"))]);
    before.ok();
    // half of a small pool, which takes less than a second
    eventually("half of it is ready", || segments(&daemon, "ready") >= 240 * MIB);
    let holes = segments(&daemon, "holes");
    assert!(holes > 240 * MIB && taken(&daemon) < 280 * MIB, "{holes} bytes of holes, {} taken", taken(&daemon));
    let status = daemon.run(&["pool", "status", "-v", "tank"]).ok().out;
    assert!(status.contains("free and ready") && status.contains("free and holes"), "{status}");
    let shown = daemon.run(&["pool", "show", "tank"]).ok().out;
    assert!(shown.contains("segments_ready"), "{shown}");
    // after a restart the daemon knows the space of the file again
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert!(segments(&daemon, "ready") >= 24 * MIB, "{}", segments(&daemon, "ready"));
}

#[test]
fn a_file_that_was_written_in_full_is_ready_and_keeps_its_space() {
    let daemon = Daemon::with_config("discard = \"now\"\n");
    let bytes = 256 * MIB;
    let mut file = File::create_new(daemon.path("tank.img")).expect("a file");
    copy(&mut repeat(0).take(bytes), &mut file).expect("zeros");
    file.flush().expect("written");
    daemon.run(&["pool", "create", "tank", &daemon.text("tank.img")]).ok();
    assert_eq!(segments(&daemon, "holes"), 0);
    daemon.run(&["create", "tank/disk", "-L", "16M"]).ok();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(taken(&daemon) >= bytes && segments(&daemon, "given_back") == 0, "{} of {bytes}", taken(&daemon));
}

#[test]
fn a_word_for_giving_back_that_contradicts_another_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("c.toml");
    std::fs::write(&config, "discard = \"lazy\"\ndiscard_freed = false\n").expect("a configuration");
    let words = ["serve", "--state", "/nowhere", "--socket", "/nowhere/s", "--config", config.to_str().expect("UTF-8")];
    crate::harness::run(crate::harness::command(&words)).one_line(1, "discard_freed");
}
