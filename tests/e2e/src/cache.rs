//! A pool with a cache device: repeated reads come from it, also after a kill; then the device
//! rots, goes missing, is replaced, and is removed under load.

use super::devices::{device, pool, rot};
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond};
use std::fs;
use std::thread;

const DEVICE: u64 = 256 << 20;

fn hits(millpond: &Millpond) -> Result<u64> {
    pool(millpond)?["io"]["cache_hits"].as_u64().context("no hits are told")
}

/// Reads everything and compares it with the data written.
fn check(uri: &str, times: usize) -> Result<()> {
    (0..times).try_for_each(|_| fio(uri, "randwrite", 1, &["--verify_only=1"]))
}

/// Data read must always be the data written.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let [a, b, c] = ["a", "b", "c"].map(|name| dir.join(name));
    let sized = |path: &std::path::Path| format!("{}:{DEVICE}", path.display());
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", "linear", &sized(&a), "cache", &sized(&b)])?;
    millpond.cli(&["create", "tank/disk", "-L", "64M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    check(&uri, 4)?;
    let hit_count = hits(millpond)?;
    ensure!(hit_count > 10_000, "only {hit_count} blocks came from the cache: {}", pool(millpond)?);

    // after a kill the cache is kept, except for data that was just being written
    millpond.kill9()?;
    millpond.launch()?;
    check(&uri, 1)?;
    let hit_count = hits(millpond)?;
    ensure!(hit_count > 5_000, "only {hit_count} blocks came from the cache after a restart: {}", pool(millpond)?);

    // rot is detected and does no harm
    rot(&b)?;
    check(&uri, 2)?;
    let listed = pool(millpond)?;
    ensure!(listed["health"] == "online" && device(&listed, &a)?["errors"] == 0, "{listed}");

    // a missing cache device does not degrade the pool
    millpond.stop()?;
    fs::remove_file(&b).context("taking the cache away")?;
    millpond.launch()?;
    check(&uri, 1)?;
    let listed = pool(millpond)?;
    ensure!(listed["health"] == "online" && device(&listed, &b)?["state"] == "missing", "{listed}");
    millpond.cli(&["pool", "replace", "tank", "1", &sized(&c), "--wait"])?;
    check(&uri, 4)?;
    let before = hits(millpond)?;
    ensure!(before > 5_000, "only {before} blocks came from the new device: {}", pool(millpond)?);

    // the device is removed under load
    let load = {
        let uri = uri.clone();
        thread::spawn(move || fio(&uri, "randwrite", 2, &[]))
    };
    millpond.cli(&["pool", "remove", "tank", &c.display().to_string(), "--wait"])?;
    load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))??;
    fio(&uri, "randwrite", 2, &["--verify_only=1"])?;
    let listed = pool(millpond)?;
    ensure!(listed["devices"].as_array().is_some_and(|devices| devices.len() == 1), "{listed}");
    Ok(())
}
