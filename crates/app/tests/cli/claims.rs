//! Hosts that see the same devices: a daemon that counts as another host by its configuration.

use std::fs;

use crate::harness::Daemon;

/// The daemon dies, or is stopped, and comes back as another host.
fn move_to(daemon: &mut Daemon, host: &str, signal: &str) {
    daemon.stop(signal);
    fs::write(daemon.path("millpond.toml"), format!("host_id = \"{host}\"\n")).expect("a configuration file");
    daemon.restart();
}

#[test]
fn a_pool_that_another_host_did_not_close_is_taken_by_force_alone() {
    let mut daemon = Daemon::with_config("host_id = \"one\"\n");
    daemon.run(&["pool", "create", "tank", &format!("{}:256M", daemon.text("tank.img"))]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    move_to(&mut daemon, "one", "KILL");
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online", "the same host comes back");

    move_to(&mut daemon, "two", "KILL");
    let pools = daemon.json(&["pool", "list"]);
    assert_eq!(pools[0]["health"], "unavailable", "{pools}");
    daemon.run(&["pool", "import", "tank"]).refused(1, "has not closed it");
    daemon.run(&["pool", "destroy", "tank", "-y"]).refused(1, "--force");
    assert_eq!(daemon.run(&["pool", "import", "--force"]).code, 2, "which pool?");
    daemon.run(&["pool", "import", "tank", "--force"]).ok();
    assert_eq!(daemon.json(&["list"])[0]["name"], "tank/v");

    // stopped cleanly, it goes over at once
    move_to(&mut daemon, "three", "TERM");
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online");
    daemon.run(&["pool", "export", "tank"]).ok();
    move_to(&mut daemon, "four", "TERM");
    daemon.run(&["pool", "import", "tank"]).ok();
}
