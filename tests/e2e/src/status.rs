//! Block status as clients query it: holes, data, and changes since a snapshot.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::DISK;
use millpond_lab::process::run_tool;
use serde_json::Value;
use std::fs;

const SIZE: u64 = 96 << 20;
const BLOCK: u64 = 4096;
/// Flags of `base:allocation` for a hole.
const HOLE: u64 = 3;

/// Returns offset, length and flags of each extent, as `nbdinfo` reports them.
fn map(uri: &str, context: &str) -> Result<Vec<(u64, u64, u64)>> {
    let json: Value = serde_json::from_str(&run_tool("nbdinfo", &["--json", &format!("--map={context}"), uri])?)?;
    let field = |extent: &Value, name: &str| extent[name].as_u64().with_context(|| format!("an extent without {name}"));
    let extents = json.as_array().context("no list of extents")?;
    let extents: Result<Vec<_>> = extents.iter().map(|e| Ok((field(e, "offset")?, field(e, "length")?, field(e, "type")?))).collect();
    let extents = extents?;
    let mut at = 0;
    for (offset, length, _) in &extents {
        ensure!(*offset == at && *length > 0, "the extents leave {at} out");
        at += length;
    }
    ensure!(at == SIZE, "the extents end at {at}");
    Ok(extents)
}

/// Returns the flags of each block.
fn blocks(uri: &str, context: &str) -> Result<Vec<u64>> {
    let extents = map(uri, context)?;
    Ok(extents.into_iter().flat_map(|(_, length, flags)| std::iter::repeat_n(flags, (length / BLOCK) as usize)).collect())
}

/// Returns data (true) and holes as QEMU's client sees them, by block.
fn qemu_blocks(image: &[&str]) -> Result<Vec<bool>> {
    let json: Value = serde_json::from_str(&run_tool("qemu-img", &[&["map", "--output=json"], image].concat())?)?;
    let extents = json.as_array().context("no list of extents")?;
    let is_data = |e: &Value| std::iter::repeat_n(e["data"] == true, (e["length"].as_u64().unwrap_or(0) / BLOCK) as usize);
    Ok(extents.iter().flat_map(is_data).collect())
}

/// `nbdinfo --map` and `qemu-img map` agree with the writes and discards; a copy of the disk has
/// the same holes.
pub fn holes(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let uri = endpoint.uri();
    let mut data = vec![false; (SIZE / BLOCK) as usize];
    let mut rng = Rng::new(7);
    let mut script = Vec::new();
    for step in 0..200 {
        let first = rng.below(SIZE / BLOCK);
        let count = (1 + rng.below(if step % 9 == 0 { 3000 } else { 20 })).min(SIZE / BLOCK - first);
        let write = rng.below(3) > 0;
        let range = format!("{} {}", first * BLOCK, count * BLOCK);
        script.push(if write { format!("write -P {} {range}", 1 + step % 250) } else { format!("discard {range}") });
        data[first as usize..(first + count) as usize].fill(write);
    }
    let commands: Vec<&str> = script.iter().flat_map(|command| ["-c", command.as_str()]).collect();
    run_tool("qemu-io", &[&["-f", "raw"][..], &commands, &[uri.as_str()]].concat())?;
    let found = blocks(&uri, "base:allocation")?;
    let expected: Vec<u64> = data.iter().map(|data| if *data { 0 } else { HOLE }).collect();
    ensure!(found == expected, "nbdinfo lists other ranges than were written");
    ensure!(qemu_blocks(&["-f", "raw", &uri])? == data, "qemu-img lists other ranges than were written");
    let copy = subject.file("copy.img").display().to_string();
    run_tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &copy])?;
    run_tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &copy, &uri])?;
    let written = data.iter().filter(|data| **data).count() as u64 * BLOCK;
    let taken = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&copy)?) * 512;
    ensure!(taken <= written + (1 << 20), "the copy takes {taken} bytes, {written} were written");
    run_tool("nbdcopy", &["--destination-is-zero", "--connections=4", &uri, &format!("{copy}.2")]).and_then(|_| {
        ensure!(fs::read(&copy)? == fs::read(format!("{copy}.2"))?, "two copies differ");
        Ok(())
    })
}

/// `qemu:dirty-bitmap:SNAP` has every block that was written or discarded since the snapshot, and
/// no other; it survives `kill -9`; with it, a copy of the snapshot is updated to a copy of the
/// disk.
pub fn changes(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let uri = endpoint.uri();
    let write = |uri: &str, commands: &[String]| {
        let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command.as_str()]).collect();
        run_tool("qemu-io", &[&["-f", "raw"][..], &commands, &[uri]].concat()).map(drop)
    };
    write(&uri, &["write -P 1 0 48M".to_owned()])?;
    subject.server().snapshot("monday")?;
    let backup = subject.file("backup.img");
    let backup_name = backup.display().to_string();
    let (monday, id) = subject.millpond()?.export_with_id(&format!("{DISK}@monday"))?;
    run_tool("nbdcopy", &[&monday.uri(), &backup_name])?;
    subject.millpond()?.cli(&["unexport", &id, "--force"])?;
    let mut rng = Rng::new(11);
    let mut dirty = vec![0; (SIZE / BLOCK) as usize];
    let mut commands = Vec::new();
    for step in 0..150 {
        let (first, count) = (rng.below(SIZE / BLOCK - 40), 1 + rng.below(40));
        let range = format!("{} {}", first * BLOCK, count * BLOCK);
        // A range that was never written is a hole in both versions, so a discard does not change
        // it.
        let discard = step % 4 == 0 && (first + count) * BLOCK <= 48 << 20;
        commands.push(if discard { format!("discard {range}") } else { format!("write -P {} {range}", 2 + step % 200) });
        dirty[first as usize..(first + count) as usize].fill(1);
    }
    write(&uri, &commands)?;
    let context = "qemu:dirty-bitmap:monday";
    ensure!(blocks(&uri, context)? == dirty, "the bitmap differs from what was written");
    let (server, path) = (subject.server(), endpoint.socket().context("a unix socket")?.display().to_string());
    server.kill9()?;
    server.restart()?;
    ensure!(blocks(&uri, context)? == dirty, "the bitmap after kill -9 differs from what was written");
    // With this option QEMU reports dirty blocks as if they were no data.
    let image = format!("driver=nbd,server.type=unix,server.path={path},export={DISK},x-dirty-bitmap={context}");
    let clean = qemu_blocks(&["--image-opts", &image])?;
    ensure!(clean.iter().zip(&dirty).all(|(clean, dirty)| *clean == (*dirty == 0)), "qemu-img sees another bitmap");
    let now = subject.file("now.img");
    run_tool("nbdcopy", &[&uri, &now.display().to_string()])?;
    let (mut old, new) = (fs::read(&backup)?, fs::read(&now)?);
    for (at, _) in dirty.iter().enumerate().filter(|(_, dirty)| **dirty == 1) {
        let range = at * BLOCK as usize..(at + 1) * BLOCK as usize;
        old[range.clone()].copy_from_slice(&new[range]);
    }
    ensure!(old == new, "a backup with the dirty blocks copied into it is not the disk");
    subject.millpond()?.cli(&["destroy", &format!("{DISK}@monday"), "-y"])?;
    ensure!(map(&uri, context).is_err(), "a bitmap since a snapshot that is gone");
    Ok(())
}
