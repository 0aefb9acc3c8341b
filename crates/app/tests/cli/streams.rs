//! `send` and `receive`: snapshots between pools, cut at every place, and what protects them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use millpond_testing::Random;

use crate::harness::{Daemon, Ended, each, eventually};

const SIZE: u64 = 32 << 20;

/// Starts a daemon with the pools `tank` and `other`, and `tank/v` with two snapshots `a` and `b`.
fn filled() -> Daemon {
    let daemon = Daemon::with_pool();
    let file = fs::File::create_new(daemon.path("in.raw")).expect("made");
    file.set_len(SIZE).expect("sized");
    let mut random = Random::new(1);
    for at in [0, 10 << 20, 30 << 20] {
        file.write_all_at(&random.bytes(2 << 20), at).expect("written");
    }
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v", "-o", "compression=lz4", "-o", "cache=none"]).code, 0);
    daemon.run(&["snapshot", "tank/v@a", "--description", "the first"]).ok();
    change(&daemon, "tank/v", 2);
    daemon.run(&["snapshot", "tank/v@b"]).ok();
    let device = format!("{}:256M", daemon.text("other.img"));
    daemon.run(&["pool", "create", "other", &device]).ok();
    daemon
}

/// Writes data and zeroes to a volume.
fn change(daemon: &Daemon, name: &str, seed: u64) {
    let socket = daemon.export(name, "change.sock");
    let mut nbd = crate::nbd::connect(&socket).expect("connect");
    nbd.write(1 << 20, &Random::new(seed).bytes(300_000 / 4096 * 4096)).expect("write");
    nbd.write_zeroes(10 << 20, 1 << 20).expect("write zeroes");
    nbd.flush().expect("flush");
    drop(nbd);
    daemon.run(&["unexport", name, "--force"]).ok();
}

/// Sends into a file.
fn send(daemon: &Daemon, name: &str, file: &str) {
    let _ = fs::remove_file(daemon.path(file));
    assert_eq!(daemon.run(&["send", name, "--to", file]).code, 0, "{name}");
}

fn receive(daemon: &Daemon, name: &str, file: &str) -> Ended {
    daemon.run(&["receive", name, "--from", file])
}

/// Parts after `@` of the names of a volume's snapshots.
fn snapshots(daemon: &Daemon, name: &str) -> Vec<String> {
    let listed = daemon.json(&["list", "-t", "snapshot", name]);
    each(&listed, "name").into_iter().map(|name| name.rsplit_once('@').expect("a snapshot").1.to_owned()).collect()
}

fn no_exports(daemon: &Daemon) {
    assert!(daemon.json(&["exports"]).as_array().is_some_and(Vec::is_empty), "an export is left");
}

fn cut(path: &Path, part: (u64, u64)) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("opened");
    let length = file.metadata().expect("a length").len();
    file.set_len(length * part.0 / part.1).expect("cut");
}

#[test]
fn snapshots_come_with_content_names_times_and_properties() {
    let daemon = filled();
    send(&daemon, "tank/v@%", "all");
    assert_eq!(receive(&daemon, "other/w", "all").code, 0);
    let (sent, received) = (daemon.json(&["list", "-t", "snapshot", "tank/v"]), daemon.json(&["list", "-t", "snapshot", "other/w"]));
    for (one, other) in sent.as_array().expect("a list").iter().zip(received.as_array().expect("a list")) {
        assert_eq!(one["created"], other["created"]);
        assert_eq!(one["referenced_bytes"], other["referenced_bytes"], "zeroes were written");
    }
    for snapshot in ["a", "b"] {
        assert!(daemon.content(&format!("tank/v@{snapshot}")) == daemon.content(&format!("other/w@{snapshot}")), "{snapshot} differs");
    }
    assert!(daemon.content("other/w") == daemon.content("tank/v@b"));
    assert!(daemon.run(&["show", "other/w@a"]).ok().out.contains("the first"));
    for (property, value) in [("compression", "lz4"), ("cache", "none"), ("sector", "512e")] {
        assert_eq!(daemon.run(&["get", "-H", "-o", "value", property, "other/w"]).ok().out, format!("{value}\n"));
    }
    // all of it again changes nothing
    let again = receive(&daemon, "other/w", "all");
    assert!(again.code == 0 && again.err.contains("2 snapshots of the stream were there"), "{again:?}");
    assert_eq!(snapshots(&daemon, "other/w"), ["a", "b"]);
    no_exports(&daemon);
    assert_eq!(daemon.json(&["list", "-t", "snapshot", "tank/v"])[0]["holds"], 0, "a hold is left");
}

