//! Spares: a device of a mirror, and one of a parity group, fails under load. A spare replaces it
//! automatically, also through a kill, and has all data when the resilver is done.

use super::PATIENCE;
use super::devices::{device, pool, wait_whole};
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond, VolatileDisk};
use millpond_lab::process::wait_until;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

const DEVICE: u64 = 128 << 20;

/// Whether a device has this class and state in the pool.
fn is(pool: &Value, path: &Path, class: &str, state: &str) -> bool {
    device(pool, path).is_ok_and(|device| device["class"] == class && device["state"] == state)
}

/// Lets a device fail under load: the load sees no error, the spare becomes a data device, the
/// resilver goes on after a kill, and the pool becomes healthy again.
fn dies_under_load(millpond: &mut Millpond, uri: &str, dying: &mut VolatileDisk, spare: &Path) -> Result<()> {
    let listed = pool(millpond)?;
    ensure!(is(&listed, spare, "spare", "available") && is(&listed, &dying.path(), "data", "online"), "{listed}");
    // slow, so that the resilver still runs at the kill
    millpond.cli(&["pool", "set", "job_rate=2M", "tank"])?;
    let load = {
        let uri = uri.to_owned();
        thread::spawn(move || fio(&uri, "randwrite", 2, &[]).and_then(|()| fio(&uri, "randwrite", 3, &[])))
    };
    thread::sleep(Duration::from_millis(300));
    ensure!(!load.is_finished(), "the load ended before the device died");
    dying.power_off()?;
    let taken = wait_until("the spare takes the place", PATIENCE, || {
        pool(millpond).is_ok_and(|pool| device(&pool, spare).is_ok_and(|device| device["class"] == "data"))
    });
    load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))??;
    taken.with_context(|| pool(millpond).map_or_else(|e| e.to_string(), |pool| pool.to_string()))?;
    let listed = pool(millpond)?;
    ensure!(listed["health"] == "degraded" && is(&listed, spare, "data", "resilvering"), "{listed}");

    millpond.kill9()?;
    millpond.launch()?;
    let listed = pool(millpond)?;
    ensure!(is(&listed, spare, "data", "resilvering") && device(&listed, &dying.path()).is_err(), "{listed}");
    fio(uri, "randwrite", 3, &["--verify_only=1"])?;
    millpond.cli(&["pool", "set", "job_rate=none", "tank"])?;
    wait_whole(millpond)?;
    let listed = pool(millpond)?;
    ensure!(is(&listed, spare, "data", "online") && device(&listed, &dying.path()).is_err(), "{listed}");
    let status = millpond.cli(&["pool", "status", "-v", "-p", "tank"])?;
    ensure!(status.contains(&spare.display().to_string()) && !status.contains(&dying.path().display().to_string()), "{status}");
    Ok(())
}

/// Checks that as many other devices as the layout allows can be missing.
fn has_everything(millpond: &Millpond, uri: &str, gone: &[&Path], search: &Path) -> Result<()> {
    millpond.cli(&["pool", "export", "tank"])?;
    for path in gone {
        fs::rename(path, search.with_file_name(path.file_name().context("a device without a name")?)).context("hiding a device")?;
    }
    millpond.cli(&["pool", "import", "tank", "-d", &search.display().to_string(), "--degraded"])?;
    ensure!(pool(millpond)?["health"] == "degraded", "{}", pool(millpond)?);
    fio(uri, "randwrite", 3, &["--verify_only=1"])?;
    millpond.cli(&["rollback", "tank/disk@first"])?;
    fio(uri, "randwrite", 1, &["--verify_only=1"])
}

/// Tests a layout over one device that fails and `others` more devices, with a spare; `spared` of
/// the other devices may be missing afterwards.
fn case(subject: &mut Subject, layout: &str, others: usize, spared: usize) -> Result<()> {
    let top = subject.file(layout);
    let dir = top.join("devices");
    fs::create_dir_all(&dir).context("a directory for devices")?;
    let mut dying = VolatileDisk::start(&subject.file(&format!("{layout}-dying")), DEVICE)?;
    let paths: Vec<_> = (0..=others).map(|nth| dir.join(format!("d{nth}"))).collect();
    let (spare, others) = paths.split_first().context("no devices")?;
    let sized = |path: &Path| format!("{}:{DEVICE}", path.display());
    let millpond = subject.millpond()?;
    millpond.start_empty(&top)?;
    let mut create = ["pool", "create", "tank", layout].map(str::to_owned).to_vec();
    create.push(dying.path().display().to_string());
    create.extend(others.iter().map(|path| sized(path)));
    create.extend(["spare".to_owned(), sized(spare)]);
    millpond.cli(&create)?;
    millpond.cli(&["create", "tank/disk", "-L", "32M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["snapshot", "tank/disk@first"])?;
    dies_under_load(millpond, &uri, &mut dying, spare)?;

    // the failed device comes back unknown to the pool, and can become the next spare
    dying.power_on()?;
    let back = dying.path().display().to_string();
    millpond.cli(&["pool", "add", "-f", "tank", "spare", &back])?;
    ensure!(is(&pool(millpond)?, &dying.path(), "spare", "available"), "{}", pool(millpond)?);
    millpond.cli(&["pool", "remove", "tank", &back])?;

    let gone: Vec<&Path> = others.iter().take(spared).map(|path| path.as_path()).collect();
    has_everything(millpond, &uri, &gone, &dir)?;
    millpond.stop()
}

/// Tests a mirror, then parity.
pub fn run(subject: &mut Subject) -> Result<()> {
    case(subject, "mirror", 1, 1)?;
    case(subject, "parity2", 4, 2)
}
