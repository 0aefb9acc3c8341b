//! `backup`: incremental backups in a directory, killed at any time, damaged, pruned and restored.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millpond_testing::Random;

use crate::harness::{Daemon, each};

const SIZE: u64 = 40 << 20;

/// Starts a daemon with a volume `tank/v` that has data in three places.
fn filled() -> Daemon {
    let daemon = Daemon::with_pool();
    let file = fs::File::create_new(daemon.path("in.raw")).expect("made");
    // its end is within a chunk
    file.set_len(SIZE + 4096).expect("sized");
    let mut random = Random::new(1);
    for at in [0, 10 << 20, 30 << 20] {
        file.write_all_at(&random.bytes(2 << 20), at).expect("written");
    }
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v", "-o", "compression=lz4", "--sector", "4kn"]).code, 0);
    fs::create_dir(daemon.path("nas")).expect("made");
    daemon
}

/// Writes data and zeroes to a volume.
fn change(daemon: &Daemon, name: &str, seed: u64) {
    let socket = daemon.export(name, "change.sock");
    let mut nbd = crate::nbd::connect(&socket).expect("connect");
    let mut random = Random::new(seed);
    let at = random.below(SIZE / 4096 - 100) * 4096;
    nbd.write(at, &random.bytes(100 * 4096)).expect("write");
    nbd.write_zeroes(10 << 20, 1 << 20).expect("write zeroes");
    nbd.flush().expect("flush");
    drop(nbd);
    daemon.run(&["unexport", name, "--force"]).ok();
}

/// Runs a command that says on standard error what it did.
fn done(daemon: &Daemon, words: &[&str]) {
    let ended = daemon.run(words);
    assert_eq!(ended.code, 0, "{ended:?}");
}

