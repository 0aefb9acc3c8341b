//! A pool that has lost all special devices: it is imported without them, and data that was only on
//! them is named.

use super::fio::fio;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond};
use std::fs;
use std::path::Path;

const DATA: u64 = 256 << 20;
const SPECIAL: u64 = 64 << 20;

fn read(millpond: &Millpond, name: &str, to: &Path) -> Result<Vec<u8>> {
    millpond.cli(&["export-image", name, &to.display().to_string()])?;
    let bytes = fs::read(to).context("reading an image")?;
    fs::remove_file(to).context("removing an image")?;
    Ok(bytes)
}

/// Kills the daemon and removes both special devices of a pool with two data devices in a mirror.
pub fn run(subject: &mut Subject) -> Result<()> {
    let top = subject.file("server");
    let dir = top.join("devices");
    let millpond = subject.millpond()?;
    millpond.start_empty(&top)?;
    fs::create_dir_all(&dir).context("a directory for devices")?;
    let at = |name: &str, size: u64| format!("{}:{size}", dir.join(name).display());
    let search = dir.display().to_string();
    let devices = [at("a", DATA), at("b", DATA), at("s", SPECIAL), at("t", SPECIAL)];
    let [a, b, s, t] = &devices;
    millpond.cli(&["pool", "create", "tank", "mirror", a, b, "special", "mirror", s, t])?;
    millpond.cli(&["create", "tank/disk", "-L", "64M"])?;
    millpond.cli(&["create", "tank/small", "-L", "16M"])?;
    let uri = millpond.export("tank/disk")?.uri();
    fio(&uri, "randwrite", 1, &[])?;
    millpond.cli(&["snapshot", "tank/disk@first"])?;
    let first = read(millpond, "tank/disk@first", &top.join("image"))?;
    // small writes to special devices, on one of two volumes
    let small = millpond.export("tank/small")?.uri();
    let write = |offset: u64, length: u64, pattern: u8| {
        let command = format!("write -P {pattern} {offset} {length}");
        let done = std::process::Command::new("qemu-io").args(["-f", "raw", &small, "-c", &command, "-c", "flush"]).output();
        let done = done.context("starting qemu-io")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    };
    write(0, 1 << 20, 7)?;
    millpond.cli(&["set", "special_small_blocks=8k", "tank/small"])?;
    write(64 << 10, 4096, 8)?;
    write(256 << 10, 8192, 9)?;
    // more writes, because batches on normal devices carry the index of small writes
    fio(&uri, "randwrite", 2, &[])?;
    millpond.kill9()?;
    for name in ["s", "t"] {
        fs::rename(dir.join(name), top.join(name)).context("hiding a device")?;
    }
    millpond.launch()?;
    let refused = millpond.command(&["pool", "import", "tank", "-d", &search]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("--rebuild"), "{said}");

    let planned = millpond.json(&["pool", "import", "tank", "-d", &search, "--rebuild", "-n"])?;
    let lost: Vec<_> = planned.as_array().into_iter().flatten().map(|l| (&l["name"], l["offset"].as_u64(), l["length"].as_u64())).collect();
    let wanted = [(Some(64 << 10), Some(4096)), (Some(256 << 10), Some(8192))];
    ensure!(lost.iter().all(|(name, ..)| *name == "tank/small"), "{planned}");
    ensure!(lost.iter().map(|(_, offset, length)| (*offset, *length)).eq(wanted), "{planned}");
    let asked = millpond.command(&["pool", "import", "tank", "-d", &search, "--rebuild"]).output()?;
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    ensure!(!asked.status.success() && said.contains("12K") && said.contains("-y"), "{said}");

    millpond.cli(&["pool", "import", "tank", "-d", &search, "--rebuild", "-y"])?;
    fio(&uri, "randwrite", 2, &["--verify_only=1"])?;
    ensure!(read(millpond, "tank/disk@first", &top.join("image"))? == first, "the snapshot is another");
    let reads = |offset: u64, length: u64, pattern: u8| {
        let command = format!("read -P {pattern} {offset} {length}");
        let read = std::process::Command::new("qemu-io").args(["-f", "raw", &small, "-c", &command]).output();
        let read = read.context("starting qemu-io")?;
        let said = String::from_utf8_lossy(&read.stdout).into_owned();
        anyhow::Ok(read.status.success() && !said.contains("verification failed") && !said.contains("read failed"))
    };
    ensure!(reads(0, 64 << 10, 7)? && reads(512 << 10, 64 << 10, 7)?, "what was not lost is not there");
    ensure!(!reads(64 << 10, 4096, 7)? && !reads(64 << 10, 4096, 8)?, "what was lost is read");
    // after a rewrite the data is readable again, and the pool is imported automatically from now
    // on
    write(64 << 10, 4096, 5)?;
    millpond.kill9()?;
    millpond.launch()?;
    ensure!(reads(64 << 10, 4096, 5)? && !reads(256 << 10, 8192, 9)?, "not what was written last");
    fio(&uri, "randwrite", 2, &["--verify_only=1"])
}
