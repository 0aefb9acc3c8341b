//! Dry runs report the same as the real commands, and devices are shown with all their names.

use std::fs::{self, File};

use crate::harness::{Daemon, each, eventually};

fn sized(daemon: &Daemon, name: &str) -> String {
    format!("{}:256M", daemon.text(name))
}

fn ids(daemon: &Daemon, pool: &str) -> Vec<String> {
    let pools = daemon.json(&["pool", "status", pool]);
    each(&pools[0]["devices"], "id").into_iter().map(str::to_owned).collect()
}

/// Returns name, class and state of every device; the name is the last part of its path.
fn devices(daemon: &Daemon) -> Vec<String> {
    let pools = daemon.json(&["pool", "status", "tank"]);
    let listed = pools[0]["devices"].as_array().expect("devices");
    let word =
        |device: &serde_json::Value, key: &str| device[key].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned();
    listed.iter().map(|device| format!("{} {} {}", word(device, "path"), word(device, "class"), word(device, "state"))).collect()
}

#[test]
fn what_is_refused_is_refused_by_the_dry_run_in_the_same_words() {
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "tank", "mirror", &sized(&daemon, "a"), &sized(&daemon, "b")]).ok();
    daemon.run(&["pool", "create", "other", &sized(&daemon, "other")]).ok();
    let [a, b, other] = ["a", "b", "other"].map(|name| daemon.text(name));
    let [tiny, small, nowhere] = ["tiny:1M", "small:16M", "none/new:256M"].map(|spec| daemon.text(spec));
    for words in [
        &["pool", "replace", "tank", &a, &small][..],
        &["pool", "replace", "tank", &a, &nowhere],
        &["pool", "replace", "tank", &a, &other],
        &["pool", "replace", "tank", &a, "-f", &other],
        &["pool", "replace", "tank", &a, "-f", &b],
        &["pool", "replace", "tank", "1", &sized(&daemon, "new")],
        &["pool", "add", "tank", "mirror", &tiny, &sized(&daemon, "new")],
        &["pool", "add", "tank", "spare", &nowhere],
        &["pool", "add", "tank", "-f", "spare", &other],
        &["pool", "create", "more", &tiny],
        &["pool", "create", "more", &nowhere],
        &["pool", "create", "more", "-f", &other],
    ] {
        let rehearsed = daemon.run(&[words, &["-n"]].concat());
        let refused = daemon.run(words);
        assert_eq!((rehearsed.code, &rehearsed.err, rehearsed.out.as_str()), (1, &refused.err, ""), "{words:?}");
        assert_eq!(refused.code, 1, "{refused:?}");
    }
    for name in ["tiny", "small", "new", "none"] {
        assert!(!daemon.path(name).exists(), "{name} was left behind");
    }
    // a device in use is refused even with force
    let used = daemon.run(&["pool", "replace", "tank", &a, &other]).refused(1, "in use");
    assert!(!used.err.contains("-f"), "{used:?}");
    daemon.run(&["pool", "replace", "tank", &a, "-f", &b]).refused(1, "no spare of it");
    // member numbers are not shown, so they are not accepted
    let number = daemon.run(&["pool", "replace", "tank", "1", &sized(&daemon, "new")]).refused(1, "device 1 is");
    assert!(number.err.contains(&ids(&daemon, "tank")[1]), "{number:?}");
}

#[test]
fn a_replacement_names_both_disks() {
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "tank", "mirror", &sized(&daemon, "a"), &sized(&daemon, "b")]).ok();
    let (a, c, ids) = (daemon.text("a"), daemon.text("c"), ids(&daemon, "tank"));
    let out = daemon.run(&["pool", "replace", "tank", "a", "c:300M", "-n"]).ok().out;
    assert_eq!(out, format!("would replace {} {a} (256M) of pool tank by {c} (300M)\n", ids[0]));
    assert!(!daemon.path("c").exists());
    assert_eq!(daemon.run(&["pool", "replace", "tank", &ids[0][..5], "c:300M", "-n"]).ok().out, out);
}

#[test]
fn the_spare_of_a_pool_is_put_in_the_place_of_a_device_by_hand() {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    daemon.run(&["pool", "create", "tank", "mirror", &sized(&daemon, "a"), &sized(&daemon, "b"), "spare", &sized(&daemon, "c")]).ok();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    let before = ids(&daemon, "tank");
    let (a, c) = (daemon.text("a"), daemon.text("c"));
    let out = daemon.run(&["pool", "replace", "tank", &a, &before[2], "-n"]).ok().out;
    assert_eq!(out, format!("would replace {} {a} (256M) of pool tank by the spare {} {c} (256M)\n", before[0], before[2]));
    assert_eq!(devices(&daemon), ["a data online", "b data online", "c spare available"]);
    // replacement of a device that is present
    daemon.run(&["pool", "replace", "tank", &a, &c, "--wait"]).waited();
    assert_eq!(devices(&daemon), ["c data online", "b data online"]);
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online");
    // the old device is free, and a missing device is replaced, too
    eventually("the old device is vacant", || daemon.run(&["pool", "add", "tank", "spare", &a, "-n"]).code == 0);
    daemon.run(&["pool", "add", "tank", "spare", &a]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("b"), daemon.path("dead")).expect("dies");
    daemon.restart();
    eventually("the pool comes without a device", || daemon.json(&["pool", "list"])[0]["health"] == "degraded");
    daemon.run(&["pool", "replace", "tank", &before[1], "a", "--wait"]).waited();
    assert_eq!(devices(&daemon), ["c data online", "a data online"]);
    // a restart finds the devices at their paths
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    assert_eq!(devices(&daemon), ["c data online", "a data online"]);
    assert_eq!(daemon.json(&["pool", "list"])[0]["health"], "online");
    assert_eq!(each(&daemon.json(&["list"]), "name"), ["tank/v"]);
}