/// Restores a backup into a file; returns its content.
fn restored(daemon: &Daemon, name: &str) -> Vec<u8> {
    let _ = fs::remove_file(daemon.path("restored.raw"));
    let ended = daemon.run(&["backup", "restore", "nas", name, "--to", "restored.raw", "--verify"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    fs::read(daemon.path("restored.raw")).expect("read")
}

fn backups(daemon: &Daemon) -> Vec<String> {
    each(&daemon.json(&["backup", "list", "nas"]), "name").into_iter().map(str::to_owned).collect()
}

fn snapshots(daemon: &Daemon) -> Vec<String> {
    each(&daemon.json(&["list", "-t", "snapshot", "tank/v"]), "name").into_iter().map(str::to_owned).collect()
}

/// All files of a folder of the target.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn nothing_left(daemon: &Daemon) {
    assert!(daemon.json(&["exports"]).as_array().is_some_and(Vec::is_empty), "an export is left");
    for snapshot in daemon.json(&["list", "-t", "snapshot", "tank/v"]).as_array().expect("a list") {
        assert_eq!(snapshot["holds"], 0, "a hold is left: {snapshot}");
    }
}

#[test]
fn each_backup_reads_what_changed_and_is_whole() {
    let daemon = filled();
    let first = daemon.json(&["backup", "create", "nas", "tank/v", "--verify"]);
    assert_eq!(first[0]["read"], 6 << 20);
    change(&daemon, "tank/v", 2);
    daemon.run(&["snapshot", "tank/v@mine"]).ok();
    let wanted = daemon.content("tank/v@mine");
    let second = daemon.json(&["backup", "create", "nas", "tank/v@mine", "--verify", "--no-init"]);
    assert_eq!(second[0]["base"], first[0]["name"]);
    assert!(second[0]["read"].as_u64().is_some_and(|read| read <= 3 << 20), "{second}");
    daemon.run(&["resize", "tank/v", "20M", "--allow-shrink"]).ok();
    daemon.run(&["resize", "tank/v", "60M"]).ok();
    change(&daemon, "tank/v", 3);
    let third = daemon.json(&["backup", "create", "nas", "tank/v", "--verify"]);
    assert_eq!(third[0]["base"], "tank/v@mine");
    // the snapshot of the first one is no longer needed, that of the user stays
    let newest = third[0]["name"].as_str().expect("a name").to_owned();
    assert!(snapshots(&daemon).contains(&newest) && snapshots(&daemon).contains(&"tank/v@mine".to_owned()));
    assert!(!snapshots(&daemon).iter().any(|name| *name == first[0]["name"]));
    assert!(restored(&daemon, "tank/v@mine") == wanted);
    assert!(restored(&daemon, "tank/v") == daemon.content(&newest), "the newest");
    assert_eq!(restored(&daemon, first[0]["name"].as_str().expect("a name")), fs::read(daemon.path("in.raw")).expect("read"));
    // a volume has the properties of the one that was backed up
    assert_eq!(daemon.run(&["backup", "restore", "nas", "tank/v@mine", "tank/again", "--verify"]).code, 0);
    assert!(daemon.content("tank/again") == wanted);
    for (property, value) in [("compression", "lz4"), ("sector", "4kn")] {
        assert_eq!(daemon.run(&["get", "-H", "-o", "value", property, "tank/again"]).ok().out, format!("{value}\n"));
    }
    let exists = daemon.run(&["backup", "restore", "nas", "tank/v@mine"]);
    assert!(exists.code == 1 && exists.err.contains("exists"), "{exists:?}");
    nothing_left(&daemon);
}

#[test]
fn without_a_common_snapshot_all_is_read_and_little_stored() {
    let daemon = filled();
    done(&daemon, &["backup", "create", "nas", "tank/v", "-q"]);
    for name in snapshots(&daemon) {
        daemon.run(&["destroy", &name, "-y"]).ok();
    }
    let second = daemon.json(&["backup", "create", "nas", "tank/v"]);
    assert_eq!((&second[0]["read"], &second[0]["base"]), (&(6_u64 << 20).into(), &serde_json::Value::Null));
    assert!(second[0]["stored"].as_u64().is_some_and(|stored| stored < 1 << 20), "{second}");
    assert!(restored(&daemon, "tank/v") == fs::read(daemon.path("in.raw")).expect("read"));
}

#[test]
fn damage_is_found_and_mended_by_the_next_backup() {
    let daemon = filled();
    done(&daemon, &["backup", "create", "nas", "tank/v", "-q"]);
    assert_eq!(daemon.run(&["backup", "verify", "nas"]).code, 0);
    let data: Vec<PathBuf> =
        files(&daemon.path("nas/chunks")).into_iter().filter(|file| file.metadata().expect("a length").len() > 1 << 20).collect();
    assert_eq!(data.len(), 6);
    let file = fs::File::options().write(true).open(&data[0]).expect("opened");
    file.write_all_at(b"rot", 5000).expect("written");
    let broken = daemon.run(&["backup", "restore", "nas", "tank/v", "--to", "x.raw"]);
    assert!(broken.code == 1 && broken.err.contains("damaged") && broken.err.contains("backup verify"), "{broken:?}");
    assert!(!daemon.path("x.raw").exists() && !daemon.path("x.raw.part").exists());
    let found = daemon.run(&["backup", "verify", "nas", "--format", "json"]);
    assert!(found.code == 1 && found.err.contains("1 of 1 backups cannot be restored whole"), "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).expect("JSON");
    assert_eq!(found[0]["damaged"], 1 << 20, "{found}");
    assert!(daemon.run(&["backup", "list", "nas"]).ok().out.contains("DAMAGED"));
    let again = daemon.json(&["backup", "create", "nas", "tank/v"]);
    assert_eq!(again[0]["base"], serde_json::Value::Null, "a damaged one is no base");
    assert!(restored(&daemon, "tank/v") == fs::read(daemon.path("in.raw")).expect("read"));
    // the first one is whole again as well, because it has the same chunks
    assert!(again[0]["stored"].as_u64().is_some_and(|stored| stored > 1 << 20), "{again}");
    assert_eq!(daemon.run(&["backup", "verify", "nas"]).code, 0);
}

#[test]
fn prunes_ask_and_keep_what_others_need() {
    let daemon = filled();
    let mut contents = Vec::new();
    for (seed, name) in ["a", "b", "c"].iter().enumerate() {
        change(&daemon, "tank/v", seed as u64 + 10);
        let name = format!("tank/v@{name}");
        daemon.run(&["snapshot", &name]).ok();
        done(&daemon, &["backup", "create", "nas", &name, "-q"]);
        contents.push((name.clone(), daemon.content(&name)));
    }
    let before = files(&daemon.path("nas")).len();
    assert_eq!(daemon.run(&["backup", "prune", "nas", "tank/v@b", "-n"]).code, 0);
    let asked = daemon.run(&["backup", "prune", "nas", "tank/v@b"]);
    assert!(asked.code == 1 && asked.err.contains("-y"), "{asked:?}");
    assert_eq!((backups(&daemon).len(), files(&daemon.path("nas")).len()), (3, before));
    let pruned = daemon.run(&["backup", "prune", "nas", "tank/v@b", "-y"]);
    assert!(pruned.code == 0 && pruned.err.contains("deleted 1 backups"), "{pruned:?}");
    assert!(files(&daemon.path("nas")).len() < before);
    for (name, wanted) in contents.iter().filter(|(name, _)| name != "tank/v@b") {
        assert!(restored(&daemon, name) == *wanted, "{name}");
    }
    // rules of one schedule, here of a policy, delete nothing of another one
    for name in ["tank/v@p1", "tank/v@p2"] {
        daemon.run(&["snapshot", name, "--description", "of a policy"]).ok();
        done(&daemon, &["backup", "create", "nas", name, "--keep", "1y:1y", "-q"]);
    }
    assert_eq!(backups(&daemon), ["tank/v@a", "tank/v@c", "tank/v@p1", "tank/v@p2"]);
    done(&daemon, &["backup", "prune", "nas", "tank/v@p1", "tank/v@p2", "-y"]);
    // of one hour the first stays, and the newest in any case
    daemon.run(&["snapshot", "tank/v@d"]).ok();
    done(&daemon, &["backup", "create", "nas", "tank/v@d", "--keep", "1d:30d", "-q"]);
    assert_eq!(backups(&daemon), ["tank/v@a", "tank/v@d"]);
    assert_eq!(daemon.run(&["backup", "verify", "nas"]).code, 0);
    assert!(restored(&daemon, "tank/v@a") == contents[0].1);
}

#[test]
fn a_killed_backup_leaves_no_trace_that_counts() {
    let daemon = filled();
    let size = "200M";
    daemon.run(&["resize", "tank/v", size]).ok();
    for seed in 0..4 {
        for at in 0..10 {
            change(&daemon, "tank/v", seed * 100 + at);
        }
        let mut killed = daemon.begin(&["backup", "create", "nas", "tank/v", "-q"]);
        std::thread::sleep(Duration::from_millis(15 * seed + 5));
        killed.signal("KILL");
        killed.wait();
        assert_eq!(daemon.run(&["backup", "verify", "nas"]).code, if backups_or_none(&daemon) { 0 } else { 1 });
    }
    // without this they end by themselves, later
    for export in daemon.json(&["exports"]).as_array().expect("a list") {
        daemon.run(&["unexport", &export["id"].to_string(), "--force"]).ok();
    }
    let made = daemon.json(&["backup", "create", "nas", "tank/v", "--verify"]);
    let name = made[0]["name"].as_str().expect("a name");
    assert!(restored(&daemon, name) == daemon.content(name));
    assert_eq!(daemon.run(&["backup", "prune", "nas"]).code, 0);
    assert_eq!(files(&daemon.path("nas/incoming")), Vec::<PathBuf>::new());
    assert_eq!(daemon.run(&["backup", "verify", "nas"]).code, 0);
    // snapshots of killed ones go with the next one
    assert_eq!(snapshots(&daemon), [name]);
}

/// Whether the directory is a target yet.
fn backups_or_none(daemon: &Daemon) -> bool {
    daemon.path("nas/millpond-backup.json").exists()
}

#[test]
fn wrong_targets_are_refused_in_one_line() {
    let daemon = filled();
    fs::create_dir(daemon.path("other")).expect("made");
    fs::write(daemon.path("other/letter.txt"), b"x").expect("written");
    for (arguments, words) in [
        (&["backup", "create", "other", "tank/v"][..], "it is not empty, and has no backups"),
        (&["backup", "create", "nas", "tank/v", "--no-init"], "is it mounted?"),
        (&["backup", "create", "no/where", "tank/v"], "give a directory that exists"),
        (&["backup", "create", "other/letter.txt", "tank/v"], "is no directory"),
        (&["backup", "list", "nas"], "has no backups yet"),
        (&["backup", "create", "s3://x/y", "tank/v"], "--credentials"),
        (&["backup", "create", "nas", "tank/none"], "no volume"),
        (&["backup", "create", "nas", "tank/v@none"], "no snapshot"),
        (&["backup", "create", "nas", "tank/v", "--keep", "often"], "is not a rule"),
        (&["backup", "create", "nas", "tank/v", "-o", "endpoint=http://127.0.0.1:1"], "are for buckets"),
    ] {
        let ended = daemon.run(arguments);
        let line = ended.err.lines().last().unwrap_or_default();
        assert!(ended.code != 0 && line.contains(words), "{arguments:?}: {ended:?}");
    }
    assert_eq!(snapshots(&daemon), Vec::<String>::new(), "snapshots are left");
    nothing_left(&daemon);
    // a target whose head was written by a newer version, or is damaged
    done(&daemon, &["backup", "create", "nas", "tank/v", "-q"]);
    fs::write(daemon.path("nas/millpond-backup.json"), b"{}\n").expect("written");
    let ended = daemon.run(&["backup", "list", "nas"]);
    assert!(ended.code == 1 && ended.err.contains("damaged"), "{ended:?}");
}
