//! Identification of disks: ids, paths that move to another device, and devices that should not
//! join a pool.

use std::fs;

use crate::harness::{Daemon, each, eventually};

/// Starts a daemon that waits only briefly for devices, with a mirror of `a` and `b`.
fn mirrored() -> Daemon {
    let daemon = Daemon::with_config("import_wait = \"1s\"\n");
    daemon.run(&["pool", "create", "tank", "mirror", &sized(&daemon, "a"), &sized(&daemon, "b")]).ok();
    daemon
}

fn sized(daemon: &Daemon, name: &str) -> String {
    format!("{}:256M", daemon.text(name))
}

/// Returns one field of every device; empty where it is null.
fn devices(daemon: &Daemon, key: &str) -> Vec<String> {
    let pools = daemon.json(&["pool", "status", "tank"]);
    let listed = pools[0]["devices"].as_array().expect("devices");
    listed.iter().map(|device| device[key].as_str().unwrap_or_default().to_owned()).collect()
}

fn degraded(daemon: &Daemon) {
    eventually("the pool comes without a device", || daemon.json(&["pool", "list"])[0]["health"] == "degraded");
}

#[test]
fn a_path_that_changed_hands_is_that_of_the_device_which_is_there() {
    let mut daemon = mirrored();
    let (a, b) = (daemon.text("a"), daemon.text("b"));
    let ids = devices(&daemon, "id");
    assert!(ids.iter().all(|id| id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit())) && ids[0] != ids[1], "{ids:?}");
    assert_eq!((devices(&daemon, "path"), devices(&daemon, "was")), (vec![a.clone(), b], vec![String::new(); 2]));
    let table = daemon.run(&["pool", "status", "tank"]).ok().out;
    let head = table.lines().find(|line| line.starts_with("ID")).expect("a head");
    assert_eq!(head.split_whitespace().take(4).collect::<Vec<_>>(), ["ID", "PATH", "SERIAL", "WAS"]);

    // the first disk fails, and after a restart the second one has its path
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("a"), daemon.path("dead")).expect("dies");
    fs::rename(daemon.path("b"), daemon.path("a")).expect("is renamed");
    daemon.restart();
    degraded(&daemon);
    assert_eq!(devices(&daemon, "id"), ids);
    assert_eq!(devices(&daemon, "state"), ["missing", "online"]);
    assert_eq!(devices(&daemon, "path"), [ids[0].clone(), a.clone()]);
    assert_eq!(devices(&daemon, "was"), [a.clone(), String::new()]);
    let table = daemon.run(&["pool", "status", "tank"]).ok().out;
    let row = table.lines().find(|line| line.starts_with(&ids[0])).expect("a row");
    assert_eq!(row.split_whitespace().take(4).collect::<Vec<_>>(), [&ids[0], "-", "-", &a]);
    // after another restart
    let restarted = |daemon: &mut Daemon| {
        assert_eq!(daemon.stop("TERM"), 0);
        daemon.restart();
        degraded(daemon);
    };
    restarted(&mut daemon);
    assert_eq!(devices(&daemon, "was"), [a.clone(), String::new()]);

    // the path fits two devices: neither is used
    for words in [
        &["pool", "replace", "tank", &a, &sized(&daemon, "c")][..],
        &["pool", "remove", "tank", &a],
        &["pool", "device-limit", "tank", &a, "--iops", "9"],
    ] {
        let refused = daemon.run(words).refused(1, "matches 2 devices");
        assert!(ids.iter().all(|id| refused.err.contains(id)), "{refused:?}");
    }
    assert!(!daemon.path("c").exists(), "a file was made");
    daemon.run(&["pool", "replace", "tank", &ids[0], &sized(&daemon, "c"), "--wait"]).waited();
    eventually("the new one is whole", || devices(&daemon, "state") == ["online", "online"]);
    assert_eq!(devices(&daemon, "path"), [daemon.text("c"), a.clone()]);
    let now = devices(&daemon, "id");
    assert!(now[1] == ids[1] && now[0] != ids[0], "{now:?}");
    // a prefix of an id is enough
    daemon.run(&["pool", "device-limit", "tank", &now[1][..6], "--iops", "100"]).ok();
    assert_eq!(daemon.json(&["pool", "status", "tank"])[0]["devices"][1]["limit"]["iops"], 100);
    daemon.run(&["pool", "remove", "tank", "abcdef"]).refused(1, "no device");
}

#[test]
fn a_link_at_the_path_of_a_missing_device_is_no_name_of_it() {
    let mut daemon = mirrored();
    let (a, ids) = (daemon.text("a"), devices(&daemon, "id"));
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("a"), daemon.path("dead")).expect("dies");
    daemon.restart();
    degraded(&daemon);
    std::os::unix::fs::symlink(daemon.path("b"), daemon.path("a")).expect("a link");
    let refused = daemon.run(&["pool", "replace", "tank", &a, &sized(&daemon, "c")]).refused(1, "name one by its ID");
    assert!(ids.iter().all(|id| refused.err.contains(id)), "{refused:?}");
    daemon.run(&["pool", "replace", "tank", &ids[0], &sized(&daemon, "c"), "--wait"]).waited();
    eventually("the new one is whole", || devices(&daemon, "state") == ["online", "online"]);
}

