//! Pools that are destroyed, or are not: the dry run and the command refuse the same.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::harness::{Daemon, eventually};
use crate::nbd;

/// Bytes of the devices of these pools.
const SIZE: u64 = 256 << 20;

fn create(daemon: &Daemon, pool: &str, layout: &str, names: &[&str]) {
    let sized: Vec<String> = names.iter().map(|name| format!("{}:256M", daemon.text(name))).collect();
    let words: Vec<&str> = ["pool", "create", pool, layout].into_iter().chain(sized.iter().map(String::as_str)).collect();
    daemon.run(&words).ok();
}

/// Returns the areas with labels, claims and roots of devices.
fn areas(daemon: &Daemon, names: &[&str]) -> Vec<Vec<u8>> {
    let read = |name: &&str| {
        let device = fs::File::open(daemon.path(name)).expect("open");
        let mut both = vec![0; 2 << 20];
        let (first, second) = both.split_at_mut(1 << 20);
        device.read_exact_at(first, 0).expect("read");
        device.read_exact_at(second, SIZE - (1 << 20)).expect("read");
        both
    };
    names.iter().map(read).collect()
}

/// Checks that neither the command nor its dry run destroys a pool, for this reason, in one line.
fn refused(daemon: &Daemon, pool: &str, names: &[&str], why: &str) -> String {
    let before = areas(daemon, names);
    let planned = daemon.run(&["pool", "destroy", "-n", pool]).refused(1, why).err.clone();
    let done = daemon.run(&["pool", "destroy", "-y", pool]).refused(1, why).err.clone();
    assert_eq!(planned, done, "the dry run says the same");
    assert_eq!(done.lines().count(), 1, "{done}");
    assert!(areas(daemon, names) == before, "a device was changed");
    done
}

/// Restarts the daemon, and waits until it says that the pool is not in service.
fn restart(daemon: &mut Daemon, pool: &str) {
    daemon.restart();
    eventually("it is not in service", || {
        let pools = daemon.json(&["pool", "list"]);
        pools.as_array().is_some_and(|pools| pools.iter().any(|listed| listed["name"] == pool && listed["health"] == "unavailable"))
    });
}

/// Writes the labels of a device as a later version does, with a feature that writers have to know.
fn upgrade_for_writers(daemon: &Daemon, name: &str) {
    let device = fs::File::options().read(true).write(true).open(daemon.path(name)).expect("open");
    for area in [0, SIZE - (1 << 20)] {
        let mut label = [0; 4096];
        device.read_exact_at(&mut label, area).expect("read");
        label[17] |= 0x40;
        label[4028..4047].copy_from_slice(b"trees (since 9.4.0)");
        let sum = crc_fast::crc32_iscsi(&label[..4092]);
        label[4092..].copy_from_slice(&sum.to_le_bytes());
        device.write_all_at(&label, area).expect("write");
    }
}

/// Waits until a pool is served without one of its devices.
fn degraded(daemon: &Daemon, pool: &str) {
    eventually("it is served without a device", || {
        let pools = daemon.json(&["pool", "list"]);
        pools.as_array().is_some_and(|pools| pools.iter().any(|listed| listed["name"] == pool && listed["health"] == "degraded"))
    });
}

fn rename(daemon: &Daemon, from: &str, to: &str) {
    fs::rename(daemon.path(from), daemon.path(to)).expect("rename");
}

/// A device that returns from a later version is not offered for overwriting, and keeps its label
/// when the pool is destroyed.
#[test]
fn a_returned_device_that_only_a_later_version_may_write_to_is_left() {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    create(&daemon, "tank", "mirror", &["a", "b"]);
    assert_eq!(daemon.stop("TERM"), 0);
    rename(&daemon, "b", "b.away");
    daemon.restart();
    degraded(&daemon, "tank");
    upgrade_for_writers(&daemon, "b.away");
    rename(&daemon, "b.away", "b");
    let mut status = String::new();
    eventually("it is found", || {
        status = daemon.run(&["pool", "status", "tank"]).ok().out.clone();
        status.contains("newer version")
    });
    assert!(status.contains("trees (since 9.4.0)") && !status.contains("pool replace"), "{status}");
    let before = areas(&daemon, &["b"]);
    let destroyed = daemon.run(&["pool", "destroy", "-y", "tank"]);
    let warned = format!("warning: the label on {} is left: it has a label of a newer version", daemon.text("b"));
    assert!(destroyed.code == 0 && destroyed.err.contains(&warned), "{destroyed:?}");
    assert!(areas(&daemon, &["b"]) == before, "it was changed");
}

