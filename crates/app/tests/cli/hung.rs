//! A pool whose device hangs: commands on other pools do not wait for it, and the pool can be given
//! up. The device is a file in the mount of a second daemon, which is stopped with a signal.

use crate::harness::{Daemon, each, eventually, exists};

/// Starts a daemon that serves an image file in a mount; `None` on a machine that does not allow
/// mounts.
fn server() -> Option<(Daemon, String)> {
    let server = Daemon::start();
    server.run(&["pool", "create", "pond", &format!("{}:600M", server.text("pond.img"))]).ok();
    server.run(&["create", "pond/disk", "-L", "256M"]).ok();
    let dir = server.text("mnt");
    let mounted = server.run(&["export", "fuse", "pond", &dir]);
    if mounted.code != 0 {
        println!("skipped, for nothing can be mounted here: {}", mounted.err);
        return None;
    }
    Some((server, format!("{dir}/disk")))
}

/// Starts a daemon with the pool `good` on a file and the pool `hung` on the server's file.
fn two_pools(device: &str) -> Daemon {
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "good", &format!("{}:256M", daemon.text("good.img"))]).ok();
    daemon.run(&["create", "good/v", "-L", "16M"]).ok();
    daemon.run(&["pool", "create", "hung", device]).ok();
    daemon.run(&["create", "hung/v", "-L", "16M"]).ok();
    daemon
}

#[test]
fn a_pool_on_a_device_that_hangs_bothers_nobody_and_can_be_given_up() {
    let Some((server, device)) = server() else { return };
    let mut daemon = two_pools(&device);
    server.signal("STOP");
    // both wait for the device; the second one also waits for the lock of its pool
    let mut waiting = [daemon.begin(&["create", "hung/w", "-L", "16M"]), daemon.begin(&["set", "cache=none", "hung/v"])];
    daemon.run(&["export", "nbd", "good/v", "--unix", &daemon.text("v.sock")]).ok();
    daemon.run(&["set", "cache=none", "good/v"]).ok();
    daemon.run(&["snapshot", "good/v@a"]).ok();
    // a volume that is being created may be listed, too
    assert!(each(&daemon.json(&["list"]), "name").contains(&"good/v"));
    daemon.run(&["unexport", "1"]).ok();
    daemon.run(&["destroy", "-y", "good/v@a"]).ok();
    daemon.run(&["pool", "export", "good"]).ok();
    daemon.run(&["pool", "import", "good", "-d", &daemon.text("good.img")]).ok();

    // the kernel cannot cancel the device's operations: this is reported, and the device stays in
    // use
    daemon.run(&["pool", "export", "hung", "--force"]).refused(1, "stay in use");
    waiting.iter_mut().for_each(|running| assert_eq!(running.wait(), 1, "they are told that it was not done"));
    assert_eq!(each(&daemon.json(&["pool", "list"]), "name"), ["good"]);
    daemon.run(&["pool", "import", "hung"]).refused(1, "the kernel still has operations");

    server.signal("CONT");
    eventually("the device is free", || daemon.run(&["pool", "import", "hung", "-d", &device]).code == 0);
    let names = daemon.json(&["list", "hung"]);
    assert!(each(&names, "name").contains(&"hung/v"), "{names}");

    // a daemon that receives SIGTERM ends, and closes all pools that can be closed
    server.signal("STOP");
    let begun = daemon.begin(&["create", "hung/x", "-L", "16M"]);
    daemon.signal("TERM");
    let socket = daemon.path("run/control.sock");
    eventually("the daemon has done its part", || !exists(&socket));
    drop(begun);
    // the kernel keeps the process until the device answers
    server.signal("CONT");
    assert_eq!(daemon.ended(), 1, "not all was closed");
    daemon.restart();
    eventually("both pools are back", || {
        let health = |name: &str| daemon.json(&["pool", "status", name])[0]["health"] == "online";
        health("good") && (health("hung") || daemon.run(&["pool", "import", "hung", "-d", &device]).code == 0)
    });
    assert_eq!(daemon.stop("TERM"), 0);
    server.run(&["unexport", "1"]).ok();
}
