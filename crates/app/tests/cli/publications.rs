//! `pool publish`, `pool publications`, `pool unpublish`, and clones of publications: one directory, two
//! daemons.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millpond_testing::Random;

use crate::harness::{Daemon, each};

const SIZE: u64 = 24 << 20;

/// Starts a daemon with a snapshot `tank/gold@v1` that has data in two places.
pub fn filled() -> Daemon {
    let daemon = Daemon::with_pool();
    let file = fs::File::create_new(daemon.path("in.raw")).expect("made");
    // its end is within a chunk
    file.set_len(SIZE + 4096).expect("sized");
    let mut random = Random::new(1);
    for at in [0, 10 << 20] {
        file.write_all_at(&random.bytes(1 << 20), at).expect("written");
    }
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/gold", "-o", "compression=lz4", "--sector", "4kn"]).code, 0);
    daemon.run(&["snapshot", "tank/gold@v1"]).ok();
    fs::create_dir(daemon.path("images")).expect("made");
    daemon
}

fn change(daemon: &Daemon, seed: u64) {
    let socket = daemon.export("tank/gold", "change.sock");
    let mut nbd = crate::nbd::connect(&socket).expect("connect");
    nbd.write(1 << 20, &Random::new(seed).bytes(4096)).expect("write");
    nbd.flush().expect("flush");
    drop(nbd);
    daemon.run(&["unexport", "tank/gold", "--force"]).ok();
}

/// Runs a command that says on standard error what it did.
pub fn done(daemon: &Daemon, words: &[&str]) -> String {
    let ended = daemon.run(words);
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.err
}

fn listed(daemon: &Daemon) -> Vec<String> {
    each(&daemon.json(&["pool", "publications", "images"]), "name").into_iter().map(str::to_owned).collect()
}

/// All files of a folder of the target.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Files of chunks that have data, not lists.
pub fn data(daemon: &Daemon) -> Vec<PathBuf> {
    let is_data = |file: &PathBuf| file.metadata().expect("a length").len() > 200 << 10;
    files(&daemon.path("images/chunks")).into_iter().filter(is_data).collect()
}

fn nothing_left(daemon: &Daemon) {
    assert!(daemon.json(&["exports"]).as_array().is_some_and(Vec::is_empty), "an export is left");
    for snapshot in daemon.json(&["list", "-t", "snapshot", "tank/gold"]).as_array().expect("a list") {
        assert_eq!(snapshot["holds"], 0, "a hold is left: {snapshot}");
    }
    assert!(!daemon.run(&["list"]).ok().out.contains("importing-"), "a volume is left");
}

#[test]
fn pools_of_other_hosts_clone_what_one_published() {
    let daemon = filled();
    let first = daemon.json(&["pool", "publish", "tank/gold@v1", "images", "--verify"]);
    assert_eq!(first[0]["read"], 2 << 20);
    assert_eq!(data(&daemon).len(), 8, "chunks of 256 KiB");
    change(&daemon, 2);
    daemon.run(&["snapshot", "tank/gold@v2"]).ok();
    let second = daemon.json(&["pool", "publish", "tank/gold@v2", "images", "--no-init", "--verify"]);
    assert_eq!((&second[0]["base"], &second[0]["read"]), (&"tank/gold@v1".into(), &(256_u64 << 10).into()), "{second}");
    let table = daemon.json(&["pool", "publications", "images"]);
    assert_eq!(each(&table, "name"), ["tank/gold@v1", "tank/gold@v2"]);
    assert!(table[0]["id"].as_str().is_some_and(|id| id.len() == 32) && table[0]["id"] != table[1]["id"], "{table}");
    let head = daemon.run(&["pool", "publications", "images"]).ok().out;
    let words: Vec<&str> = head.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(words, ["NAME", "SIZE", "STORED", "MADE", "HOST", "VERIFIED"]);
    nothing_left(&daemon);

    // the pool that published it is not needed
    let contents = ["v1", "v2"].map(|name| daemon.content(&format!("tank/gold@{name}")));
    assert!(contents[0] == fs::read(daemon.path("in.raw")).expect("read") && contents[0] != contents[1]);
    let other = Daemon::with_pool();
    let images = daemon.text("images");
    for (name, (new, wanted)) in ["gold@v1", "tank/gold@v2"].iter().zip(["tank/a", "tank/b"].iter().zip(&contents)) {
        let words = ["clone", "--full", &format!("{images}#{name}"), new];
        let planned = other.run(&["clone", "--full", "-n", words[2], new]).ok().out;
        assert!(planned.starts_with("would copy 24"), "{planned}");
        done(&other, &words);
        assert!(other.content(new) == *wanted, "{new}");
        for (property, value) in [("compression", "lz4"), ("sector", "4kn")] {
            assert_eq!(other.run(&["get", "-H", "-o", "value", property, new]).ok().out, format!("{value}\n"));
        }
    }
    let exists = other.run(&["clone", "--full", &format!("{images}#gold@v1"), "tank/a"]);
    assert!(exists.code == 1 && exists.err.contains("exists already"), "{exists:?}");
    // copies do not depend on the publication
    done(&other, &["pool", "unpublish", "-y", &format!("{images}#gold@v1")]);
    assert!(other.content("tank/a") == contents[0]);
    done(&other, &["clone", "--full", &format!("{images}#gold@v2"), "tank/c"]);
    assert!(other.content("tank/c") == contents[1]);
    assert!(other.json(&["exports"]).as_array().is_some_and(Vec::is_empty), "an export is left");
}

