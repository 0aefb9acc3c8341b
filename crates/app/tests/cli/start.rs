//! Actions of a daemon at its start: devices that are late, locked, or older than the state that
//! was in service.

use std::fs;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Daemon, Running, command, eventually};
use crate::nbd;

/// Starts a daemon that waits one second for missing devices.
fn impatient() -> Daemon {
    Daemon::with_config("import_wait = \"1s\"\n")
}

fn pool(daemon: &Daemon) -> Value {
    daemon.json(&["status"])["pools"][0].clone()
}

fn reason(daemon: &Daemon) -> String {
    pool(daemon)["reason"].as_str().unwrap_or_default().to_owned()
}

fn health_is(daemon: &Daemon, health: &str) -> bool {
    pool(daemon)["health"] == health
}

/// Returns true if the export answers. A daemon that was killed leaves its socket behind.
fn serves(daemon: &Daemon) -> bool {
    nbd::connect(&daemon.path("v.sock")).is_ok()
}

fn hide(daemon: &Daemon, name: &str) {
    fs::rename(daemon.path(name), daemon.path(&format!("{name}.away"))).expect("hide");
}

fn bring_back(daemon: &Daemon, name: &str) {
    fs::rename(daemon.path(&format!("{name}.away")), daemon.path(name)).expect("bring back");
}

fn write(daemon: &Daemon, byte: u8) {
    nbd::connect(&daemon.path("v.sock")).expect("connect").write(0, &[byte; 4096]).expect("write");
}

