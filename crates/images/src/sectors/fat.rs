//! Rebuilds a FAT file system with another sector size and the same files, label and serial number,
//! by mkfs.fat and mtools. It changes temporary files only.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millpond_api::failure::{Failure, Outcome};

const PACKAGES: &str = "install dosfstools and mtools";

/// Rebuilds the file system in the image `old`; returns the new image, in the same directory.
///
/// # Errors
/// When a tool is missing or fails, the files do not fit, or the files differ afterwards.
pub fn rebuild(old: &Path, to: u64) -> Outcome<PathBuf> {
    let dir = old.parent().unwrap_or(Path::new("."));
    let (new, files, again) = (dir.join("new.fat"), dir.join("files"), dir.join("again"));
    let made = || {
        let image = File::open(old)?;
        let size = image.metadata()?.len();
        File::create_new(&new)?.set_len(size)?;
        fs::create_dir(&files)?;
        fs::create_dir(&again)?;
        boot_sector(&image)
    };
    let boot = made().map_err(|e| Failure::failed(format!("cannot prepare a FAT filesystem in {}: {e}; see TMPDIR", dir.display())))?;
    take_out(old, &files)?;
    let number = format!("{:08x}", boot.number);
    let sector = to.to_string();
    let mut words = vec!["-S", &sector, "-i", &number];
    // The firmware of some machines reads only FAT32, which needs at least 65,525 clusters.
    if boot.fat32 && boot.bytes / to >= 70_000 {
        words.extend(["-F", "32"]);
    }
    if !boot.label.is_empty() {
        words.extend(["-n", &boot.label]);
    }
    run(Command::new("mkfs.fat").args(words).arg(&new))?;
    put_in(&files, &new)?;
    take_out(&new, &again)?;
    match same(&files, &again) {
        Ok(true) => Ok(new),
        Ok(false) => Err(Failure::failed("the files of a FAT filesystem differ after it was recreated; nothing is changed")),
        Err(e) => Err(Failure::failed(format!("cannot compare the files of a FAT filesystem: {e}; nothing is changed"))),
    }
}

struct Boot {
    bytes: u64,
    fat32: bool,
    number: u32,
    label: String,
}

fn boot_sector(image: &File) -> io::Result<Boot> {
    let mut boot = [0; 90];
    image.read_exact_at(&mut boot, 0)?;
    // In FAT32 the 16-bit size of a table is 0, and the fields after it are 28 bytes later.
    let fat32 = boot.get(22..24) == Some(&[0, 0]);
    let at = if fat32 { 67 } else { 39 };
    let number = boot.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw));
    let label = boot.get(at + 4..at + 15).map(|raw| String::from_utf8_lossy(raw).trim_end().to_owned()).unwrap_or_default();
    let plain = label.chars().all(|c| c.is_ascii_graphic() || c == ' ') && label != "NO NAME";
    let bytes = image.metadata()?.len();
    Ok(Boot { bytes, fat32, number, label: if plain { label } else { String::new() } })
}

fn take_out(image: &Path, into: &Path) -> Outcome {
    run(mtool("mcopy").args(["-s", "-p", "-m", "-Q", "-n", "-i"]).arg(image).arg("::/").arg(into))
}

fn put_in(files: &Path, image: &Path) -> Outcome {
    let entries = fs::read_dir(files).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|e| Failure::failed(format!("cannot list {}: {e}", files.display())))?;
    if entries.is_empty() {
        return Ok(());
    }
    run(mtool("mcopy").args(["-s", "-m", "-Q", "-i"]).arg(image).args(entries.iter().map(fs::DirEntry::path)).arg("::/"))
}

fn mtool(name: &str) -> Command {
    let mut command = Command::new(name);
    // mtools' checks accept only sectors of 512 bytes; a user's configuration may define other
    // drives.
    command.env("MTOOLS_SKIP_CHECK", "1").env("MTOOLSRC", "/dev/null");
    command
}

fn run(command: &mut Command) -> Outcome {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            return Failure::failed(format!("a FAT filesystem must be recreated, which needs '{name}'; {PACKAGES}"));
        }
        Failure::failed(format!("cannot start {name}: {e}; {PACKAGES}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    Err(Failure::failed(format!("a FAT filesystem cannot be recreated: {name} reports: {line}; nothing is changed")))
}

/// Whether two directory trees have the same names and contents.
fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let names = |dir: &Path| -> io::Result<Vec<std::ffi::OsString>> {
        let mut names = fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let own = names(one)?;
    if own != names(other)? {
        return Ok(false);
    }
    for name in own {
        let (one, other) = (one.join(&name), other.join(&name));
        let equal = if one.is_dir() { other.is_dir() && same(&one, &other)? } else { fs::read(&one)? == fs::read(&other)? };
        if !equal {
            return Ok(false);
        }
    }
    Ok(true)
}