#[test]
fn changes_go_there_and_back() {
    let daemon = filled();
    send(&daemon, "tank/v@a", "whole");
    assert_eq!(receive(&daemon, "other/w", "whole").code, 0);
    assert_eq!(snapshots(&daemon, "other/w"), ["a"]);
    daemon.run(&["resize", "tank/v", "40M"]).ok();
    change(&daemon, "tank/v", 3);
    daemon.run(&["snapshot", "tank/v@c"]).ok();
    send(&daemon, "tank/v@a%c", "changes");
    let length = |file: &str| fs::metadata(daemon.path(file)).expect("a file").len();
    assert!(length("changes") < length("whole") / 4, "{} of {}", length("changes"), length("whole"));
    assert_eq!(receive(&daemon, "other/w", "changes").code, 0);
    assert_eq!(snapshots(&daemon, "other/w"), ["a", "b", "c"]);
    for snapshot in ["b", "c"] {
        assert!(daemon.content(&format!("tank/v@{snapshot}")) == daemon.content(&format!("other/w@{snapshot}")), "{snapshot} differs");
    }
    assert_eq!(daemon.json(&["list", "other/w"])[0]["size"], 40 << 20);
    // work goes on over there, and its changes come back
    change(&daemon, "other/w", 4);
    daemon.run(&["snapshot", "other/w@d"]).ok();
    send(&daemon, "other/w@c%d", "back");
    assert_eq!(receive(&daemon, "tank/v", "back").code, 0);
    assert!(daemon.content("tank/v") == daemon.content("other/w@d"));
    // a third pool takes it from either
    send(&daemon, "other/w@%", "third");
    let device = format!("{}:256M", daemon.text("third.img"));
    daemon.run(&["pool", "create", "third", &device]).ok();
    assert_eq!(receive(&daemon, "third/x", "third").code, 0);
    change(&daemon, "tank/v", 5);
    daemon.run(&["snapshot", "tank/v@e"]).ok();
    send(&daemon, "tank/v@d%", "last");
    assert_eq!(receive(&daemon, "third/x", "last").code, 0);
    assert!(daemon.content("third/x@e") == daemon.content("tank/v@e"));
}

