//! `import-image --into`: an image is written into a volume that exists.

use std::fs;

use crate::harness::{Daemon, Ended, each, eventually};
use crate::nbd;

const MIB: usize = 1 << 20;

/// A pool with the volume `tank/v` of 16 MiB, half of it data, and its content.
fn filled() -> (Daemon, Vec<u8>) {
    let daemon = Daemon::with_pool();
    let mut bytes: Vec<u8> = (0..2 * MIB as u32).flat_map(|n| (n ^ 0x5555_5555).to_le_bytes()).collect();
    bytes.resize(16 * MIB, 0);
    fs::write(daemon.path("old.raw"), &bytes).expect("written");
    assert_eq!(daemon.run(&["import-image", "old.raw", "tank/v"]).code, 0);
    (daemon, bytes)
}

/// Imports these bytes into `tank/v`.
fn import(daemon: &Daemon, bytes: &[u8], words: &[&str]) -> Ended {
    fs::write(daemon.path("new.raw"), bytes).expect("written");
    daemon.run(&[&["import-image", "new.raw", "tank/v", "--into"], words].concat())
}

/// Snapshots of the pool; asserts that no export is left.
fn snapshots(daemon: &Daemon) -> Vec<String> {
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
    each(&daemon.json(&["list", "-t", "snapshot"]), "name").into_iter().map(str::to_owned).collect()
}

#[test]
fn only_blocks_that_differ_are_written_after_a_snapshot() {
    let (daemon, old) = filled();
    let mut new = old.clone();
    new[5 * MIB + 5] ^= 1;
    new[MIB..MIB + 8192].fill(0);
    new[12 * MIB..12 * MIB + 100].fill(3);
    let ended = import(&daemon, &new, &["--verify"]);
    assert!(ended.code == 0 && ended.err.contains("verify tank/v: done, 16M compared, no difference"), "{ended:?}");
    let kept = snapshots(&daemon);
    assert!(kept.len() == 1 && kept[0].starts_with("tank/v@pre-import-"), "{kept:?}");
    assert_eq!(ended.out, format!("tank/v is kept as {}\n", kept[0]));
    assert!(daemon.content("tank/v") == new, "the volume differs from the image");
    let changed = daemon.json(&["diff", &kept[0], "tank/v"]);
    let changed: Vec<u64> = changed.as_array().expect("extents").iter().map(|extent| extent["length"].as_u64().expect("bytes")).collect();
    assert_eq!(changed, [8192, 4096, 4096], "other blocks were written");

    // the way back, and the same image again: nothing is written
    daemon.run(&["rollback", &kept[0], "-y"]);
    assert!(daemon.content("tank/v") == old, "the way back is closed");
    assert!(import(&daemon, &old, &[]).err.contains("0B of data"));
}

