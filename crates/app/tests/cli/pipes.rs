//! Images through pipes: `export-image NAME -` and `import-image - NAME`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
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

/// Runs an import of these bytes from a pipe.
fn import(daemon: &Daemon, bytes: &[u8], words: &[&str]) -> Ended {
    let mut child = on(daemon, &[&["import-image", "-"], words].concat());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut pipe = child.stdin.take().expect("piped");
    std::thread::scope(|scope| {
        // an import that fails does not read everything
        scope.spawn(move || pipe.write_all(bytes).unwrap_or_default());
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    })
}

/// The content of a volume or snapshot.
fn content(daemon: &Daemon, name: &str) -> Vec<u8> {
    let output = on(daemon, &["export-image", name, "-"]).stderr(Stdio::null()).output().expect("it runs");
    assert!(output.status.success());
    output.stdout
}

#[test]
fn an_import_goes_through_a_pipe_with_any_length() {
    let (daemon, bytes) = filled();
    let mut names = vec!["tank/v".to_owned()];
    // the last: longer than the first bytes that are looked at
    for length in [1, 511, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, (24 << 20) - 5000] {
        let name = format!("tank/v{length}");
        let mut wanted = bytes[bytes.len() - length..].to_vec();
        let ended = import(&daemon, &wanted, &[&name, "-o", "compression=lz4"]);
        assert!(ended.code == 0 && ended.err.contains(&format!("import {name}: done, ")), "{ended:?}");
        wanted.resize(length.next_multiple_of(4096), 0);
        assert!(content(&daemon, &name) == wanted, "{length} bytes differ");
        let listed = daemon.json(&["list", &name]);
        assert_eq!(listed[0]["size"].as_u64(), Some(wanted.len() as u64));
        names.push(name);
    }
    let listed = daemon.json(&["list", "tank/v25160824"]);
    assert!(listed[0]["referenced_bytes"].as_u64().is_some_and(|held| held < 4 << 20), "zeroes were written: {listed}");
    assert_eq!(daemon.run(&["get", "-H", "-o", "value", "compression", "tank/v1"]).ok().out, "lz4\n");
    let ended = import(&daemon, &bytes, &["tank/w", "--size", "24M", "-o", "readonly=on"]);
    assert!(ended.code == 0 && ended.err.contains("done, 24M, "), "{ended:?}");
    assert!(content(&daemon, "tank/w") == bytes);
    assert_eq!(daemon.json(&["get", "readonly", "tank/w"])[0]["value"].as_bool(), Some(true));
    names.push("tank/w".to_owned());
    names.sort();
    only(&daemon, &names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Zeroes, of which nothing is kept, make the volume grow.
#[test]
fn a_volume_grows_while_bytes_come() {
    let daemon = Daemon::with_pool();
    let mut child = on(&daemon, &["import-image", "-", "tank/v"]);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
    let mut pipe = child.stdin.take().expect("piped");
    let zeroes = vec![0; 1 << 20];
    for n in 0..300u64 {
        if n == 280 {
            pipe.write_all(&vec![7; 1 << 20]).expect("written");
        }
        pipe.write_all(&zeroes).expect("written");
    }
    pipe.write_all(b"end").expect("written");
    drop(pipe);
    assert!(child.wait().expect("it ends").success());
    let listed = daemon.json(&["list", "tank/v"]);
    assert_eq!(listed[0]["size"].as_u64(), Some((301 << 20) + 4096));
    assert!(listed[0]["referenced_bytes"].as_u64().is_some_and(|held| held < 2 << 20), "zeroes were written: {listed}");
    let bytes = content(&daemon, "tank/v");
    assert!(bytes[280 << 20..281 << 20].iter().all(|byte| *byte == 7) && bytes[(301 << 20)..].starts_with(b"end\0"));
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), (1 << 20) + 3);
    only(&daemon, &["tank/v"]);
}

#[test]
fn what_standard_input_cannot_be_is_refused() {
    let daemon = Daemon::with_pool();
    let refused = |bytes: &[u8], words: &[&str], code, word: &str| {
        import(&daemon, bytes, &[&["tank/v"], words].concat()).refused(code, word);
        only(&daemon, &[]);
    };
    refused(b"", &[], 2, "standard input is empty");
    refused(b"x", &["--size", "0"], 2, "--size");
    refused(b"x", &["--verify"], 2, "--verify");
    refused(b"x", &["-n"], 2, "--dry-run");
    refused(b"x", &["-f", "qcow2"], 2, "save it to a file");
    refused(b"QFI\xfb\0\0\0\x03", &[], 2, "an image of format qcow2 cannot be read from standard input");
    refused(b"x", &["--sector", "520"], 2, "not a sector profile");
    refused(&[7; 5000], &["--size", "4096"], 1, "more than the 4096 bytes of --size");
    refused(&[7; 5000], &["--size", "8192"], 1, "ended after 5000 bytes");
    refused(&vec![7; 3 << 20], &["--size", "2M"], 1, "more than the 2097152 bytes of --size");
    refused(&vec![7; 2 << 20], &["--size", "3M"], 1, "ended after 2097152 bytes");
    // within the last block
    refused(&vec![7; (2 << 20) + 9], &["--size", "2097160"], 1, "more than the 2097160 bytes of --size");
    daemon.run(&["import-image", "none.raw", "tank/v", "--size", "1M"]).refused(2, "--size");
    // it is a raw disk if the user says so
    assert_eq!(import(&daemon, b"QFI\xfb\0\0\0\x03", &["tank/v", "-f", "raw"]).code, 0);
    assert!(content(&daemon, "tank/v").starts_with(b"QFI\xfb"));
    import(&daemon, b"x", &["tank/v"]).refused(1, "exists already");
    let mut script = Command::new("script");
    script.args(["-qec", &format!("{} import-image - tank/w", env!("CARGO_BIN_EXE_millpond")), "/dev/null"]);
    let output = script.env("MILLPOND_SOCKET", daemon.socket()).stdin(Stdio::null()).output();
    let Ok(output) = output else { return println!("SKIPPED: script(1) is not installed") };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(2) && text.contains("standard input is a terminal"), "{text}");
    only(&daemon, &["tank/v"]);
}

