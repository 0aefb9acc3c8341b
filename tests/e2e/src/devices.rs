//! Devices of a pool are added, rot, go missing and are replaced, while a client writes and
//! verifies data with its own checksums.

use super::PATIENCE;
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::wait_until;
use rustix::fs::OFlags;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

const DEVICE: u64 = 512 << 20;
const AREA: u64 = 1 << 20;
/// Bytes of one write that spoils a device, and the alignment of a direct write.
const ROT: usize = 1 << 20;
const ALIGNMENT: usize = 4096;

/// Overwrites a device except for its label areas, past the page cache: where a direct write of the
/// daemon meets a page of another writer, the kernel cannot drop that page and fails the next flush,
/// and the device counts as failed instead of rotten.
pub(super) fn rot(path: &Path) -> Result<()> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).context("the flag for direct writes")?;
    let open = |flags| File::options().write(true).custom_flags(flags).open(path);
    // older kernels have no direct writes on tmpfs, where nothing is written back either
    let file = open(direct).or_else(|_| open(0)).with_context(|| format!("opening {}", path.display()))?;
    let mut rng = Rng::new(7);
    let mut memory = vec![0; ROT + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = memory.get_mut(start..start + ROT).context("aligning a buffer")?;
    let end = file.metadata().context("looking at a device")?.len() - AREA;
    for at in (AREA..end).step_by(ROT) {
        buffer.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
        file.write_all_at(buffer, at).context("spoiling a device")?;
    }
    file.sync_all().context("spoiling a device")
}

pub(super) fn pool(millpond: &Millpond) -> Result<Value> {
    let listed = millpond.json(&["pool", "status", "tank"])?;
    listed.get(0).cloned().context("no pool 'tank' is listed")
}

pub(super) fn device<'a>(pool: &'a Value, path: &Path) -> Result<&'a Value> {
    let devices = pool["devices"].as_array().into_iter().flatten();
    devices.into_iter().find(|d| d["path"].as_str() == path.to_str()).with_context(|| format!("{} is not listed: {pool}", path.display()))
}

pub(super) fn wait_whole(millpond: &Millpond) -> Result<()> {
    wait_until("the pool is whole again", PATIENCE, || {
        let whole = pool(millpond).is_ok_and(|pool| pool["health"] == "online");
        let jobs = millpond.json(&["pool", "jobs"]).is_ok_and(|jobs| jobs.as_array().is_some_and(Vec::is_empty));
        whole && jobs
    })
    .map(|_| ())
}

