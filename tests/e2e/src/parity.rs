//! A pool with two parities over six devices: two devices rot, go missing and are replaced under
//! load, and one is removed, while a client writes and verifies data with its own checksums.

use super::devices::{device, pool, rot, wait_whole};
use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

const DEVICE: u64 = 128 << 20;

fn loaded<T>(uri: &str, seed: u64, meanwhile: impl FnOnce() -> Result<T>) -> Result<T> {
    let uri = uri.to_owned();
    let load = thread::spawn(move || fio(&uri, "randwrite", seed, &[]));
    let done = meanwhile();
    load.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))??;
    done
}

/// Hides devices of an exported pool and imports it without them.
fn without(millpond: &Millpond, dir: &str, gone: &[PathBuf]) -> Result<()> {
    millpond.cli(&["pool", "export", "tank"])?;
    for path in gone {
        let name = path.file_name().context("a device without a name")?;
        fs::rename(path, Path::new(dir).with_file_name(name)).context("hiding a device")?;
    }
    millpond.cli(&["pool", "import", "tank", "-d", dir, "--degraded"])?;
    ensure!(pool(millpond)?["health"] == "degraded", "{}", pool(millpond)?);
    Ok(())
}

/// Two devices rot under load, go missing, and are replaced under load and with a kill; then one is
/// removed, and two others go missing.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server").join("devices");
    let millpond = subject.millpond()?;
    millpond.start_empty(dir.parent().context("no directory")?)?;
    fs::create_dir_all(&dir).context("a directory for devices")?;
    let at: Vec<PathBuf> = (0..8).map(|nth| dir.join(format!("d{nth}"))).collect();
    let sized: Vec<String> = at.iter().map(|path| format!("{}:{DEVICE}", path.display())).collect();
    let search = dir.display().to_string();
    let mut create = vec!["pool", "create", "tank", "parity2"];
    create.extend(sized.iter().take(6).map(String::as_str));
    millpond.cli(&create)?;
    millpond.cli(&["create", "tank/disk", "-L", "64M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["snapshot", "tank/disk@first"])?;

    let spoil = || at.iter().take(2).try_for_each(|path| rot(path));
    loaded(&uri, 2, spoil)?;
    // and again, for data written since
    spoil()?;
    fio(&uri, "randwrite", 2, &["--verify_only=1"])?;
    let listed = pool(millpond)?;
    for (nth, path) in at.iter().take(6).enumerate() {
        let found = device(&listed, path)?;
        ensure!((found["errors"].as_u64() > Some(0)) == (nth < 2), "{found}");
    }

    without(millpond, &search, &at[..2])?;
    fio(&uri, "randwrite", 2, &["--verify_only=1"])?;
    loaded(&uri, 3, || {
        millpond.cli(&["pool", "replace", "tank", "0", &sized[6]])?;
        millpond.cli(&["pool", "replace", "tank", "1", &sized[7]])
    })?;
    millpond.kill9()?;
    millpond.launch()?;
    wait_whole(millpond)?;
    fio(&uri, "randwrite", 3, &["--verify_only=1"])?;

    // every stripe has a column on each device, and there is no other group
    let leaving = at[4].display().to_string();
    loaded(&uri, 4, || millpond.cli(&["pool", "remove", "tank", &leaving, "--wait"]))?;
    let listed = pool(millpond)?;
    ensure!(listed["devices"].as_array().is_some_and(|devices| devices.len() == 5) && device(&listed, &at[4]).is_err(), "{listed}");
    fio(&uri, "randwrite", 4, &["--verify_only=1"])?;

    without(millpond, &search, &at[2..4])?;
    fio(&uri, "randwrite", 4, &["--verify_only=1"])?;
    millpond.cli(&["rollback", "tank/disk@first"])?;
    fio(&uri, "randwrite", 1, &["--verify_only=1"])
}
