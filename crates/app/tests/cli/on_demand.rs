//! Clones of publications whose blocks are fetched when they are read.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, each, eventually};
use crate::publications::{data, done, filled};

/// Where the published volume has data: 1 MiB at each place.
const PLACES: [u64; 2] = [0, 10 << 20];

/// Publishes `tank/gold@v1`. Returns its content.
fn published(daemon: &Daemon) -> Vec<u8> {
    done(daemon, &["pool", "publish", "tank/gold@v1", "images"]);
    fs::read(daemon.path("in.raw")).expect("read")
}

/// Starts another daemon with a pool that can have such clones.
fn able() -> Daemon {
    Daemon::with_pool()
}

/// Words for the publication, as another daemon gives them.
fn words(of: &Daemon) -> String {
    format!("{}#gold@v1", of.text("images"))
}

fn volume(daemon: &Daemon, name: &str) -> Value {
    daemon.json(&["show", name])
}

/// Returns the base of a clone.
fn base_of(daemon: &Daemon, clone: &str) -> String {
    let origin = volume(daemon, clone)["origin"].as_str().expect("an origin").to_owned();
    origin.strip_suffix("@origin").expect("a base").to_owned()
}

fn read(socket: &Path, at: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    crate::nbd::connect(socket)?.read(at, &mut bytes)?;
    Ok(bytes)
}

/// Processes that fetch from a target.
fn readers(of: &Daemon) -> Vec<String> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let (verb, target) = ("fetch-chunks".to_owned(), of.text("images"));
    let is_reader = |pid: &String| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = words.split('\0').collect();
        words.contains(&verb.as_str()) && words.contains(&target.as_str())
    };
    all.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(is_reader).collect()
}

#[test]
fn a_clone_fetches_what_is_read_and_keeps_it() {
    let source = filled();
    let wanted = published(&source);
    let daemon = able();
    let images = words(&source);
    let planned = daemon.run(&["clone", "-n", &images, "tank/vm1"]).ok().out;
    assert!(planned.contains("would create the base tank/publication-") && planned.contains("to tank/vm1"), "{planned}");
    assert_eq!(daemon.json(&["list"]).as_array().map(Vec::len), Some(0));
    daemon.run(&["clone", &images, "tank/vm1"]).ok();
    let base = base_of(&daemon, "tank/vm1");
    let shown = volume(&daemon, &base);
    assert_eq!((&shown["base"]["target"], &shown["base"]["name"]), (&source.text("images").into(), &"tank/gold@v1".into()), "{shown}");
    assert_eq!(volume(&daemon, "tank/vm1")["base"], Value::Null);
    assert_eq!((&shown["size"], &shown["referenced_bytes"]), (&wanted.len().into(), &0.into()), "{shown}");
    for (property, value) in [("compression", "lz4"), ("sector", "4kn")] {
        assert_eq!(daemon.run(&["get", "-H", "-o", "value", property, "tank/vm1"]).ok().out, format!("{value}\n"));
    }
    // a part first, in the middle of a chunk
    let socket = daemon.export("tank/vm1", "vm1.sock");
    let at = 10 << 20;
    let part = read(&socket, at + 4096, 8192).expect("read");
    assert!(part == wanted[at as usize + 4096..][..8192]);
    // a clone is written like any volume
    let mut nbd = crate::nbd::connect(&socket).expect("connect");
    nbd.write(at + (512 << 10), &[7; 4096]).expect("written");
    nbd.flush().expect("flush");
    let mut changed = wanted.clone();
    changed[at as usize + (512 << 10)..][..4096].fill(7);
    drop(nbd);
    assert!(read(&socket, at + (256 << 10), 512 << 10).expect("read") == changed[at as usize + (256 << 10)..][..512 << 10]);
    assert!(daemon.content("tank/vm1") == changed);
    // another clone of the same publication has the same base
    daemon.run(&["clone", &images, "tank/vm2"]).ok();
    assert_eq!(base_of(&daemon, "tank/vm2"), base);
    assert!(daemon.content("tank/vm2") == wanted);
    eventually("everything was kept", || {
        assert!(daemon.content("tank/vm2") == wanted);
        volume(&daemon, &base)["referenced_bytes"] == 2 << 20
    });
    fs::rename(source.path("images"), source.path("away")).expect("renamed");
    assert!(daemon.content("tank/vm1") == changed && daemon.content("tank/vm2") == wanted, "without the target");
}

