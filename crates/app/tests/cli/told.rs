//! What goes wrong is reported: as events, to a command, in `status`, and as an exit code.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Daemon, Running, command};

/// The events that the daemon remembers, oldest first.
fn events(daemon: &Daemon, words: &[&str]) -> Vec<Value> {
    let lines = daemon.run(&[&["events", "--format", "json"], words].concat()).ok().out;
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn of_kind(daemon: &Daemon, kind: &str) -> Vec<Value> {
    events(daemon, &[]).into_iter().filter(|event| event["event"] == kind).collect()
}

/// Text of a field.
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
    let (mut json, mut lines) = follow(&["--since", "1h", "--format", "json"]);
    assert!(lines.any(|line| line.contains("volume.created")), "what was comes first");
    let (mut table, mut rows) = follow(&["--since", "1h"]);
    assert!(rows.any(|row| row.contains("volume.created")));
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    let next: Value = serde_json::from_str(&lines.next().expect("a line")).expect("JSON");
    assert_eq!(text(&next, "event"), "snapshot.created");
    assert!(rows.next().is_some_and(|row| row.contains("info      snapshot.created    snapshot created: tank/v@a")));

    assert_eq!(daemon.stop("TERM"), 0);
    assert_eq!((json.wait(), table.wait()), (3, 3), "they end with the daemon");
    daemon.restart();
    let kinds: Vec<Value> = events(&daemon, &[]).into_iter().map(|event| event["event"].clone()).collect();
    let at = |kind: &str| kinds.iter().position(|known| known == kind).expect(kind);
    assert!(at("pool.created") < at("volume.created") && at("snapshot.created") < at("pool.imported"), "{kinds:?}");
}
