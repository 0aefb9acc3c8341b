//! Failures are reported: as events, to a command, in `status`, and as an exit code.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use millpond_export::nbd::client::Client;
use millpond_testing::Random;
use serde_json::Value;

use crate::harness::{Daemon, Running, command, eventually, run};
use crate::nbd;

/// Returns the events that the daemon stores, oldest first.
fn events(daemon: &Daemon, words: &[&str]) -> Vec<Value> {
    let lines = daemon.run(&[&["events", "--format", "json"], words].concat()).ok().out;
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn of_kind(daemon: &Daemon, kind: &str) -> Vec<Value> {
    events(daemon, &[]).into_iter().filter(|event| event["event"] == kind).collect()
}

fn reported(daemon: &Daemon, kind: &str) -> Value {
    eventually(kind, || !of_kind(daemon, kind).is_empty());
    of_kind(daemon, kind).pop().expect("it is there")
}

/// Returns a field as text.
fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event[field].as_str().unwrap_or_default()
}

#[test]
fn events_are_listed_followed_and_outlive_a_restart() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let made = of_kind(&daemon, "volume.created").pop().expect("an event");
    assert_eq!((text(&made, "severity"), text(&made, "subject"), text(&made, "pool")), ("info", "tank/v", "tank"));
    assert!(text(&made, "message").contains("tank/v") && made.get("device").is_none(), "{made}");
    let listed = daemon.run(&["events"]).ok().out;
    assert!(listed.lines().next().is_some_and(|head| head.starts_with("TIME ") && head.ends_with("MESSAGE")), "{listed}");
    assert!(listed.contains("volume created: tank/v"), "{listed}");
    assert!(daemon.run(&["events", "--severity", "warning"]).ok().out.lines().count() <= 1);
    assert_eq!(daemon.run(&["events", "-H", "-o", "event,pool", "--since", "1h"]).ok().out.lines().last(), Some("volume.created\ttank"));
    daemon.run(&["events", "--since", "yesterday"]).refused(2, "yesterday");

    let follow = |more: &[&str]| {
        let mut words = command(&[&["events", "--follow"], more].concat());
        words.env("MILLPOND_SOCKET", daemon.socket()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = words.spawn().expect("starts");
        let lines = BufReader::new(running.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
        (Running(running), lines)
    };
    let (json, mut lines) = follow(&["--since", "1h", "--format", "json"]);
    assert!(lines.any(|line| line.contains("volume.created")), "what was comes first");
    let (table, mut rows) = follow(&["--since", "1h"]);
    assert!(rows.any(|row| row.contains("volume.created")));
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    let next: Value = serde_json::from_str(&lines.next().expect("a line")).expect("JSON");
    assert_eq!(text(&next, "event"), "snapshot.created");
    assert!(rows.next().is_some_and(|row| row.contains("info      snapshot.created    snapshot created: tank/v@a")));

    daemon.stop("KILL");
    daemon.restart();
    daemon.run(&["snapshot", "tank/v@b"]).ok();
    let mut numbers = vec![next["number"].as_u64().expect("a number")];
    let mut after = lines.by_ref().map(|line| serde_json::from_str::<Value>(&line).expect("JSON"));
    let last = after.find(|event| {
        numbers.extend(event["number"].as_u64());
        text(event, "subject") == "tank/v@b"
    });
    assert!(last.is_some(), "they go on with the next daemon");
    let first = numbers[0];
    assert_eq!(numbers, (first..first + numbers.len() as u64).collect::<Vec<_>>(), "no event is missed or repeated");
    assert!(rows.any(|row| row.contains("snapshot created: tank/v@b")));
    drop((json, table));
    let kinds: Vec<Value> = events(&daemon, &[]).into_iter().map(|event| event["event"].clone()).collect();
    let at = |kind: &str| kinds.iter().position(|known| known == kind).expect(kind);
    assert!(at("pool.created") < at("volume.created") && at("snapshot.created") < at("pool.imported"), "{kinds:?}");
}

/// The events of a command are stored before the command ends, so a daemon that is killed then has
/// them all.
#[test]
fn changes_have_their_caller_also_after_a_kill() {
    let mut daemon = Daemon::with_config("events_kept = 200\nevents_size = \"64K\"\n");
    daemon.run(&["pool", "create", "tank", &daemon.text("a:256M")]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["set", "iops=500", "tank/v"]).ok();
    daemon.run(&["resize", "tank/v", "32M"]).ok();
    daemon.run(&["rename", "tank/v", "tank/w"]).ok();
    daemon.run(&["pool", "set", "job_rate=50M", "tank"]).ok();
    daemon.run(&["snapshot", "tank/w@a"]).ok();
    daemon.stop("KILL");
    // a crash of the host may cut off the last line
    let file = daemon.path("state/events.jsonl");
    fs::File::options().append(true).open(&file).and_then(|mut file| file.write_all(b"{\"time\":\"20")).expect("half a line");
    daemon.restart();
    let history = daemon.json(&["history", "tank/w"]);
    let rows = history.as_array().expect("rows");
    let kinds: Vec<&str> = rows.iter().map(|row| text(row, "event")).collect();
    assert_eq!(kinds, ["volume.created", "volume.changed", "volume.resized", "renamed", "snapshot.created"], "{history}");
    assert!(text(&rows[1], "message").contains("iops=500"), "{history}");
    for row in rows {
        let by = &row["by"];
        assert_eq!((by["kind"].as_str(), by["uid"].as_u64()), (Some("unix"), Some(own_uid())), "{row}");
        assert!(by["process"].as_str().is_some_and(|process| process.starts_with("millpond")) && by["pid"].is_u64(), "{row}");
    }
    let of_pool = daemon.run(&["history", "tank", "-H", "-o", "event,by"]).ok().out;
    assert!(of_pool.contains("pool.changed\t") && of_pool.contains("(millpond, pid "), "{of_pool}");
    let imported = of_pool.lines().rfind(|line| line.starts_with("pool.imported"));
    assert_eq!(imported, Some("pool.imported\t-"), "the daemon itself imported it");
    daemon.run(&["history", "tank/"]).refused(2, "the volume name is empty");
}

/// Returns the uid of the test, which is that of the commands that it runs.
fn own_uid() -> u64 {
    u64::from(fs::metadata("/proc/self").expect("own process").uid())
}

#[test]
fn bounds_of_events_are_checked() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("c.toml");
    for (line, word) in [("events_kept = 5", "events_kept: 5 is not between 100 and"), ("events_size = \"1K\"", "events_size: 1K is not")] {
        fs::write(&config, line).expect("a configuration file");
        let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
        let (config, state, socket) = (text(&config), text(&dir.path().join("s")), text(&dir.path().join("x.sock")));
        run(command(&["serve", "--config", &config, "--state", &state, "--socket", &socket])).one_line(1, word);
    }
}