#[test]
fn a_volume_that_was_written_keeps_what_was_written() {
    let daemon = filled();
    send(&daemon, "tank/v@a", "whole");
    send(&daemon, "tank/v@a%b", "changes");
    assert_eq!(receive(&daemon, "other/w", "whole").code, 0);
    change(&daemon, "other/w", 9);
    let written = daemon.content("other/w");
    receive(&daemon, "other/w", "changes").refused(1, "--force rolls it back first");
    assert!(daemon.content("other/w") == written);
    assert_eq!(snapshots(&daemon, "other/w"), ["a"]);
    let forced = daemon.run(&["receive", "other/w", "--from", "changes", "--force"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    let kept = snapshots(&daemon, "other/w").into_iter().find(|name| name.starts_with("pre-rollback")).expect("kept");
    assert!(daemon.content(&format!("other/w@{kept}")) == written);
    assert!(daemon.content("other/w") == daemon.content("tank/v@b"));
}

#[test]
fn a_cut_receive_is_marked_protected_and_continued() {
    let daemon = filled();
    send(&daemon, "tank/v@a", "whole");
    fs::copy(daemon.path("whole"), daemon.path("cut")).expect("copied");
    cut(&daemon.path("cut"), (1, 2));
    let ended = receive(&daemon, "other/w", "cut").refused(1, "--resume ");
    assert!(ended.err.contains("before its end"), "{ended:?}");
    daemon.run(&["show", "other/w"]).refused(1, "no volume");
    daemon.run(&["snapshot", "other/receiving-w@x"]).refused(1, "millpond receive other/w --abandon");
    daemon.run(&["export", "nbd", "other/receiving-w"]).refused(1, "incomplete");
    daemon.run(&["clone", "other/receiving-w@receiving", "other/c"]).refused(1, "incomplete");
    daemon.run(&["clone", "--full", "other/receiving-w@receiving", "tank/c"]).refused(1, "incomplete");
    daemon.run(&["destroy", "-y", "other/receiving-w@receiving"]).refused(1, "millpond receive other/w --abandon");
    daemon.run(&["rename", "other/receiving-w", "other/w"]).refused(1, "incomplete");
    daemon.run(&["rollback", "other/receiving-w@receiving"]).refused(1, "incomplete");
    daemon.run(&["resize", "other/receiving-w", "16M", "--allow-shrink"]).refused(1, "incomplete");
    daemon.run(&["export-image", "other/receiving-w@receiving", "half.raw"]).refused(1, "incomplete");
    daemon.run(&["rename", "other/receiving-w@receiving", "other/receiving-w@a"]).refused(1, "reserved");
    daemon.run(&["snapshot", "tank/v@receiving"]).refused(1, "reserved");
    daemon.run(&["send", "other/receiving-w@%", "--to", "none"]).refused(1, "no snapshots");
    let token = daemon.run(&["receive", "other/w", "--token"]).ok().out.trim().to_owned();
    // it is seen
    let position: u64 = token.rsplit_once(':').expect("a position").1.parse().expect("a number");
    let shown = &daemon.json(&["show", "other/receiving-w"])["receiving"];
    assert_eq!((shown["snapshot"].as_str(), shown["size"].as_u64()), (Some("a"), Some(SIZE)), "{shown}");
    assert_eq!(shown["received_bytes"].as_u64(), Some(position));
    let line = "receive of 'a' into other/receiving-w is incomplete: ";
    assert!(daemon.run(&["show", "other/receiving-w"]).ok().out.contains(line));
    eventually("the status says so", || daemon.run(&["status"]).ok().out.contains(line));
    assert!(daemon.json(&["show", "tank/v"])["receiving"].is_null());
    // only the rest is sent
    assert_eq!(daemon.run(&["send", "tank/v@a", "--resume", &token, "--to", "rest"]).code, 0);
    let length = |file: &str| fs::metadata(daemon.path(file)).expect("a file").len();
    assert!(length("rest") < length("whole") - (1 << 20));
    daemon.run(&["receive", "other/w", "--from", "rest", "--resume", &token.replace(":0:", ":7:")]).refused(1, "token");
    assert_eq!(daemon.run(&["receive", "other/w", "--from", "rest", "--resume", &token]).code, 0);
    assert!(daemon.content("other/w@a") == daemon.content("tank/v@a"));
    assert_eq!(snapshots(&daemon, "other/w"), ["a"]);
    daemon.run(&["receive", "other/w", "--token"]).refused(1, "no incomplete receive");
    assert!(daemon.json(&["show", "other/w"])["receiving"].is_null());
    let events = daemon.json_lines(&["events"]);
    let subjects = |kind: &str| -> Vec<&str> {
        events.iter().filter(|event| event["event"] == kind).filter_map(|event| event["subject"].as_str()).collect()
    };
    assert_eq!(subjects("snapshot.received"), ["other/receiving-w@a"]);
    assert_eq!(subjects("snapshot.sent"), ["tank/v@a", "tank/v@a"], "whole, and the rest");
    no_exports(&daemon);
}

#[test]
fn a_receive_that_is_given_up_leaves_the_volume_as_before() {
    let daemon = filled();
    send(&daemon, "tank/v@a", "whole");
    send(&daemon, "tank/v@a%b", "changes");
    cut(&daemon.path("changes"), (2, 3));
    assert_eq!(receive(&daemon, "other/w", "whole").code, 0);
    let before = daemon.content("other/w@a");
    receive(&daemon, "other/w", "changes").refused(1, "--resume ");
    assert_eq!(snapshots(&daemon, "other/w"), ["a", "receiving"]);
    daemon.run(&["receive", "other/w", "--abandon"]).ok();
    assert!(daemon.content("other/w") == before);
    assert_eq!(snapshots(&daemon, "other/w"), ["a"]);
    // a new one goes
    cut(&daemon.path("whole"), (1, 2));
    receive(&daemon, "other/new", "whole").refused(1, "--resume ");
    daemon.run(&["receive", "other/new", "--abandon"]).ok();
    assert_eq!(each(&daemon.json(&["list", "other"]), "name"), ["other/w"]);
    daemon.run(&["receive", "other/new", "--abandon"]).refused(1, "no incomplete receive");
}

/// Starts a receive that takes long, because its target device is limited.
fn slow(daemon: &Daemon) -> crate::harness::Running {
    send(daemon, "tank/v@%", "all");
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "600k"]).ok();
    let running = daemon.begin(&["receive", "other/w", "--from", "all"]);
    eventually("data comes", || {
        let listed = daemon.json(&["list", "other"]);
        listed[0]["referenced_bytes"].as_u64().is_some_and(|bytes| bytes > 0)
    });
    running
}

