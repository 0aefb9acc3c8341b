//! The read cache: repeated reads come from memory, its limits hold, and modes without a cache do
//! not use it.

use super::devices::pool;
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::Millpond;
use millpond_lab::process::Workspace;
use serde_json::Value;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Directory of a file system in memory, on most hosts.
const MEMORY: &str = "/dev/shm";
/// Magic number of tmpfs, see statfs(2).
const TMPFS: u64 = 0x0102_1994;

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("no {key} in {value}"))
}

/// Reads and verifies a volume `times` times; returns the number of blocks found in the read cache.
fn hits(millpond: &Millpond, volume: &str, uri: &str, times: usize) -> Result<u64> {
    let before = number(&millpond.json(&["show", volume])?, "read_cache_hits")?;
    (0..times).try_for_each(|_| fio(uri, "randwrite", 1, &["--verify_only=1"]))?;
    Ok(number(&millpond.json(&["show", volume])?, "read_cache_hits")? - before)
}

/// Returns whether a file system is in memory.
fn is_in_memory(dir: impl AsRef<Path>) -> bool {
    rustix::fs::statfs(dir.as_ref()).is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|magic| magic == TMPFS))
}

/// A volume of a pool in memory has a cache only if it has a size of its own.
fn in_memory(millpond: &Millpond) -> Result<()> {
    let room = Workspace::new(Path::new(MEMORY), "read-cache")?;
    millpond.cli(&["pool", "create", "memory", "linear", &format!("{}:256M", room.path().join("a").display())])?;
    millpond.cli(&["create", "memory/disk", "-L", "64M"])?;
    let uri = millpond.export("memory/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    ensure!(hits(millpond, "memory/disk", &uri, 3)? == 0, "a pool in memory is cached in memory");
    millpond.cli(&["set", "read_cache=32M", "memory/disk"])?;
    ensure!(hits(millpond, "memory/disk", &uri, 4)? > 0, "a volume with a size of its own has no cache");
    millpond.cli(&["pool", "destroy", "memory", "-y"]).map(drop)
}

/// Data read must be the data written; it comes from memory in modes with a cache.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let millpond = subject.millpond()?;
    millpond.set_read_cache(128 * MIB);
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", "linear", &format!("{}:512M", dir.join("a").display())])?;
    let mut uris = Vec::new();
    for (name, mode) in [("tank/kept", "writeback"), ("tank/none", "none"), ("tank/small", "writethrough")] {
        millpond.cli(&["create", name, "-L", "64M", "--cache", mode])?;
        uris.push(millpond.export(name)?.uri());
        fio(&uris[uris.len() - 1], "randwrite", 1, &[])?;
    }
    millpond.cli(&["set", "read_cache=4M", "tank/small"])?;
    if is_in_memory(&dir) {
        millpond.cli(&["set", "read_cache=80M", "tank/kept"])?;
    }
    let blocks = 64 * MIB / 4096;
    let kept = hits(millpond, "tank/kept", &uris[0], 4)?;
    ensure!(kept > blocks, "only {kept} of {blocks} blocks came from memory, of four times reading");
    ensure!(hits(millpond, "tank/none", &uris[1], 3)? == 0, "cache=none is read from memory");
    let before = number(&pool(millpond)?["io"], "read_cache_bytes")?;
    hits(millpond, "tank/small", &uris[2], 3)?;
    let io = &pool(millpond)?["io"];
    let more = number(io, "read_cache_bytes")?.checked_sub(before).with_context(|| format!("{before} bytes before, then {io}"))?;
    ensure!(more <= 4 * MIB, "{more} bytes for a volume that may have 4 MiB");
    ensure!(number(io, "read_ahead_memory_bytes")? <= 16 * MIB, "more than an eighth of the read cache: {io}");

    // new data is read after a write, whatever the cache has
    fio(&uris[0], "randwrite", 2, &[])?;
    fio(&uris[0], "randwrite", 2, &["--verify_only=1"])?;
    millpond.cli(&["set", "cache=directsync", "tank/kept"])?;
    let before = number(&millpond.json(&["show", "tank/kept"])?, "read_cache_hits")?;
    fio(&uris[0], "randwrite", 2, &["--verify_only=1"])?;
    ensure!(number(&millpond.json(&["show", "tank/kept"])?, "read_cache_hits")? == before, "directsync is read from memory");

    // in memory, a pool needs no second copies; a volume that is to have some gets them
    if is_in_memory(MEMORY) {
        in_memory(millpond)?;
    }

    // another pool gets its share
    millpond.cli(&["pool", "create", "pond", "linear", &format!("{}:64M", dir.join("b").display())])?;
    let io = &pool(millpond)?["io"];
    ensure!(number(io, "read_cache_limit")? == 64 * MIB && number(io, "read_cache_bytes")? <= 64 * MIB, "{io}");
    millpond.cli(&["pool", "destroy", "pond", "-y"])?;
    ensure!(number(&pool(millpond)?["io"], "read_cache_limit")? == 128 * MIB, "the part of a pool that is gone is lost");
    let verbose = millpond.cli(&["pool", "status", "-v", "tank"])?;
    ensure!(verbose.contains("read cache: "), "{verbose}");
    Ok(())
}
