//! The verbs of `pool`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::harness::{Daemon, each, eventually, keys};

#[test]
fn a_pool_is_made_listed_and_destroyed() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.text("a.img"), daemon.text("b.img"));
    daemon.run(&["pool", "create", "tank", "-n", &format!("{a}:256M")]).ok();
    assert!(!daemon.path("a.img").exists(), "a dry run made a file");
    daemon.run(&["pool", "create", "tank", "stripe", "-i", "2", "-I", "64k", &format!("{a}:256M"), &format!("{b}:256M")]).ok();
    let pools = daemon.json(&["pool", "list"]);
    assert_eq!(keys(&pools[0]), ["allocated", "devices", "free", "health", "name", "size"]);
    assert_eq!((pools[0]["name"].as_str(), pools[0]["health"].as_str()), (Some("tank"), Some("online")));
    let (size, allocated, free) = (pools[0]["size"].as_u64(), pools[0]["allocated"].as_u64(), pools[0]["free"].as_u64());
    assert_eq!(size, allocated.zip(free).map(|(a, f)| a + f));
    assert!(size.is_some_and(|size| size > 300 << 20 && size < 512 << 20), "{size:?}");
    let devices = &pools[0]["devices"];
    assert_eq!(keys(&devices[0]), ["allocated", "class", "errors", "free", "layout", "path", "state"]);
    assert_eq!(each(devices, "path"), [&a, &b]);
    assert_eq!((each(devices, "class"), each(devices, "layout")), (vec!["data"; 2], vec!["stripe"; 2]));

    daemon.run(&["pool", "create", "tank", &format!("{}:256M", daemon.text("c.img"))]).refused(1, "exists");
    assert!(!daemon.path("c.img").exists());
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["pool", "destroy", "tank"]).refused(1, "-y");
    let out = daemon.run(&["pool", "destroy", "-n", "tank"]).ok().out;
    assert!(out.contains("1 volumes"), "{out}");
    assert_eq!(daemon.json(&["list"])[0]["name"], "tank/v");
    daemon.run(&["pool", "destroy", "tank", "-y"]).ok();
    assert_eq!(daemon.json(&["pool", "list"]).as_array().map(Vec::len), Some(0));
    daemon.run(&["pool", "show", "tank"]).refused(1, "no pool 'tank'");
    assert_eq!(daemon.json(&["pool", "import", "-d", &daemon.text("")]).as_array().map(Vec::len), Some(0), "labels are left");
    daemon.run(&["pool", "create", "again", "-o", "io=buffered", "linear", &a, &b]).ok();
    daemon.run(&["pool", "export", "again"]).ok();
    daemon.run(&["pool", "import", "again"]).ok();
    assert_eq!(daemon.json(&["pool", "status", "again"])[0]["devices"][0]["direct"], false);
}

#[test]
fn tables_follow_their_options() {
    let daemon = Daemon::with_pool();
    let table = daemon.run(&["pool", "list"]).ok().out;
    assert!(table.starts_with("NAME") && table.lines().nth(1).is_some_and(|line| line.starts_with("tank")), "{table}");
    let cells = daemon.run(&["pool", "list", "-H", "-p", "-o", "health,name,size"]).ok().out;
    let cells: Vec<&str> = cells.trim_end().split('\t').collect();
    assert_eq!(cells[..2], ["online", "tank"]);
    assert!(cells[2].parse::<u64>().is_ok_and(|size| size > 256 << 20), "{cells:?}");
    let value = daemon.run(&["pool", "get", "-H", "-o", "value", "health", "tank"]).ok().out;
    assert_eq!(value, "online\n");
    assert!(daemon.run(&["pool", "get", "all", "tank"]).ok().out.contains("layout"));
    daemon.run(&["pool", "get", "colour", "tank"]).refused(2, "no property");
    daemon.run(&["pool", "set", "colour=red", "tank"]).refused(2, "colour");
    assert_eq!(daemon.json(&["pool", "show", "tank"])["name"], "tank");
    let status = daemon.run(&["pool", "status", "-v", "tank"]).ok().out;
    assert!(status.contains("health online") && status.contains("tank.img") && status.contains("write amplification"), "{status}");
    assert_eq!(daemon.json(&["pool", "status"])[0]["health"], "online");
    assert!(daemon.json(&["pool", "jobs"]).is_array());
    daemon.run(&["pool", "jobs", "--wait", "reclaim:tank"]).ok();
}