#[test]
fn a_spare_that_is_too_small_stays_one() {
    let daemon = Daemon::start();
    let small = format!("{}:128M", daemon.text("c"));
    daemon.run(&["pool", "create", "tank", "mirror", &sized(&daemon, "a"), &sized(&daemon, "b")]).ok();
    assert_eq!(daemon.run(&["pool", "add", "tank", "spare", &small]).code, 0);
    for words in [&["-n"][..], &[]] {
        daemon.run(&[&["pool", "replace", "tank", "a", "c"][..], words].concat()).refused(1, "too small");
    }
    assert_eq!(devices(&daemon), ["a data online", "b data online", "c spare available"]);
}

#[test]
fn a_file_that_is_there_is_not_made_another_size() {
    let daemon = Daemon::start();
    File::create_new(daemon.path("old")).and_then(|file| file.set_len(64 << 20)).expect("a file");
    File::create_new(daemon.path("empty")).expect("a file");
    let length = |name: &str| fs::metadata(daemon.path(name)).expect("a file").len();
    for size in ["32M", "256M"] {
        let refused =
            daemon.run(&["pool", "create", "tank", &format!("{}:{size}", daemon.text("old"))]).refused(1, "is there already and has 64M");
        assert!(refused.err.contains("leave ':SIZE' out"), "{refused:?}");
    }
    assert_eq!(length("old"), 64 << 20);
    // an empty file counts as a missing one, and a file of the requested size is accepted
    for words in [&["-n"][..], &[]] {
        daemon.run(&[&["pool", "create", "tank", &format!("{}:256M", daemon.text("empty"))][..], words].concat()).ok();
    }
    assert_eq!(length("empty"), 256 << 20);
    daemon.run(&["pool", "create", "lake", "-n", &format!("{}:64M", daemon.text("old"))]).ok();
}

#[test]
fn an_import_counts_and_names_what_is_missing() {
    let daemon = Daemon::start();
    daemon.run(&["pool", "create", "tank", "mirror", &sized(&daemon, "a"), &sized(&daemon, "b")]).ok();
    let (a, ids) = (daemon.text("a"), ids(&daemon, "tank"));
    daemon.run(&["pool", "export", "tank"]).ok();
    fs::rename(daemon.path("a"), daemon.path("dead")).expect("dies");
    let table = daemon.run(&["pool", "import", "-d", &daemon.text("b")]).ok().out;
    let row = table.lines().find(|line| line.starts_with("tank ")).expect("a row");
    assert!(row.contains(&format!("1 of 2: {} which was {a} (256M)", ids[0])), "{table}");
    let row = daemon.run(&["pool", "import", "-H", "-d", &daemon.text("b")]).ok().out;
    assert_eq!(row.trim_end().split('\t').nth(4), Some("0"), "{row}");
    let found = daemon.json(&["pool", "import", "-d", &daemon.text("b")]);
    assert_eq!((&found[0]["missing"], &found[0]["missing_devices"][0]["was"]), (&serde_json::json!([0]), &a.as_str().into()));
}

#[test]
fn a_pool_out_of_service_has_no_layout_that_anybody_knows() {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    daemon.run(&["pool", "create", "tank", &sized(&daemon, "a")]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    fs::rename(daemon.path("a"), daemon.path("dead")).expect("dies");
    daemon.restart();
    let shown = daemon.run(&["pool", "status", "tank"]).ok().out;
    assert!(shown.contains("\nlayout -\n") && !shown.contains("linear") && !shown.contains("data "), "{shown}");
    let class_and_layout = daemon.run(&["pool", "status", "-o", "class,layout"]).ok().out;
    assert_eq!(class_and_layout.lines().last().map(|line| line.split_whitespace().collect::<Vec<_>>()), Some(vec!["-", "-"]));
    // a check of a pool that does not exist is an error, not a warning
    let checked = daemon.run(&["pool", "status", "--check", "lake"]);
    assert_eq!((checked.code, checked.out.as_str()), (4, "error: no pool 'lake'; see 'millpond pool list'\n"), "{checked:?}");
    assert_eq!(daemon.run(&["pool", "status", "--check", "no pool"]).code, 2);
}

#[test]
fn tables_with_long_paths_fit_and_scripts_have_them_whole() {
    let daemon = Daemon::start();
    let dir = daemon.path(&"by-id-".repeat(16));
    fs::create_dir(&dir).expect("a directory");
    let path = dir.join("ata-WDC_WD40EFRX-68N32N0_WD-WCC7K4").display().to_string();
    daemon.run(&["pool", "create", "tank", &format!("{path}:256M")]).ok();
    let table = daemon.run(&["pool", "status", "tank"]).ok().out;
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    assert!(table.contains('…') && table.contains("WD-WCC7K4"), "{table}");
    for words in [&["-H"][..], &["-o", "id,path"], &["-p"]] {
        assert!(daemon.run(&[&["pool", "status", "tank"][..], words].concat()).ok().out.contains(&path), "{words:?}");
    }
}