#[test]
fn what_is_published_is_there_once_and_outlives_its_snapshot() {
    let daemon = filled();
    daemon.run(&["pool", "publish", "tank/gold@v1", "images", "--no-init"]).refused(1, "has no publications yet");
    let said = done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    assert!(said.contains("images is a new target of publications"), "{said}");
    let (before, record) = (files(&daemon.path("images")), daemon.path("images/publications/tank/gold/v1.json"));
    let text = fs::read(&record).expect("read");
    let said = done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    assert!(said.contains("'tank/gold@v1' is there already"), "{said}");
    assert_eq!((files(&daemon.path("images")), fs::read(&record).expect("read")), (before, text));
    daemon.run(&["destroy", "-r", "tank/gold", "-y"]).ok();
    done(&daemon, &["clone", "--full", "images#gold@v1", "tank/gold"]);
    assert!(daemon.content("tank/gold") == fs::read(daemon.path("in.raw")).expect("read"));
    // another snapshot of the same name is another publication
    daemon.run(&["snapshot", "tank/gold@v1"]).ok();
    daemon.run(&["pool", "publish", "tank/gold@v1", "images"]).refused(1, "of another snapshot; rename the snapshot");
    nothing_left(&daemon);
}

#[test]
fn unpublish_asks_and_keeps_what_others_need() {
    let daemon = filled();
    done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    change(&daemon, 2);
    daemon.run(&["snapshot", "tank/gold@v2"]).ok();
    done(&daemon, &["pool", "publish", "tank/gold@v2", "images"]);
    let before = files(&daemon.path("images"));
    let said = done(&daemon, &["pool", "unpublish", "images#gold@v1", "-n"]);
    // one chunk of data, and its lists
    assert!(said.contains("would delete 'tank/gold@v1' and 2 chunks"), "{said}");
    // without a publication, what interrupted commands left goes
    let left = daemon.path("images/chunks/00").join("0".repeat(63) + "7");
    fs::create_dir_all(left.parent().expect("a directory")).expect("made");
    fs::write(&left, b"left").expect("written");
    let said = done(&daemon, &["pool", "unpublish", "images", "-n"]);
    assert!(said.contains("would delete 1 chunks"), "{said}");
    assert!(left.exists());
    done(&daemon, &["pool", "unpublish", "images"]);
    daemon.run(&["pool", "unpublish", "images", "--force"]).refused(2, "TARGET#VOL@SNAP");
    assert!(!left.exists());
    daemon.run(&["pool", "unpublish", "images#gold@v1"]).refused(1, "-y");
    assert_eq!((listed(&daemon).len(), files(&daemon.path("images"))), (2, before));
    done(&daemon, &["pool", "unpublish", "images#gold@v1", "-y"]);
    assert_eq!(listed(&daemon), ["tank/gold@v2"]);
    assert_eq!(daemon.run(&["pool", "publications", "images", "--verify"]).code, 0);
    // the next one builds on what is there
    done(&daemon, &["clone", "--full", "images#gold@v2", "tank/copy"]);
    assert!(daemon.content("tank/copy") == daemon.content("tank/gold@v2"));
    done(&daemon, &["pool", "unpublish", "images#tank/gold@v2", "-y"]);
    assert_eq!(files(&daemon.path("images/chunks")), Vec::<PathBuf>::new());
    assert_eq!(listed(&daemon), Vec::<String>::new());
}