#[test]
fn a_device_that_is_missing_is_reported_everywhere_until_it_is_back() {
    let out = tempfile::tempdir().expect("a directory");
    let log = out.path().join("log");
    let hook =
        format!("echo $MILLPOND_EVENT_SEVERITY $MILLPOND_EVENT_KIND $MILLPOND_EVENT_POOL $MILLPOND_EVENT_DEVICE >> {}", log.display());
    let mut daemon = Daemon::with_config(&format!("import_wait = \"1s\"\non_event = [\"/bin/sh\", \"-c\", \"{hook}\"]\n"));
    let (a, b) = (daemon.text("a"), daemon.text("b"));
    daemon.run(&["pool", "create", "tank", "mirror", &format!("{a}:256M"), &format!("{b}:256M")]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    assert_eq!(daemon.run(&["status", "--check"]).problems(), "");
    assert_eq!(daemon.json(&["pool", "status", "--check", "tank"])["state"], "healthy");
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("b"), daemon.path("b.away")).expect("hide");
    daemon.restart();

    let degraded = reported(&daemon, "pool.degraded");
    assert_eq!((text(&degraded, "severity"), text(&degraded, "pool")), ("warning", "tank"));
    assert!(text(&degraded, "message").ends_with(&format!("{b} is missing")), "{degraded}");
    let missing = reported(&daemon, "device.missing");
    assert_eq!((text(&missing, "severity"), text(&missing, "pool"), text(&missing, "device")), ("warning", "tank", b.as_str()));
    let handed = || fs::read_to_string(&log).unwrap_or_default();
    eventually("the command had both", || {
        handed().contains(&format!("warning device.missing tank {b}\n")) && handed().contains("warning pool.degraded tank\n")
    });
    assert!(!handed().contains("volume.created"), "only what matters enough: {}", handed());

    let status = daemon.run(&["status"]).ok().out;
    assert!(status.contains(&format!("pool tank is degraded: {b} is missing\n")) && !status.contains("no reason"), "{status}");
    let shown = daemon.run(&["pool", "status", "tank"]).ok().out;
    assert!(shown.contains(&format!("reason {b} is missing\n")) && shown.contains(&format!("{b} is missing: it was not found")), "{shown}");
    for check in [&["status", "--check"][..], &["pool", "status", "--check"], &["pool", "status", "--check", "tank"]] {
        let checked = daemon.run(check);
        assert_eq!((checked.code, checked.err.as_str()), (4, ""), "{checked:?}");
        assert_eq!(checked.problems(), format!("error: pool tank is degraded: {b} is missing\n"));
    }
    let json = daemon.run(&["status", "--check", "--format", "json"]);
    let answer: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((json.code, text(&answer, "state"), text(&answer["causes"][0], "level")), (4, "degraded", "error"));

    fs::rename(daemon.path("b.away"), daemon.path("b")).expect("bring back");
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "import", "tank"]).ok();
    reported(&daemon, "pool.healthy");
    assert_eq!(daemon.run(&["status", "--check"]).problems(), "");
    assert_eq!(of_kind(&daemon, "pool.degraded").len(), 1, "said once");
}

