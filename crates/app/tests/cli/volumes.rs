//! Volumes: create, list, properties, size, names.

use crate::harness::{Daemon, each, keys};

#[test]
fn a_volume_is_made_and_listed_with_the_agreed_keys() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "64M", "--cache", "none", "--sector", "4kn", "-o", "compression=lz4"]).ok();
    let volumes = daemon.json(&["list"]);
    let agreed = ["cache", "name", "origin", "referenced_bytes", "sector", "size", "snapshots", "unique_bytes"];
    assert_eq!(keys(&volumes[0]), agreed);
    assert_eq!(volumes[0]["name"], "tank/v");
    assert_eq!(volumes[0]["size"], 64 << 20);
    assert_eq!((volumes[0]["cache"].as_str(), volumes[0]["sector"].as_str()), (Some("none"), Some("4kn")));
    assert!(volumes[0]["origin"].is_null() && volumes[0]["snapshots"] == 0);
    assert_eq!(daemon.run(&["get", "-H", "-o", "value", "compression", "tank/v"]).ok().out, "lz4\n");
    assert_eq!(keys(&daemon.json(&["list", "-t", "volume", "tank/v"])[0]), agreed);

    daemon.run(&["create", "tank/w", "-L", "16M"]).ok();
    let defaults = daemon.json(&["list", "tank/w"]);
    assert_eq!((defaults[0]["cache"].as_str(), defaults[0]["sector"].as_str()), (Some("writeback"), Some("512e")));
    assert_eq!(each(&daemon.json(&["list", "tank"]), "name"), ["tank/v", "tank/w"]);

    daemon.run(&["create", "tank/v", "-L", "64M"]).refused(1, "exists");
    daemon.run(&["create", "none/v", "-L", "64M"]).refused(1, "no pool 'none'");
    daemon.run(&["create", "tank/x", "-L", "1000"]).refused(2, "4096");
    daemon.run(&["create", "tank/x", "-L", "1M", "--cache", "fast"]).refused(2, "not a cache mode");
    daemon.run(&["create", "tank/x", "-L", "1M", "--sector", "520"]).refused(2, "not a sector profile");
    daemon.run(&["create", "tank/x", "-L", "1M", "-o", "special_small_blocks=2M"]).refused(2, "at most 1M");
    daemon.run(&["create", "tank/x", "-L", "1M", "-o", "iops_max=5"]).refused(1, "set iops too");
    daemon.run(&["create", "tank/x", "-L", "1M", "-o", "reservation=1T"]).refused(1, "can be promised");
    daemon.run(&["list", "tank/x"]).refused(1, "no volume 'tank/x'");
}

#[test]
fn properties_change_and_are_kept() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["set", "cache=directsync", "tank/v"]).ok();
    daemon.run(&["set", "compression=zstd", "readonly=on", "special_small_blocks=16k", "read_cache=1M", "tank/v"]).ok();
    let check = |daemon: &Daemon| {
        let properties = daemon.json(&["get", "all", "tank/v"]);
        let value =
            |name: &str| properties.as_array().and_then(|all| all.iter().find(|p| p["property"] == name)).map(|p| p["value"].clone());
        assert_eq!(value("cache"), Some("directsync".into()));
        assert_eq!(value("compression"), Some("zstd".into()));
        assert_eq!(value("readonly"), Some(true.into()));
        assert_eq!(value("special_small_blocks"), Some(16384.into()));
        assert_eq!(value("read_cache"), Some((1 << 20).into()));
    };
    check(&daemon);
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    check(&daemon);
    for (word, shown) in [("none", "0"), ("auto", "auto")] {
        daemon.run(&["set", &format!("read_cache={word}"), "tank/v"]).ok();
        let line = daemon.run(&["get", "-H", "-p", "-o", "value", "read_cache", "tank/v"]).ok();
        assert_eq!(line.out.trim(), shown);
    }
    daemon.run(&["set", "read_cache=lots", "tank/v"]).refused(2, "read_cache");
    daemon.run(&["set", "cache=warm", "tank/v"]).refused(2, "not a cache mode");
    daemon.run(&["set", "sector=4kn", "tank/v"]).refused(2, "sector");
    daemon.run(&["set", "colour=red", "tank/v"]).refused(2, "no property");
}

#[test]
fn cache_modes_are_advised_with_reasons() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let advised = |words: &[&str]| {
        let rows = daemon.json(&[&["cache", "advise"], words].concat());
        assert_eq!(each(&rows, "mode"), ["none", "directsync", "writethrough", "writeback", "unsafe"]);
        assert!(each(&rows, "reason").iter().all(|reason| reason.len() > 20) && each(&rows, "power_loss")[1] == "nothing");
        let best = each(&rows, "advice").iter().position(|advice| *advice == "best").expect("one is best");
        each(&rows, "mode")[best].to_owned()
    };
    assert_eq!(advised(&["--db"]), "none");
    assert_eq!(advised(&["--vm", "--write-rate", "100", "--flush-rate", "2"]), "writeback");
    assert_eq!(advised(&["tank/v", "--no-flush", "--reads-again", "0"]), "directsync");
    assert!(daemon.run(&["cache", "advise", "tank/v"]).ok().out.contains("present mode: writeback"));
    daemon.run(&["cache", "advise"]).refused(2, "name a volume");
    assert_eq!(daemon.run(&["cache", "advise", "--db", "--vm"]).code, 2);
    daemon.run(&["cache", "advise", "--write-rate", "0", "--flush-rate", "1"]).refused(2, "above 0");
    daemon.run(&["cache", "advise", "tank/none"]).refused(1, "no volume");
}

