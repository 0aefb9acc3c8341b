//! `export-image --from`: files with the blocks that changed between two snapshots, read by QEMU.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Daemon, each};
use crate::nbd;

/// Not a multiple of a cluster.
const SIZE: u64 = (12 << 20) + 12288;

/// A pool with a volume that has the snapshots `a` and `b`, whose content is in `a.raw` and `b.raw`.
fn changed() -> Daemon {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", &SIZE.to_string()]).ok();
    let mut disk = nbd::connect(&daemon.export("tank/v", "v.sock")).expect("connected");
    disk.write(1 << 20, &vec![7; 4 << 20]).expect("written");
    disk.write(SIZE - 8192, &[8; 8192]).expect("written");
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    // a block of a cluster; a cluster and a part of one that become zeroes; a block of zeroes; the
    // second half of the last cluster's data
    disk.write((2 << 20) + 4096, &[9; 4096]).expect("written");
    disk.write_zeroes(3 << 20, 65536 + 8192).expect("written");
    disk.write_zeroes((4 << 20) + 8192, 4096).expect("written");
    disk.write((4 << 20) + (512 << 10), &[0; 65536]).expect("written");
    disk.write(10 << 20, &[3; 4096]).expect("written");
    disk.write_zeroes(SIZE - 4096, 4096).expect("written");
    daemon.run(&["snapshot", "tank/v@b"]).ok();
    drop(disk);
    daemon.run(&["unexport", "tank/v"]).ok();
    for name in ["a", "b"] {
        assert_eq!(daemon.run(&["export-image", &format!("tank/v@{name}"), &format!("{name}.raw")]).code, 0);
    }
    daemon
}

/// Runs `qemu-img` in the daemon's directory; `None`, with a message, if it is not installed.
fn qemu_img(daemon: &Daemon, words: &[&str]) -> Option<String> {
    let output = Command::new("qemu-img").args(words).current_dir(daemon.path("")).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        println!("SKIPPED: qemu-img is not installed");
        return None;
    };
    assert!(output.status.success(), "{words:?}: {output:?}");
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// Asserts that QEMU reads the state `b` from a file with its backing files.
fn reads_as_b(daemon: &Daemon, file: &str) {
    qemu_img(daemon, &["convert", "-f", "qcow2", "-O", "raw", file, "read.raw"]).expect("installed");
    let (read, wanted) = (fs::read(daemon.path("read.raw")).expect("read"), fs::read(daemon.path("b.raw")).expect("read"));
    let differs = read.iter().zip(&wanted).position(|(read, wanted)| read != wanted);
    assert!(read.len() == wanted.len() && differs.is_none(), "{file} differs at byte {differs:?}");
    qemu_img(daemon, &["check", "-q", "-f", "qcow2", file]).expect("installed");
}