#[test]
fn a_device_that_is_back_is_reported_with_what_takes_it_in() {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    let (a, b) = (daemon.text("a"), daemon.text("b"));
    daemon.run(&["pool", "create", "tank", "mirror", &format!("{a}:256M"), &format!("{b}:256M")]).ok();
    let id = daemon.json(&["pool", "status", "tank"])[0]["devices"][1]["id"].as_str().expect("an id").to_owned();
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("b"), daemon.path("b.away")).expect("hide");
    daemon.restart();
    reported(&daemon, "device.missing");
    fs::rename(daemon.path("b.away"), daemon.path("b")).expect("bring back");
    let returned = reported(&daemon, "device.returned");
    let way = format!("'millpond pool replace tank {id} {b} --force' does it now");
    assert_eq!((text(&returned, "severity"), text(&returned, "device")), ("warning", b.as_str()));
    assert!(text(&returned, "message").ends_with(&way), "{returned}");
    let shown = daemon.run(&["pool", "status", "tank"]).ok().out;
    assert!(shown.contains(&format!("{b} is missing: it is back at {b}, out of date")), "{shown}");
    assert_eq!(of_kind(&daemon, "device.returned").len(), 1, "said once");
    daemon.run(&["pool", "replace", "tank", &id, &b, "--force", "--wait"]).waited();
    let listed = daemon.json(&["pool", "list"]);
    assert_eq!((&listed[0]["health"], &listed[0]["devices"][1]["state"]), (&"online".into(), &"online".into()), "{listed}");
}

#[test]
fn a_scrub_that_repairs_is_a_warning() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.text("a:256M"), daemon.text("b:256M"));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    let mut nbd = nbd::connect(&socket).expect("connect");
    (0..64).for_each(|at| nbd.write(at * 65536, &[at as u8 + 1; 65536]).expect("write"));
    daemon.run(&["pool", "scrub", "tank", "--wait"]).waited();
    assert_eq!(text(&reported(&daemon, "scrub.ended"), "severity"), "info");
    let leg = fs::File::options().write(true).open(daemon.path("b")).expect("opens");
    // everything between the labels is lost
    leg.write_all_at(&vec![0; 254 << 20], 1 << 20).and_then(|()| leg.sync_all()).expect("writes");
    daemon.run(&["pool", "scrub", "tank", "--wait"]).waited();
    eventually("the second one", || of_kind(&daemon, "scrub.ended").len() == 2);
    let ended = reported(&daemon, "scrub.ended");
    assert_eq!(text(&ended, "severity"), "warning", "{ended}");
    assert!(text(&ended, "message").contains("all repaired"), "{ended}");
    let checked = daemon.run(&["pool", "status", "--check"]);
    // event, status and check use the same words
    let found = text(&ended, "message").split_once("done: ").map(|(_, found)| found.to_owned()).expect("what was found");
    assert!(checked.code == 1 && checked.out.contains(&format!("the last scrub found {found}\n")), "{checked:?}");
    assert!(daemon.run(&["pool", "status", "tank"]).ok().out.contains(&format!(", {found}\n")));
}

/// Returns a device of the pool by its path.
fn device(daemon: &Daemon, path: &str) -> Value {
    let pools = daemon.json(&["pool", "status", "tank"]);
    let devices = pools[0]["devices"].as_array().expect("devices").clone();
    devices.into_iter().find(|device| device["path"] == path).expect(path)
}