#[test]
fn a_base_goes_after_its_clones_and_has_no_other_snapshots() {
    let source = filled();
    published(&source);
    let daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let base = base_of(&daemon, "tank/vm1");
    daemon.run(&["snapshot", "-r", "tank@all"]).ok();
    daemon.run(&["snapshot", "tank/*@each"]).ok();
    assert_eq!(each(&daemon.json(&["list", "-t", "snapshot", &base]), "name"), [format!("{base}@origin")]);
    daemon.run(&["snapshot", &format!("{base}@mine")]).refused(1, "cannot be changed");
    daemon.run(&["resize", &base, "+1G"]).refused(1, "cannot be changed");
    daemon.run(&["clone", &words(&source), "tank/vm1"]).refused(1, "exists already");
    daemon.run(&["destroy", "-r", &base, "-y"]).refused(1, "has clones (vm1)");
    daemon.run(&["destroy", "-r", "tank/vm1", "-y"]).ok();
    daemon.run(&["destroy", "-r", &base, "-y"]).ok();
    assert_eq!(daemon.json(&["list"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn reads_wait_for_a_target_that_is_away() {
    let source = filled();
    let wanted = published(&source);
    let daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let socket = daemon.export("tank/vm1", "vm1.sock");
    fs::rename(source.path("images"), source.path("away")).expect("renamed");
    let waiting = PLACES.map(|at| {
        let socket = socket.clone();
        thread::spawn(move || read(&socket, at, 64 << 10))
    });
    let problem = format!("reads of clones wait for {}, which does not answer", source.text("images"));
    eventually("the condition begins", || daemon.run(&["status", "--check"]).problems().contains(&problem));
    assert!(waiting.iter().all(|read| !read.is_finished()), "a read ended without its data");
    // an empty directory in its place is not the target
    fs::create_dir(source.path("images")).expect("made");
    thread::sleep(Duration::from_secs(2));
    assert!(waiting.iter().all(|read| !read.is_finished()), "a read ended without its data");
    fs::remove_dir(source.path("images")).expect("removed");
    fs::rename(source.path("away"), source.path("images")).expect("renamed");
    for (read, at) in waiting.into_iter().zip(PLACES) {
        assert!(read.join().expect("no panic").expect("read") == wanted[at as usize..][..64 << 10]);
    }
    eventually("the condition ends", || !daemon.run(&["status", "--check"]).problems().contains(&problem));
    // the process is replaced when it dies
    for pid in readers(&source) {
        assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().expect("kill runs").success());
    }
    assert!(daemon.content("tank/vm1") == wanted);
}

#[test]
fn an_export_and_its_volume_go_although_a_read_waits() {
    let source = filled();
    published(&source);
    let daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let base = base_of(&daemon, "tank/vm1");
    let socket = daemon.export("tank/vm1", "vm1.sock");
    fs::rename(source.path("images"), source.path("away")).expect("renamed");
    let waiting = thread::spawn(move || read(&socket, 0, 4096));
    let problem = format!("reads of clones wait for {}, which does not answer", source.text("images"));
    eventually("the condition begins", || daemon.run(&["status", "--check"]).problems().contains(&problem));
    daemon.run(&["unexport", "tank/vm1", "--force"]).ok();
    assert!(waiting.join().expect("no panic").is_err(), "a read got data from nowhere");
    daemon.run(&["destroy", "-R", &base, "-y"]).ok();
    eventually("the condition ends", || !daemon.run(&["status", "--check"]).problems().contains(&problem));
}

#[test]
fn a_daemon_that_ends_leaves_no_process_and_goes_on() {
    let source = filled();
    let wanted = published(&source);
    let mut daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let socket = daemon.export("tank/vm1", "vm1.sock");
    assert!(read(&socket, 0, 4096).expect("read") == wanted[..4096]);
    assert_eq!(readers(&source).len(), 1);
    daemon.stop("KILL");
    eventually("its process ends", || readers(&source).is_empty());
    daemon.restart();
    eventually("the export is back", || read(&socket, 256 << 10, 4096).is_ok_and(|part| part == wanted[256 << 10..][..4096]));
    // it stops while a read waits
    fs::rename(source.path("images"), source.path("away")).expect("renamed");
    let waiting = {
        let socket: PathBuf = socket.clone();
        thread::spawn(move || read(&socket, 10 << 20, 4096))
    };
    thread::sleep(Duration::from_millis(500));
    assert_eq!(daemon.stop("TERM"), 0);
    assert!(waiting.join().expect("no panic").is_err(), "a read got data from nowhere");
    assert_eq!(readers(&source), Vec::<String>::new());
    fs::rename(source.path("away"), source.path("images")).expect("renamed");
    daemon.restart();
    assert!(daemon.content("tank/vm1") == wanted);
}

#[test]
fn a_damaged_chunk_is_an_error_until_it_is_repaired() {
    let source = filled();
    let wanted = published(&source);
    for file in data(&source) {
        fs::File::options().write(true).open(file).expect("opened").write_all_at(b"rot", 5000).expect("written");
    }
    let daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let socket = daemon.export("tank/vm1", "vm1.sock");
    assert!(read(&socket, 0, 4096).is_err());
    // the rest can be read
    assert_eq!(read(&socket, 5 << 20, 4096).expect("read"), [0; 4096]);
    let events = daemon.run(&["events"]).ok().out;
    assert!(events.contains("volume.unreadable") && events.contains("publish tank/gold@v1 again to repair it"), "{events}");
    assert_eq!(source.run(&["pool", "publications", "images", "--verify"]).code, 1);
    done(&source, &["pool", "publish", "tank/gold@v1", "images"]);
    assert!(read(&socket, 0, 4096).expect("read") == wanted[..4096]);
    assert!(daemon.content("tank/vm1") == wanted);
    // one that is missing
    daemon.run(&["clone", &words(&source), "tank/vm2"]).ok();
    assert!(daemon.content("tank/vm2") == wanted);
}

#[test]
fn a_publication_that_clones_read_is_not_deleted() {
    let source = filled();
    let wanted = published(&source);
    let head = || fs::read_to_string(source.path("images/millpond-publications.json")).expect("a head");
    assert!(head().contains("\"format\":1,"));
    let daemon = able();
    daemon.run(&["clone", "-n", &words(&source), "tank/vm1"]).ok();
    assert!(head().contains("\"format\":1,"), "a dry run wrote to the target");
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    // older programs, which know no pins, refuse the target
    assert!(head().contains("\"format\":2,"));
    let socket = daemon.export("tank/vm1", "vm1.sock");
    assert!(read(&socket, 0, 4096).expect("read") == wanted[..4096]);
    for dry in ["-n", "-y"] {
        source.run(&["pool", "unpublish", "images#gold@v1", dry]).refused(1, "clones in pool 'tank' of host");
    }
    done(&source, &["pool", "unpublish", "images"]);
    done(&source, &["clone", "--full", "images#gold@v1", "tank/copy"]);
    done(&source, &["pool", "unpublish", "images#gold@v1", "-y", "--force"]);
    assert!(
        !source
            .path("images/pins")
            .read_dir()
            .expect("a directory")
            .any(|publication| { publication.expect("an entry").path().read_dir().expect("a directory").next().is_some() })
    );
    // nobody waits for what is gone for good
    assert!(read(&socket, 10 << 20, 4096).is_err());
    assert!(daemon.run(&["events"]).ok().out.contains("volume.unreadable"));
}

#[test]
fn reads_go_on_from_the_new_address_of_a_target_that_moved() {
    let source = filled();
    let wanted = published(&source);
    let mut daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let base = base_of(&daemon, "tank/vm1");
    let socket = daemon.export("tank/vm1", "vm1.sock");
    fs::rename(source.path("images"), source.path("new")).expect("renamed");
    // the note of the pool got lost with the move
    fs::remove_dir_all(source.path("new/pins")).expect("removed");
    let waiting = PLACES.map(|at| {
        let socket = socket.clone();
        thread::spawn(move || read(&socket, at, 64 << 10))
    });
    let problem = format!("reads of clones wait for {}, which does not answer", source.text("images"));
    eventually("the condition begins", || daemon.run(&["status", "--check"]).problems().contains(&problem));
    let [old, new] = ["images", "new"].map(|dir| format!("{}#tank/gold@v1", source.text(dir)));
    let planned = daemon.run(&["rebase", "-n", "--to", &source.text("new"), &base]).ok().out;
    assert_eq!(planned, format!("would fetch the blocks of {base} from {new}, not from {old}\n"));
    done(&source, &["pool", "unpublish", "-n", "new#gold@v1"]);
    assert!(waiting.iter().all(|read| !read.is_finished()), "a dry run moved it");
    daemon.run(&["rebase", "--to", &source.text("new"), "tank/publication-*"]).ok();
    for (read, at) in waiting.into_iter().zip(PLACES) {
        assert!(read.join().expect("no panic").expect("read") == wanted[at as usize..][..64 << 10]);
    }
    eventually("the condition ends", || !daemon.run(&["status", "--check"]).problems().contains(&problem));
    source.run(&["pool", "unpublish", "-n", "new#gold@v1"]).refused(1, "clones in pool 'tank' of host");
    assert_eq!(volume(&daemon, &base)["base"]["target"], source.text("new"));
    let events = daemon.run(&["events"]).ok().out;
    assert!(events.contains(&format!("volume changed: {base} base={}", source.text("new"))), "{events}");
    // after a restart, too
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert!(daemon.content("tank/vm1") == wanted);
    // a clone from the new address has the same base
    daemon.run(&["clone", &new, "tank/vm2"]).ok();
    assert_eq!(base_of(&daemon, "tank/vm2"), base);
}

#[test]
fn a_base_moves_only_to_the_same_publication() {
    let source = filled();
    published(&source);
    let daemon = able();
    daemon.run(&["clone", &words(&source), "tank/vm1"]).ok();
    let base = base_of(&daemon, "tank/vm1");
    let before = volume(&daemon, &base)["base"].clone();
    let other = filled();
    published(&other);
    let pins = || crate::publications::files(&other.path("images/pins")).len();
    daemon.run(&["rebase", "--to", &other.text("images"), &base]).refused(1, "is another publication than that of");
    assert_eq!(pins(), 0, "a target that is refused was noted");
    fs::create_dir(daemon.path("empty")).expect("made");
    daemon.run(&["rebase", "--to", "empty", &base]).refused(1, &format!("cannot change the target of '{base}'"));
    daemon.run(&["rebase", "--to", &daemon.text("nowhere"), &base]).refused(1, "give a directory that exists");
    daemon.run(&["rebase", "--to", &source.text("images"), "tank/vm1"]).refused(1, "this volume is no base");
    daemon.run(&["rebase", "--to", &source.text("images"), "tank/none"]).refused(1, "no volume 'tank/none'");
    assert_eq!(volume(&daemon, &base)["base"], before);
    // the address that it has
    daemon.run(&["rebase", "--to", &source.text("images"), &base]).ok();
    assert_eq!(volume(&daemon, &base)["base"], before);
}
