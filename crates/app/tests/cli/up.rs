//! `up` and `demo`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::harness::{Running, command, exists, run};
use crate::nbd;

/// Starts `up` in a directory; returns it with its output until it was ready.
fn up(dir: &Path, more: &[&str]) -> (Running, String) {
    let mut words = vec!["up", "--dir", dir.to_str().expect("UTF-8"), "--size", "64M"];
    words.extend(more);
    let mut child = command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut output = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    while !output.contains("Ctrl-C") {
        assert_ne!(lines.read_line(&mut output).expect("reads"), 0, "it ended after: {output}");
    }
    (Running(child), output)
}

fn byte(socket: &Path) -> u8 {
    let mut bytes = [0; 4096];
    nbd::connect(socket).expect("connect").read(0, &mut bytes).expect("read");
    bytes[0]
}

#[test]
fn up_makes_a_disk_once_and_serves_it_again() {
    let base = tempfile::tempdir().expect("tempdir");
    let dir: PathBuf = base.path().join("data");
    let socket = dir.join("disk0.sock");
    let control = dir.join("control.sock").to_str().expect("UTF-8").to_owned();
    let (mut running, output) = up(&dir, &["--nbd", "127.0.0.1:0"]);
    for word in ["qemu-system", "qemu-img", "nbdcopy", "nbdinfo", "snapshot pond/disk0@a", "nbd://127.0.0.1:", "/#login="] {
        assert!(output.contains(word), "{word} in {output}");
    }
    let volumes = run(command(&["list", "--socket", &control, "--format", "json"])).json();
    assert_eq!((volumes[0]["name"].as_str(), volumes[0]["size"].as_u64()), (Some("pond/disk0"), Some(64 << 20)));
    nbd::connect(&socket).expect("connect").write(0, &[5; 4096]).expect("write");
    run(command(&["snapshot", "pond/disk0@a", "--socket", &control])).ok();
    nbd::connect(&socket).expect("connect").write(0, &[6; 4096]).expect("write");
    running.signal("INT");
    assert_eq!(running.wait(), 0);
    assert!(!exists(&socket) && !exists(Path::new(&control)));

    // Moved, and killed instead of stopped: the disk is the same.
    let moved = base.path().join("moved");
    std::fs::rename(&dir, &moved).expect("move");
    let (running, _) = up(&moved, &[]);
    assert_eq!(byte(&moved.join("disk0.sock")), 6);
    drop(running);
    let (mut running, _) = up(&moved, &[]);
    let control = moved.join("control.sock").to_str().expect("UTF-8").to_owned();
    run(command(&["rollback", "pond/disk0@a", "--socket", &control])).ok();
    assert_eq!(byte(&moved.join("disk0.sock")), 5);
    running.signal("TERM");
    assert_eq!(running.wait(), 0);
}

#[test]
fn up_stays_local_and_alone() {
    let base = tempfile::tempdir().expect("tempdir");
    let dir = base.path().to_str().expect("UTF-8");
    run(command(&["up", "--dir", dir, "--size", "64M", "--nbd", "0.0.0.0:0"])).one_line(1, "--insecure-listen");
    let (running, _) = up(base.path(), &[]);
    run(command(&["up", "--dir", dir])).one_line(1, "another");
    drop(running);
    run(command(&["up", "--dir", dir, "--size", "big"])).refused(2, "not a size");
}

#[test]
fn the_demo_measures_and_leaves_nothing() {
    let base = tempfile::tempdir().expect("tempdir");
    let ended = run(command(&["demo", "--dir", base.path().to_str().expect("UTF-8")]));
    assert_eq!(ended.code, 0, "{ended:?}");
    for word in ["no snapshot", "with 24 snapshots", "rolled back in", "every byte is the snapshot's"] {
        assert!(ended.out.contains(word), "{word} in {ended:?}");
    }
    assert_eq!(std::fs::read_dir(base.path()).expect("readable").count(), 0, "something is left");
}