/// Starts a daemon with a mirror of `a` and `b`, of which `b` lost everything between its labels,
/// after a scrub. Returns the daemon, the file of `b`, and a client that has written.
fn scrubbed_damage() -> (Daemon, fs::File, Client<UnixStream>) {
    let daemon = Daemon::start();
    let (a, b) = (daemon.text("a:256M"), daemon.text("b:256M"));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let mut nbd = nbd::connect(&daemon.export("tank/v", "v.sock")).expect("connect");
    (0..64).for_each(|at| nbd.write(at * 65536, &[at as u8 + 1; 65536]).expect("write"));
    nbd.flush().expect("flush");
    let leg = fs::File::options().write(true).open(daemon.path("b")).expect("opens");
    leg.write_all_at(&vec![0; 254 << 20], 1 << 20).and_then(|()| leg.sync_all()).expect("writes");
    daemon.run(&["pool", "scrub", "tank", "--wait"]).waited();
    (daemon, leg, nbd)
}

#[test]
fn errors_of_a_device_outlive_a_restart_until_a_scrub_finds_none() {
    let (mut daemon, leg, nbd) = scrubbed_damage();
    let rotten = daemon.text("b");
    let errors = |daemon: &Daemon| device(daemon, &rotten)["errors"].as_u64().expect("a number");
    assert!(errors(&daemon) > 0);
    drop(nbd);
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert!(errors(&daemon) > 0, "they were forgotten");
    assert_eq!(device(&daemon, &daemon.text("a"))["errors"], 0);
    // the replacement has none of the errors of the damaged device
    leg.write_all_at(&vec![0; 254 << 20], 1 << 20).and_then(|()| leg.sync_all()).expect("writes");
    let new = daemon.text("c:256M");
    daemon.run(&["pool", "replace", "tank", &rotten, &new, "--wait"]).waited();
    let replaced = device(&daemon, &daemon.text("c"));
    assert_eq!((&replaced["errors"], text(&replaced, "health")), (&Value::from(0), "ok"), "{replaced}");
}

#[test]
fn a_clean_scrub_clears_errors() {
    let (mut daemon, _leg, nbd) = scrubbed_damage();
    let rotten = daemon.text("b");
    assert_ne!(device(&daemon, &rotten)["errors"], 0);
    // damaged checkpoints may remain unrepaired until the next one is written
    eventually("a clean scrub", || {
        daemon.run(&["pool", "scrub", "tank", "--wait"]).waited();
        daemon.json(&["pool", "status", "tank"])[0]["scrub"]["errors"] == 0
    });
    eventually("none are left", || device(&daemon, &rotten)["errors"] == 0);
    drop(nbd);
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(device(&daemon, &rotten)["errors"], 0);
}

#[test]
fn the_beginning_and_the_end_of_the_daemon_are_reported() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    let started =
        |daemon: &Daemon| of_kind(daemon, "daemon.started").iter().map(|event| text(event, "severity").to_owned()).collect::<Vec<_>>();
    assert_eq!(started(&daemon), ["info"]);
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    let stopped = reported(&daemon, "daemon.stopped");
    assert!(text(&stopped, "severity") == "info" && text(&stopped, "message").contains("1 (tank/v)"), "{stopped}");
    assert_eq!(started(&daemon), ["info", "info"]);
    daemon.stop("KILL");
    daemon.restart();
    assert_eq!(started(&daemon), ["info", "info", "warning"]);
    assert!(text(&reported(&daemon, "daemon.started"), "message").contains("was not clean"));
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(started(&daemon).last().map(String::as_str), Some("info"));
}

#[test]
fn exports_that_a_command_ends_are_reported_and_are_no_errors() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    daemon.run(&["pool", "export", "tank"]).ok();
    let stopped = of_kind(&daemon, "export.stopped");
    assert_eq!(stopped.iter().map(|event| (text(event, "severity"), text(event, "subject"))).collect::<Vec<_>>(), [("info", "1 tank/v")]);
    daemon.run(&["pool", "import", "tank"]).ok();
    reported(&daemon, "export.restored");
    let planned = daemon.run(&["pool", "destroy", "tank", "-n"]).ok().out;
    assert!(planned.contains("and end export 1 (tank/v)"), "{planned}");
    assert_eq!(daemon.run(&["pool", "destroy", "tank", "-y"]).ok().out, "ended export 1 (tank/v)\n");
    assert_eq!(text(&reported(&daemon, "export.removed"), "subject"), "1 tank/v");
    assert_eq!(of_kind(&daemon, "export.stopped").len(), 1);
}

