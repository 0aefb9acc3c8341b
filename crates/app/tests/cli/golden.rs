//! Golden pools of released versions: state directories with pools in files, compressed, that every
//! later version takes over, uses and checks.
//!
//! `cargo xtask golden` makes those of the current version, before it is released.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millpond_testing::Random;
use serde_json::{Value, json};

use crate::harness::{Daemon, each, eventually};
use crate::nbd;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const VOLUME: u64 = 4 * MIB;

/// Pools by name, and the devices of each as `pool create` takes them: names of files, and words.
const POOLS: [(&str, &str); 4] = [
    ("flat", "linear flat0"),
    ("twin", "mirror twin0 twin1"),
    ("odd", "parity1 odd0 odd1 odd2"),
    ("classes", "linear classes0 special classes1 log classes2 cache classes3"),
];

/// Directory of the golden pools of a version.
fn golden(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(version)
}

/// Released versions, by the names of their directories.
fn versions() -> Vec<String> {
    let entries = fs::read_dir(golden("")).expect("tests/golden").map(|entry| entry.expect("an entry").file_name());
    let mut versions: Vec<String> = entries.map(|name| name.into_string().expect("a version")).collect();
    versions.sort();
    versions
}

/// Returns the name of the locked snapshot of a pool: the promotion of its clone took it over.
fn locked(pool: &str) -> String {
    format!("{pool}/{}@two", if pool == "twin" { "heir" } else { "disk" })
}

/// Writes blocks of which an eighth cannot be compressed, to keep the files small.
fn write(socket: &Path, first: u64, blocks: u64, seed: u64) {
    let mut bytes = Random::new(seed).bytes((blocks * BLOCK) as usize);
    bytes.chunks_mut(BLOCK as usize).for_each(|block| block[512..].fill(seed as u8));
    let mut nbd = nbd::connect(socket).expect("connect");
    nbd.write(first * BLOCK, &bytes).expect("write");
    nbd.flush().expect("flush");
}

fn sum(socket: &Path) -> String {
    let mut bytes = vec![0; VOLUME as usize];
    let mut nbd = nbd::connect(socket).expect("connect");
    for (at, part) in bytes.chunks_mut(MIB as usize).enumerate() {
        nbd.read(at as u64 * MIB, part).expect("read");
    }
    format!("{:08x}", crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes))
}

/// Returns the checksum of each volume and snapshot of the golden pools, with its properties or its
/// holds. Snapshots that the policy took are left out, because their number depends on the time.
fn content(daemon: &Daemon) -> Value {
    let names = daemon.json(&["list", "-t", "all"]);
    let mut names: Vec<&str> = each(&names, "name").into_iter().filter(|name| !name.contains("/new") && !name.contains("@auto-")).collect();
    names.sort_unstable();
    let one = |name: &&str| {
        let socket = daemon.path("read.sock");
        daemon.run(&["export", "nbd", name, "--readonly", "--unix", &daemon.text("read.sock")]).ok();
        let sum = sum(&socket);
        daemon.run(&["unexport", socket.to_str().expect("UTF-8")]).ok();
        let properties = if name.contains('@') { "holds,size" } else { "cache,compression,origin,readonly,sector,size" };
        let values: Vec<Value> = daemon.json(&["get", properties, name]).as_array().expect("a list").iter().map(value).collect();
        json!([name, sum, values])
    };
    names.iter().map(one).collect()
}

fn value(property: &Value) -> Value {
    property["value"].clone()
}

/// Makes the pools: volumes of several cache modes, sector sizes and compressions, snapshots, clones,
/// a promoted one, holds, locks, a policy, and exports.
fn make(daemon: &Daemon) {
    fs::create_dir(daemon.path("state/pools")).expect("made");
    for (at, (pool, spec)) in (1u64..).zip(POOLS) {
        let device = |word: &str| match word.ends_with(|c: char| c.is_ascii_digit()) && word != "parity1" {
            true => format!("{}:64M", daemon.text(&format!("state/pools/{word}.img"))),
            false => word.to_owned(),
        };
        let words: Vec<String> = spec.split(' ').map(device).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // there are warnings about groups of one device
        assert_eq!(daemon.run(&[&["pool", "create", "-f", pool][..], &words].concat()).code, 0, "{pool}");
        let name = |rest: &str| format!("{pool}/{rest}");
        daemon.run(&["create", &name("disk"), "-L", "4M"]).ok();
        daemon.run(&["create", &name("packed"), "-L", "4M", "--cache", "writeback", "-o", "compression=zstd"]).ok();
        daemon.run(&["create", &name("through"), "-L", "4M", "--cache", "writethrough", "--sector", "4kn", "-o", "compression=lz4"]).ok();
        daemon.run(&["create", &name("direct"), "-L", "4M", "--cache", "directsync", "--sector", "512n"]).ok();
        for (rest, seed) in [("packed", 0), ("through", 4), ("direct", 5)] {
            let socket = daemon.export(&name(rest), "made.sock");
            write(&socket, 0, 3, 10 * at + seed);
            daemon.run(&["unexport", socket.to_str().expect("UTF-8")]).ok();
        }
        let disk = daemon.export(&name("disk"), &format!("state/{pool}.sock"));
        write(&disk, 0, 4, 10 * at + 1);
        daemon.run(&["snapshot", &name("disk@one")]).ok();
        write(&disk, 2, 4, 10 * at + 2);
        daemon.run(&["snapshot", &name("disk@two"), "--lock", "30d"]).ok();
        daemon.run(&["hold", &name("disk@one"), "--tag", "audit"]).ok();
        daemon.run(&["clone", &name("disk@one"), &name("copy")]).ok();
        write(&disk, 100, 2, 10 * at + 3);
        daemon.run(&["clone", &name("disk@two"), &name("heir")]).ok();
        if pool == "twin" {
            daemon.run(&["promote", &name("heir")]).ok();
        }
        daemon.run(&["set", "readonly=on", &name("copy")]).ok();
    }
    daemon.run(&["policy", "create", "daily", "--keep", "1d:7d"]).ok();
    daemon.run(&["policy", "attach", "daily", "flat/packed"]).ok();
}