fn read(daemon: &Daemon) -> u8 {
    let mut bytes = [0; 4096];
    nbd::connect(&daemon.path("v.sock")).expect("connect").read(0, &mut bytes).expect("read");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// Starts a daemon with a mirror of `a` and `b`. Both got 0x11; then `a` was late at a start, and
/// only `b` got 0x22. The daemon serves `b`, and `a` is hidden.
fn written_without_a() -> Daemon {
    let mut daemon = impatient();
    let (a, b) = (format!("{}:256M", daemon.text("a")), format!("{}:256M", daemon.text("b")));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M", "--cache", "directsync"]).ok();
    daemon.export("tank/v", "v.sock");
    write(&daemon, 0x11);
    assert_eq!(daemon.stop("TERM"), 0);
    // the daemon waits for the device, then imports without it
    hide(&daemon, "a");
    daemon.restart();
    eventually("without the half that is late", || health_is(&daemon, "degraded"));
    eventually("the export is back", || serves(&daemon));
    write(&daemon, 0x22);
    daemon
}

#[test]
fn an_older_half_of_a_mirror_is_not_taken_by_a_start() {
    let mut daemon = written_without_a();
    assert_eq!(daemon.stop("KILL"), -1);
    // now only the older half, which does not know that it is older
    bring_back(&daemon, "a");
    hide(&daemon, "b");
    daemon.restart();
    let why = reason(&daemon);
    assert!(why.contains(&daemon.text("b")) && why.contains("generation") && why.contains("--degraded"), "{why}");
    let looks = Instant::now() + Duration::from_secs(5);
    while Instant::now() < looks {
        assert!(!health_is(&daemon, "degraded") && !serves(&daemon), "{}", pool(&daemon));
        sleep(Duration::from_millis(100));
    }
    daemon.run(&["pool", "import", "tank"]).refused(1, "--degraded");
    // the newer half comes back: the pool recovers without a command
    bring_back(&daemon, "b");
    eventually("the pool is whole again", || health_is(&daemon, "online"));
    eventually("the export is back", || serves(&daemon));
    assert_eq!(read(&daemon), 0x22);
    assert_eq!(daemon.stop("TERM"), 0);
}

/// Turns a feature of a later version on in both labels of a device of 256 MiB.
fn upgrade(daemon: &Daemon, name: &str) {
    let device = fs::File::options().read(true).write(true).open(daemon.path(name)).expect("open");
    for area in [0, 255 << 20] {
        let mut label = [0; 4096];
        device.read_exact_at(&mut label, area).expect("read");
        label[21] |= 0x80;
        let sum = crc_fast::crc32_iscsi(&label[..4092]);
        label[4092..].copy_from_slice(&sum.to_le_bytes());
        device.write_all_at(&label, area).expect("write");
    }
}

/// The other half may have been away while a later version upgraded the pool and wrote to it.
#[test]
fn a_half_of_a_later_version_is_not_done_without() {
    let mut daemon = impatient();
    let (a, b) = (format!("{}:256M", daemon.text("a")), format!("{}:256M", daemon.text("b")));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    upgrade(&daemon, "b");
    daemon.restart();
    let why = |daemon: &Daemon| reason(daemon).contains("has a label of a newer version");
    eventually("it is refused", || why(&daemon));
    let looks = Instant::now() + Duration::from_secs(5);
    while Instant::now() < looks {
        assert!(health_is(&daemon, "unavailable") && why(&daemon), "{}", pool(&daemon));
        sleep(Duration::from_millis(100));
    }
    let dir = daemon.text("");
    let imports: [&[&str]; 5] = [&[], &["--degraded"], &["--degraded", "-n"], &["--rebuild", "-n"], &["-d", &dir, "--degraded"]];
    for options in imports {
        let words = [&["pool", "import", "tank"][..], options].concat();
        daemon.run(&words).refused(1, "has a label of a newer version");
    }
    daemon.run(&["pool", "checkpoints", "tank"]).refused(1, "has a label of a newer version");
    daemon.run(&["pool", "checkpoints", "tank", "-d", &dir]).refused(1, "has a label of a newer version");
    assert_eq!(daemon.json(&["pool", "import", "-d", &dir])[0]["state"], "newer");
    let bytes = || ["a", "b"].map(|name| fs::read(daemon.path(name)).expect("read"));
    let before = bytes();
    daemon.run(&["pool", "destroy", "-n", "tank"]).refused(1, "has a label of a newer version");
    daemon.run(&["pool", "destroy", "-y", "tank"]).refused(1, "has a label of a newer version");
    assert!(bytes() == before, "a device was changed");
    // a device that is away counts as missing
    hide(&daemon, "b");
    eventually("without the device", || health_is(&daemon, "degraded"));
    // and the pool goes on without it when it is back
    bring_back(&daemon, "b");
    daemon.run(&["pool", "checkpoints", "tank"]).ok();
    let newer = fs::read(daemon.path("b")).expect("read");
    let destroyed = daemon.run(&["pool", "destroy", "-y", "tank"]);
    let warned = format!("warning: the label on {} is left: it has a label of a newer version", daemon.text("b"));
    assert!(destroyed.code == 0 && destroyed.err.contains(&warned), "{destroyed:?}");
    assert!(fs::read(daemon.path("b")).expect("read") == newer, "the newer device was changed");
}

/// INV-MEMORY-1: a pool that lacks a device is served only after the daemon has saved that the
/// device is out of date.
#[test]
fn an_import_without_a_device_that_cannot_be_remembered_serves_nobody() {
    let daemon = impatient();
    let (a, b) = (format!("{}:256M", daemon.text("a")), format!("{}:256M", daemon.text("b")));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    daemon.run(&["unexport", "1"]).ok();
    daemon.run(&["pool", "export", "tank"]).ok();
    hide(&daemon, "a");
    let state = daemon.path("state/.state.json.new");
    fs::create_dir(&state).expect("in the way of the next state");
    let import = ["pool", "import", "tank", "--degraded", "-d", &daemon.text("b")];
    daemon.run(&import).refused(1, "out of date");
    assert!(daemon.json(&["pool", "list"]).as_array().is_some_and(Vec::is_empty), "it is not in service");
    fs::remove_dir(&state).expect("room again");
    daemon.run(&import).ok();
    assert!(health_is(&daemon, "degraded"));
}

#[test]
fn the_older_half_is_taken_by_the_users_word_and_remembered_from_then_on() {
    let mut daemon = written_without_a();
    assert_eq!(daemon.stop("TERM"), 0);
    bring_back(&daemon, "a");
    hide(&daemon, "b");
    daemon.restart();
    let imported = daemon.run(&["pool", "import", "tank", "--degraded"]);
    assert!(imported.code == 0 && imported.err.contains("gives up everything written since"), "{imported:?}");
    assert_eq!(read(&daemon), 0x11);
    assert_eq!(daemon.stop("TERM"), 0);
    // the state that was given up is not imported automatically, although its label is as new
    hide(&daemon, "a");
    bring_back(&daemon, "b");
    daemon.restart();
    assert!(reason(&daemon).contains(&daemon.text("a")), "{}", pool(&daemon));
    assert!(!serves(&daemon));
    // the two are not joined either, because each was written to without the other
    bring_back(&daemon, "a");
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    eventually("the contradiction is the reason in the status", || reason(&daemon).contains("contradict each other"));
    let (why, a, b) = (reason(&daemon), daemon.text("a"), daemon.text("b"));
    assert!(why.contains(&a) && why.contains(&b) && why.contains("-d DEVICE") && health_is(&daemon, "unavailable"), "{why}");
    let found = daemon.json(&["pool", "import", "-d", &a, "-d", &b]);
    assert_eq!(found[0]["state"], "contradictory", "{found}");
    daemon.run(&["pool", "import", "tank", "--degraded"]).refused(1, "contradict each other");
    // the remedy that the error names
    let imported = daemon.run(&["pool", "import", "tank", "--degraded", "-d", &b]);
    assert_eq!(imported.code, 0, "{imported:?}");
    assert_eq!(read(&daemon), 0x22);
}

#[test]
fn a_device_at_whose_path_another_one_is_is_waited_for() {
    let mut daemon = Daemon::with_config("import_wait = \"10m\"\n");
    let (a, b) = (format!("{}:256M", daemon.text("a")), format!("{}:256M", daemon.text("b")));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    hide(&daemon, "a");
    fs::rename(daemon.path("b"), daemon.path("a")).expect("the other has its path");
    daemon.restart();
    eventually("it is waited for", || reason(&daemon).contains("another device of the pool is at its path"));
    let listed = pool(&daemon);
    assert!(health_is(&daemon, "unavailable") && reason(&daemon).contains("waiting for device 0"), "{listed}");
    let states: Vec<_> = listed["devices"].as_array().expect("devices").iter().map(|device| device["state"].as_str()).collect();
    assert!(states.contains(&Some("missing")), "{listed}");
    // the device comes back at the path of the other one
    fs::rename(daemon.path("a.away"), daemon.path("b")).expect("comes back");
    eventually("the pool comes", || health_is(&daemon, "online"));
}

#[test]
fn a_pool_whose_device_is_late_or_locked_comes_by_itself_with_its_exports() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    write(&daemon, 7);
    assert_eq!(daemon.stop("TERM"), 0);
    hide(&daemon, "tank.img");
    daemon.restart();
    let listed = pool(&daemon);
    assert_eq!((&listed["health"], &listed["devices"][0]["state"]), (&"unavailable".into(), &"missing".into()));
    assert!(reason(&daemon).contains("waiting for device") && reason(&daemon).contains("tank.img"), "{listed}");
    bring_back(&daemon, "tank.img");
    eventually("the pool comes", || health_is(&daemon, "online"));
    eventually("its export comes", || serves(&daemon));
    assert_eq!(read(&daemon), 7);
    assert_eq!(daemon.stop("TERM"), 0);
    // another process locks the device for longer than a daemon that was killed
    let held = fs::File::options().write(true).open(daemon.path("tank.img")).expect("opens");
    held.lock().expect("locks");
    daemon.restart();
    assert!(health_is(&daemon, "unavailable") && reason(&daemon).contains("in use"), "{}", pool(&daemon));
    drop(held);
    eventually("the pool comes", || health_is(&daemon, "online"));
    eventually("its export comes", || serves(&daemon));
    assert_eq!(read(&daemon), 7);
}

