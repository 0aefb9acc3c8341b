//! Exit codes, help, look-alike characters, and verbs of later versions.

use crate::harness::{Daemon, command, run};

#[test]
fn wrong_words_end_with_2_and_help_with_0() {
    for words in [&["lits"][..], &["list", "--nope"], &["create", "tank/v"], &[], &["pool", "create", "x"]] {
        let ended = run(command(words));
        assert_eq!(ended.code, 2, "{words:?} {ended:?}");
        assert!(!ended.err.is_empty() && ended.out.is_empty(), "{ended:?}");
    }
    for words in [&["--help"][..], &["create", "--help"], &["pool", "--help"], &["pool", "iostat", "--help"], &["export", "nbd", "--help"]]
    {
        let ended = run(command(words));
        assert!(ended.code == 0 && ended.out.contains("Example:"), "{words:?} {ended:?}");
    }
    assert!(run(command(&["--version"])).out.starts_with("millpond "));
}

#[test]
fn without_a_daemon_everything_ends_with_3() {
    let dir = tempfile::tempdir().expect("tempdir");
    let socket = dir.path().join("none.sock").to_str().expect("UTF-8").to_owned();
    for words in [&["list"][..], &["status"], &["status", "--wait", "1"], &["pool", "list"], &["destroy", "-y", "p/v"], &["exports"]] {
        let mut words = words.to_vec();
        words.extend(["--socket", &socket]);
        run(command(&words)).refused(3, &socket);
    }
}

#[test]
fn malformed_names_and_sizes_end_with_2_in_one_line() {
    let daemon = Daemon::start();
    daemon.run(&["create", "tank", "-L", "1G"]).refused(2, "POOL/VOL");
    daemon.run(&["create", "tank/a b", "-L", "1G"]).refused(2, "U+0020");
    daemon.run(&["create", "tank/v", "-L", "1X"]).refused(2, "not a size");
    daemon.run(&["snapshot", "tank/v"]).refused(2, "POOL/VOL@SNAP");
    daemon.run(&["show", "tank/v@"]).refused(2, "empty");
    daemon.run(&["list", "-o", "nmae"]).refused(2, "referenced_bytes");
}

#[test]
fn look_alikes_are_named() {
    let daemon = Daemon::start();
    daemon.run(&["create", "tank/dis\u{441}", "-L", "1G"]).refused(2, "CYRILLIC SMALL LETTER ES");
    daemon.run(&["create", "tank/vm\u{2013}1", "-L", "1G"]).refused(2, "EN DASH");
    daemon.run(&["create", "tank/v", "-L", "1\u{41a}"]).refused(2, "CYRILLIC CAPITAL LETTER KA");
    let ended = daemon.run(&["create", "tank/v", "\u{2013}L", "1G"]);
    assert!(ended.code == 2 && ended.err.contains("EN DASH"), "{ended:?}");
    let ended = daemon.run(&["list", "snap\u{2014}x"]);
    assert!(ended.code == 2 && ended.err.contains("EM DASH"), "{ended:?}");
}

#[test]
fn words_of_other_systems_are_answered_with_ours() {
    for (words, message) in [
        (&["audit"][..], "no command 'audit': 'millpond history NAME'"),
        (&["pool", "offline", "tank", "sdb"], "'millpond pool replace"),
        (&["scrub", "tank"], "use 'millpond pool scrub'"),
        (&["lvcreate", "-L", "1G"], "'millpond create POOL/VOL -L SIZE'"),
    ] {
        run(command(words)).refused(2, message);
    }
}

#[test]
fn help_names_the_verbs() {
    let verbs: [(&[&str], &[&str]); 2] = [
        (&["--help"], &["convert-sectors", "import-image", "snapshot", "rollback", "export", "cache", "lab"]),
        (&["pool", "--help"], &["create", "checkpoints", "rebalance", "scrub", "replace", "remove", "device-limit", "iostat"]),
    ];
    for (words, names) in verbs {
        let help = run(command(words)).out;
        names.iter().for_each(|name| assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}"));
    }
}

#[test]
fn odd_dashes_and_letters_in_options_are_named() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/vm1", "-L", "16M"]).ok();
    for (words, message) in [
        (vec!["create", "tank/x", "\u{2013}L", "10M"], "type '-L'"),
        (vec!["create", "tank/x", "\u{2014}size", "10M"], "U+2014"),
        (vec!["list", "-\u{441}"], "CYRILLIC SMALL LETTER ES 'с' (U+0441), which looks like 'c'; type '-c'"),
        // these accept any words, and would report them as wrong names or missing devices
        (vec!["pool", "create", "lake", "\u{2013}o", "x=y", "/dev/a"], "EN DASH"),
        (vec!["destroy", "tank/vm1", "\u{2013}y"], "EN DASH"),
        (vec!["set", "cache=none", "tank/vm1", "\u{2013}v"], "EN DASH"),
    ] {
        daemon.run(&words).refused(2, message);
    }
    daemon.run(&["snapshot", "tank/vm1@a", "--description", "\u{2013}nightly"]).ok();
}
