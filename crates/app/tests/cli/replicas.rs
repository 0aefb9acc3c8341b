//! Policies that send: to another pool, to another daemon, over ssh, with kills and failures.

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::rc::Rc;

use millpond_export::nbd::client::Client;
use millpond_images::stream::{Frame, FrameReader};
use millpond_testing::Random;
use serde_json::Value;

use crate::harness::{Daemon, Running, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_millpond");
const SIZE: &str = "24M";

/// A daemon with the pools `tank` and `other`, and the volume `tank/v` with data.
fn filled() -> Daemon {
    let daemon = Daemon::with_pool();
    let device = format!("{}:512M", daemon.text("other.img"));
    daemon.run(&["pool", "create", "other", &device]).ok();
    daemon.run(&["create", "tank/v", "-L", SIZE, "-o", "compression=lz4"]).ok();
    change(&daemon, "tank/v", 1, 8 << 20);
    daemon
}

/// Writes random data to a volume.
fn change(daemon: &Daemon, name: &str, seed: u64, length: usize) {
    let socket = daemon.export(name, "change.sock");
    let mut nbd = crate::nbd::connect(&socket).expect("connect");
    nbd.write((seed % 8) << 20, &Random::new(seed).bytes(length)).expect("write");
    nbd.flush().expect("flush");
    drop(nbd);
    daemon.run(&["unexport", name, "--force"]).ok();
}

/// Asserts that a snapshot is the same at both ends.
fn same(here: &Daemon, there: &Daemon, snapshot: &str) {
    assert!(here.content(&format!("tank/v@{snapshot}")) == there.content(&format!("other/v@{snapshot}")), "{snapshot} differs");
}

fn snapshots(daemon: &Daemon, name: &str) -> Vec<String> {
    let listed = daemon.run(&["list", "-t", "snapshot", "-H", "-o", "name", name]);
    listed.out.lines().filter_map(|name| Some(name.trim().split_once('@')?.1.to_owned())).collect()
}

/// State of the sends of the one volume of policy `p`.
fn state(daemon: &Daemon) -> Value {
    daemon.json(&["policy", "show", "p"])["volumes"][0]["send"].clone()
}

/// Runs policy `p`; returns the name of the snapshot that it took. Names have the time to the second: of
/// two runs in one second, the later could take the name of a snapshot that was destroyed here and is
/// still at the target.
fn run(daemon: &Daemon) -> String {
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let done = daemon.json(&["policy", "run", "p"]);
    assert_eq!(each_text(&done["sending"]), ["tank/v"]);
    each_text(&done["taken"]).first().and_then(|name| Some(name.split_once('@')?.1.to_owned())).expect("a snapshot")
}

fn each_text(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

fn arrives(here: &Daemon, snapshot: &str) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(600);
    loop {
        let state = state(here);
        if state["newest"] == snapshot && state["running"] == false {
            return;
        }
        assert!(std::time::Instant::now() < end, "{snapshot} does not arrive: {state}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn send_to(daemon: &Daemon, target: &str) {
    daemon.run(&["policy", "create", "p", "--keep", "1d:60d", "--send", target]).ok();
    daemon.run(&["policy", "attach", "p", "tank/v"]).ok();
}

/// The snapshots of `tank/v` that are held for policy `p`.
fn held(daemon: &Daemon) -> Vec<String> {
    let listed = daemon.json(&["list", "-t", "snapshot", "tank/v"]);
    let held = |snapshot: &&Value| each_text(&snapshot["hold_tags"]).contains(&"policy-send-p");
    let name = |snapshot: &Value| snapshot["name"].as_str().and_then(|name| Some(name.split_once('@')?.1.to_owned()));
    listed.as_array().expect("a list").iter().filter(held).filter_map(name).collect()
}

#[test]
fn a_policy_sends_what_another_pool_lacks_and_thins_it_there() {
    let daemon = filled();
    send_to(&daemon, "other");
    let first = run(&daemon);
    arrives(&daemon, &first);
    same(&daemon, &daemon, &first);
    change(&daemon, "tank/v", 2, 1 << 20);
    daemon.run(&["snapshot", "tank/v@manual"]).ok();
    let second = run(&daemon);
    arrives(&daemon, &second);
    ["manual", &second].iter().for_each(|snapshot| same(&daemon, &daemon, snapshot));
    assert_eq!(held(&daemon), [second.as_str()]);
    let shown = state(&daemon);
    assert!(shown["lag_seconds"].is_u64() && shown["sent"].is_string() && shown["error"].is_null(), "{shown}");
    let tables = daemon.run(&["policy", "show", "p"]).ok().out;
    assert!(tables.contains("AT_TARGET") && tables.contains(&second), "{tables}");
    assert!(daemon.run(&["policy", "list", "-H", "-o", "send"]).ok().out.contains("other"));

    // the source loses three: only the policy's own go at the target, and none that is held there
    daemon.run(&["snapshot", "other/v@mine"]).ok();
    let third = run(&daemon);
    arrives(&daemon, &third);
    daemon.run(&["hold", &format!("other/v@{second}"), "--tag", "audit"]).ok();
    daemon.run(&["destroy", "-y", &format!("tank/v@{first}"), "tank/v@manual", &format!("tank/v@{second}")]).ok();
    let fourth = run(&daemon);
    arrives(&daemon, &fourth);
    eventually("the target is thinned", || !snapshots(&daemon, "other/v").contains(&first));
    let there = snapshots(&daemon, "other/v");
    for kept in ["manual", "mine", &second, &third, &fourth] {
        assert!(there.iter().any(|name| name == kept), "{kept} is gone: {there:?}");
    }
    assert_eq!(held(&daemon), [fourth]);
    daemon.run(&["policy", "set", "send=none", "p"]).ok();
    eventually("the hold is released", || held(&daemon).is_empty());
    assert!(state(&daemon).is_null());
}

#[test]
fn the_newest_common_snapshot_is_never_thinned_by_the_source() {
    let daemon = filled();
    // two rules of one step: each run makes the one before superfluous
    daemon.run(&["policy", "create", "p", "--keep", "1d:1d", "--send", "other"]).ok();
    daemon.run(&["policy", "attach", "p", "tank/v"]).ok();
    let first = run(&daemon);
    arrives(&daemon, &first);
    // a target that cannot be reached
    let gone = daemon.text("gone.sock");
    daemon.run(&["policy", "set", &format!("send=unix:{gone}/other"), "p"]).ok();
    for _ in 0..2 {
        run(&daemon);
    }
    assert_eq!(held(&daemon), [first.as_str()]);
    daemon.run(&["destroy", "-y", &format!("tank/v@{first}")]).refused(1, "policy-send-p");
}

#[test]
fn targets_that_cannot_be_are_refused_in_one_line() {
    let daemon = filled();
    let create = |target: &str| daemon.run(&["policy", "create", "q", "--keep", "1h:1d", "--send", target]);
    create("nowhere").refused(1, "no pool 'nowhere' here");
    create("ssh://-oProxyCommand=x/tank").refused(2, "do not begin with '-'");
    create("ssh://host").refused(2, "it has no pool");
    create("a/b").refused(2, "ssh://[USER@]HOST");
    create(&format!("unix:{}/other", daemon.socket())).refused(1, "that of this daemon");
    send_to(&daemon, "other");
    daemon.run(&["policy", "set", "send=tank", "p"]).refused(1, "is in pool 'tank' already");
    daemon.run(&["create", "other/w", "-L", "1M"]).ok();
    daemon.run(&["policy", "attach", "p", "other/w"]).refused(1, "is in pool 'other' already");
    assert_eq!(daemon.json(&["policy", "show", "p"])["send"], "other");
}

#[test]
fn failures_are_reported_and_the_next_success_ends_them() {
    let (here, mut there) = (filled(), filled());
    there.stop("TERM");
    send_to(&here, &format!("unix:{}/other", there.socket()));
    for failures in 1..=3 {
        run(&here);
        eventually("the send fails", || state(&here)["failed"].as_u64().is_some_and(|failed| failed >= failures));
    }
    // a run asks for another attempt while one is under way: its time of the next one is known when it ends
    eventually("the cause and the next attempt are shown", || {
        let shown = state(&here);
        shown["error"].as_str().is_some_and(|error| error.contains("no daemon answers")) && shown["retry"].is_string()
    });
    let has = |kind: &str| here.json_lines(&["events"]).iter().any(|event| event["event"] == kind);
    eventually("an event says so", || has("policy.not-sent"));
    eventually("a condition says so", || here.run(&["status", "--check"]).out.contains("policy 'p' does not send tank/v"));
    assert!(!has("policy.sent"));
    there.restart();
    let last = run(&here);
    eventually("an event says that it is sent", || has("policy.sent"));
    assert!(!here.run(&["status", "--check"]).out.contains("does not send"));
    same(&here, &there, &last);
}

#[test]
fn a_daemon_that_is_killed_during_a_send_goes_on() {
    let (mut here, mut there) = (filled(), filled());
    let target = format!("unix:{}/other", there.socket());
    // each run leaves its snapshot
    here.run(&["policy", "create", "p", "--keep", "1s:1d", "--at", "yearly", "--send", &target]).ok();
    here.run(&["policy", "attach", "p", "tank/v"]).ok();
    for (round, victim) in ["here", "there", "here"].iter().enumerate() {
        change(&here, "tank/v", 10 + round as u64, 12 << 20);
        let name = run(&here);
        eventually("the send begins", || {
            let state = state(&here);
            state["running"] == true || state["newest"] == name.as_str()
        });
        let killed = if *victim == "here" { &mut here } else { &mut there };
        assert_eq!(killed.stop("KILL"), -1);
        killed.restart();
        eventually("it arrives", || {
            let state = state(&here);
            if state["retry"].is_string() {
                // it would try again in a minute
                run(&here);
            }
            snapshots(&there, "other/v").contains(&name) && state["running"] == false
        });
        same(&here, &there, &name);
    }
}

/// A program `ssh` that notes its arguments and runs the command with a shell, for the other daemon.
fn fake_ssh(here: &Daemon, there: &Daemon) {
    let bin = here.path("bin");
    fs::create_dir_all(&bin).expect("a directory");
    symlink(PROGRAM, bin.join("millpond")).expect("a link");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {log}\nfor last; do :; done\nMILLPOND_SOCKET={socket} exec sh -c \"$last\"\n",
        log = here.text("ssh.log"),
        socket = there.socket(),
    );
    fs::write(bin.join("ssh"), script).expect("a script");
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn ssh_runs_the_commands_of_the_other_end() {
    let (mut here, there) = (filled(), filled());
    fake_ssh(&here, &there);
    here.stop("TERM");
    here.restart();
    send_to(&here, "ssh://backup@host2:2222/other");
    for round in 0..2 {
        change(&here, "tank/v", 20 + round, 1 << 20);
        let name = run(&here);
        arrives(&here, &name);
        same(&here, &there, &name);
    }
    let log = fs::read_to_string(here.path("ssh.log")).expect("a log");
    assert!(log.lines().all(|line| line.contains("BatchMode=yes") && line.contains("-p 2222 -l backup -- host2 millpond ")), "{log}");
    assert!(log.contains("millpond receive other/v") && log.contains("'other/*v'"), "{log}");
}

/// The state of a volume, as its clients see it.
fn head(daemon: &Daemon, name: &str) -> Vec<u8> {
    daemon.content(name)
}

/// The one snapshot of a volume whose name begins so.
fn begins(daemon: &Daemon, name: &str, start: &str) -> String {
    let all = snapshots(daemon, name);
    let found: Vec<&String> = all.iter().filter(|snapshot| snapshot.starts_with(start)).collect();
    assert_eq!(found.len(), 1, "{start}: {all:?}");
    found[0].clone()
}

#[test]
fn a_volume_fails_over_and_back() {
    let (here, there) = (filled(), filled());
    let target = format!("unix:{}/other", there.socket());
    send_to(&here, &target);
    let last = run(&here);
    arrives(&here, &last);
    let sent = here.content(&format!("tank/v@{last}"));
    // what the old source does until it notices
    change(&here, "tank/v", 3, 1 << 20);
    let lost = head(&here, "tank/v");

    there.run(&["failover", "tank/v"]).refused(1, "it is the source itself");
    here.run(&["failback", "-y", "tank/v", "--from", &target]).refused(1, "was not failed over");
    there.run(&["failover", "other/none"]).refused(1, "no such volume");
    assert!(there.run(&["failover", "-n", "other/v"]).ok().out.contains(&last));
    assert_eq!(snapshots(&there, "other/v"), [last.as_str()], "a dry run changes nothing");
    let over = there.run(&["failover", "other/v"]).ok().out;
    assert!(over.contains(&format!("old ('other/v@{last}')")), "{over}");
    there.run(&["failover", "other/v"]).refused(1, "failed over already");
    assert!(head(&there, "other/v") == sent);

    // the old source sends nothing more, although the guest has not written there yet
    let unsent = run(&here);
    eventually("the send is refused", || state(&here)["error"].as_str().is_some_and(|error| error.contains("failed over")));
    let stream = here.run(&["send", &format!("tank/v@{last}%{unsent}"), "--to", "late"]);
    assert_eq!(stream.code, 0, "{stream:?}");
    there.run(&["receive", "other/v", "--from", &here.text("late")]).refused(1, "was failed over since");
    assert!(head(&there, "other/v") == sent);

    // the work goes on there, with a snapshot of a name that the old source has used as well
    change(&there, "other/v", 4, 2 << 20);
    there.run(&["snapshot", &format!("other/v@{unsent}")]).ok();
    change(&there, "other/v", 5, 1 << 20);
    let work = head(&there, "other/v");

    let back = ["failback", "tank/v", "--from", &target];
    here.run(&["export", "nbd", "tank/v", "--unix", &here.text("guest.sock")]).ok();
    here.run(&[&back[..], &["-y"]].concat()).one_line(1, "millpond unexport");
    here.run(&["unexport", "tank/v", "--force"]).ok();
    let guest = crate::nbd::connect(&there.export("other/v", "guest.sock")).expect("connect");
    here.run(&[&back[..], &["-y"]].concat()).one_line(1, "clients use 'other/v' at the other side");
    drop(guest);
    there.run(&["unexport", "other/v", "--force"]).ok();
    let planned = here.run(&[&back[..], &["-n"]].concat()).ok().out;
    for line in [
        format!("newest common snapshot: tank/v@{last}"),
        "pre-rollback-TIME".to_owned(),
        "only there, is received: other/v@failover-".to_owned(),
    ] {
        assert!(planned.contains(&line), "{line}: {planned}");
    }
    here.run(&back).one_line(1, "add -y to agree");
    there.run(&["failback", "-y", "other/v", "--from", &format!("unix:{}/tank", here.socket())]).refused(1, "the work goes on here");
    assert!(head(&here, "tank/v") == lost, "nothing is changed without consent");
    let done = here.run(&[&back[..], &["-y"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(head(&here, "tank/v") == work, "the work of the other side");
    let kept = begins(&here, "tank/v", "pre-rollback-");
    assert!(here.content(&format!("tank/v@{kept}")) == lost);
    assert!(here.content(&format!("tank/v@before-failback-{unsent}")) == lost);
    same(&here, &there, &unsent);
    assert!(there.run(&["failover", "-n", "other/v"]).ok().out.contains("failback-"));

    // and the policy sends again, in its old direction
    change(&here, "tank/v", 6, 1 << 20);
    let again = run(&here);
    arrives(&here, &again);
    same(&here, &there, &again);
    assert!(head(&there, "other/v") == head(&here, "tank/v"));
}

#[test]
fn a_failover_gives_an_incomplete_receive_up() {
    let (here, there) = (filled(), filled());
    send_to(&here, &format!("unix:{}/other", there.socket()));
    let first = run(&here);
    arrives(&here, &first);
    change(&here, "tank/v", 7, 8 << 20);
    here.run(&["snapshot", "tank/v@cut"]).ok();
    assert_eq!(here.run(&["send", &format!("tank/v@{first}%cut"), "--to", "changes"]).code, 0);
    let file = fs::OpenOptions::new().write(true).open(here.path("changes")).expect("opened");
    let length = file.metadata().expect("a length").len();
    file.set_len(length / 2).expect("cut");
    there.run(&["receive", "other/v", "--from", &here.text("changes")]).one_line(1, "--resume ");
    let over = there.run(&["failover", "other/v"]);
    assert!(over.code == 0 && over.out.contains("given up"), "{over:?}");
    assert!(head(&there, "other/v") == here.content(&format!("tank/v@{first}")));
    assert!(!snapshots(&there, "other/v").iter().any(|name| name == "receiving"));
}

/// Reads from bytes, and counts them.
struct Counted<'a> {
    bytes: &'a [u8],
    read: Rc<Cell<usize>>,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.bytes.read(into)?;
        self.read.set(self.read.get() + read);
        Ok(read)
    }
}

/// Returns the bytes of a stream before and after the first frame that ends a snapshot.
fn first_end(stream: &[u8]) -> (usize, usize) {
    let at = Rc::new(Cell::new(0));
    let (mut frames, _) = FrameReader::new(Counted { bytes: stream, read: Rc::clone(&at) }).expect("a stream");
    loop {
        let before = at.get();
        if let Frame::Complete(_) = frames.frame().expect("a frame") {
            return (before, at.get());
        }
    }
}

/// A receive whose stream the test writes.
fn receive_from_pipe(there: &Daemon) -> Running {
    let mut command = crate::harness::command(&["receive", "other/v"]);
    command.env("MILLPOND_SOCKET", there.socket()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    Running(command.spawn().expect("the program starts"))
}

/// Asserts that a receive fails after the rest of its stream; returns its message.
fn fails(running: &mut Running, mut pipe: ChildStdin, rest: &[u8]) -> String {
    // it may end before it has read all
    let _ = pipe.write_all(rest);
    drop(pipe);
    assert_eq!(running.wait(), 1);
    let mut said = String::new();
    running.0.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
    said
}

/// Connects to a snapshot of a receive, as the receive does to read it back.
fn reader_of_receive(daemon: &Daemon, name: &str) -> Client<UnixStream> {
    let body = serde_json::json!({"kind": "nbd", "name": name, "readonly": true, "receive": true, "transient": true}).to_string();
    let mut stream = UnixStream::connect(daemon.socket()).expect("connect");
    let head = format!("POST /v1/exports HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
    write!(stream, "{head}\r\nConnection: close\r\n\r\n{body}").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    let (_, export) = answer.split_once("\r\n\r\n").expect("an answer");
    let export: Value = serde_json::from_str(export).expect("JSON");
    crate::nbd::connect(Path::new(export["unix"].as_str().expect("a socket"))).expect("connect")
}

/// A receive that waits for the rest of its stream, at each end of its work on a snapshot, is ended by
/// a failover: none of its snapshots appears afterwards, and the volume can be used.
#[test]
fn no_snapshot_of_an_older_send_appears_after_a_failover() {
    for between in [true, false] {
        let (here, there) = (filled(), filled());
        send_to(&here, &format!("unix:{}/other", there.socket()));
        let first = run(&here);
        arrives(&here, &first);
        here.run(&["policy", "set", "send=none", "p"]).ok();
        // no data comes with `b`: the receive has nothing to write, and notices by its steps alone
        here.run(&["snapshot", "tank/v@b"]).ok();
        change(&here, "tank/v", 8, 1 << 20);
        here.run(&["snapshot", "tank/v@c"]).ok();
        assert_eq!(here.run(&["send", &format!("tank/v@{first}%c"), "--to", "changes"]).code, 0);
        let stream = fs::read(here.path("changes")).expect("read");
        let (before, after) = first_end(&stream);
        let cut = if between { after } else { before };
        let mut running = receive_from_pipe(&there);
        let mut pipe = running.0.stdin.take().expect("piped");
        pipe.write_all(&stream[..cut]).expect("written");
        let expected = if between { [first.as_str(), "b"] } else { [first.as_str(), "receiving"] };
        eventually("it waits for the rest", || snapshots(&there, "other/v") == expected);

        let reader = (!between).then(|| reader_of_receive(&there, "other/v@receiving"));
        let over = there.run(&["failover", "other/v"]);
        drop(reader);
        assert!(over.code == 0 && over.out.contains("given up") != between, "{over:?}");
        let then = snapshots(&there, "other/v");
        assert!(then.last().is_some_and(|name| name.starts_with("failover-")), "{then:?}");
        let said = fails(&mut running, pipe, &stream[cut..]);
        assert!(said.contains("has ended this receive"), "{said}");
        assert_eq!(snapshots(&there, "other/v"), then);
        assert!(head(&there, "other/v") == here.content(&format!("tank/v@{first}")));
        // it can be written
        change(&there, "other/v", 9, 1 << 20);
        assert!(there.json(&["exports"]).as_array().is_some_and(Vec::is_empty), "an export is left");
    }
}

#[test]
fn a_policy_makes_backups_and_leaves_those_of_others() {
    let daemon = filled();
    let nas = daemon.path("nas");
    std::fs::create_dir(&nas).expect("made");
    let place = nas.display().to_string();
    daemon.run(&["snapshot", "tank/v@mine"]).ok();
    assert_eq!(daemon.run(&["backup", "create", &place, "tank/v@mine", "-q"]).code, 0);
    send_to(&daemon, &place);
    let last = run(&daemon);
    let listed = || daemon.run(&["backup", "list", &place, "-H", "--columns", "name"]).ok().out;
    eventually("the backup is made", || listed().contains(&last));
    assert!(listed().contains("tank/v@mine"), "{}", listed());
    assert_eq!(daemon.run(&["backup", "restore", &place, &format!("tank/v@{last}"), "--to", "restored.raw", "--verify"]).code, 0);
    assert!(std::fs::read(daemon.path("restored.raw")).expect("read") == daemon.content(&format!("tank/v@{last}")));
    // the disk is not mounted
    eventually("the hold moved", || held(&daemon) == [last.as_str()]);
    std::fs::rename(&nas, daemon.path("unmounted")).expect("moved");
    std::fs::create_dir(&nas).expect("made");
    run(&daemon);
    eventually("the empty directory is refused", || state(&daemon)["error"].as_str().is_some_and(|error| error.contains("is it mounted?")));
    assert_eq!(std::fs::read_dir(&nas).expect("a directory").count(), 0);
}
