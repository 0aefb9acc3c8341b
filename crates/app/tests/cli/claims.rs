//! Hosts that see the same devices. A daemon acts as another host by its configuration.

use std::fs;

use crate::harness::{Daemon, eventually};

/// Kills or stops the daemon and restarts it as another host.
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

    // a host that stops cleanly releases the pool at once
    move_to(&mut daemon, "three", "TERM");
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online");
    daemon.run(&["pool", "export", "tank"]).ok();
    move_to(&mut daemon, "four", "TERM");
    daemon.run(&["pool", "import", "tank"]).ok();
}

#[test]
fn checkpoints_say_the_same_of_what_is_lost_wherever_they_are_asked_for() {
    let mut daemon = Daemon::with_config("host_id = \"one\"\n");
    daemon.run(&["pool", "create", "tank", &format!("{}:256M", daemon.text("tank.img"))]).ok();
    fs::write(daemon.path("in.raw"), vec![7; 8 << 20]).expect("written");
    assert_eq!(daemon.run(&["import-image", "in.raw", "tank/v"]).code, 0);
    let newest = |points: &serde_json::Value| (points[0]["id"].as_u64(), points[0]["lost_bytes"].as_u64());
    let serving = daemon.json(&["pool", "checkpoints", "tank"]);
    assert!(serving[0]["lost_bytes"].as_u64() > Some(1 << 20) && serving[0]["lost_millis"].as_u64() > Some(0), "{serving}");

    move_to(&mut daemon, "two", "KILL");
    let dir = daemon.text("");
    let idle = daemon.json(&["pool", "checkpoints", "tank", "-d", &dir]);
    assert_eq!(newest(&idle), newest(&serving));
    // the time since the pool was last seen in use, not the time between two checkpoints
    assert!(idle[0]["lost_millis"].as_u64() > Some(0), "{idle}");
    let planned = daemon.json(&["pool", "import", "tank", "-d", &dir, "--rewind", "-n"]);
    let rewound = &planned[0]["checkpoint"];
    assert_eq!(rewound["id"], idle[0]["id"]);
    assert_eq!((rewound["lost_bytes"].as_u64(), idle[0]["lost_by_rewind"].as_u64()), (Some(0), Some(0)), "{planned} {idle}");
    let table = daemon.run(&["pool", "checkpoints", "tank", "-d", &dir]).ok().out;
    assert!(table.contains("LOST_TIME") && table.contains("replays the log after it, and loses 0B"), "{table}");
    let to = daemon.json(&["pool", "import", "tank", "-d", &dir, "--to", &idle[0]["id"].to_string(), "-n"]);
    assert_eq!(to[0]["checkpoint"]["lost_bytes"], idle[0]["lost_bytes"]);
    // the host that has the pool is named
    let found = daemon.json(&["pool", "import", "-d", &dir]);
    assert_eq!((found[0]["state"].as_str(), found[0]["used_by"].is_string()), (Some("in-use"), true), "{found}");
    let table = daemon.run(&["pool", "import", "-d", &dir]).ok().out;
    assert!(table.contains("in-use") && table.contains(", seen ") && table.contains(" ago"), "{table}");
}

/// A host imported a pool without one of its devices, because the user asked for it. When another
/// host has made a whole pool with the device that was left out, the first host does not import
/// that pool at its start.
#[test]
fn what_another_host_made_of_devices_left_behind_here_is_not_taken_by_a_start() {
    let patient = |host: &str| Daemon::with_config(&format!("host_id = \"{host}\"\nimport_wait = \"10m\"\n"));
    let (mut here, there) = (patient("one"), patient("two"));
    let [a, b, c] = ["a", "b", "c"].map(|name| here.text(name));
    let rename = |from: &str, to: &str| fs::rename(from, to).expect("renamed");
    here.run(&["pool", "create", "tank", "mirror", &format!("{a}:256M"), &format!("{b}:256M")]).ok();
    assert_eq!(here.stop("TERM"), 0);
    // the other host imports without one device and replaces it
    there.run(&["pool", "import", "tank", "--degraded", "-d", &b]).ok();
    there.run(&["pool", "replace", "tank", "0", &format!("{c}:256M"), "--wait"]).waited();
    there.run(&["pool", "export", "tank"]).ok();
    // at the user's request, this host imports the device that the other one left out
    rename(&b, &format!("{b}.away"));
    here.restart();
    here.run(&["pool", "import", "tank", "--degraded", "-d", &a]).ok();
    assert_eq!(here.stop("TERM"), 0);
    // then it finds the other host's pool, whole and at its own paths
    rename(&a, &format!("{a}.away"));
    rename(&c, &a);
    rename(&format!("{b}.away"), &b);
    here.restart();
    eventually("it is refused", || here.json(&["status"])["pools"][0]["reason"].as_str().is_some_and(|why| why.contains("not up to date")));
    assert_eq!(here.json(&["pool", "list"])[0]["health"], "unavailable");
    let found = here.json(&["pool", "import", "-d", &a, "-d", &b]);
    assert_eq!(found[0]["state"], "outdated", "{found}");
    let listed = here.run(&["pool", "import", "-d", &a, "-d", &b]);
    assert!(listed.code == 0 && listed.err.contains("not up to date"), "{listed:?}");
    // at the user's request it is imported
    let imported = here.run(&["pool", "import", "tank", "-d", &a, "-d", &b]);
    assert_eq!(imported.code, 0, "{imported:?}");
    assert_eq!(here.json(&["pool", "list"])[0]["health"], "online");
}

/// Each half of a mirror was made whole on another host; the user takes one of them here. The other one does not come by itself in its places.
#[test]
fn what_was_left_behind_on_another_host_is_not_taken_by_a_start() {
    let patient = |host: &str| Daemon::with_config(&format!("host_id = \"{host}\"\nimport_wait = \"10m\"\n"));
    let (mut here, there) = (patient("one"), patient("two"));
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| here.text(name));
    let rename = |from: &str, to: &str| fs::rename(from, to).expect("renamed");
    here.run(&["pool", "create", "tank", "mirror", &format!("{a}:256M"), &format!("{b}:256M")]).ok();
    here.run(&["pool", "export", "tank"]).ok();
    for (half, member, with) in [(&b, "0", &c), (&a, "1", &d)] {
        let taken = there.run(&["pool", "import", "tank", "--degraded", "-d", half]);
        assert_eq!(taken.code, 0, "{taken:?}");
        there.run(&["pool", "replace", "tank", member, &format!("{with}:256M"), "--wait"]).waited();
        there.run(&["pool", "export", "tank"]).ok();
    }
    here.run(&["pool", "import", "tank", "-d", &a, "-d", &d]).ok();
    here.run(&["create", "tank/v", "-L", "16M"]).ok();
    assert_eq!(here.stop("TERM"), 0);
    for device in [&a, &d] {
        rename(device, &format!("{device}.away"));
    }
    rename(&c, &a);
    rename(&b, &d);
    here.restart();
    eventually("it is refused", || here.json(&["status"])["pools"][0]["reason"].as_str().is_some_and(|why| why.contains("not up to date")));
    assert_eq!(here.json(&["pool", "list"])[0]["health"], "unavailable");
    // it comes when what was in service is back
    for device in [&a, &d] {
        rename(&format!("{device}.away"), device);
    }
    eventually("it is imported", || here.json(&["pool", "list"])[0]["health"] == "online");
    assert_eq!(here.json(&["list"])[0]["name"], "tank/v");
}