/// Returns a daemon without its pool, whose half `a` was away while a lock was made; now `b` is away.
fn with_an_older_half() -> Daemon {
    let mut daemon = Daemon::with_config("import_wait = \"1s\"\n");
    create(&daemon, "tank", "mirror", &["a", "b"]);
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    rename(&daemon, "a", "a.away");
    daemon.restart();
    degraded(&daemon, "tank");
    daemon.run(&["snapshot", "tank/v@s", "--lock", "1d"]).ok();
    assert_eq!(daemon.stop("TERM"), 0);
    rename(&daemon, "b", "b.away");
    rename(&daemon, "a.away", "a");
    restart(&mut daemon, "tank");
    daemon
}

/// A half that was away while locks were made has none of them, and is not destroyed for that.
#[test]
fn an_older_half_is_not_asked_for_locks() {
    let daemon = with_an_older_half();
    refused(&daemon, "tank", &["a", "b.away"], "was in service here");
}

/// A pool is only forgotten if its devices are away, and not if the host cannot look at them.
#[test]
fn a_pool_whose_device_cannot_be_looked_at_is_not_forgotten() {
    let mut daemon = Daemon::start();
    create(&daemon, "tank", "linear", &["a"]);
    assert_eq!(daemon.stop("TERM"), 0);
    rename(&daemon, "a", "a.away");
    std::os::unix::fs::symlink(daemon.path("a"), daemon.path("a")).expect("a loop");
    restart(&mut daemon, "tank");
    let why = refused(&daemon, "tank", &["a.away"], "it cannot be read");
    assert!(why.contains(&daemon.text("a")) && why.contains("export the pool"), "{why}");
    fs::remove_file(daemon.path("a")).expect("no loop");
    let forgotten = daemon.run(&["pool", "destroy", "-y", "tank"]);
    assert!(forgotten.code == 0 && forgotten.err.contains("the device is not there"), "{forgotten:?}");
}

/// INV-HOLD-2: a pool in service takes only the labels of devices that it uses: another half may have
/// a later state, with locks.
#[test]
fn a_half_that_the_pool_does_not_use_keeps_its_label() {
    let daemon = with_an_older_half();
    let older = daemon.run(&["pool", "import", "tank", "--degraded", "-d", &daemon.text("a")]);
    assert_eq!(older.code, 0, "{older:?}");
    rename(&daemon, "b.away", "b");
    let before = areas(&daemon, &["b"]);
    let destroyed = daemon.run(&["pool", "destroy", "-y", "tank"]);
    let warned = format!("warning: the label on {} is left: the pool did not use it", daemon.text("b"));
    assert!(destroyed.code == 0 && destroyed.err.contains(&warned), "{destroyed:?}");
    assert!(areas(&daemon, &["b"]) == before, "it was changed");
    assert!(areas(&daemon, &["a"])[0].iter().all(|byte| *byte == 0), "the half in use has its label");
    daemon.run(&["pool", "import", "tank", "--degraded", "-d", &daemon.text("b")]);
    assert_eq!(daemon.json(&["list", "-t", "snapshot", "tank"])[0]["name"], "tank/v@s");
}

/// A later version has turned on a feature that writers have to know.
#[test]
fn a_pool_that_only_a_later_version_may_write_to_is_not_destroyed() {
    let mut daemon = Daemon::start();
    create(&daemon, "pond", "linear", &["p"]);
    assert_eq!(daemon.stop("TERM"), 0);
    upgrade_for_writers(&daemon, "p");
    restart(&mut daemon, "pond");
    refused(&daemon, "pond", &["p"], "trees (since 9.4.0)");
    daemon.run(&["pool", "import", "pond", "--readonly"]).ok();
    refused(&daemon, "pond", &["p"], "newer version");
    refused(&daemon, "pond", &["p"], "trees (since 9.4.0)");
}