#[test]
fn devices_that_hold_something_need_force() {
    let daemon = Daemon::start();
    let path = daemon.text("disk.img");
    let file = File::create(&path).expect("create");
    file.set_len(256 << 20).expect("size");
    file.write_all_at(&[0x53, 0xef], 1024 + 56).expect("magic");
    daemon.run(&["pool", "create", "tank", &path]).refused(1, "ext2/3/4");
    daemon.run(&["pool", "create", "tank", "-f", &path]).ok();
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "create", "other", &path]).refused(1, "the pool 'tank'");
    daemon.run(&["pool", "create", "other", &daemon.text("missing.img")]).refused(1, "does not exist");
    daemon.run(&["pool", "create", "other", "mirror", &path]).refused(2, "2 to 8 devices");
    daemon.run(&["pool", "create", "other", "parity1", &path]).refused(2, "3 to 16 devices");
    daemon.run(&["pool", "create", "other", &path, "log", &path]).refused(2, "given twice");
    daemon.run(&["pool", "create", "other", &path, "cache", &path]).refused(2, "given twice");
    daemon.run(&["pool", "create", "other", "-o", "x=y", &path]).refused(2, "no property 'x'");
    daemon.run(&["pool", "create", "other", "-o", "io=fast", &path]).refused(2, "buffered");
    assert_eq!(daemon.run(&["pool", "create", "-bad", &path]).code, 2);
}

#[test]
fn a_pool_moves_from_one_daemon_to_another() {
    let first = Daemon::with_pool();
    first.run(&["create", "tank/v", "-L", "16M"]).ok();
    let second = Daemon::start();
    let dir = first.text("");
    second.run(&["pool", "import", "tank", "-d", &dir]).refused(1, "in use");
    first.run(&["pool", "export", "tank"]).ok();
    first.run(&["list", "tank"]).refused(1, "no pool 'tank'");
    let found = second.json(&["pool", "import", "-d", &dir]);
    assert_eq!((found[0]["name"].as_str(), found[0]["state"].as_str()), (Some("tank"), Some("importable")));
    second.run(&["pool", "import", "tank", "-d", &dir, "-n"]).ok();
    assert_eq!(second.json(&["list"]).as_array().map(Vec::len), Some(0), "a dry run imported");
    second.run(&["pool", "import", "tank", "-d", &dir]).ok();
    assert_eq!(each(&second.json(&["list"]), "name"), ["tank/v"]);
    second.run(&["pool", "import", "tank", "-d", &dir]).refused(1, "already");
    second.run(&["pool", "import", "nothing", "-d", &dir]).refused(1, "no pool 'nothing'");
    second.run(&["pool", "export", "tank"]).ok();
    first.run(&["pool", "import", "tank"]).ok();
    assert_eq!(each(&first.json(&["list"]), "name"), ["tank/v"]);
}

#[test]
fn a_missing_device_is_named() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.text("a.img"), daemon.text("b.img"));
    daemon.run(&["pool", "create", "tank", "linear", &format!("{a}:256M"), &format!("{b}:256M")]).ok();
    daemon.run(&["pool", "export", "tank"]).ok();
    fs::rename(&b, daemon.path("hidden")).expect("hide");
    fs::create_dir(daemon.path("away")).expect("mkdir");
    fs::rename(daemon.path("hidden"), daemon.path("away/b.img")).expect("hide");
    daemon.run(&["pool", "import", "tank"]).refused(1, "b.img");
    daemon.run(&["pool", "import", "tank", "-d", &daemon.text(""), "-d", &daemon.text("away")]).ok();
    assert_eq!(daemon.json(&["pool", "list"])[0]["devices"][1]["path"], daemon.text("away/b.img"));
}