#[test]
fn limits_and_reservations_change_and_are_kept() {
    let mut daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M", "-o", "iops=1000", "-o", "reservation=32M"]).ok();
    daemon.run(&["set", "bps_wr=20M", "iops_max=3000", "iops_max_length=10", "tank/v"]).ok();
    let check = |daemon: &Daemon| {
        let shown = daemon.json(&["show", "tank/v"]);
        let limits = ["iops", "iops_max", "iops_max_length", "bps_wr", "bps", "reservation"].map(|name| shown[name].as_u64());
        assert_eq!(limits, [1000, 3000, 10, 20 << 20, 0, 32 << 20].map(Some), "{shown}");
    };
    check(&daemon);
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    check(&daemon);
    assert_eq!(daemon.run(&["get", "-H", "-o", "value", "iops", "tank/v"]).ok().out, "1000\n");
    assert_eq!(daemon.json(&["get", "bps_wr", "tank/v"])[0]["value"], 20 << 20);
    let shown = daemon.run(&["show", "tank/v"]).ok().out;
    assert!(shown.contains("iops_max_length") && !shown.contains("bps_rd"), "{shown}");
    daemon.run(&["set", "iops_max=999", "tank/v"]).refused(1, "iops_max=999 is less than iops=1000");
    daemon.run(&["set", "reservation=1T", "tank/v"]).refused(1, "can be promised");
    daemon.run(&["snapshot", "tank/v@s"]).ok();
    daemon.run(&["clone", "tank/v@s", "tank/c"]).ok();
    let clone = daemon.json(&["show", "tank/c"]);
    assert_eq!((clone["iops"].as_u64(), clone["reservation"].as_u64()), (Some(1000), Some(0)), "space is not promised twice");
    daemon.run(&["set", "iops=none", "bps_wr=0", "reservation=none", "tank/v"]).ok();
    let shown = daemon.json(&["show", "tank/v"]);
    assert!(["iops", "iops_max", "bps_wr", "reservation"].iter().all(|name| shown[*name] == 0), "{shown}");
}

#[test]
fn a_map_shows_where_the_data_is() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    assert_eq!(daemon.json(&["show", "-m", "tank/v"]), serde_json::json!([]));
    daemon.run(&["show", "-m", "tank/none"]).refused(1, "no volume");
    assert!(daemon.run(&["show", "-m", "tank/v"]).ok().out.starts_with("DEVICE"));
    assert!(daemon.run(&["show", "-mv", "tank/v"]).ok().out.starts_with("SEGMENT"));
}

#[test]
fn a_volume_grows_and_shrinks_only_with_consent() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "64M"]).ok();
    let size = || daemon.json(&["list", "tank/v"])[0]["size"].as_u64();
    daemon.run(&["resize", "tank/v", "+64M"]).ok();
    assert_eq!(size(), Some(128 << 20));
    daemon.run(&["resize", "tank/v", "32M"]).refused(1, "--allow-shrink");
    assert_eq!(size(), Some(128 << 20));
    let out = daemon.run(&["resize", "tank/v", "-n", "--allow-shrink", "32M"]).ok().out;
    assert!(out.contains("96M") && size() == Some(128 << 20), "{out}");
    daemon.run(&["resize", "--allow-shrink", "--", "tank/v", "-96M"]).ok();
    assert_eq!(size(), Some(32 << 20));
    daemon.run(&["resize", "--allow-shrink", "--", "tank/v", "-1G"]).refused(1, "below zero");
    daemon.run(&["resize", "tank/v", "1000"]).refused(2, "4096");
}

#[test]
fn names_change_within_their_pool() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["snapshot", "tank/v@a"]).ok();
    daemon.run(&["rename", "tank/v", "tank/w"]).ok();
    daemon.run(&["rename", "tank/w@a", "@b"]).ok();
    assert_eq!(each(&daemon.json(&["list", "-t", "all"]), "name"), ["tank/w", "tank/w@b"]);
    daemon.run(&["rename", "tank/w", "other/w"]).refused(1, "same pool");
    daemon.run(&["rename", "tank/w@b", "tank/w"]).refused(1, "cannot move to another volume");
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["rename", "tank/w", "tank/v"]).refused(1, "exists");
}

#[test]
fn show_tells_how_to_use_a_volume() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M", "--sector", "4kn"]).ok();
    assert!(daemon.run(&["show", "tank/v"]).ok().out.contains("millpond export nbd tank/v"));
    let socket = daemon.export("tank/v", "v.sock");
    let text = daemon.run(&["show", "tank/v"]).ok().out;
    for word in ["QEMU", "libvirt", "Proxmox", "logical_block_size=4096", socket.to_str().expect("UTF-8")] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let shown = daemon.json(&["show", "tank/v"]);
    assert!(shown["lines"]["libvirt"].as_str().is_some_and(|line| line.contains("logical_block_size='4096'")));
    assert_eq!(shown["exports"][0]["name"], "tank/v");
}