#[test]
fn devices_that_are_being_added_are_found_after_a_crash() {
    let mut daemon = Daemon::with_pool();
    let (tank, more) = (daemon.text("tank.img"), format!("{}:256M", daemon.text("more.img")));
    // writing new labels takes seconds, because the limit allows few bytes per second on the first
    // device
    daemon.run(&["pool", "device-limit", "tank", &tank, "--bps", "1k"]).ok();
    let mut add = command(&["pool", "add", "tank", "linear", &more]);
    add.env("MILLPOND_SOCKET", daemon.socket());
    let mut adding = Running::start(add);
    let state = daemon.path("state/state.json");
    eventually("remembered before the engine has answered", || {
        let remembered = fs::read_to_string(&state).is_ok_and(|text| text.contains("more.img"));
        assert!(remembered || adding.0.try_wait().expect("waits").is_none(), "it was added and not remembered before");
        remembered
    });
    assert!(adding.0.try_wait().expect("waits").is_none(), "it was added before it was remembered");
    daemon.stop("KILL");
    drop(adding);
    daemon.restart();
    eventually("the pool comes", || health_is(&daemon, "online"));
}

#[test]
fn a_pool_that_lost_devices_is_destroyed_as_far_as_it_is_there() {
    let mut daemon = Daemon::start();
    let sized = |name: &str| format!("{}:256M", daemon.text(name));
    let (a, b, c) = (sized("a"), sized("b"), sized("c"));
    daemon.run(&["pool", "create", "tank", "linear", &a]).ok();
    daemon.run(&["pool", "add", "tank", "mirror", &b, &c]).ok();
    daemon.run(&["pool", "remove", "tank", &daemon.text("a"), "--wait"]).waited();
    assert_eq!(daemon.stop("TERM"), 0);
    hide(&daemon, "b");
    daemon.restart();
    assert!(health_is(&daemon, "unavailable"));
    let destroyed = daemon.run(&["pool", "destroy", "-y", "tank"]);
    let warned = format!("warning: the label on {} is left", daemon.text("b"));
    assert!(destroyed.code == 0 && destroyed.err.contains(&warned) && destroyed.err.lines().count() == 1, "{destroyed:?}");
    // the device that was present no longer belongs to a pool
    daemon.run(&["pool", "create", "other", &daemon.text("c")]).ok();
    bring_back(&daemon, "b");
    daemon.run(&["pool", "create", "again", &daemon.text("b")]).refused(1, "tank");
}
