//! Images through pipes: `export-image NAME -`.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::harness::{Daemon, Ended, Running, command, each, eventually, run};

/// A command on this daemon.
fn on(daemon: &Daemon, words: &[&str]) -> Command {
    let mut command = command(words);
    command.env("MILLPOND_SOCKET", daemon.socket()).current_dir(daemon.path(""));
    command
}

/// Starts a command in a process group of its own, with its standard output and error at hand.
fn begin(daemon: &Daemon, words: &[&str]) -> Running {
    let mut command = on(daemon, words);
    Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().expect("the program starts"))
}

/// Waits for the end and returns what is on standard error.
fn ended(mut running: Running) -> Ended {
    let mut err = String::new();
    let mut pipe = running.0.stderr.take().expect("piped");
    let code = running.wait();
    pipe.read_to_string(&mut err).expect("read");
    Ended { code, out: String::new(), err }
}

/// Asserts that no snapshot, export or volume is there but these.
fn only(daemon: &Daemon, names: &[&str]) {
    assert_eq!(each(&daemon.json(&["list", "-t", "all"]), "name"), names);
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(0));
}

/// A pool with a volume `tank/v` of data, zeroes and holes, and its content.
fn filled() -> (Daemon, Vec<u8>) {
    let daemon = Daemon::with_pool();
    let file = File::create_new(daemon.path("in.raw")).expect("made");
    file.set_len(24 << 20).expect("sized");
    let data: Vec<u8> = (0..700_000u32).flat_map(|n| n.to_le_bytes()).collect();
    file.write_all_at(&data, 5 << 20).expect("written");
    file.write_all_at(&[7; 300], (24 << 20) - 300).expect("written");
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v"]).code, 0);
    let bytes = fs::read(daemon.path("in.raw")).expect("read");
    (daemon, bytes)
}

#[test]
fn an_export_goes_through_a_pipe() {
    let (daemon, bytes) = filled();
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    for name in ["tank/v", "tank/v@a"] {
        let output = on(&daemon, &["export-image", name, "-"]).output().expect("it runs");
        assert!(output.status.success() && output.stdout == bytes, "{name}: what came out differs");
        let err = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(err.contains("done, 24M, ") && err.lines().all(|line| line.contains("export tank/v")), "{err}");
    }
    // a file that is truncated gets holes; old content that stays is overwritten, with zeroes too
    let into = |file: File| {
        let mut command = on(&daemon, &["export-image", "tank/v@a", "-", "-f", "raw"]);
        assert!(command.stdout(file).stderr(Stdio::null()).status().expect("it runs").success());
    };
    into(File::create(daemon.path("out.raw")).expect("made"));
    assert!(fs::read(daemon.path("out.raw")).expect("read") == bytes, "the file differs");
    assert!(fs::metadata(daemon.path("out.raw")).expect("there").blocks() * 512 < 6 << 20, "zeroes were written");
    fs::write(daemon.path("old.raw"), vec![9; 25 << 20]).expect("written");
    into(OpenOptions::new().write(true).open(daemon.path("old.raw")).expect("opened"));
    let old = fs::read(daemon.path("old.raw")).expect("read");
    assert!(old[..24 << 20] == bytes && old[24 << 20..].iter().all(|byte| *byte == 9), "old content is left");
    // the word is standard output; such a file has a longer name
    assert_eq!(daemon.run(&["export-image", "tank/v@a", "./-"]).code, 0);
    assert!(fs::read(daemon.path("-")).expect("read") == bytes);
    only(&daemon, &["tank/v", "tank/v@a"]);
}

#[test]
fn what_standard_output_cannot_be_is_refused() {
    let (daemon, _) = filled();
    let refused = |words: &[&str], word: &str| {
        daemon.run(&[&["export-image", "tank/v", "-"], words].concat()).refused(2, word);
        only(&daemon, &["tank/v"]);
    };
    refused(&["-f", "qcow2"], "format qcow2 cannot be written to standard output");
    refused(&["-f", "vmdk"], "give a file, or -f raw");
    refused(&["--verify"], "--verify");
    refused(&["--snapshots"], "--snapshots");
    let mut script = Command::new("script");
    script.args(["-qec", &format!("{} export-image tank/v -", env!("CARGO_BIN_EXE_millpond")), "/dev/null"]);
    let output = script.env("MILLPOND_SOCKET", daemon.socket()).stdin(Stdio::null()).output();
    let Ok(output) = output else { return println!("SKIPPED: script(1) is not installed") };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(2) && text.contains("standard output is a terminal"), "{text}");
    only(&daemon, &["tank/v"]);
}

#[test]
fn a_reader_that_ends_early_ends_an_export() {
    let (daemon, bytes) = filled();
    let mut running = begin(&daemon, &["export-image", "tank/v", "-"]);
    let mut first = vec![0; 6 << 20];
    running.0.stdout.take().expect("piped").read_exact(&mut first).expect("read");
    assert!(first == bytes[..6 << 20]);
    ended(running).refused(1, "standard output was closed");
    only(&daemon, &["tank/v"]);
    // a device that is full
    let mut command = on(&daemon, &["export-image", "tank/v", "-"]);
    command.stdout(OpenOptions::new().write(true).open("/dev/full").expect("opened"));
    let full = run(command).refused(1, "cannot write to standard output");
    assert!(full.err.contains("No space left"), "{full:?}");
}

#[test]
fn an_export_to_a_reader_that_does_not_read_can_be_interrupted() {
    let (daemon, _) = filled();
    let running = begin(&daemon, &["export-image", "tank/v", "-"]);
    eventually("the export is under way", || daemon.json(&["exports"]).as_array().is_some_and(|exports| !exports.is_empty()));
    running.signal("INT");
    // its standard output stays open, and is full
    ended(running).refused(1, "interrupted; what was written to standard output is incomplete");
    only(&daemon, &["tank/v"]);
}

#[test]
fn an_export_whose_daemon_is_gone_fails_and_names_what_is_left() {
    let mut daemon = Daemon::with_pool();
    // more than is read ahead
    fs::write(daemon.path("in.raw"), vec![7; 96 << 20]).expect("written");
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v"]).code, 0);
    let mut running = begin(&daemon, &["export-image", "tank/v", "-"]);
    let mut out = running.0.stdout.take().expect("piped");
    out.read_exact(&mut [0; 4096]).expect("read");
    assert_eq!(daemon.stop("KILL"), -1);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("read");
    assert!(rest.len() < 90 << 20);
    let failed = ended(running).refused(1, "cannot read tank/v@export-");
    assert!(failed.err.contains("the snapshot 'tank/v@export-") && failed.err.contains("may be left"), "{failed:?}");
}