#[test]
fn pools_of_released_versions_are_used_as_they_are() {
    if std::env::var("MILLPOND_GOLDEN").is_ok_and(|word| word == "write") {
        return record(env!("CARGO_PKG_VERSION"));
    }
    let versions = versions();
    assert!(versions.iter().any(|version| version == "0.1.0"), "{versions:?}");
    versions.iter().for_each(|version| take_over(version));
}

/// Writes the golden pools of this version. A version that was released stays as it is.
fn record(version: &str) {
    let to = golden(version);
    fs::create_dir_all(golden("")).expect("made");
    assert!(!to.exists(), "golden pools of this version exist: remove them only before its release");
    let mut daemon = Daemon::start();
    make(&daemon);
    let content = content(&daemon);
    assert_eq!(daemon.stop("TERM"), 0);
    fs::create_dir(&to).expect("made");
    fs::write(to.join("content.json"), serde_json::to_string_pretty(&content).expect("JSON") + "\n").expect("written");
    fs::copy(daemon.path("state/state.json"), to.join("state.json")).expect("copied");
    for entry in fs::read_dir(daemon.path("state/pools")).expect("pools") {
        let path = entry.expect("an entry").path();
        let bytes = zstd::bulk::compress(&fs::read(&path).expect("read"), 19).expect("compressed");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        fs::write(to.join(format!("{name}.zst")), bytes).expect("written");
    }
}

/// Writes the device of a golden pool, with holes.
fn unpack(from: &Path, to: &Path) {
    let bytes = zstd::bulk::decompress(&fs::read(from).expect("read"), 64 << 20).expect("decompressed");
    let file = fs::File::create(to).expect("created");
    file.set_len(bytes.len() as u64).expect("sized");
    for (at, part) in (0u64..).zip(bytes.chunks(MIB as usize)).filter(|(_, part)| part.iter().any(|byte| *byte != 0)) {
        file.write_all_at(part, at * MIB).expect("written");
    }
}

/// Starts a daemon with the state directory of a version, and uses everything in it: volumes and
/// snapshots are read, new data is written and found after another import, a scrub finds no error.
fn take_over(version: &str) {
    let mut daemon = Daemon::start();
    daemon.stop("TERM");
    let from = golden(version);
    fs::create_dir_all(daemon.path("state/pools")).expect("made");
    fs::copy(from.join("state.json"), daemon.path("state/state.json")).expect("copied");
    for entry in fs::read_dir(&from).expect("golden pools") {
        let path = entry.expect("an entry").path();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".zst")) {
            unpack(&path, &daemon.path("state/pools").join(name));
        }
    }
    daemon.restart();
    let expected: Value = serde_json::from_slice(&fs::read(from.join("content.json")).expect("read")).expect("JSON");
    let online = |daemon: &Daemon| {
        let pools = daemon.json(&["pool", "list"]);
        each(&pools, "health").iter().filter(|health| **health == "online").count() == POOLS.len()
    };
    eventually("all pools are in service", || online(&daemon));
    assert_eq!(content(&daemon), expected, "{version}");
    assert_eq!(daemon.json(&["exports"]).as_array().map(Vec::len), Some(POOLS.len()), "{version}: exports");
    assert_eq!(each(&daemon.json(&["policy", "list"]), "name"), ["daily"], "{version}");
    let found: Vec<(String, String)> = POOLS.iter().map(|(pool, _)| use_pool(&daemon, version, pool)).collect();
    assert_eq!(content(&daemon), expected, "{version}, after an export and an import");
    // the daemon starts with what it wrote
    assert_eq!(daemon.stop("TERM"), 0);
    daemon.restart();
    eventually("all pools are in service again", || online(&daemon));
    assert_eq!(content(&daemon), expected, "{version}, after a restart");
    for (name, before) in found {
        let socket = daemon.export(&name, "new.sock");
        assert_eq!(sum(&socket), before, "{version}: {name}");
        daemon.run(&["unexport", socket.to_str().expect("UTF-8")]).ok();
    }
}

