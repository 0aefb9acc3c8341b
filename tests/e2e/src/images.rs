//! Disk image tools on an export.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::process::run_tool;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const SIZE: u64 = 96 << 20;

/// Makes an image with data, written zeroes and holes of odd lengths.
fn patchwork(path: &Path, seed: u64) -> Result<()> {
    let mut file = File::create(path)?;
    file.set_len(SIZE)?;
    let mut rng = Rng::new(seed);
    let mut at = 0;
    while at < SIZE {
        let length = (1 + rng.below(1500)) * 512;
        let length = length.min(SIZE - at);
        let mut data = vec![0; usize::try_from(length)?];
        match rng.below(4) {
            0 => {}                               // a hole
            1 => write_at(&mut file, at, &data)?, // zeroes that take space
            _ => {
                rng.fill(&mut data);
                write_at(&mut file, at, &data)?;
            }
        }
        at += length;
    }
    Ok(())
}

fn write_at(file: &mut File, offset: u64, data: &[u8]) -> Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(data).context("writing the image")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// `nbdinfo` finds the size, the flags that a write-back disk must announce, and the export in the
/// list.
pub fn nbdinfo(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(SIZE)?.uri();
    let json: serde_json::Value = serde_json::from_str(&run_tool("nbdinfo", &["--json", &uri])?)?;
    let export = json.pointer("/exports/0").context("no export is listed")?;
    ensure!(export["export-size"] == SIZE, "size {}", export["export-size"]);
    for flag in ["can_flush", "can_fua", "can_trim", "can_zero"] {
        ensure!(export[flag] == true, "{flag} is {}", export[flag]);
    }
    ensure!(export["is_read_only"] == false, "read-only");
    let list: serde_json::Value = serde_json::from_str(&run_tool("nbdinfo", &["--json", "--list", &uri])?)?;
    let names: Vec<&str> = list["exports"].as_array().into_iter().flatten().filter_map(|e| e["export-name"].as_str()).collect();
    let own = export["export-name"].as_str().unwrap_or_default();
    ensure!(names.contains(&own), "the list {names:?} lacks {own:?}");
    Ok(())
}

/// `nbdcopy` to the export and back gives the same bytes.
pub fn nbdcopy(subject: &mut Subject) -> Result<()> {
    let (source, back) = (subject.file("source.img"), subject.file("back.img"));
    patchwork(&source, 1)?;
    let uri = subject.start(SIZE)?.uri();
    run_tool("nbdcopy", &["--flush", &text(&source), &uri])?;
    run_tool("nbdcopy", &[&uri, &text(&back)])?;
    ensure!(fs::read(&source)? == fs::read(&back)?, "what came back differs");
    Ok(())
}

/// `qemu-img convert` and `compare` in both directions, with raw and qcow2; a second image over the
/// first.
pub fn qemu_img(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(SIZE)?.uri();
    for (seed, format) in [(2, "raw"), (3, "qcow2")] {
        let (raw, image, back) = (subject.file("plain.img"), subject.file("image"), subject.file("back.qcow2"));
        patchwork(&raw, seed)?;
        run_tool("qemu-img", &["convert", "-f", "raw", "-O", format, &text(&raw), &text(&image)])?;
        run_tool("qemu-img", &["convert", "-n", "-W", "-m", "8", "-f", format, "-O", "raw", &text(&image), &uri])?;
        run_tool("qemu-img", &["compare", "-f", format, "-F", "raw", &text(&image), &uri])?;
        run_tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &text(&back)])?;
        run_tool("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &text(&raw), &text(&back)])?;
    }
    Ok(())
}

/// `qemu-io`: writes that start and end within 4 KiB blocks do not change neighbouring bytes;
/// zeroed and discarded ranges read as zeroes.
pub fn qemu_io(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(SIZE)?.uri();
    let script = [
        "write -P 0x11 0 1M",
        "write -P 0x22 512 512",
        "write -P 0x33 7680 1024",
        "write -f -P 0x44 65024 4608",
        "read -P 0x11 0 512",
        "read -P 0x22 512 512",
        "read -P 0x11 1024 6656",
        "read -P 0x33 7680 1024",
        "read -P 0x11 8704 56320",
        "read -P 0x44 65024 4608",
        "write -z 131072 65536",
        "read -P 0 131072 65536",
        "read -P 0x11 130560 512",
        "read -P 0x11 196608 512",
        "write -z -u 262656 1024",
        "read -P 0x11 262144 512",
        "read -P 0 262656 1024",
        "read -P 0x11 263680 512",
        "flush",
        "discard 524288 65536",
        "write -P 0x55 526336 512",
        "read -P 0x55 526336 512",
        "read -P 0x11 589824 4096",
        "aio_write -P 0x66 1M 1M",
        "aio_write -P 0x77 3M 512k",
        "aio_flush",
        "read -P 0x66 1M 1M",
        "read -P 0x77 3M 512k",
        "read -P 0 2M 1M",
        "write -P 0x88 100662784 512",
        "read -P 0x88 100662784 512",
    ];
    let mut args = vec!["-f", "raw", "-t", "writeback"];
    for line in script {
        args.extend(["-c", line]);
    }
    args.push(&uri);
    let output = run_tool("qemu-io", &args)?;
    for bad in ["Pattern verification failed", "failed:"] {
        ensure!(!output.contains(bad), "{output}");
    }
    ensure!(output.matches("read ").count() >= 16, "not every read was answered: {output}");
    Ok(())
}
