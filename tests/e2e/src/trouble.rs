//! Imports after damage: a damaged root, a rewind, a read-only import, and a return to an older
//! checkpoint for good.

use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

const DEVICE: u64 = 768 << 20;
const AREA: u64 = 1 << 20;
/// Offset of the ring of roots within an area: `docs/format.md`.
const RING: u64 = 64 << 10;

fn points(millpond: &Millpond) -> Result<Vec<Value>> {
    let listed = millpond.json(&["pool", "checkpoints", "tank"])?;
    Ok(listed.as_array().cloned().unwrap_or_default())
}

fn id(point: Option<&Value>) -> Result<u64> {
    point.and_then(|point| point["id"].as_u64()).context("no checkpoint is listed")
}

/// Overwrites both copies of a root.
fn spoil_root(path: &Path, generation: u64) -> Result<()> {
    let file = File::options().write(true).open(path).with_context(|| format!("opening {}", path.display()))?;
    for area in [0, DEVICE - AREA] {
        file.write_all_at(&[0xa5; 4096], area + RING + generation % 128 * 4096).context("spoiling a root")?;
    }
    Ok(())
}

fn same(a: &Path, b: &Path) -> Result<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..DEVICE >> 20 {
        a.read_exact(&mut left)?;
        b.read_exact(&mut right)?;
        if left != right {
            return Ok(false);
        }
    }
    Ok(true)
}

/// In every state, the disk must have the data of the corresponding fio run.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let device = dir.join("a");
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", "linear", &format!("{}:{DEVICE}", device.display())])?;
    millpond.cli(&["create", "tank/disk", "-L", "64M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["pool", "export", "tank"])?;
    millpond.cli(&["pool", "import", "tank"])?;
    let first = id(points(millpond)?.first())?;
    fio(&uri, "randwrite", 2, &[])?;
    let old = points(millpond)?.into_iter().find(|point| point["id"] == first).context("the old checkpoint is gone")?;
    ensure!(old["verified"] == "yes" && old["lost_bytes"].as_u64() >= Some(60 << 20), "{old}");
    millpond.cli(&["pool", "export", "tank"])?;

    // the newest root is damaged: the import is refused, and a rewind loses nothing, because the
    // log is intact
    let newest = millpond.json(&["pool", "checkpoints", "tank", "-d", &dir.display().to_string()])?;
    let newest = id(newest.get(0))?;
    spoil_root(&device, newest)?;
    let refused = millpond.command(&["pool", "import", "tank"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("damaged") && said.contains("--rewind"), "{said}");
    looked_at(millpond, &dir, &uri)?;
    let planned = millpond.json(&["pool", "import", "tank", "--rewind", "-n"])?;
    ensure!(planned[0]["checkpoint"]["lost_bytes"] == 0, "{planned}");
    millpond.cli(&["pool", "import", "tank", "--rewind"])?;
    fio(&uri, "randwrite", 2, &["--verify_only=1"])?;

    // back to the first checkpoint; a kill and later writes do not undo that
    millpond.cli(&["pool", "export", "tank"])?;
    millpond.cli(&["pool", "import", "tank", "--to", &first.to_string(), "-y"])?;
    fio(&uri, "randwrite", 1, &["--verify_only=1"])?;
    millpond.kill9()?;
    millpond.launch()?;
    fio(&uri, "randwrite", 1, &["--verify_only=1"])?;
    fio(&uri, "randwrite", 3, &[])?;
    millpond.kill9()?;
    millpond.launch()?;
    fio(&uri, "randwrite", 3, &["--verify_only=1"])?;

    // all roots are lost: the checkpoint is found by a scan of the segments, and the log after it
    // is replayed
    fio(&uri, "randwrite", 4, &[])?;
    millpond.kill9()?;
    (0..128).try_for_each(|generation| spoil_root(&device, generation))?;
    millpond.launch()?;
    let refused = millpond.command(&["pool", "import", "tank"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("--rebuild"), "{said}");
    millpond.cli(&["pool", "import", "tank", "--rebuild"])?;
    fio(&uri, "randwrite", 4, &["--verify_only=1"])
}

/// A damaged pool is first imported read-only: guests can read, and no byte of the device changes.
fn looked_at(millpond: &mut Millpond, dir: &Path, uri: &str) -> Result<()> {
    let (device, copy) = (dir.join("a"), dir.join("copy"));
    fs::copy(&device, &copy).context("copying the device")?;
    millpond.cli(&["pool", "import", "tank", "--readonly", "--rewind"])?;
    fio(uri, "randwrite", 2, &["--verify_only=1"])?;
    let refused = millpond.command(&["snapshot", "tank/disk@no"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("read-only"), "{said}");
    millpond.cli(&["pool", "export", "tank"])?;
    ensure!(same(&device, &copy)?, "a pool that is only read was written to");
    fs::remove_file(&copy).context("removing the copy")
}
