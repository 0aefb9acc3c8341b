//! Import and export of images without other programs: raw images, and requests that are refused
//! before anything is read.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::harness::{Daemon, each, eventually};

/// Makes a file with data, zeroes and holes; returns its content.
fn image(daemon: &Daemon, name: &str, size: u64) -> Vec<u8> {
    let file = fs::File::create_new(daemon.path(name)).expect("made");
    file.set_len(size).expect("sized");
    let data: Vec<u8> = (0..70_000u32).flat_map(|n| n.to_le_bytes()).collect();
    file.write_all_at(&data, 5 << 20).expect("written");
    file.write_all_at(&[0; 9000], 1 << 20).expect("written");
    file.write_all_at(&[7; 300], size - 300).expect("written");
    fs::read(daemon.path(name)).expect("read")
}

#[test]
fn a_raw_image_goes_in_and_out() {
    let daemon = Daemon::with_pool();
    let odd = (20 << 20) + 1537;
    let mut bytes = image(&daemon, "in.raw", odd);
    let ended = daemon.run(&["import-image", "in.raw", "tank/v", "--verify", "-o", "compression=lz4"]);
    // the result is reported, not only the start
    let lines: Vec<&str> = ended.err.lines().collect();
    let size = "20.00M";
    let wanted = |line: &str, what: &str| line.starts_with(&format!("{what} tank/v: done, {size}")) && line.ends_with(" s");
    assert!(ended.code == 0 && lines.len() >= 2, "{ended:?}");
    assert!(lines.iter().any(|line| wanted(line, "import") && line.contains("K of data")), "{ended:?}");
    assert!(lines.last().is_some_and(|line| wanted(line, "verify") && line.contains("no difference")), "{ended:?}");
    let listed = daemon.json(&["list", "tank/v"]);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    assert_eq!((listed[0]["size"].as_u64(), listed[0]["snapshots"].as_u64()), (Some(bytes.len() as u64), Some(0)));
    assert!(listed[0]["referenced_bytes"].as_u64().is_some_and(|held| held < 1 << 20), "zeroes were written: {listed}");
    assert_eq!(daemon.run(&["get", "-H", "-o", "value", "compression", "tank/v"]).ok().out, "lz4\n");
    assert_eq!(daemon.run(&["export-image", "tank/v", "out.raw", "--verify"]).code, 0);
    assert!(fs::read(daemon.path("out.raw")).expect("read") == bytes, "what came back differs");
    assert!(fs::metadata(daemon.path("out.raw")).expect("there").blocks() * 512 < 2 << 20, "holes were written");

    // a snapshot is exported, and an existing file is not overwritten
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    daemon.run(&["export-image", "tank/v@a", "out.raw"]).refused(1, "--force");
    assert_eq!(daemon.run(&["export-image", "tank/v@a", "out.raw", "--force"]).code, 0);
    assert!(fs::read(daemon.path("out.raw")).expect("read") == bytes, "the snapshot differs");
    assert_eq!(each(&daemon.json(&["list", "-t", "all"]), "name"), ["tank/v", "tank/v@a"]);
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
    assert!(!daemon.path("out.raw.part").exists());
}

#[test]
fn an_import_that_is_killed_is_named_incomplete() {
    let daemon = Daemon::with_pool();
    image(&daemon, "in.raw", 24 << 20);
    fs::write(daemon.path("slow.raw"), vec![9; 24 << 20]).expect("written");
    let planned = daemon.run(&["import-image", "-n", "in.raw", "tank/v"]);
    assert!(planned.code == 0 && planned.out.contains("would create tank/v with --sector 512e and 0 snapshots"), "{planned:?}");
    assert!(planned.out.contains("24M") && daemon.json(&["list"]).as_array().is_some_and(Vec::is_empty), "{planned:?}");

    let mut running = daemon.begin(&["import-image", "slow.raw", "tank/v", "-o", "bps=1M"]);
    eventually("the volume of the import", || each(&daemon.json(&["list"]), "name") == ["tank/importing-v"]);
    running.signal("KILL");
    running.wait();
    daemon.run(&["import-image", "in.raw", "tank/v"]).refused(1, "incomplete volume 'tank/importing-v'");
    daemon.run(&["import-image", "in.raw", "tank/importing-v"]).refused(2, "incomplete volumes");
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v", "--restart", "-o", "readonly=on"]).code, 0);
    assert_eq!(daemon.json(&["get", "readonly", "tank/v"])[0]["value"].as_bool(), Some(true));
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/v"]);
    daemon.run(&["import-image", "in.raw", "tank/v"]).refused(1, "exists already");
    daemon.run(&["import-image", "-n", "in.raw", "tank/v"]).refused(1, "exists already");
}