#[test]
fn a_missing_device_that_was_never_seen_here_is_known_by_the_labels_of_the_others() {
    let first = mirrored();
    let ids = devices(&first, "id");
    first.run(&["pool", "export", "tank"]).ok();
    fs::create_dir(first.path("one")).expect("a directory");
    fs::rename(first.path("b"), first.path("one/b")).expect("moves");
    fs::rename(first.path("a"), first.path("gone")).expect("is left behind");
    let mut second = Daemon::with_config("import_wait = \"1s\"\n");
    let refused = second.run(&["pool", "import", "tank", "-d", &first.text("one")]).refused(1, "of 2 not found");
    assert!(refused.err.contains(&format!("device 0 (was {}, 256M)", first.text("a"))), "{refused:?}");
    second.run(&["pool", "import", "tank", "-d", &first.text("one"), "--degraded"]).ok();
    for _ in 0..2 {
        degraded(&second);
        assert_eq!(devices(&second, "id"), ids);
        assert_eq!(devices(&second, "path"), [first.text("a"), first.text("one/b")], "neither blank nor the state directory");
        assert_eq!(devices(&second, "was"), [first.text("a"), String::new()]);
        assert_eq!(second.stop("TERM"), 0);
        second.restart();
    }
}

#[test]
fn a_device_that_a_pool_waits_for_is_shown_with_where_it_was() {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    daemon.run(&["pool", "create", "tank", "linear", &sized(&daemon, "a"), &sized(&daemon, "b")]).ok();
    let ids = devices(&daemon, "id");
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("b"), daemon.path("away")).expect("goes");
    daemon.restart();
    eventually("it is missed", || devices(&daemon, "state") == ["unavailable", "missing"]);
    assert_eq!(devices(&daemon, "id"), ids, "as they were in use last");
    assert_eq!(devices(&daemon, "path"), [daemon.text("a"), daemon.text("b")]);
    assert_eq!(devices(&daemon, "was"), [String::new(), daemon.text("b")]);
}

#[test]
fn a_link_to_a_device_is_a_name_of_it() {
    let daemon = mirrored();
    std::os::unix::fs::symlink(daemon.path("a"), daemon.path("by-id")).expect("a link");
    daemon.run(&["pool", "device-limit", "tank", &daemon.text("by-id"), "--iops", "100"]).ok();
    assert_eq!(daemon.json(&["pool", "status", "tank"])[0]["devices"][0]["limit"]["iops"], 100);
}

#[test]
fn a_lone_device_does_not_join_a_mirror_unless_forced() {
    let daemon = mirrored();
    let single = sized(&daemon, "single");
    for more in [&[][..], &["-n"]] {
        let words = [&["pool", "add", "tank", &single][..], more].concat();
        daemon.run(&words).refused(1, "without redundancy");
    }
    assert!(!daemon.path("single").exists(), "a file was made");
    daemon.run(&["pool", "add", "tank", "spare", &sized(&daemon, "spare")]).ok();
    daemon.run(&["pool", "add", "tank", "mirror", &sized(&daemon, "c"), &sized(&daemon, "d")]).ok();
    daemon.run(&["pool", "add", "tank", "--force", &single]).ok();
    // a pool without redundancy cannot lose it
    daemon.run(&["pool", "add", "tank", &sized(&daemon, "another")]).ok();
    let mixed = ["mirror", &sized(&daemon, "e"), &sized(&daemon, "f"), "linear", &sized(&daemon, "g")];
    daemon.run(&[&["pool", "create", "mixed"][..], &mixed].concat()).refused(1, "--force");
    daemon.run(&[&["pool", "create", "mixed", "-f"][..], &mixed].concat()).ok();
    assert_eq!(each(&daemon.json(&["pool", "list"]), "name"), ["mixed", "tank"]);
}

#[test]
fn words_and_places_that_are_mistakes_are_named() {
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "tank", "raidz1", "/dev/sdb", "/dev/sdc", "/dev/sdd"]).refused(2, "say 'parity1");
    daemon.run(&["pool", "create", "tank", "/dev/millpond-none"]).refused(1, "lsblk");
    daemon.run(&["pool", "create", "tank", "-n", "/dev/millpond-none:100M"]).refused(1, "device nodes");
    daemon.run(&["pool", "create", "tank", &daemon.text("none")]).refused(1, "none:SIZE to create it");
    let huge = daemon.run(&["pool", "create", "tank", "-n", &format!("{}:10T", daemon.text("huge"))]);
    assert!(huge.code == 0 && huge.err.contains("warning: ") && huge.err.contains("the filesystem has room for"), "{huge:?}");
    assert!(!daemon.path("huge").exists());
}