fn finish(daemon: &Daemon) {
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "none"]);
    eventually("the rest is received", || receive(daemon, "other/w", "all").code == 0);
    for snapshot in ["a", "b"] {
        assert!(daemon.content(&format!("tank/v@{snapshot}")) == daemon.content(&format!("other/w@{snapshot}")), "{snapshot} differs");
    }
    assert!(!snapshots(daemon, "other/w").iter().any(|name| name.starts_with("recei")));
}

#[test]
fn an_interrupted_receive_keeps_its_progress() {
    let daemon = filled();
    let mut running = slow(&daemon);
    running.signal("INT");
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "none"]);
    assert_eq!(running.wait(), 1);
    let token = daemon.run(&["receive", "other/w", "--token"]).ok().out;
    assert!(!token.trim().ends_with(":0"), "nothing was kept: {token}");
    finish(&daemon);
    no_exports(&daemon);
}

#[test]
fn a_killed_receive_continues() {
    let daemon = filled();
    let mut running = slow(&daemon);
    running.signal("KILL");
    running.wait();
    finish(&daemon);
    no_exports(&daemon);
}

/// Starts a send to a pipe that is not read, and waits until it has its export.
fn send_unread(daemon: &Daemon) -> crate::harness::Running {
    let mut command = crate::harness::command(&["send", "tank/v@a"]);
    command.env("MILLPOND_SOCKET", daemon.socket()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let running = crate::harness::Running(command.spawn().expect("the program starts"));
    eventually("its export has clients", || daemon.json(&["exports"])[0]["clients"].as_u64() > Some(0));
    running
}

#[test]
fn a_send_whose_reader_does_not_read_ends_at_a_signal() {
    let daemon = filled();
    for signal in ["TERM", "INT"] {
        let mut running = send_unread(&daemon);
        running.signal(signal);
        assert_eq!(running.wait(), 1);
        no_exports(&daemon);
    }
    assert_eq!(daemon.json(&["list", "-t", "snapshot", "tank/v"])[0]["holds"], 0, "a hold is left");
}

/// It takes a minute: the time without clients after which the daemon ends a transient export.
#[test]
fn the_export_of_a_killed_send_ends_by_itself() {
    let daemon = filled();
    let mut running = send_unread(&daemon);
    running.signal("KILL");
    running.wait();
    assert!(!daemon.json(&["exports"]).as_array().expect("a list").is_empty(), "it ended at once");
    eventually("its export ends", || daemon.json(&["exports"]).as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_receive_that_waits_for_its_stream_ends_at_a_signal() {
    let daemon = filled();
    send(&daemon, "tank/v@a", "whole");
    let bytes = fs::read(daemon.path("whole")).expect("read");
    for first in [0, bytes.len() / 2] {
        let mut command = crate::harness::command(&["receive", "other/w"]);
        command.env("MILLPOND_SOCKET", daemon.socket()).stdin(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut running = crate::harness::Running(command.spawn().expect("the program starts"));
        let mut pipe = running.0.stdin.take().expect("piped");
        pipe.write_all(&bytes[..first]).expect("written");
        eventually("it waits", || crate::pipes::catches(&running));
        if first > 0 {
            eventually("data came", || daemon.json(&["list", "other"])[0]["referenced_bytes"].as_u64() > Some(0));
        }
        running.signal("TERM");
        assert_eq!(running.wait(), 1);
    }
    let token = daemon.run(&["receive", "other/w", "--token"]).ok().out;
    assert!(!token.trim().ends_with(":0"), "nothing was kept: {token}");
    no_exports(&daemon);
}

#[test]
fn a_receive_into_a_killed_daemon_continues() {
    let mut daemon = filled();
    let mut running = slow(&daemon);
    assert_eq!(daemon.stop("KILL"), -1);
    assert_ne!(running.wait(), 0);
    daemon.restart();
    finish(&daemon);
}

#[test]
fn two_receives_into_one_volume_do_not_mix() {
    let daemon = filled();
    let mut running = slow(&daemon);
    let second = receive(&daemon, "other/w", "all");
    assert!(second.code == 1 && second.err.contains("another command uses it"), "{second:?}");
    daemon.run(&["pool", "device-limit", "other", &daemon.text("other.img"), "--bps", "none"]);
    assert_eq!(running.wait(), 0);
    finish(&daemon);
}

#[test]
fn wrong_words_and_wrong_streams_get_one_line() {
    let daemon = filled();
    fs::write(daemon.path("junk"), [7; 9000]).expect("written");
    fs::write(daemon.path("empty"), []).expect("written");
    daemon.run(&["receive", "other/w", "--from", "junk"]).one_line(1, "not a stream");
    daemon.run(&["receive", "other/w", "--from", "empty"]).one_line(1, "nothing came");
    daemon.run(&["receive", "other/w", "--from", "none"]).one_line(1, "cannot read none");
    daemon.run(&["receive", "other/receiving-w", "--from", "junk"]).one_line(2, "begins the names of incomplete receives");
    daemon.run(&["receive", "other/w", "--from", "junk", "--resume", "x"]).one_line(2, "not the token");
    daemon.run(&["send", "tank/v@none", "--to", "x"]).one_line(1, "no snapshot 'tank/v@none'");
    daemon.run(&["send", "tank/v@b%a", "--to", "x"]).one_line(1, "not newer");
    daemon.run(&["send", "tank/v@a", "--to", "junk"]).one_line(1, "exists");
    send(&daemon, "tank/v@a%b", "changes");
    daemon.run(&["receive", "other/w", "--from", "changes"]).refused(1, "builds on snapshot 'a'");
    send(&daemon, "tank/v@a", "whole");
    daemon.run(&["create", "other/w", "-L", "32M"]).ok();
    daemon.run(&["receive", "other/w", "--from", "whole"]).refused(1, "receive into a new name");
    // a damaged frame ends it; what came before stays
    let path = daemon.path("whole");
    let mut bytes = fs::read(&path).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).expect("written");
    daemon.run(&["receive", "other/x", "--from", "whole"]).refused(1, "it is damaged at byte");
    assert_eq!(
        each(&daemon.json(&["list", "other"]), "name"),
        ["other/receiving-x", "other/w"],
        "one has a part of a stream, the other was never begun"
    );
    no_exports(&daemon);
    // only a receive may mark a snapshot as received
    let forged = format!("[received {}:1:2:3]", "a".repeat(32));
    daemon.run(&["snapshot", "tank/v@forged", "--description", &forged]).refused(1, "mark of a received snapshot");
}

/// Fixed defect: a receive went on with a stream on another base, which leaves out other blocks.
#[test]
fn a_receive_goes_on_with_the_same_base_alone() {
    let daemon = filled();
    send(&daemon, "tank/v@a", "whole-a");
    send(&daemon, "tank/v@b", "whole-b");
    send(&daemon, "tank/v@a%b", "changes");
    fs::copy(daemon.path("changes"), daemon.path("cut")).expect("copied");
    cut(&daemon.path("cut"), (2, 3));
    assert_eq!(receive(&daemon, "other/w", "whole-a").code, 0);
    receive(&daemon, "other/w", "cut").refused(1, "--resume ");
    receive(&daemon, "other/w", "whole-b").refused(1, "builds on another snapshot");
    assert_eq!(snapshots(&daemon, "other/w"), ["a", "receiving"]);
    assert_eq!(receive(&daemon, "other/w", "changes").code, 0);
    assert!(daemon.content("other/w@b") == daemon.content("tank/v@b"));
}

#[test]
fn what_is_not_a_receives_own_is_left_alone() {
    let daemon = filled();
    daemon.run(&["create", "other/receiving-docs", "-L", "1M"]).ok();
    daemon.run(&["receive", "other/docs", "--abandon"]).refused(1, "no incomplete receive");
    let socket = daemon.export("other/receiving-docs", "docs.sock");
    crate::nbd::connect(&socket).expect("connect").write(0, &[1; 4096]).expect("write");
    daemon.run(&["unexport", "other/receiving-docs", "--force"]).ok();
    send(&daemon, "tank/v@a", "whole");
    receive(&daemon, "other/docs", "whole").refused(1, "no mark that a receive made it");
    assert_eq!(each(&daemon.json(&["list", "other"]), "name"), ["other/receiving-docs"]);
    daemon.run(&["receive", "other/x", "--from", "whole", "-o", "readonly=on"]).refused(2, "afterwards");
    assert_eq!(receive(&daemon, "other/w", "whole").code, 0);
    daemon.run(&["set", "readonly=on", "other/w"]).ok();
    send(&daemon, "tank/v@a%b", "changes");
    receive(&daemon, "other/w", "changes").refused(1, "millpond set readonly=off other/w");
    daemon.run(&["set", "readonly=off", "other/w"]).ok();
    // a clone of a complete snapshot may be promoted, but not away from a mark
    daemon.run(&["clone", "other/w@a", "other/c"]).ok();
    cut(&daemon.path("changes"), (2, 3));
    receive(&daemon, "other/w", "changes").refused(1, "--resume ");
    daemon.run(&["promote", "other/c"]).refused(1, "incomplete");
    daemon.run(&["receive", "other/w", "--abandon"]).ok();
    daemon.run(&["promote", "other/c"]).ok();
}

#[test]
fn a_target_that_was_thinned_gets_what_is_newer() {
    let daemon = filled();
    send(&daemon, "tank/v@%", "two");
    assert_eq!(receive(&daemon, "other/w", "two").code, 0);
    daemon.run(&["destroy", "-y", "other/w@a"]).ok();
    change(&daemon, "tank/v", 6);
    daemon.run(&["snapshot", "tank/v@c"]).ok();
    send(&daemon, "tank/v@%", "three");
    let ended = receive(&daemon, "other/w", "three");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(snapshots(&daemon, "other/w"), ["b", "c"]);
    assert!(daemon.content("other/w@c") == daemon.content("tank/v@c"));
}