/// Writes to a pool, checks it, and imports it again. Returns the name of a new snapshot, and its
/// checksum.
fn use_pool(daemon: &Daemon, version: &str, pool: &str) -> (String, String) {
    let name = |rest: &str| format!("{pool}/{rest}");
    daemon.run(&["release", &locked(pool), "--tag", "lock"]).refused(1, "locked until");
    daemon.run(&["create", &name("new"), "-L", "4M"]).ok();
    let socket = daemon.export(&name("new"), "new.sock");
    write(&socket, 5, 8, 99);
    let before = sum(&socket);
    daemon.run(&["snapshot", &name("new@a")]).ok();
    write(&socket, 5, 8, 98);
    daemon.run(&["unexport", socket.to_str().expect("UTF-8")]).ok();
    daemon.run(&["pool", "scrub", pool, "--wait"]).waited();
    let status = daemon.json(&["pool", "status", pool]);
    assert_eq!(status[0]["scrub"]["errors"], 0, "{version}: {status}");
    assert!(daemon.run(&["pool", "upgrade", "-n", pool]).ok().out.contains("an upgrade turns on bases, forwards"));
    daemon.run(&["pool", "export", pool]).ok();
    daemon.run(&["pool", "import", pool, "-d", &daemon.text("state/pools")]).ok();
    let socket = daemon.export(&name("new@a"), "new.sock");
    assert_eq!(sum(&socket), before, "{version}: {pool}");
    daemon.run(&["unexport", socket.to_str().expect("UTF-8")]).ok();
    (name("new@a"), before)
}

/// A pool with features of a later version is refused in one line that names them, wherever the user
/// meets it, and is not changed.
#[test]
fn a_pool_of_a_later_version_is_refused_and_left_alone() {
    let mut daemon = Daemon::start();
    let image = daemon.path("p.img");
    daemon.run(&["pool", "create", "usual", &format!("{}:64M", daemon.text("usual.img"))]).ok();
    daemon.run(&["pool", "create", "pond", &format!("{}:64M", daemon.text("p.img")), "-o", "features=none"]).ok();
    let features = daemon.json(&["pool", "get", "format,features", "pond"]);
    assert_eq!((&features[0]["value"], &features[1]["value"]), (&json!(3), &json!([])));
    assert_eq!(daemon.json(&["pool", "get", "features", "usual"])[0]["value"], json!(["bases", "forwards"]));
    daemon.run(&["pool", "destroy", "-y", "usual"]).ok();
    daemon.stop("TERM");
    let whole = fs::read(&image).expect("read");
    let newer = |set: usize| {
        let mut bytes = whole.clone();
        let ends = [0, bytes.len() - (1 << 20)];
        for at in ends {
            let label = &mut bytes[at..at + 4096];
            label[set + 3] = 0x40;
            label[4028..4047].copy_from_slice(b"dedup (since 9.4.0)");
            let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &label[..4092]);
            label[4092..].copy_from_slice(&u32::try_from(sum).expect("32 bits").to_le_bytes());
        }
        bytes
    };
    let incompat = newer(18);
    fs::write(&image, &incompat).expect("written");
    daemon.restart();
    let named = |text: &str| text.contains("dedup (since 9.4.0)");
    eventually("the pool is reported", || named(&daemon.run(&["pool", "status", "pond"]).out));
    daemon.run(&["pool", "export", "pond", "--force"]);
    let search = daemon.text("p.img");
    let refused = daemon.run(&["pool", "import", "pond", "-d", &search]).refused(1, "dedup (since 9.4.0)");
    assert!(refused.err.contains("install that version"), "{refused:?}");
    daemon.run(&["pool", "create", "new", &search]).refused(1, "dedup (since 9.4.0)");
    assert!(fs::read(&image).expect("read") == incompat, "the pool was changed");

    // one that writers have to know
    let ro_compat = newer(14);
    fs::write(&image, &ro_compat).expect("written");
    daemon.run(&["pool", "import", "pond", "-d", &search]).refused(1, "--readonly");
    daemon.run(&["pool", "import", "pond", "-d", &search, "--readonly"]).ok();
    daemon.run(&["pool", "upgrade", "-n", "pond"]).ok();
    daemon.run(&["pool", "export", "pond"]).ok();
    assert!(fs::read(&image).expect("read") == ro_compat, "the pool was changed");
}
