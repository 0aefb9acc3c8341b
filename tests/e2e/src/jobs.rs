//! Jobs under load, kills and restarts: groups are evened out, every device is removed, a scrub
//! continues after a restart, and destroyed data is wiped.

use super::PATIENCE;
use super::devices::{device, pool, wait_whole};
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::wait_until;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

const SIZED: &str = "512M";

fn load(uri: &str, seed: u64) -> JoinHandle<Result<()>> {
    let uri = uri.to_owned();
    thread::spawn(move || fio(&uri, "randwrite", seed, &[]))
}

fn ended(load: JoinHandle<Result<()>>) -> Result<()> {
    load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))?
}

fn job(millpond: &Millpond, kind: &str) -> Result<Option<Value>> {
    let jobs = millpond.json(&["pool", "jobs"])?;
    Ok(jobs.as_array().into_iter().flatten().find(|job| job["kind"] == kind).cloned())
}

/// Percentage of a device that is allocated.
fn share(millpond: &Millpond, path: &Path) -> Result<u64> {
    let listed = pool(millpond)?;
    let found = device(&listed, path)?;
    let number = |key: &str| found[key].as_u64().with_context(|| format!("no {key} in {found}"));
    Ok(number("allocated")? * 100 / number("size")?.max(1))
}

/// Adds a second device to a rather full one; the rebalance goes on through a kill, a rate limit
/// and a load.
pub fn rebalance(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let (a, b) = (dir.join("a"), dir.join("b"));
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", &format!("{}:{SIZED}", a.display())])?;
    millpond.cli(&["create", "tank/disk", "-L", "256M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["pool", "add", "tank", &format!("{}:{SIZED}", b.display())])?;
    let planned = millpond.json(&["pool", "rebalance", "tank", "-n"])?;
    ensure!(planned[0]["surplus"].as_u64() > Some(0) && planned[1]["surplus"] == 0, "{planned}");
    ensure!(job(millpond, "rebalance")?.is_none(), "a dry run began something");
    // slow, so that the job still runs at the kill
    millpond.cli(&["pool", "set", "job_rate=4M", "tank"])?;
    millpond.cli(&["pool", "rebalance", "tank"])?;
    wait_until("the job says how fast it is", PATIENCE, || {
        job(millpond, "rebalance").is_ok_and(|job| job.is_some_and(|job| job["rate"].as_u64() > Some(0)))
    })?;
    millpond.kill9()?;
    millpond.launch()?;
    ensure!(job(millpond, "rebalance")?.is_some(), "a kill ended the job");
    ensure!(pool(millpond)?["job_rate"] == 4 << 20, "{}", pool(millpond)?);
    millpond.cli(&["pool", "set", "job_rate=none", "tank"])?;
    let running = load(&uri, 2);
    wait_until("the groups are evened out", PATIENCE, || job(millpond, "rebalance").is_ok_and(|job| job.is_none()))?;
    ended(running)?;
    fio(&uri, "randwrite", 2, &["--verify_only=1"])?;
    let (full, new) = (share(millpond, &a)?, share(millpond, &b)?);
    ensure!(new > 0 && full.abs_diff(new) <= 40, "{full} % and {new} % are in use");
    scrubbed_on(millpond)
}

/// A scrub continues after a restart, and its result is kept over restarts.
fn scrubbed_on(millpond: &mut Millpond) -> Result<()> {
    millpond.cli(&["pool", "set", "job_rate=8M", "tank"])?;
    millpond.cli(&["pool", "scrub", "tank"])?;
    wait_until("the scrub is on its way", PATIENCE, || {
        job(millpond, "scrub").is_ok_and(|job| job.is_some_and(|job| job["done_bytes"].as_u64() > Some(0)))
    })?;
    let before = job(millpond, "scrub")?.context("the scrub has ended")?;
    millpond.stop()?;
    millpond.launch()?;
    let after = job(millpond, "scrub")?.context("a restart ended the scrub")?;
    ensure!(after["done_bytes"].as_u64() >= before["done_bytes"].as_u64(), "{before} {after}");
    millpond.cli(&["pool", "set", "job_rate=none", "tank"])?;
    wait_until("the scrub has ended", PATIENCE, || pool(millpond).is_ok_and(|pool| pool["scrub"]["state"] == "done"))?;
    millpond.stop()?;
    millpond.launch()?;
    let found = pool(millpond)?["scrub"].clone();
    ensure!(found["state"] == "done" && found["errors"] == 0, "{found}");
    Ok(())
}

/// Removes every device of a pool one by one under load, after new ones were added: no data is
/// lost, and the removed devices are not needed.
pub fn exchange(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let paths = |names: [&str; 3]| names.map(|name| dir.join(name));
    let (old, new) = (paths(["a", "b", "c"]), paths(["d", "e", "f"]));
    let words = |paths: &[PathBuf; 3]| paths.each_ref().map(|path| format!("{}:{SIZED}", path.display()));
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    let [a, b, c] = &words(&old);
    millpond.cli(&["pool", "create", "tank", "stripe", "-i", "3", a, b, c])?;
    millpond.cli(&["create", "tank/disk", "-L", "256M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["snapshot", "tank/disk@first"])?;
    let [d, e, f] = &words(&new);
    millpond.cli(&["pool", "add", "tank", "stripe", "-i", "3", d, e, f])?;
    for (path, seed) in old.iter().zip(2..) {
        let running = load(&uri, seed);
        millpond.cli(&["pool", "remove", "tank", &path.display().to_string(), "--wait"])?;
        ended(running)?;
        fio(&uri, "randwrite", seed, &["--verify_only=1"])?;
    }
    wait_until("the devices are let go", PATIENCE, || {
        pool(millpond).is_ok_and(|pool| pool["devices"].as_array().is_some_and(|devices| devices.len() == 3))
    })?;
    wait_whole(millpond)?;
    millpond.stop()?;
    old.iter().try_for_each(fs::remove_file).context("removing devices that left")?;
    millpond.launch()?;
    let listed = pool(millpond)?;
    ensure!(listed["health"] == "online", "{listed}");
    new.iter().try_for_each(|path| device(&listed, path).map(drop))?;
    fio(&uri, "randwrite", 4, &["--verify_only=1"])?;
    millpond.cli(&["pool", "scrub", "tank", "--wait"])?;
    millpond.cli(&["rollback", "--force", "tank/disk@first"])?;
    fio(&uri, "randwrite", 1, &["--verify_only=1"])
}

/// Whether a sector of the file begins with these bytes.
fn holds(path: &Path, mark: &[u8]) -> Result<bool> {
    let bytes = fs::read(path)?;
    Ok(bytes.chunks_exact(512).any(|sector| sector.starts_with(mark)))
}

/// Destroys a volume with a wipe that is interrupted by a kill: its data is on no device
/// afterwards, and data shared with a clone is kept.
pub fn wipe(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let (a, b) = (dir.join("a"), dir.join("b"));
    let (secret, shared) = (subject.file("secret"), subject.file("shared"));
    let image =
        |mark: &[u8; 16]| -> Vec<u8> { (0..16u32 << 11).flat_map(|n| [mark.repeat(31), n.to_le_bytes().repeat(4)].concat()).collect() };
    fs::write(&secret, image(b"nobody may know."))?;
    fs::write(&shared, image(b"many may know it"))?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", "mirror", &format!("{}:{SIZED}", a.display()), &format!("{}:{SIZED}", b.display())])?;
    for (from, to) in [(&secret, "tank/secret"), (&shared, "tank/shared")] {
        millpond.cli(&["import-image", &from.display().to_string(), to, "-f", "raw"])?;
    }
    millpond.cli(&["snapshot", "tank/shared@s"])?;
    millpond.cli(&["clone", "tank/shared@s", "tank/clone"])?;
    ensure!(holds(&a, b"nobody may know.")? && holds(&b, b"nobody may know.")?, "there is nothing to wipe");
    let planned = millpond.json(&["destroy", "-n", "--wipe", "zero", "tank/secret"])?;
    ensure!(planned["wiping"]["erased_bytes"].as_u64() > Some(0), "{planned}");
    millpond.cli(&["pool", "set", "job_rate=1M", "tank"])?;
    millpond.cli(&["destroy", "-y", "--wipe", "zero", "tank/secret"])?;
    ensure!(job(millpond, "wipe")?.is_some(), "no job wipes");
    millpond.kill9()?;
    millpond.launch()?;
    ensure!(job(millpond, "wipe")?.is_some(), "a kill ended the job");
    millpond.cli(&["pool", "set", "job_rate=none", "tank"])?;
    millpond.cli(&["pool", "jobs", "--wait", "wipe:tank"])?;
    ensure!(!holds(&a, b"nobody may know.")? && !holds(&b, b"nobody may know.")?, "what was destroyed is still there");
    ensure!(holds(&a, b"many may know it")? && holds(&b, b"many may know it")?, "what lives is gone");
    let back = subject.file("back");
    let millpond = subject.millpond()?;
    millpond.cli(&["export-image", "tank/clone", &back.display().to_string(), "-f", "raw"])?;
    ensure!(fs::read(&back)? == fs::read(&shared)?, "the clone is another");
    Ok(())
}