/// Sectors are found also where the first bytes do not show them.
#[test]
fn sectors_of_a_stream_are_found() {
    let daemon = Daemon::with_pool();
    let sector = |name: &str| daemon.run(&["get", "-H", "-o", "value", "sector", name]).ok().out;
    let fat = |disk: &mut [u8], sector: u16| {
        disk[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
        disk[11..13].copy_from_slice(&sector.to_le_bytes());
        disk[13] = 1;
        disk[16] = 2;
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    };
    let mut disk = vec![0; 4 << 20];
    fat(&mut disk, 4096);
    let refused = import(&daemon, &disk, &["tank/v", "--sector", "512e"]).refused(1, "--sector 4kn");
    assert!(!refused.err.contains("may be left"));
    only(&daemon, &[]);
    let ended = import(&daemon, &disk, &["tank/v"]);
    assert!(ended.code == 0 && ended.err.contains("4096-byte sectors"), "{ended:?}");
    assert_eq!(sector("tank/v"), "4kn\n");

    // a master boot record with a partition at 8 MiB, if its sectors have 4096 bytes
    let mut disk = vec![0; 12 << 20];
    disk[446..462].copy_from_slice(&[0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fat(&mut disk[8 << 20..], 4096);
    let ended = import(&daemon, &disk, &["tank/late"]);
    assert!(ended.code == 0 && ended.err.contains("4096-byte sectors"), "{ended:?}");
    assert_eq!(sector("tank/late"), "4kn\n");
    assert!(content(&daemon, "tank/late") == disk);
    import(&daemon, &disk, &["tank/w", "--sector", "512e"]).refused(1, "--sector 4kn");
    // its partition ends beyond its end: the stream was cut off
    import(&daemon, &disk[..(9 << 20) - 1], &["tank/w"]).refused(1, "it is truncated");
    only(&daemon, &["tank/late", "tank/v"]);
}

/// Starts an import from a pipe to which `first` is written, and returns its other end.
fn begin_import(daemon: &Daemon, first: &[u8], words: &[&str]) -> (Running, std::process::ChildStdin) {
    let mut command = on(daemon, &[&["import-image", "-"], words].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut running = Running(command.spawn().expect("the program starts"));
    let mut pipe = running.0.stdin.take().expect("piped");
    pipe.write_all(first).expect("written");
    (running, pipe)
}

/// Whether a process catches SIGINT.
pub fn catches(running: &Running) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", running.0.id())).expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line");
    u64::from_str_radix(caught.trim(), 16).expect("a number") & 2 != 0
}

#[test]
fn an_import_from_a_writer_that_does_not_write_can_be_interrupted() {
    let daemon = Daemon::with_pool();
    for first in [0, 100, 3 << 20] {
        let (running, _pipe) = begin_import(&daemon, &vec![7; first], &["tank/v"]);
        eventually("the import waits", || catches(&running));
        let removed = first > 1 << 20;
        if removed {
            eventually("the volume of the import", || each(&daemon.json(&["list"]), "name") == ["tank/importing-v"]);
        }
        running.signal("INT");
        let left = if removed { "interrupted; the incomplete result is removed" } else { "interrupted; nothing was made" };
        ended(running).refused(1, left);
        only(&daemon, &[]);
    }
}

#[test]
fn an_import_that_does_not_fit_leaves_nothing() {
    let daemon = Daemon::with_pool();
    import(&daemon, &vec![0x5a; 600 << 20], &["tank/v"]).one_line(1, "tank/v is full");
    only(&daemon, &[]);
}

#[test]
fn an_import_whose_daemon_is_gone_names_what_is_left() {
    let (mut daemon, bytes) = filled();
    let (running, mut pipe) = begin_import(&daemon, &vec![7; 3 << 20], &["tank/w"]);
    eventually("the volume of the import", || daemon.json(&["exports"]).as_array().is_some_and(|exports| !exports.is_empty()));
    assert_eq!(daemon.stop("KILL"), -1);
    // the pipe is closed when the import has ended
    while pipe.write_all(&[7; 4096]).is_ok() {}
    ended(running).one_line(1, "the incomplete volume 'tank/importing-w' may be left");
    daemon.restart();
    import(&daemon, &bytes, &["tank/w"]).refused(1, "--restart");
    assert_eq!(import(&daemon, &bytes, &["tank/w", "--restart"]).code, 0);
    assert!(content(&daemon, "tank/w") == bytes);
    only(&daemon, &["tank/v", "tank/w"]);
}