#[test]
fn damage_is_found_and_repaired_by_publishing_again() {
    let daemon = filled();
    done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    let id = daemon.json(&["pool", "publications", "images"])[0]["id"].clone();
    let file = fs::File::options().write(true).open(&data(&daemon)[0]).expect("opened");
    file.write_all_at(b"rot", 5000).expect("written");
    let broken = daemon.run(&["clone", "--full", "images#gold@v1", "tank/copy"]);
    assert!(broken.code == 1 && broken.err.contains("'millpond pool publications --verify' finds all that is"), "{broken:?}");
    nothing_left(&daemon);
    let found = daemon.run(&["pool", "publications", "images", "--verify", "--format", "json"]);
    assert!(found.code == 1 && found.err.contains("1 of 1 publications cannot be restored whole"), "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).expect("JSON");
    assert_eq!(found[0]["damaged_bytes"], 256 << 10, "{found}");
    assert!(daemon.run(&["pool", "publications", "images"]).ok().out.contains("DAMAGED"));
    done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    assert_eq!(daemon.json(&["pool", "publications", "images", "--verify"])[0]["id"], id, "it is the same publication");
    done(&daemon, &["clone", "--full", "images#gold@v1", "tank/copy"]);
    assert!(daemon.content("tank/copy") == daemon.content("tank/gold@v1"));
    // a record that cannot be read
    fs::write(daemon.path("images/publications/tank/gold/v1.json"), b"{}\n").expect("written");
    assert!(daemon.run(&["pool", "publications", "images"]).ok().out.contains("UNREADABLE"));
    daemon.run(&["pool", "unpublish", "images#gold@v1", "-y"]).refused(1, "'millpond pool unpublish --force'");
    done(&daemon, &["pool", "unpublish", "images#gold@v1", "-y", "--force"]);
    assert_eq!((listed(&daemon), files(&daemon.path("images/chunks"))), (Vec::new(), Vec::new()));
}

#[test]
fn a_killed_publish_leaves_nothing_that_counts() {
    let daemon = filled();
    daemon.run(&["resize", "tank/gold", "200M"]).ok();
    for seed in 0..4 {
        let name = format!("tank/gold@k{seed}");
        change(&daemon, seed + 10);
        daemon.run(&["snapshot", &name]).ok();
        let mut killed = daemon.begin(&["pool", "publish", &name, "images"]);
        std::thread::sleep(Duration::from_millis(15 * seed + 5));
        killed.signal("KILL");
        killed.wait();
        if daemon.path("images/millpond-publications.json").exists() {
            assert_eq!(daemon.run(&["pool", "publications", "images", "--verify"]).code, 0);
        }
    }
    for export in daemon.json(&["exports"]).as_array().expect("a list") {
        daemon.run(&["unexport", &export["id"].to_string(), "--force"]).ok();
    }
    done(&daemon, &["pool", "publish", "tank/gold@k3", "images", "--verify"]);
    done(&daemon, &["clone", "--full", "images#gold@k3", "tank/copy"]);
    assert!(daemon.content("tank/copy") == daemon.content("tank/gold@k3"));
}

#[test]
fn targets_of_backups_and_publications_refuse_each_other() {
    let daemon = filled();
    fs::create_dir(daemon.path("nas")).expect("made");
    done(&daemon, &["backup", "create", "nas", "tank/gold@v1", "-q"]);
    done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    let before = (files(&daemon.path("nas")), files(&daemon.path("images")));
    for words in [
        &["pool", "publish", "tank/gold@v1", "nas"][..],
        &["pool", "publications", "nas"],
        &["pool", "unpublish", "nas#gold@v1", "-y", "--force"],
        &["clone", "--full", "nas#gold@v1", "tank/copy"],
    ] {
        daemon.run(words).refused(1, "nas: it has backups, and can keep nothing else; give another directory or prefix");
    }
    for words in [
        &["backup", "create", "images", "tank/gold@v1"][..],
        &["backup", "list", "images"],
        &["backup", "verify", "images"],
        &["backup", "prune", "images"],
        &["backup", "restore", "images", "tank/gold@v1", "--to", "x.raw"],
    ] {
        daemon.run(words).refused(1, "images: it has publications, and can keep nothing else; give another directory or prefix");
    }
    assert_eq!(before, (files(&daemon.path("nas")), files(&daemon.path("images"))));
}

#[test]
fn wrong_words_are_refused_in_one_line() {
    let daemon = filled();
    done(&daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    fs::create_dir(daemon.path("other")).expect("made");
    fs::write(daemon.path("other/letter.txt"), b"x").expect("written");
    fs::create_dir(daemon.path("empty")).expect("made");
    let device = format!("{}:512M", daemon.text("old.img"));
    daemon.run(&["pool", "create", "old", &device, "-o", "features=none"]).ok();
    // a volume of the same name, of another pool
    let same = daemon.path("images/publications/lake/gold");
    fs::create_dir_all(&same).expect("made");
    fs::write(same.join("v1.json"), b"{}\n").expect("written");
    for (words, code, message) in [
        (&["pool", "publish", "tank/gold", "images"][..], 2, "POOL/VOL@SNAP"),
        (&["pool", "publish", "tank/gold@none", "missing"], 1, "no snapshot"),
        (&["pool", "publish", "tank/gold@v1", "other"], 1, "it is not empty, and has no publications"),
        (&["pool", "publish", "tank/gold@v1", "no/where"], 1, "give a directory that exists"),
        (&["pool", "publish", "tank/gold@v1", "images", "-o", "endpoint=http://127.0.0.1:1"], 2, "are for buckets"),
        (&["pool", "publish", "tank/gold@v1", "s3://x/y"], 1, "--credentials"),
        (&["pool", "publications", "empty"], 1, "it has no publications yet"),
        (&["pool", "unpublish", "images", "-y"], 1, "the publication 'lake/gold@v1' cannot be read"),
        (&["pool", "unpublish", "empty"], 1, "it has no publications yet"),
        (&["pool", "unpublish", "#gold@v1", "-y"], 2, "TARGET#VOL@SNAP"),
        (&["pool", "unpublish", "images#gold", "-y"], 2, "TARGET#VOL@SNAP"),
        (&["pool", "unpublish", "images#gold@v9", "-y"], 1, "no publication 'gold@v9'; 'millpond pool publications images'"),
        (&["pool", "unpublish", "images#gold@v1", "-y"], 1, "give images#lake/gold@v1 or images#tank/gold@v1"),
        (&["clone", "images#tank/gold@v1", "old/new"], 1, "lacks the feature 'bases'; turn it on with 'millpond pool upgrade old'"),
        (&["pool", "create", "-n", "p", device.as_str(), "-o", "features=some"], 2, "features cannot be 'some'; choose all or none"),
        (&["clone", "-n", "tank/gold@v1", "tank/new"], 2, "-n is for full copies and publications"),
        (&["clone", "--full", "images#gold@v9", "tank/new"], 1, "no publication"),
        (&["clone", "--full", "images#tank/gold@v1", "new"], 2, "POOL/VOL"),
        (&["clone", "--full", "images#tank/gold@v1", "none/new"], 1, "none"),
        (&["clone", "--full", "-n", "images#tank/gold@v1", "none/new"], 1, "none"),
        (&["clone", "--full", "-n", "images#tank/gold@v1", "tank/gold"], 1, "it exists already"),
        (&["clone", "tank/gold@v1", "tank/new", "-o", "endpoint=http://127.0.0.1:1"], 2, "are for publications"),
        (&["clone", "--full", "--restart", "tank/gold@v1", "tank/new"], 2, "are for publications"),
    ] {
        daemon.run(words).refused(code, message);
    }
    assert!(!daemon.path("missing").exists(), "a directory was made for nothing");
    nothing_left(&daemon);
}
