//! Import and export of images by `millpond import-image` and `export-image`, compared with QEMU's
//! tools.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::Millpond;
use millpond_lab::process::{run_tool, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

const POOL: &str = "4G";

fn started(subject: &mut Subject) -> Result<(&mut Millpond, PathBuf)> {
    let dir = subject.file("server");
    let room = subject.file("images");
    fs::create_dir_all(&room)?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", &format!("{}:{POOL}", dir.join("pool.img").display())])?;
    Ok((millpond, room))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Makes a file with data, written zeroes and holes of odd lengths.
fn patchwork(path: &Path, size: u64, unit: u64, seed: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(size)?;
    let (mut rng, mut at) = (Rng::new(seed), 0);
    while at < size {
        let length = ((1 + rng.below(700)) * unit).min(size - at);
        let mut data = vec![0; usize::try_from(length)?];
        match rng.below(3) {
            0 => {}
            1 => file.write_all_at(&data, at)?,
            _ => {
                rng.fill(&mut data);
                file.write_all_at(&data, at)?;
            }
        }
        at += length;
    }
    Ok(())
}

/// Converts a raw image to another format.
fn convert(raw: &Path, image: &Path, format: &str, options: &[&str]) -> Result<()> {
    let (from, to) = (text(raw), text(image));
    run_tool("qemu-img", &[&["convert", "-f", "raw", "-O", format], options, &[from.as_str(), to.as_str()]].concat()).map(drop)
}

/// Returns the disk of an image as QEMU reads it, padded to whole blocks of a volume.
fn expected(image: &Path, format: &str, snapshot: Option<&str>) -> Result<Vec<u8>> {
    let raw = image.with_extension("expected");
    let (from, to) = (text(image), text(&raw));
    let mut words = vec!["convert", "-f", format, "-O", "raw"];
    if let Some(name) = snapshot {
        words.extend(["-l", name]);
    }
    words.extend([from.as_str(), to.as_str()]);
    run_tool("qemu-img", &words)?;
    let mut bytes = fs::read(&raw)?;
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    Ok(bytes)
}

/// Returns the content of a volume or snapshot.
fn held(millpond: &Millpond, name: &str, room: &Path) -> Result<Vec<u8>> {
    let out = room.join("held.raw");
    millpond.cli(&["export-image", name, &text(&out), "--force"])?;
    fs::read(&out).context("reading what was exported")
}

/// Checks that no export of the tool is left.
fn nothing_left(millpond: &Millpond) -> Result<()> {
    let exports = millpond.json(&["exports"])?;
    ensure!(exports.as_array().is_some_and(Vec::is_empty), "exports are left: {exports}");
    Ok(())
}

/// Format, options of `qemu-img convert`, and 512-byte sectors of the disk.
type Made = (&'static str, &'static [&'static str], u64);

const MADE: [Made; 19] = [
    ("raw", &[], 12_345),
    ("qcow2", &[], 20_001),
    ("qcow2", &["-o", "cluster_size=512"], 7_777),
    ("qcow2", &["-o", "cluster_size=2M"], 30_003),
    ("qcow2", &["-c"], 12_121),
    ("qcow2", &["-c", "-o", "compression_type=zstd"], 16_383),
    ("qcow2", &["-o", "extended_l2=on"], 20_480),
    ("qcow2", &["-o", "compat=0.10"], 9_999),
    ("qcow2", &["-o", "preallocation=metadata"], 16_001),
    ("qcow2", &["-o", "lazy_refcounts=on,refcount_bits=1"], 8_193),
    ("vmdk", &[], 12_289),
    ("vmdk", &["-o", "subformat=streamOptimized"], 20_481),
    ("vmdk", &["-o", "subformat=twoGbMaxExtentFlat"], 8_191),
    ("vmdk", &["-o", "subformat=twoGbMaxExtentSparse"], 16_385),
    ("vhdx", &[], 20_480),
    ("vhdx", &["-o", "subformat=fixed"], 16_384),
    ("vdi", &[], 14_337),
    ("vpc", &["-o", "force_size=on"], 14_339),
    ("parallels", &[], 16_447),
];

/// Imports twenty images and compares each volume with the image; exports some in other formats and
/// compares these.
pub fn generated(subject: &mut Subject) -> Result<()> {
    let (millpond, room) = started(subject)?;
    for (index, (format, options, sectors)) in MADE.iter().enumerate() {
        let about = format!("image {index}: {format} {options:?}");
        let (plain, image) = (room.join(format!("plain{index}")), room.join(format!("image{index}.{format}")));
        patchwork(&plain, sectors * 512, 512, index as u64)?;
        convert(&plain, &image, format, options).context(about.clone())?;
        let name = format!("tank/v{index}");
        millpond.cli(&["import-image", &text(&image), &name]).context(about.clone())?;
        let wanted = expected(&image, format, None)?;
        ensure!(held(millpond, &name, &room)? == wanted, "{about}: the volume differs from what QEMU reads");
        if index % 3 == 0 {
            let again = ["qcow2", "vmdk", "vhdx", "vdi", "vhd", "parallels"].get(index / 3).copied().unwrap_or("qcow2");
            let out = room.join(format!("again{index}.{again}"));
            millpond.cli(&["export-image", &name, &text(&out), "--verify"]).context(about.clone())?;
            let driver = if again == "vhd" { "vpc" } else { again };
            let (out, raw) = (text(&out), text(&room.join("held.raw")));
            run_tool("qemu-img", &["compare", "-f", driver, "-F", "raw", &out, &raw]).context(about.clone())?;
        }
        millpond.cli(&["destroy", &name, "-y"])?;
    }
    // the twentieth image: a size that is no multiple of a sector, and no extension that
    // shows the format
    let odd = room.join("odd");
    patchwork(&odd, 3_000_001, 1, 99)?;
    millpond.cli(&["import-image", &text(&odd), "tank/odd", "--sector", "4kn"])?;
    let mut wanted = fs::read(&odd)?;
    wanted.resize(wanted.len().next_multiple_of(4096), 0);
    ensure!(held(millpond, "tank/odd", &room)? == wanted, "the odd image differs");
    nothing_left(millpond)
}

fn qemu_io(image: &Path, commands: &[&str]) -> Result<()> {
    let mut words = vec!["-f", "qcow2"];
    commands.iter().for_each(|command| words.extend(["-c", command]));
    let image = text(image);
    words.push(&image);
    run_tool("qemu-io", &words).map(drop)
}

fn overlay(image: &Path, below: &str, format: &str, options: &str, size: &[&str]) -> Result<()> {
    let path = text(image);
    let words = ["create", "-q", "-f", "qcow2", "-o", options, "-F", format, "-b", below, &path];
    run_tool("qemu-img", &[&words, size].concat()).map(drop)
}

/// Layers and internal snapshots become snapshots with the same content, and are exported as a
/// chain of files again.
pub fn chains(subject: &mut Subject) -> Result<()> {
    let (millpond, room) = started(subject)?;
    // a Proxmox VE volume chain: read through QEMU, because one layer has subclusters
    let disk = room.join("vm-100-disk-0.qcow2");
    let (monday, tuesday) = (room.join("snap_monday_vm-100-disk-0.qcow2"), room.join("snap_tuesday_vm-100-disk-0.qcow2"));
    run_tool("qemu-img", &["create", "-q", "-f", "qcow2", &text(&monday), "24M"])?;
    qemu_io(&monday, &["write -P 1 0 5M", "write -P 2 20M 1M"])?;
    overlay(&tuesday, "snap_monday_vm-100-disk-0.qcow2", "qcow2", "extended_l2=on,cluster_size=131072", &[])?;
    qemu_io(&tuesday, &["write -P 3 1M 1M", "write -z 20M 64k", "write -P 9 9216512 1024"])?;
    overlay(&disk, "snap_tuesday_vm-100-disk-0.qcow2", "qcow2", "cluster_size=64k", &["32M"])?;
    qemu_io(&disk, &["write -P 4 30M 1M", "write -z 0 1M", "discard 21M 64k"])?;
    millpond.cli(&["import-image", &text(&disk), "tank/vm", "--verify"])?;
    let names = |list: &serde_json::Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|s| s["name"].as_str()).map(str::to_owned).collect()
    };
    let listed = names(&millpond.json(&["list", "-t", "snapshot", "tank/vm"])?);
    ensure!(listed == ["tank/vm@monday", "tank/vm@tuesday"], "{listed:?}");
    for (image, name) in [(&monday, "tank/vm@monday"), (&tuesday, "tank/vm@tuesday"), (&disk, "tank/vm")] {
        ensure!(held(millpond, name, &room)? == expected(image, "qcow2", None)?, "{name} differs from {}", image.display());
    }
    let changed = millpond.json(&["diff", "tank/vm@monday", "tank/vm@tuesday"])?;
    let bytes: u64 = changed.as_array().into_iter().flatten().filter_map(|extent| extent["length"].as_u64()).sum();
    ensure!(bytes == (1 << 20) + 4096 + 65536, "more than the layer's own is changed: {changed}");

    // export as a chain
    let out = room.join("out");
    fs::create_dir(&out)?;
    millpond.cli(&["export-image", "tank/vm", &text(&out.join("vm-100-disk-0.qcow2")), "--snapshots", "--verify"])?;
    for image in [&monday, &tuesday, &disk] {
        let file = image.file_name().context("a name")?;
        run_tool("qemu-img", &["compare", &text(image), &text(&out.join(file))])?;
    }
    let top = fs::metadata(out.join("snap_tuesday_vm-100-disk-0.qcow2"))?.len();
    ensure!(top < 3 << 20, "the second layer has {top} bytes: it holds more than what changed");

    // a chain on a raw base, read by the library; some blocks are partly in a lower layer
    let (base, first, second) = (room.join("base.img"), room.join("first.qcow2"), room.join("second.qcow2"));
    patchwork(&base, 10_000 * 512, 512, 5)?;
    overlay(&first, "base.img", "raw", "cluster_size=512", &["6M"])?;
    qemu_io(&first, &["write -P 8 1573376 1024", "write -z 2M 1536", "write -P 1 4M 512"])?;
    overlay(&second, "first.qcow2", "qcow2", "cluster_size=4k", &[])?;
    qemu_io(&second, &["write -P 5 3M 512", "write -z 100k 10k"])?;
    millpond.cli(&["import-image", &text(&second), "tank/chain", "--verify"])?;
    for (image, format, name) in
        [(&base, "raw", "tank/chain@base"), (&first, "qcow2", "tank/chain@first"), (&second, "qcow2", "tank/chain")]
    {
        ensure!(held(millpond, name, &room)? == expected(image, format, None)?, "{name} differs from {}", image.display());
    }
    millpond.cli(&["import-image", &text(&second), "tank/flat", "--flat"])?;
    ensure!(held(millpond, "tank/flat", &room)? == expected(&second, "qcow2", None)?, "the flat import differs");
    ensure!(millpond.json(&["list", "tank/flat"])?[0]["snapshots"] == 0, "the flat import has snapshots");

    // internal snapshots, in order of time
    let within = room.join("within.qcow2");
    run_tool("qemu-img", &["create", "-q", "-f", "qcow2", &text(&within), "8M"])?;
    for (pattern, name) in [("write -P 1 0 1M", "z first"), ("write -P 2 0 512k", "a second")] {
        qemu_io(&within, &[pattern])?;
        run_tool("qemu-img", &["snapshot", "-c", name, &text(&within)])?;
    }
    qemu_io(&within, &["write -z 0 1M", "write -P 6 5M 1M"])?;
    millpond.cli(&["import-image", &text(&within), "tank/within", "--verify"])?;
    for (snapshot, name) in [(Some("z first"), "tank/within@z-first"), (Some("a second"), "tank/within@a-second"), (None, "tank/within")] {
        ensure!(held(millpond, name, &room)? == expected(&within, "qcow2", snapshot)?, "{name} differs");
    }
    nothing_left(millpond)
}

/// Logical volumes as LVM shows them: loop devices, and a directory below `/dev` with a link for each.
struct Group {
    dir: PathBuf,
    loops: Vec<String>,
}

impl Group {
    fn new() -> Result<Group> {
        let dir = PathBuf::from(format!("/dev/millpond-e2e-{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Group { dir, loops: Vec::new() })
    }

    /// Makes a volume of this name in a file. It ends after `size` bytes, if given.
    fn add(&mut self, name: &str, file: &Path, size: Option<u64>) -> Result<PathBuf> {
        let (file, limit) = (text(file), size.unwrap_or(0).to_string());
        let device = run_tool("losetup", &["--find", "--show", "--sizelimit", &limit, &file])?.trim().to_owned();
        self.loops.push(device.clone());
        let link = self.dir.join(name);
        symlink(device.replace("/dev", ".."), &link)?;
        Ok(link)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nothing uses the devices any more; what cannot be removed stays visible in `losetup -a`.
        for device in &self.loops {
            let _ = run_tool("losetup", &["--detach", device]);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A volume chain of Proxmox VE on LVM: each file of the chain is a device with the names that
/// Proxmox gives it. The dry run lists what the import makes.
pub fn devices(subject: &mut Subject) -> Result<()> {
    let (millpond, room) = started(subject)?;
    let mut group = Group::new()?;
    let (names, mut below) = (["snap_vm-100-disk-0_one.qcow2", "snap_vm-100-disk-0_two.qcow2", "vm-100-disk-0.qcow2"], None);
    let (mut links, mut wanted) = (Vec::new(), Vec::new());
    for (index, name) in names.iter().enumerate() {
        let file = room.join(format!("lv{index}"));
        File::create(&file)?.set_len(40 << 20)?;
        let link = group.add(name, &file, None)?;
        match below {
            None => run_tool("qemu-img", &["create", "-q", "-f", "qcow2", &text(&link), "24M"]).map(drop)?,
            Some(below) => overlay(&link, below, "qcow2", "extended_l2=on,cluster_size=128k", &[])?,
        }
        let writes =
            [["write -P 1 0 5M", "write -P 2 20M 1M"], ["write -P 3 1M 1M", "write -z 20M 64k"], ["write -P 4 2M 64k", "discard 0 64k"]];
        qemu_io(&link, writes.get(index).context("writes")?)?;
        let raw = room.join(format!("raw{index}"));
        run_tool("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &text(&link), &text(&raw)])?;
        wanted.push(fs::read(&raw)?);
        links.push(link);
        below = Some(*name);
    }
    let top = links.last().context("a chain")?.clone();
    let planned = millpond.cli(&["import-image", "-n", &text(&top), "tank/vm-100-disk-0"])?;
    for row in ["tank/vm-100-disk-0@one", "tank/vm-100-disk-0@two", "with --sector 512e and 2 snapshots; nothing is changed"] {
        ensure!(planned.contains(row), "no {row} in: {planned}");
    }
    ensure!(millpond.json(&["list"])?.as_array().is_some_and(Vec::is_empty), "the dry run made a volume");
    millpond.cli(&["import-image", &text(&top), "tank/vm-100-disk-0", "--verify"])?;
    for (name, wanted) in ["tank/vm-100-disk-0@one", "tank/vm-100-disk-0@two", "tank/vm-100-disk-0"].iter().zip(&wanted) {
        ensure!(held(millpond, name, &room)? == *wanted, "{name} differs from what QEMU reads");
    }
    millpond.cli(&["destroy", "tank/vm-100-disk-0", "-r", "-y"])?;

    // an inactive volume, and one that is shorter than its tables say
    fs::remove_file(&links[0])?;
    refused(millpond, &top, None, "lvchange -ay")?;
    group.add(names[0], &room.join("lv0"), Some(4 << 20))?;
    refused(millpond, &top, None, "truncated")
}

/// Runs an import that may fail with a single line only; checks that nothing is left of it.
fn attempt(millpond: &Millpond, image: &Path, format: Option<&str>) -> Result<Output> {
    let path = text(image);
    let mut words = vec!["import-image", path.as_str(), "tank/hostile"];
    words.extend(format.into_iter().flat_map(|format| ["-f", format]));
    let output = millpond.command(&words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> =
        said.lines().filter(|line| !line.ends_with(" done") && !line.contains(" done, ") && !line.contains("4096-byte sectors")).collect();
    match output.status.code() {
        Some(0) => {
            ensure!(lines.is_empty(), "{path}: {said}");
            millpond.cli(&["destroy", "tank/hostile", "-r", "-y"])?;
        }
        Some(1) => ensure!(lines.len() == 1 && lines[0].starts_with("millpond: "), "{path}: {said}"),
        code => anyhow::bail!("{path}: ended with {code:?}: {said}"),
    }
    let volumes = millpond.json(&["list"])?;
    ensure!(volumes.as_array().is_some_and(Vec::is_empty), "{path}: a volume is left: {volumes}");
    nothing_left(millpond)?;
    Ok(output)
}

fn refused(millpond: &Millpond, image: &Path, format: Option<&str>, word: &str) -> Result<()> {
    let output = attempt(millpond, image, format)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && said.contains(word), "{} is not refused for '{word}': {said}", image.display());
    Ok(())
}

/// Invalid images end the import with one line.
pub fn hostile(subject: &mut Subject) -> Result<()> {
    let (millpond, room) = started(subject)?;
    let plain = room.join("plain");
    patchwork(&plain, 16_384 * 512, 512, 3)?;
    let formats: [(&str, &[&str]); 8] = [
        ("qcow2", &[]),
        ("qcow2", &["-c", "-o", "compression_type=zstd"]),
        ("vmdk", &[]),
        ("vmdk", &["-o", "subformat=streamOptimized"]),
        ("vhdx", &[]),
        ("vdi", &[]),
        ("vpc", &["-o", "force_size=on"]),
        ("parallels", &[]),
    ];
    let mut rng = Rng::new(11);
    for (index, (format, options)) in formats.iter().enumerate() {
        let image = room.join(format!("good{index}"));
        convert(&plain, &image, format, options)?;
        let good = fs::read(&image)?;
        // truncated in the data, the tables, the header
        for length in [good.len() / 2, 70_000, 700, 30] {
            let cut = room.join(format!("cut{index}-{length}"));
            fs::write(&cut, &good[..length.min(good.len())])?;
            refused(millpond, &cut, Some(format), "")?;
        }
        // corrupted in headers and tables: refused, or read as far as it is valid
        for turn in 0..4 {
            let mut bad = good.clone();
            for _ in 0..8 {
                let at = usize::try_from(rng.below(200_000.min(good.len() as u64)))?;
                bad[at] = u8::try_from(rng.below(256))?;
            }
            let spoilt = room.join(format!("spoilt{index}-{turn}"));
            fs::write(&spoilt, &bad)?;
            attempt(millpond, &spoilt, Some(format))?;
        }
    }
    names_that_lead_elsewhere(millpond, &room)?;
    wait_until("QEMU's tools have ended", PATIENCE, || !is_running("qemu-nbd", &room)).map(drop)
}

/// Circular chains, absurd headers, and images that name other files.
fn names_that_lead_elsewhere(millpond: &Millpond, room: &Path) -> Result<()> {
    let (one, other) = (room.join("one.qcow2"), room.join("other.qcow2"));
    run_tool("qemu-img", &["create", "-q", "-f", "qcow2", &text(&one), "8M"])?;
    overlay(&other, "one.qcow2", "qcow2", "cluster_size=64k", &[])?;
    run_tool("qemu-img", &["rebase", "-u", "-F", "qcow2", "-b", "other.qcow2", &text(&one)])?;
    refused(millpond, &one, None, "form a cycle")?;
    refused(millpond, &other, None, "form a cycle")?;
    for (name, word) in [
        ("/etc/passwd", "--follow"),
        ("../../../../../../../../etc/passwd", "--follow"),
        ("json:{\"driver\":\"file\",\"filename\":\"/etc/passwd\"}", "is not a file"),
        ("nbd://127.0.0.1:1/x", "is not a file"),
        ("nowhere.qcow2", "is missing"),
    ] {
        let image = room.join("leads.qcow2");
        run_tool("qemu-img", &["create", "-q", "-f", "qcow2", &text(&image), "8M"])?;
        run_tool("qemu-img", &["rebase", "-u", "-F", "raw", "-b", name, &text(&image)])?;
        refused(millpond, &image, None, word)?;
    }
    let good = fs::read(room.join("good0"))?;
    for (at, bytes, word) in [
        (24, u64::MAX.to_be_bytes(), "bytes"),
        (36, 0xffff_ff00_0000_0000u64.to_be_bytes(), ""),
        (40, (1u64 << 55).to_be_bytes(), "truncated"),
        (60, u64::MAX.to_be_bytes(), "snapshots"),
        (16, (64u64 | 70 << 32).to_be_bytes(), "2^64"),
    ] {
        let mut bad = good.clone();
        bad[at..at + 8].copy_from_slice(&bytes);
        let image = room.join("absurd.qcow2");
        fs::write(&image, &bad)?;
        refused(millpond, &image, None, word)?;
    }
    Ok(())
}

/// Whether a program runs with a file of this directory in its command line.
fn is_running(program: &str, dir: &Path) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines =
        entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok()).map(|line| String::from_utf8_lossy(&line).into_owned());
    let dir = text(dir);
    lines.into_iter().any(|line| line.contains(program) && line.contains(&dir))
}
