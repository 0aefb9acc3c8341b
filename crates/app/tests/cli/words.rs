//! What commands say to people, and that programs read what they always read.

use crate::harness::{Daemon, command, run};

/// The words of the first line.
fn head(out: &str) -> Vec<&str> {
    out.lines().next().unwrap_or_default().split_whitespace().collect()
}

/// Columns of the first line without a head.
fn columns(out: &str) -> usize {
    out.lines().next().unwrap_or_default().split('\t').count()
}

#[test]
fn heads_are_words_of_the_field_and_scripts_read_the_same_columns() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let volumes = daemon.run(&["list"]).ok().out;
    assert_eq!(head(&volumes), ["NAME", "SIZE", "SECTOR", "CACHE", "REFER", "USED", "RATIO", "SNAPS", "ORIGIN"], "{volumes}");
    assert_eq!(columns(&daemon.run(&["list", "-H"]).ok().out), 8);
    daemon.run(&["snapshot", "tank/v@a", "--expire", "24h"]).ok();
    let snapshots = daemon.run(&["list", "-t", "snapshot"]).ok().out;
    assert_eq!(head(&snapshots).last(), Some(&"EXPIRES"), "{snapshots}");
    assert_eq!(columns(&daemon.run(&["list", "-H", "-t", "snapshot"]).ok().out), 7);
    assert!(daemon.json(&["list", "-t", "snapshot", "-o", "name,expires"])[0]["expires"].is_string());
    // by its name, and by what stands above it
    let named = daemon.run(&["list", "-o", "name,referenced_bytes"]).ok().out;
    assert_eq!(head(&named), ["NAME", "REFERENCED_BYTES"]);
    assert_eq!(
        daemon.run(&["list", "-Hp", "-o", "refer,used"]).ok().out,
        daemon.run(&["list", "-Hp", "-o", "referenced_bytes,unique_bytes"]).ok().out
    );
    for words in [&["list"][..], &["list", "-t", "all"], &["pool", "list"], &["pool", "status", "-v"], &["pool", "checkpoints", "tank"]] {
        let out = daemon.run(words).ok().out;
        assert!(!out.contains("_NANOS") && !out.contains("_BYTES") && !out.contains("_MILLIS"), "{out}");
    }
}

#[test]
fn the_socket_of_the_environment_is_no_required_option_and_none_of_up() {
    let dir = tempfile::tempdir().expect("tempdir");
    let with_socket = |words: &[&str]| {
        let mut command = command(words);
        command.env("MILLPOND_SOCKET", dir.path().join("other.sock"));
        run(command)
    };
    let usage = with_socket(&["create", "tank/v"]);
    assert!(usage.code == 2 && !usage.err.contains("--socket"), "{usage:?}");
    assert_eq!(with_socket(&["list"]).code, 3);
    let up = with_socket(&["up", "--dir", "/proc/x"]);
    assert!(up.code == 1 && up.err.contains("--dir DIR") && !up.err.contains("--state"), "{up:?}");
    let open = with_socket(&["up", "--dir", dir.path().join("data").to_str().expect("UTF-8"), "--nbd", "0.0.0.0"]);
    assert!(open.code == 1 && open.err.contains("--insecure-listen") && !open.err.contains("127.0.0.1, --tls"), "{open:?}");
}