#[test]
fn what_cannot_be_imported_leaves_nothing() {
    let daemon = Daemon::with_pool();
    image(&daemon, "in.raw", 8 << 20);
    let refused = |words: &[&str], code, word: &str| {
        daemon.run(&[&["import-image"], words].concat()).refused(code, word);
        assert_eq!(daemon.json(&["list"]).as_array().map(Vec::len), Some(0), "{words:?}");
    };
    refused(&["none.raw", "tank/v"], 1, "cannot open");
    refused(&["run", "tank/v"], 1, "neither a file nor");
    refused(&["in.raw", "none/v"], 1, "no pool 'none'");
    refused(&["in.raw", "tank/v", "-f", "zip"], 2, "not a format");
    refused(&["in.raw", "tank/v", "-f", "qcow2"], 1, "it is not qcow2");
    refused(&["in.raw", "tank/v", "--sector", "520"], 2, "not a sector profile");
    fs::write(daemon.path("cut.qcow2"), b"QFI\xfb\0\0\0\x03").expect("written");
    refused(&["cut.qcow2", "tank/v"], 1, "truncated");
    // an image that is larger than the pool
    let large = fs::File::create_new(daemon.path("large.raw")).expect("made");
    for at in (0..600u64 << 20).step_by(1 << 20) {
        large.write_all_at(&[0x5a; 1 << 20], at).expect("written");
    }
    daemon.run(&["import-image", "large.raw", "tank/v"]).one_line(1, "is full");
    assert_eq!(daemon.json(&["list"]).as_array().map(Vec::len), Some(0));
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn sectors_are_found_told_and_changed() {
    let daemon = Daemon::with_pool();
    let mut disk = vec![0; 4 << 20];
    disk[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    disk[11..14].copy_from_slice(&[0, 16, 1]);
    disk[16] = 2;
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(daemon.path("fat.raw"), disk).expect("written");
    daemon.run(&["import-image", "fat.raw", "tank/v", "--sector", "512e"]).refused(1, "--sector 4kn");
    let ended = daemon.run(&["import-image", "fat.raw", "tank/v"]);
    assert!(ended.code == 0 && ended.err.contains("4096-byte sectors"), "{ended:?}");
    let sector = |name: &str| daemon.run(&["get", "-H", "-o", "value", "sector", name]).ok().out;
    assert_eq!(sector("tank/v"), "4kn\n");

    daemon.run(&["create", "tank/w", "-L", "16M"]).ok();
    assert!(daemon.run(&["convert-sectors", "tank/w", "4kn", "-n"]).out.contains("nothing is changed"));
    assert_eq!(sector("tank/w"), "512e\n");
    daemon.export("tank/w", "w.sock");
    daemon.run(&["convert-sectors", "tank/w", "4kn"]).refused(1, "it is exported");
    daemon.run(&["unexport", "1"]);
    let id = daemon.json(&["exports"]);
    for export in id.as_array().expect("a list") {
        daemon.run(&["unexport", &export["id"].to_string()]).ok();
    }
    let ended = daemon.run(&["convert-sectors", "tank/w", "4kn"]);
    assert!(ended.code == 0 && ended.out.contains("4kn now"), "{ended:?}");
    assert_eq!(sector("tank/w"), "4kn\n");
    assert!(each(&daemon.json(&["list", "-t", "snapshot"]), "name")[0].starts_with("tank/w@pre-convert-"));
    daemon.run(&["convert-sectors", "tank/w", "1k"]).refused(2, "not a sector profile");
}