/// INV-HOLD-2: a pool that is not in service is asked for its locks, as far as its devices allow it.
#[test]
fn locks_count_in_pools_that_are_not_in_service() {
    let mut daemon = Daemon::with_config("import_wait = \"10m\"\n");
    create(&daemon, "tank", "mirror", &["a", "b"]);
    create(&daemon, "lake", "linear", &["c", "d"]);
    create(&daemon, "free", "mirror", &["e", "f"]);
    for pool in ["tank", "lake", "free"] {
        daemon.run(&["create", &format!("{pool}/v"), "-L", "16M"]).ok();
    }
    daemon.run(&["snapshot", "tank/v@s", "--lock", "1d"]).ok();
    daemon.run(&["snapshot", "free/v@s"]).ok();
    refused(&daemon, "tank", &["a", "b"], "it has 1 locked snapshots");
    assert_eq!(daemon.stop("TERM"), 0);
    for name in ["b", "d", "f"] {
        fs::rename(daemon.path(name), daemon.path(&format!("{name}.away"))).expect("hide");
    }
    restart(&mut daemon, "tank");
    // one half of a mirror says it; one of two devices does not, and is not destroyed for that
    refused(&daemon, "tank", &["a", "b.away"], "it has 1 locked snapshots");
    let why = refused(&daemon, "lake", &["c", "d.away"], "it cannot be read whether its snapshots are locked");
    assert!(why.contains("bring all its devices back") && why.contains("pool create -f"), "{why}");
    // a pool without locks goes, with what was read of it; the device that was away keeps its label
    let planned = daemon.run(&["pool", "destroy", "-n", "free"]).ok().out;
    assert!(planned.contains("1 volumes, 1 snapshots"), "{planned}");
    let destroyed = daemon.run(&["pool", "destroy", "-y", "free"]);
    let warned = format!("warning: the label on {} is left", daemon.text("f"));
    assert!(destroyed.code == 0 && destroyed.err.contains(&warned) && destroyed.err.lines().count() == 1, "{destroyed:?}");
    daemon.run(&["pool", "create", "other", &daemon.text("e")]).ok();
    // without any device there is nothing to ask and nothing to overwrite
    fs::rename(daemon.path("c"), daemon.path("c.away")).expect("hide");
    let forgotten = daemon.run(&["pool", "destroy", "-y", "lake"]);
    assert!(forgotten.code == 0 && forgotten.err.lines().count() == 2, "{forgotten:?}");
    for name in ["c", "d"] {
        fs::rename(daemon.path(&format!("{name}.away")), daemon.path(name)).expect("bring back");
    }
    daemon.run(&["pool", "import", "lake", "-d", &daemon.text("c"), "-d", &daemon.text("d")]).ok();
    assert_eq!(daemon.json(&["list", "lake"])[0]["name"], "lake/v");
}

/// The way out for a pool that cannot be read is in the refusal.
#[test]
fn a_damaged_pool_is_not_destroyed_and_its_devices_can_be_used_again() {
    let mut daemon = Daemon::start();
    create(&daemon, "tank", "linear", &["a"]);
    assert_eq!(daemon.stop("TERM"), 0);
    // everything between the labels is lost
    let file = fs::File::options().write(true).open(daemon.path("a")).expect("opens");
    file.write_all_at(&vec![0; 254 << 20], 1 << 20).expect("writes");
    restart(&mut daemon, "tank");
    let why = refused(&daemon, "tank", &["a"], "it cannot be read whether its snapshots are locked");
    assert!(why.contains("checksum"), "{why}");
    daemon.run(&["pool", "export", "tank"]).ok();
    daemon.run(&["pool", "create", "new", &daemon.text("a")]).refused(1, "tank");
    daemon.run(&["pool", "create", "-f", "new", &daemon.text("a")]).ok();
}

/// Clients are a reason to refuse, before anything is planned.
#[test]
fn a_dry_run_refuses_what_the_command_refuses() {
    let daemon = Daemon::with_pool();
    daemon.run(&["create", "tank/v", "-L", "16M"]).ok();
    daemon.export("tank/v", "v.sock");
    let client = nbd::connect(&daemon.path("v.sock")).expect("a client");
    let words = |option| ["pool", "destroy", option, "tank"];
    let planned = daemon.run(&words("-n")).refused(1, "cannot destroy pool 'tank'").err.clone();
    assert_eq!(planned, daemon.run(&words("-y")).refused(1, "cannot destroy pool 'tank'").err);
    drop(client);
    eventually("the client is gone", || daemon.run(&words("-n")).code == 0);
    daemon.run(&["pool", "export", "tank", "--force"]).ok();
    daemon.run(&["pool", "import", "tank", "--readonly"]).ok();
    daemon.run(&words("-n")).refused(1, "read-only");
}