/// One side of a mirror rots under load, goes missing, and is replaced by a new device; the other
/// side is replaced under load, with a kill in between; the pool grows by another mirror, and the
/// first one is removed under load. Data read must always be the data written.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let at = |name: &str| dir.join(name);
    let text = |path: &Path| path.display().to_string();
    let sized = |path: &Path| format!("{}:{DEVICE}", path.display());
    let (a, b, c, d) = (at("a"), at("b"), at("c"), at("d"));
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", "mirror", &sized(&a), &sized(&b)])?;
    millpond.cli(&["create", "tank/disk", "-L", "128M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["snapshot", "tank/disk@first"])?;

    // rot: data is read from the other side, rewritten, and the errors are counted
    rot(&a)?;
    fio(&uri, "randwrite", 1, &["--verify_only=1"])?;
    let listed = pool(millpond)?;
    let (bad, good) = (device(&listed, &a)?, device(&listed, &b)?);
    ensure!(bad["errors"].as_u64() > Some(0) && bad["repaired"].as_u64() > Some(0), "nothing was mended: {bad}");
    ensure!(good["errors"] == 0, "the sound side has errors: {good}");

    scrubbed(millpond, &uri, &a, &b)?;

    // the rotten device goes missing: the import names it, and succeeds only with --degraded
    millpond.cli(&["pool", "export", "tank"])?;
    fs::rename(&a, at("away")).context("hiding a device")?;
    let search = text(&b);
    let refused = millpond.command(&["pool", "import", "tank", "-d", &search]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("device 0") && said.contains("--degraded"), "{said}");
    millpond.cli(&["pool", "import", "tank", "-d", &search, "--degraded"])?;
    ensure!(pool(millpond)?["health"] == "degraded", "{}", pool(millpond)?);
    replaced(millpond, &uri, &c, &d, &sized)?;
    grown_and_moved(millpond, &uri, [&c, &d], [&at("e"), &at("f")], &sized)
}

/// One side rots under the running daemon, also where guests may never read: a scrub repairs it,
/// and then this side alone must have all data.
fn scrubbed(millpond: &mut Millpond, uri: &str, a: &Path, b: &Path) -> Result<()> {
    rot(a)?;
    millpond.cli(&["pool", "scrub", "tank", "--wait"])?;
    let listed = pool(millpond)?;
    let found = &listed["scrub"];
    ensure!(found["state"] == "done" && found["repaired"].as_u64() > Some(0), "{found}");
    ensure!(found["lost_blocks"] == 0 && found["lost_nodes"] == 0, "{found}");
    ensure!(device(&listed, b)?["errors"] == 0, "the sound side has errors: {listed}");
    // errors stay counted until the device is replaced or a later scrub finds none
    let errors = device(&listed, a)?["errors"].clone();
    ensure!(errors.as_u64() > Some(0), "the rot was not counted: {listed}");
    millpond.cli(&["pool", "export", "tank"])?;
    let hidden = b.with_extension("hidden");
    fs::rename(b, &hidden).context("hiding a device")?;
    millpond.cli(&["pool", "import", "tank", "-d", &a.display().to_string(), "--degraded"])?;
    fio(uri, "randwrite", 1, &["--verify_only=1"])?;
    ensure!(device(&pool(millpond)?, a)?["errors"] == errors, "something was not mended, beside {errors}: {}", pool(millpond)?);
    millpond.cli(&["pool", "export", "tank"])?;
    fs::rename(&hidden, b).context("bringing a device back")?;
    millpond.cli(&["pool", "import", "tank", "-d", &a.display().to_string(), "-d", &b.display().to_string()])?;
    wait_whole(millpond)
}

/// Replaces the missing device, then the other one under load and with a kill.
fn replaced(millpond: &mut Millpond, uri: &str, c: &Path, d: &Path, sized: &dyn Fn(&Path) -> String) -> Result<()> {
    millpond.cli(&["pool", "replace", "tank", "0", &sized(c), "--wait"])?;
    wait_whole(millpond)?;
    let load = {
        let uri = uri.to_owned();
        thread::spawn(move || fio(&uri, "randwrite", 2, &[]))
    };
    let old = pool(millpond)?["devices"][1]["path"].as_str().map(str::to_owned).context("no second device")?;
    millpond.cli(&["pool", "replace", "tank", &old, &sized(d)])?;
    let loaded = load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))?;
    loaded?;
    millpond.kill9()?;
    millpond.launch()?;
    wait_whole(millpond)?;
    let listed = pool(millpond)?;
    device(&listed, d)?;
    ensure!(device(&listed, Path::new(&old)).is_err(), "the old device is still listed: {listed}");
    // the new devices are sufficient, each one alone; old and missing ones are not needed
    fs::remove_file(&old).context("removing the old device")?;
    fio(uri, "randwrite", 2, &["--verify_only=1"])?;
    rot(c)?;
    fio(uri, "randwrite", 2, &["--verify_only=1"])
}

/// Adds a second mirror and removes the first one under load.
fn grown_and_moved(
    millpond: &mut Millpond,
    uri: &str,
    [c, d]: [&Path; 2],
    [e, f]: [&Path; 2],
    sized: &dyn Fn(&Path) -> String,
) -> Result<()> {
    let before = pool(millpond)?["size"].as_u64().context("no size")?;
    millpond.cli(&["pool", "add", "tank", "mirror", &sized(e), &sized(f)])?;
    let after = pool(millpond)?["size"].as_u64().context("no size")?;
    ensure!(after > before + (400 << 20), "{before} {after}");
    let load = {
        let uri = uri.to_owned();
        thread::spawn(move || fio(&uri, "randwrite", 3, &[]))
    };
    millpond.cli(&["pool", "remove", "tank", &c.display().to_string(), "--wait"])?;
    let loaded = load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))?;
    loaded?;
    wait_until("the devices are let go", PATIENCE, || {
        pool(millpond).is_ok_and(|pool| pool["devices"].as_array().is_some_and(|d| d.len() == 2))
    })?;
    millpond.stop()?;
    // removing one side of a mirror of two removes the other one, too
    [c, d].iter().try_for_each(fs::remove_file).context("removing devices that left")?;
    millpond.launch()?;
    let listed = pool(millpond)?;
    ensure!(listed["health"] == "online" && listed["size"].as_u64() < Some(after), "{listed}");
    [e, f].iter().try_for_each(|path| device(&listed, path).map(drop))?;
    fio(uri, "randwrite", 3, &["--verify_only=1"])?;
    millpond.cli(&["rollback", "--force", "tank/disk@first"])?;
    fio(uri, "randwrite", 1, &["--verify_only=1"])
}
