//! Output for people, and the unchanged output for programs.

use std::process::{Command, Stdio};

use crate::harness::{Daemon, command, run};

/// Returns the words of the first line.
fn head(out: &str) -> Vec<&str> {
    out.lines().next().unwrap_or_default().split_whitespace().collect()
}

/// Returns the number of columns of the first line, without a header.
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
    // a column is selected by its name, and by its heading
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
fn properties_stand_below_each_other_without_limits_that_are_not_set() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M", "-o", "iops=100"]).ok();
    let out = daemon.run(&["get", "all", "tank/v"]).ok().out;
    let at = head(&out).last().and_then(|_| out.lines().next()?.find("VALUE"));
    let values: Vec<Option<char>> = out.lines().map(|line| line.chars().nth(at.unwrap_or(0))).collect();
    assert!(values.iter().all(|first| first.is_some_and(|first| first != ' ')), "{out}");
    assert!(out.contains("iops ") && !out.contains("bps_wr"), "{out}");
    assert!(daemon.run(&["get", "-H", "all", "tank/v"]).ok().out.contains("bps_wr_max_length\t-"));
    daemon.run(&["set", "cachee=none", "tank/v"]).refused(2, "no property 'cachee'");
    daemon.run(&["set", "iops=abc", "tank/v"]).refused(2, "not a number of requests per second");
    daemon.run(&["set", "reservation=10G", "tank/v"]).refused(1, "can be promised");
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

#[test]
fn a_terminal_is_told_in_a_line_what_was_done() {
    let daemon = Daemon::with_pool();
    let on_terminal = |words: &str| {
        let program = env!("CARGO_BIN_EXE_millpond");
        let mut script = Command::new("script");
        script.args(["-qec", &format!("{program} {words}"), "/dev/null"]);
        script.env("MILLPOND_SOCKET", daemon.socket()).stdin(Stdio::null());
        script.output().ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(made) = on_terminal("create tank/v -L 16M") else { return println!("skipped, for there is no script(1) here") };
    assert_eq!(made, "created tank/v: 16M, 512e sectors, cache writeback");
    for (words, hint) in [
        ("resize tank/v 32M", "tank/v has 32M now, it had 16M"),
        ("set compression=lz4 tank/v", "tank/v: compression=lz4"),
        ("rename tank/v tank/w", "tank/v is tank/w now"),
        ("pool set job_rate=50M tank", "pool tank: job_rate=50M"),
    ] {
        assert_eq!(on_terminal(words).as_deref(), Some(hint));
    }
    // in other cases the exit code is enough
    assert_eq!(daemon.run(&["rename", "tank/w", "tank/v"]).ok().out, "");
}

#[test]
fn what_is_destroyed_spare_scrubbed_or_only_looked_at() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let out = daemon.run(&["destroy", "-n", "tank/v"]).ok().out;
    assert!(out.ends_with("would free 0B\n"), "{out}");
    // an exported volume can still be inspected
    daemon.export("tank/v", "v.sock");
    let looked = daemon.run(&["convert-sectors", "tank/v", "4kn", "-n"]);
    assert!(looked.code == 0 && looked.out.contains("would become 4kn"), "{looked:?}");
    daemon.run(&["convert-sectors", "tank/v", "4kn"]).refused(1, "it is exported");
    let spare = format!("{}:512M", daemon.text("spare.img"));
    daemon
        .run(&[
            "pool",
            "create",
            "safe",
            "mirror",
            &format!("{}:256M", daemon.text("a")),
            &format!("{}:256M", daemon.text("b")),
            "spare",
            &spare,
        ])
        .ok();
    let status = daemon.run(&["pool", "status", "safe"]).ok().out;
    assert!(status.lines().any(|line| line.contains("spare.img") && line.contains(" - ") && !line.contains("linear")), "{status}");
    let sizes = [format!("{}:256M", daemon.text("c")), format!("{}:512M", daemon.text("d"))];
    daemon.run(&["pool", "create", "uneven", "mirror", &sizes[0], &sizes[1]]).ok();
    let status = daemon.run(&["pool", "status", "-v", "uneven"]).ok().out;
    assert!(status.lines().any(|line| line.contains("/d: ") && line.ends_with("not usable in its layout")), "{status}");
    let scrubbed = daemon.run(&["pool", "scrub", "--wait"]).waited();
    for pool in ["safe", "tank"] {
        assert!(scrubbed.err.contains(&format!("scrub of {pool}: done, 0 errors")), "{scrubbed:?}");
    }
}