#[test]
fn a_pool_that_fills_is_warned_of() {
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "tank", &daemon.text("a:256M")]).ok();
    daemon.run(&["create", "tank/v", "-L", "1G"]).ok();
    let socket = daemon.export("tank/v", "v.sock");
    let mut nbd = nbd::connect(&socket).expect("connect");
    let full = || {
        let pool = &daemon.json(&["pool", "list"])[0];
        let number = |key: &str| pool[key].as_u64().expect(key);
        number("allocated") * 100 / number("size")
    };
    let mut bytes = vec![0; 1 << 20];
    let mut random = Random::new(1);
    for at in 0.. {
        random.fill(&mut bytes);
        nbd.write(at << 20, &bytes).expect("write");
        if full() >= 82 {
            break;
        }
    }
    let event = reported(&daemon, "pool.space");
    assert_eq!((text(&event, "severity"), text(&event, "pool")), ("warning", "tank"));
    assert!(text(&event, "message").contains("% full, "), "{event}");
    let checked = daemon.run(&["status", "--check"]);
    assert!(checked.code == 1 && checked.out.starts_with("warning: pool tank is 8"), "{checked:?}");
    // until the pool is full
    for at in 200.. {
        random.fill(&mut bytes);
        if nbd.write(at << 20, &bytes).is_err() {
            break;
        }
    }
    let full = reported(&daemon, "pool.full");
    assert_eq!((text(&full, "severity"), text(&full, "pool")), ("error", "tank"));
    let checked = daemon.run(&["pool", "status", "--check", "tank"]);
    assert!(checked.code == 4 && checked.out.contains("error: pool tank is full, "), "{checked:?}");
}

/// Starts a second daemon and returns it with a file in its mount: a device that fails when that
/// daemon dies. Returns `None` on a machine that does not allow mounts.
fn server() -> Option<(Daemon, String)> {
    let server = Daemon::start();
    server.run(&["pool", "create", "pond", &server.text("pond.img:600M")]).ok();
    server.run(&["create", "pond/disk", "-L", "256M"]).ok();
    let mount = server.text("mnt");
    let mounted = server.run(&["export", "fuse", "pond", &mount]);
    if mounted.code != 0 {
        println!("skipped, for nothing can be mounted here: {}", mounted.err);
        return None;
    }
    Some((server, format!("{mount}/disk")))
}

#[test]
fn a_device_that_fails_and_the_spare_in_its_place_are_reported() {
    let Some((mut server, device)) = server() else { return };
    let daemon = Daemon::start();
    let [b, c] = ["b:256M", "c:256M"].map(|spec| daemon.text(spec));
    daemon.run(&["pool", "create", "tank", "mirror", &device, &b, "spare", &c]).ok();
    server.stop("KILL");
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let failed = reported(&daemon, "device.failed");
    assert_eq!((text(&failed, "severity"), text(&failed, "device")), ("error", device.as_str()));
    let used = reported(&daemon, "device.spare-used");
    assert_eq!((text(&used, "severity"), text(&used, "device")), ("warning", daemon.text("c").as_str()));
    eventually("the pool is healthy", || daemon.run(&["status", "--check"]).code == 0);
}

#[test]
fn exports_of_a_pool_that_stopped_are_not_online() {
    let Some((mut server, device)) = server() else { return };
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "tank", &device]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let mut nbd = nbd::connect(&daemon.export("tank/v", "v.sock")).expect("connect");
    server.stop("KILL");
    assert!(nbd.write(0, &[1; 4096]).is_err());
    let faulted = reported(&daemon, "pool.faulted");
    assert_eq!((text(&faulted, "severity"), text(&faulted, "pool")), ("error", "tank"));
    assert!(text(&faulted, "message").contains(&device), "the device is named: {faulted}");
    let stopped = reported(&daemon, "export.stopped");
    assert_eq!((text(&stopped, "severity"), text(&stopped, "subject")), ("error", "1 tank/v"));
    let export = &daemon.json(&["exports"])[0];
    assert_eq!(text(export, "state"), "stopped");
    assert!(text(export, "reason").contains("pool 'tank' is stopped"), "{export}");
    let listed = daemon.run(&["exports"]).ok().out;
    assert!(listed.contains("export 1 (tank/v) is stopped: pool 'tank' is stopped"), "{listed}");
    let checked = daemon.run(&["status", "--check"]);
    assert!(checked.code == 4 && checked.out.starts_with("error: pool tank is faulted: "), "{checked:?}");
    daemon.run(&["pool", "export", "tank", "--force"]);
}