#[test]
fn iostat_and_checkpoints_count() {
    let daemon = Daemon::with_pool();
    let rows = daemon.json(&["pool", "iostat", "tank", "-v", "-l"]);
    assert_eq!(each(&rows, "level"), ["pool", "class", "device"]);
    for key in ["allocated", "free", "read_operations", "write_operations", "read_bandwidth", "write_bandwidth", "read_latency_nanos"] {
        assert!(!rows[0][key].is_string() && rows[0].get(key).is_some(), "{key} in {rows}");
    }
    let samples = daemon.json(&["pool", "iostat", "tank", "0.1", "3"]);
    assert_eq!(samples.as_array().map(Vec::len), Some(3));
    let table = daemon.run(&["pool", "iostat", "tank", "-l", "0.1", "2"]).ok().out;
    assert!(table.lines().count() == 5 && table.contains("mean latency"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    daemon.run(&["pool", "iostat", "tank", "0"]).refused(2, "interval");
    daemon.run(&["pool", "iostat", "tank", "1", "x"]).refused(2, "number of samples");
    // all pools, and the output for programs
    assert_eq!(each(&daemon.json(&["pool", "iostat"]), "name"), ["tank"]);
    let columns = daemon.run(&["pool", "iostat", "-H", "-l"]).ok().out;
    assert_eq!((columns.lines().count(), columns.split('\t').count()), (1, 15), "{columns}");
    let named = daemon.run(&["pool", "iostat", "-o", "name,read_bandwidth"]).ok().out;
    assert!(named.starts_with("NAME") && named.contains("READ_BANDWIDTH"), "{named}");
    let keys = ["queue_latency_nanos", "queue_p99_nanos", "read_p50_nanos", "read_p99_nanos", "write_p50_nanos", "write_p99_nanos"];
    assert!(keys.iter().all(|key| rows[0].get(key).is_some()), "{rows}");
    assert!(rows[2]["write_p99_nanos"].as_f64() >= rows[2]["write_p50_nanos"].as_f64(), "{rows}");
    assert!(rows[2]["write_p50_nanos"].as_f64().is_some_and(|nanos| nanos > 0.0), "{rows}");
    assert_eq!(rows[2]["queue_p99_nanos"].as_f64(), Some(0.0), "nothing is capped");
    let points = daemon.json(&["pool", "checkpoints", "tank"]);
    assert!(points.as_array().is_some_and(|points| !points.is_empty()), "{points}");
    assert_eq!((points[0]["lost_bytes"].as_u64(), points[0]["verified"].as_str()), (Some(0), Some("yes")), "{points}");
    let table = daemon.run(&["pool", "checkpoints", "tank"]).ok().out;
    assert!(table.starts_with("ID") && table.contains("VERIFIED") && table.contains("LOST_TIME"), "{table}");
}

#[test]
fn devices_are_added_replaced_and_removed() {
    let daemon = Daemon::start();
    let path = |name: &str| daemon.text(name);
    let sized = |name: &str| format!("{}:256M", daemon.text(name));
    let listed = || {
        let pools = daemon.json(&["pool", "list"]);
        each(&pools[0]["devices"], "path").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    daemon.run(&["pool", "create", "tank", "linear", &sized("a")]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.run(&["pool", "remove", "tank", &path("a")]).refused(1, "needs this device");
    daemon.run(&["pool", "add", "-n", "tank", &sized("b")]).ok();
    assert!(!daemon.path("b").exists(), "a dry run made a file");
    daemon.run(&["pool", "add", "tank", "linear", &sized("b")]).ok();
    daemon.run(&["pool", "add", "tank", "linear", &path("b")]).refused(1, "the pool 'tank'");
    assert_eq!(listed(), [path("a"), path("b")]);
    daemon.run(&["pool", "replace", "tank", &path("none"), &sized("c")]).refused(1, "no device");
    daemon.run(&["pool", "replace", "tank", &path("a"), &format!("{}:16M", path("small"))]).refused(1, "too small");
    assert!(!daemon.path("small").exists(), "a file was left behind");
    daemon.run(&["pool", "replace", "tank", &path("a"), &sized("c"), "--wait"]).waited();
    assert_eq!(listed(), [path("c"), path("b")]);
    daemon.run(&["pool", "remove", "-n", "tank", &path("b")]).ok();
    daemon.run(&["pool", "remove", "tank", &path("b"), "--wait"]).waited();
    assert_eq!(listed(), [path("c")]);
    // released devices are free when their labels are erased
    let mirror = [path("a"), path("b")];
    eventually("the devices are vacant", || daemon.run(&["pool", "create", "other", "-n", "mirror", &mirror[0], &mirror[1]]).code == 0);
    daemon.run(&["pool", "create", "other", "mirror", &mirror[0], &mirror[1]]).ok();
    daemon.run(&["pool", "destroy", "tank", "-y"]).ok();
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online");
}

#[test]
fn a_cache_comes_and_goes_and_is_not_missed() {
    let mut daemon = Daemon::start();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| format!("{}:256M", daemon.text(name)));
    daemon.run(&["pool", "create", "tank", "linear", &a, "cache", "mirror", &b, &c]).refused(2, "no layout");
    daemon.run(&["pool", "create", "tank", "linear", &a, "cache", &b]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let size = |daemon: &Daemon| daemon.json(&["pool", "list"])[0]["size"].as_u64();
    let with_one = size(&daemon);
    daemon.run(&["pool", "add", "tank", "cache", &c]).ok();
    let states = |daemon: &Daemon| {
        let pools = daemon.json(&["pool", "status", "tank"]);
        let devices = &pools[0]["devices"];
        let all = each(devices, "class").into_iter().zip(each(devices, "state")).map(|(class, state)| format!("{class} {state}"));
        (pools[0]["health"].as_str().map(str::to_owned), all.collect::<Vec<_>>())
    };
    let online = Some("online".to_owned());
    let all = ["data online", "cache online", "cache online"].map(str::to_owned).to_vec();
    assert_eq!((states(&daemon), size(&daemon)), ((online.clone(), all.clone()), with_one));
    let listed = daemon.json(&["pool", "status", "tank"]);
    assert_eq!(each(&listed[0]["devices"], "health"), ["ok", "ok", "ok"]);
    let status = daemon.run(&["pool", "status", "-v", "tank"]).ok().out;
    assert!(status.contains("cache: 0 blocks read from it"), "{status}");
    let rows = daemon.json(&["pool", "iostat", "tank", "-v"]);
    assert!(rows[0]["cache_hits"].as_f64() == Some(0.0) && rows[1]["cache_hits"].is_null(), "{rows}");
    // the pool works without its cache devices
    assert_eq!(daemon.stop("TERM"), 0);
    std::fs::rename(daemon.path("b"), daemon.path("gone")).unwrap();
    std::fs::write(daemon.path("c"), vec![0; 1 << 20]).unwrap();
    daemon.restart();
    let without = ["data online", "cache missing", "cache missing"].map(str::to_owned).to_vec();
    assert_eq!(states(&daemon), (online.clone(), without));
    daemon.run(&["pool", "replace", "tank", "2", &d, "--wait"]).waited();
    daemon.run(&["pool", "export", "tank"]).ok();
    std::fs::rename(daemon.path("gone"), daemon.path("b")).unwrap();
    let dir = daemon.text("");
    daemon.run(&["pool", "import", "tank", "-d", &dir]).ok();
    assert_eq!(states(&daemon), (online.clone(), all));
    daemon.run(&["pool", "remove", "tank", &daemon.text("d"), "--wait"]).waited();
    daemon.run(&["pool", "remove", "tank", &daemon.text("b"), "--wait"]).waited();
    assert_eq!(states(&daemon), (online, vec!["data online".to_owned()]));
}

#[test]
fn a_spare_takes_the_place_of_a_device_that_stays_away() {
    let mut daemon = Daemon::with_config("spare_minutes = 0\nimport_wait = \"1s\"\n");
    let [a, b, c, d] = ["a:256M", "b:256M", "c:300M", "d:128M"].map(|spec| daemon.text(spec));
    daemon.run(&["pool", "create", "tank", "mirror", &a, &b, "spare", "mirror", &c, &d]).refused(2, "no layout");
    let small = daemon.run(&["pool", "create", "tank", "mirror", &a, &b, "spare", &d]);
    assert!(small.code == 0 && small.err.contains("cannot replace that device"), "{small:?}");
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let size = |daemon: &Daemon| daemon.json(&["pool", "list"])[0]["size"].as_u64();
    let before = size(&daemon);
    daemon.run(&["pool", "remove", "tank", &daemon.text("d"), "--wait"]).waited();
    daemon.run(&["pool", "add", "tank", "spare", &c]).ok();
    let states = |daemon: &Daemon| {
        let pools = daemon.json(&["pool", "status", "tank"]);
        let devices = &pools[0]["devices"];
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let all = each(devices, "path").into_iter().zip(each(devices, "class")).zip(each(devices, "state"));
        let all = all.map(|((path, class), state)| format!("{} {class} {state}", name(path)));
        (pools[0]["health"].as_str().map(str::to_owned), all.collect::<Vec<_>>())
    };
    let online = |devices: &[&str]| (Some("online".to_owned()), devices.iter().map(|device| (*device).to_owned()).collect::<Vec<_>>());
    assert_eq!(states(&daemon), online(&["a data online", "b data online", "c spare available"]));
    assert_eq!(size(&daemon), before);
    assert_eq!(daemon.stop("TERM"), 0);
    std::fs::rename(daemon.path("b"), daemon.path("gone")).unwrap();
    daemon.restart();
    let taken = online(&["a data online", "c data online"]);
    eventually("the spare is whole", || states(&daemon) == taken);
    // the lost device no longer belongs to the pool, and the daemon knows the pool's devices
    std::fs::rename(daemon.path("gone"), daemon.path("b")).unwrap();
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(states(&daemon), taken);
}

#[test]
fn a_device_is_capped_across_restarts_and_until_it_is_lifted() {
    let mut daemon = Daemon::with_pool();
    let device = daemon.text("tank.img");
    let limit = |daemon: &Daemon| daemon.json(&["pool", "status", "tank"])[0]["devices"][0]["limit"].clone();
    assert_eq!(limit(&daemon), serde_json::json!({}));
    daemon.run(&["pool", "device-limit", "tank", &device]).refused(2, "--bps");
    daemon.run(&["pool", "device-limit", "tank", &device, "--bps", "fast"]).refused(2, "fast");
    daemon.run(&["pool", "device-limit", "tank", "/dev/none", "--bps", "1M"]).refused(1, "no device");
    daemon.run(&["pool", "device-limit", "tank", &device, "--bps", "50M"]).ok();
    daemon.run(&["pool", "device-limit", "tank", &device, "--iops", "200"]).ok();
    assert_eq!(limit(&daemon), serde_json::json!({"bps": 50 << 20, "iops": 200}));
    let status = daemon.run(&["pool", "status", "-v", "tank"]).ok().out;
    assert!(status.contains("limited to 50.0M/s, 200 operations/s") || status.contains("limited to 50M/s, 200 operations/s"), "{status}");
    assert!(daemon.run(&["pool", "show", "tank"]).ok().out.contains("200 operations/s"));
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(limit(&daemon), serde_json::json!({"bps": 50 << 20, "iops": 200}));
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "import", "tank"]).ok();
    assert_eq!(limit(&daemon), serde_json::json!({"bps": 50 << 20, "iops": 200}));
    daemon.run(&["pool", "device-limit", "tank", &device, "--bps", "none", "--iops", "0"]).ok();
    assert_eq!(limit(&daemon), serde_json::json!({}));
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(limit(&daemon), serde_json::json!({}));
}
