//! Removal of devices: amount of data, duration, and progress.

use crate::harness::{Daemon, each, eventually};

#[test]
fn a_removal_says_how_far_it_is_from_its_start() {
    let daemon = Daemon::start();
    let [a, b] = ["a", "b"].map(|name| format!("{}:256M", daemon.text(name)));
    daemon.run(&["pool", "create", "tank", "linear", &a]).ok();
    std::fs::write(daemon.path("in.raw"), (0..8 << 20).map(|at: u32| (at >> 9) as u8 | 1).collect::<Vec<u8>>()).expect("written");
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v"]).code, 0);
    daemon.run(&["pool", "add", "tank", "linear", &b]).ok();
    daemon.run(&["pool", "set", "job_rate=1M", "tank"]).ok();
    let leaving = daemon.text("a");
    let plan = daemon.json(&["pool", "remove", "tank", &leaving, "-n"]);
    let moved = plan["moved_bytes"].as_u64().expect("a number");
    assert!((8 << 20..24 << 20).contains(&moved), "{plan}");
    assert_eq!((plan["rate"].as_u64(), plan["rate_of"].as_str()), (Some(1 << 20), Some("job_rate")), "{plan}");
    assert_eq!(plan["seconds"].as_u64(), Some(moved.div_ceil(1 << 20)));
    let out = daemon.run(&["pool", "remove", "tank", &leaving, "-n"]).ok().out;
    assert!(out.contains("would move to other devices: about ") && out.contains("at 1M/s (job_rate)"), "{out}");

    daemon.run(&["pool", "remove", "tank", &leaving, "--stop", "-n"]).refused(1, "no removal is under way");
    daemon.run(&["pool", "remove", "tank", &leaving]).ok();
    eventually("it is under way", || {
        let jobs = daemon.json(&["pool", "jobs"]);
        let of = |key: &str| jobs[0][key].as_u64().unwrap_or(0);
        assert_eq!(jobs[0]["id"], "remove:tank:0", "it ended before anything was seen of it");
        of("done_bytes") > 0 && of("remaining_bytes") > 0 && of("rate") > 0 && of("eta_seconds") > 0
    });
    let stops = daemon.run(&["pool", "remove", "tank", &leaving, "--stop", "-n"]).ok().out;
    assert!(stops.starts_with("would stop remove:tank:0: ") && stops.contains("would stay in pool tank"), "{stops}");
    assert_eq!(daemon.json(&["pool", "remove", "tank", &leaving, "--stop", "-n"])[0]["id"], "remove:tank:0");
    let status = daemon.run(&["pool", "status", "tank"]).ok().out;
    assert!(
        status.contains("job remove:tank:0 running, ") && status.contains(" done, ") && status.contains(" left, until about "),
        "{status}"
    );
    assert_eq!(daemon.json(&["pool", "status", "tank"])[0]["jobs"][0]["kind"], "remove");
    daemon.run(&["pool", "set", "job_rate=none", "tank"]).ok();
    let waited = daemon.run(&["pool", "jobs", "--wait", "remove:tank:0"]).waited();
    assert!(waited.err.is_empty() || waited.err.lines().last().is_some_and(|line| line.starts_with("remove:tank:0: done, ")), "{waited:?}");
    assert_eq!(daemon.json(&["pool", "list"])[0]["devices"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_removal_that_is_waited_for_says_what_left_with_the_device() {
    let daemon = Daemon::start();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| format!("{}:256M", daemon.text(name)));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b, "mirror", &c, &d]).ok();
    let pools = daemon.json(&["pool", "status", "tank"]);
    let ids = each(&pools[0]["devices"], "id");
    let (first, second) = (format!("{} {} (256M)", ids[0], daemon.text("a")), format!("{} {}", ids[1], daemon.text("b")));
    let rehearsed = daemon.run(&["pool", "remove", "tank", ids[0], "-n"]).ok().out;
    assert!(rehearsed.starts_with(&format!("would remove {first} from pool tank\n")), "{rehearsed}");
    let removed = daemon.run(&["pool", "remove", "tank", ids[0], "--wait"]).waited().out;
    assert_eq!(removed, format!("removed {first} from pool tank, and with it {second}: too few devices stayed for their layout\n"));
    // a removal that moves no data prints nothing in a script
    daemon.run(&["pool", "add", "tank", "spare", &format!("{}:256M", daemon.text("e"))]).ok();
    assert_eq!(daemon.run(&["pool", "remove", "tank", &daemon.text("e"), "--wait"]).waited().out, "");
}

#[test]
fn how_a_removal_ended_is_known_after_a_restart() {
    let mut daemon = Daemon::start();
    let [a, b] = ["a", "b"].map(|name| format!("{}:256M", daemon.text(name)));
    daemon.run(&["pool", "create", "tank", "linear", &a, &b]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    // as the daemon saves it after a removal has waited for a minute
    let file = daemon.path("state/state.json");
    let mut state: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
    state["pools"][0]["removal_ended"] = serde_json::json!({ "why": "no room", "at": "2026-01-02T03:04:05Z" });
    std::fs::write(&file, state.to_string()).expect("written");
    let ended = |daemon: &Daemon| daemon.json(&["pool", "status", "tank"])[0]["removal_ended"].clone();
    for _ in 0..2 {
        daemon.restart();
        eventually("the pool comes", || daemon.json(&["pool", "list"])[0]["health"] == "online");
        assert_eq!(ended(&daemon), "no room");
        let status = daemon.run(&["pool", "status", "tank"]).ok().out;
        assert!(status.contains("removal ended 2026-01-02") && status.contains(": no room"), "{status}");
        assert!(!daemon.run(&["events"]).ok().out.contains("pool.removal-ended"), "it was reported when it ended");
        assert_eq!(daemon.stop("TERM"), 0);
    }
    // until another removal begins
    daemon.restart();
    eventually("the pool comes", || daemon.json(&["pool", "list"])[0]["health"] == "online");
    daemon.run(&["pool", "remove", "tank", &daemon.text("a"), "--wait"]).waited();
    assert!(ended(&daemon).is_null());
}