#[test]
fn a_smaller_image_is_followed_by_zeroes() {
    let (daemon, old) = filled();
    for length in [1, 511, 4095, 4096, 3 * MIB + 1537] {
        let mut new = vec![6; length];
        assert_eq!(import(&daemon, &new, &["--verify"]).code, 0);
        new.resize(old.len(), 0);
        assert!(daemon.content("tank/v") == new, "{length} bytes differ");
        assert_eq!(import(&daemon, &old, &[]).code, 0);
    }
    assert!(daemon.content("tank/v") == old);
    let listed = daemon.json(&["list", "tank/v"]);
    assert_eq!((listed[0]["size"].as_u64(), listed[0]["snapshots"].as_u64()), (Some(old.len() as u64), Some(10)));
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let (daemon, old) = filled();
    import(&daemon, b"", &[]).refused(1, "no bytes");
    import(&daemon, &vec![1; old.len() + 1], &[]).refused(1, "millpond resize tank/v 16781312");
    daemon.run(&["import-image", "old.raw", "tank/none", "--into"]).refused(1, "none");
    daemon.run(&["import-image", "-", "tank/v", "--into"]).refused(2, "save standard input to a file");
    for words in [["--sector", "4kn"], ["-o", "readonly=on"], ["--restart", "--flat"], ["-n", "--flat"]] {
        assert_eq!(import(&daemon, &old, &words).code, 2, "{words:?}");
    }
    // a disk made for other sectors
    let mut disk = vec![0; 4 * MIB];
    disk[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    disk[11..14].copy_from_slice(&[0, 16, 1]);
    disk[16] = 2;
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    import(&daemon, &disk, &[]).refused(1, "millpond convert-sectors tank/v 4kn");
    daemon.run(&["set", "readonly=on", "tank/v"]).ok();
    import(&daemon, &disk[4096..], &[]).refused(1, "it is read-only");
    daemon.run(&["set", "readonly=off", "tank/v"]).ok();
    // a client, also of an export that only reads, and an export that waits for a guest
    daemon.run(&["export", "nbd", "tank/v", "--readonly", "--unix", &daemon.text("v.sock")]).ok();
    let client = nbd::connect(&daemon.path("v.sock")).expect("connected");
    import(&daemon, &vec![1; MIB], &[]).refused(1, "it is exported, and clients are connected; shut its guest down");
    drop(client);
    daemon.run(&["unexport", "tank/v"]);
    daemon.export("tank/v", "w.sock");
    import(&daemon, &vec![1; MIB], &[]).refused(1, "it is exported; shut its guest down and run 'millpond unexport");
    daemon.run(&["unexport", "tank/v"]).ok();
    assert!(snapshots(&daemon).is_empty() && daemon.content("tank/v") == old);
}

/// Asserts that a failure names the snapshot to go back to, and goes back.
fn goes_back(daemon: &Daemon, err: &str, old: &[u8]) {
    let line = err.lines().last().expect("a line");
    let (_, undo) = line.split_once("'tank/v' may be changed in part, to go back: millpond ").expect(line);
    daemon.run(&["set", "bps=none", "tank/v"]);
    let words: Vec<&str> = undo.split(' ').chain(["-y"]).collect();
    assert_eq!(daemon.run(&words).code, 0, "{words:?}");
    assert!(daemon.content("tank/v") == old, "the old state differs");
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
}

/// Starts an import that takes long, and waits until it writes.
fn slow(daemon: &Daemon) -> std::process::Child {
    daemon.run(&["set", "bps=2M", "tank/v"]).ok();
    fs::write(daemon.path("new.raw"), vec![9; 16 * MIB]).expect("written");
    let mut command = crate::harness::command(&["import-image", "new.raw", "tank/v", "--into"]);
    command.env("MILLPOND_SOCKET", daemon.socket()).current_dir(daemon.path(""));
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("the program starts");
    eventually("a block is written", || {
        let listed = daemon.json(&["list", "-t", "snapshot"]);
        listed.as_array().and_then(|list| list.first()).is_some_and(|kept| kept["unique_bytes"].as_u64() > Some(0))
    });
    child
}

#[test]
fn an_interrupted_import_names_the_way_back() {
    let (daemon, old) = filled();
    let child = slow(&daemon);
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.code() == Some(1) && err.contains("millpond: interrupted; the import is incomplete; "), "{err}");
    goes_back(&daemon, &err, &old);
}

#[test]
fn nothing_else_writes_during_an_import() {
    let (daemon, old) = filled();
    let mut child = slow(&daemon);
    daemon.run(&["import-image", "old.raw", "tank/v", "--into"]).refused(1, "it is exported, and clients are connected");
    daemon.run(&["export", "nbd", "tank/v", "--unix", &daemon.text("v.sock")]).refused(1, "lets clients write to it already");
    daemon.run(&["set", "bps=none", "tank/v"]).ok();
    assert!(child.wait().expect("it ends").success());
    assert!(daemon.content("tank/v") == vec![9; old.len()]);
    assert_eq!(snapshots(&daemon).len(), 1);
}

#[test]
fn an_import_whose_daemon_is_gone_names_the_way_back() {
    let (mut daemon, old) = filled();
    let child = slow(&daemon);
    assert_eq!(daemon.stop("KILL"), -1);
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{err}");
    daemon.restart();
    goes_back(&daemon, &err, &old);
}

#[test]
fn an_import_that_does_not_fit_the_pool_names_the_way_back() {
    let (daemon, mut old) = filled();
    daemon.run(&["resize", "tank/v", "600M"]);
    old.resize(600 * MIB, 0);
    let ended = import(&daemon, &vec![0x5a; 600 * MIB], &[]);
    assert!(ended.code == 1 && ended.err.contains("tank/v is full"), "{ended:?}");
    goes_back(&daemon, &ended.err, &old);
}