#[test]
fn an_overlay_has_what_changed_and_the_name_of_its_backing_file() {
    let daemon = changed();
    if qemu_img(&daemon, &["--version"]).is_none() {
        return;
    }
    let export = |words: &[&str]| {
        let ended = daemon.run(&[&["export-image", "tank/v@b"], words].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
    };
    let info = |file: &str| -> Value {
        let text = qemu_img(&daemon, &["info", "-U", "--output=json", "-f", "qcow2", file]).expect("installed");
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(daemon.run(&["export-image", "tank/v@a", "a.qcow2"]).code, 0);
    export(&["b.qcow2", "--from", "@a", "--backing", "a.qcow2", "--verify"]);
    reads_as_b(&daemon, "b.qcow2");
    assert_eq!((&info("b.qcow2")["backing-filename"], &info("b.qcow2")["backing-filename-format"]), (&"a.qcow2".into(), &"qcow2".into()));
    assert!(fs::metadata(daemon.path("b.qcow2")).expect("there").len() < 1 << 20, "more than the changes is in it");

    // on a raw file, by its extension
    export(&["on-raw", "--from", "tank/v@a", "--backing", "a.raw"]);
    reads_as_b(&daemon, "on-raw");
    // without a backing file; it gets one later
    export(&["later.qcow2", "--from", "@a"]);
    assert_eq!(info("later.qcow2")["backing-filename"], Value::Null);
    qemu_img(&daemon, &["rebase", "-u", "-f", "qcow2", "-b", "a.raw", "-F", "raw", "later.qcow2"]);
    reads_as_b(&daemon, "later.qcow2");
    // a backing file that is elsewhere
    export(&["far.qcow2", "--from", "@a", "--backing", "/elsewhere/a", "--backing-format", "qcow2"]);
    assert_eq!(info("far.qcow2")["backing-filename-format"], "qcow2");
    assert_eq!(info("far.qcow2")["backing-filename"], "/elsewhere/a");

    // the present state of the volume, which has not changed since b
    daemon.run(&["export-image", "tank/v", "head.qcow2", "--from", "@b", "--backing", "b.raw", "--verify"]);
    reads_as_b(&daemon, "head.qcow2");
    // a chain is imported as what it is
    assert_eq!(daemon.run(&["import-image", "b.qcow2", "tank/w", "--verify"]).code, 0);
    assert_eq!(each(&daemon.json(&["list", "-t", "all"]), "name"), ["tank/v", "tank/v@a", "tank/v@b", "tank/w", "tank/w@a"]);
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
}

/// A volume that became larger, and smaller, between the snapshots.
#[test]
fn an_overlay_has_the_size_of_the_newer_snapshot() {
    let daemon = changed();
    if qemu_img(&daemon, &["--version"]).is_none() {
        return;
    }
    for (size, base) in [("20M", "a.raw"), ("11M", "b.raw")] {
        daemon.run(&["resize", "tank/v", size, "--allow-shrink", "--no-snapshot"]);
        let mut disk = nbd::connect(&daemon.export("tank/v", "again.sock")).expect("connected");
        disk.write((10 << 20) + 8192, &[5; 4096]).expect("written");
        drop(disk);
        daemon.run(&["unexport", "tank/v"]).ok();
        let older = format!("@{}", base.trim_end_matches(".raw"));
        let ended = daemon.run(&["export-image", "tank/v", "size.qcow2", "--from", &older, "--backing", base, "--verify", "--force"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(daemon.run(&["export-image", "tank/v", "size.raw", "--force"]).code, 0);
        qemu_img(&daemon, &["convert", "-f", "qcow2", "-O", "raw", "size.qcow2", "read.raw"]);
        let (read, wanted) = (fs::read(daemon.path("read.raw")).expect("read"), fs::read(daemon.path("size.raw")).expect("read"));
        assert!(read == wanted, "{size} differs");
    }
}

#[test]
fn what_is_no_overlay_is_refused() {
    let daemon = changed();
    let code = |words: &[&str]| daemon.run(&[&["export-image", "tank/v@b"], words].concat()).code;
    let refused = |words: &[&str], code, word: &str| {
        daemon.run(&[&["export-image", "tank/v@b"], words].concat()).refused(code, word);
    };
    refused(&["out.raw", "--from", "@a", "-f", "raw"], 2, "--from writes qcow2");
    refused(&["-", "--from", "@a"], 2, "cannot be written to standard output");
    refused(&["out", "--from", "tank/v"], 2, "tank/v");
    refused(&["out", "--from", "@b"], 2, "no difference from itself");
    refused(&["out", "--from", "@a", "--backing", "x", "--backing-format", "zip"], 2, "not a format");
    refused(&["out", "--from", "@none"], 1, "no snapshot");
    refused(&["out", "--from", "none/v@a"], 1, "different pools");
    assert_eq!(code(&["out", "--backing", "x"]), 2);
    assert_eq!(code(&["out", "--from", "@a", "--snapshots"]), 2);
    for file in ["out", "out.part"] {
        assert!(!daemon.path(file).exists(), "{file} is left");
    }
}
