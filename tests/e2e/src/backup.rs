//! Backups: of a volume that is written all the time, while the backup, the prune, or the daemon is
//! killed; one file of a guest's file system; a bucket that two commands use at once.

use super::PATIENCE;
use super::bucket::Store;
use super::send_receive::{content, host, load};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::{run_tool, wait_until};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SIZE: u64 = 96 << 20;
const ROUNDS: usize = 12;

/// A target, and how commands reach it.
struct Place {
    target: String,
    options: Vec<String>,
}

impl Place {
    fn command(&self, host: &Millpond, verb: &str, words: &[&str]) -> Command {
        let mut all = vec!["backup", verb, &self.target];
        all.extend(words);
        all.extend(self.options.iter().map(String::as_str));
        let mut command = host.command(&all);
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "testtest").env_remove("AWS_SESSION_TOKEN");
        command
    }

    fn run(&self, host: &Millpond, verb: &str, words: &[&str]) -> Result<Output> {
        let output = self.command(host, verb, words).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "backup {verb} {words:?}: {said}");
        Ok(output)
    }

    fn names(&self, host: &Millpond) -> Result<Vec<String>> {
        let listed: Value = serde_json::from_slice(&self.run(host, "list", &["--format", "json"])?.stdout)?;
        let name = |backup: &Value| backup["name"].as_str().map(str::to_owned);
        Ok(listed.as_array().into_iter().flatten().filter_map(name).collect())
    }

    /// Starts a command and kills it after a while. Returns whether it had ended.
    fn killed(&self, host: &Millpond, verb: &str, words: &[&str], after: Duration) -> Result<bool> {
        let mut child = self.command(host, verb, words).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        thread::sleep(after);
        let ended = child.try_wait()?.is_some();
        child.kill()?;
        child.wait()?;
        Ok(ended)
    }
}

/// Backs up a volume under load, with kills; every snapshot that is listed is restored as it is.
fn rounds(host: &mut Millpond, place: &Place, room: &Path) -> Result<()> {
    let mut rng = Rng::new(11);
    let mut cut = 0;
    for round in 0..ROUNDS {
        let name = format!("tank/disk@r{round}");
        host.cli(&["snapshot", &name])?;
        let after = Duration::from_millis(if round == 0 { 30 } else { rng.below(250) });
        match round % 4 {
            0 | 2 => cut += usize::from(!place.killed(host, "create", &[&name], after)?),
            1 => {
                let mut child = place.command(host, "create", &[&name]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
                thread::sleep(after);
                host.kill9()?;
                wait_until("a backup without its daemon ends", PATIENCE, || matches!(child.try_wait(), Ok(Some(_))))?;
                host.launch()?;
            }
            _ => drop(place.killed(host, "prune", &["--keep", "1s:100s"], after)?),
        }
        // a bucket keeps the flag of a killed command for half an hour; a backup goes on beside it
        place.run(host, "create", &[&name])?;
    }
    ensure!(cut > 0, "no kill cut a backup");
    let names = place.names(host)?;
    // of each second, the rules kept the first; rounds can be shorter
    ensure!(names.contains(&format!("tank/disk@r{}", ROUNDS - 1)) && names.len() > 1, "{names:?}");
    place.run(host, "verify", &[])?;
    for name in &names {
        same(host, place, name, room)?;
    }
    Ok(())
}

/// Restores a backup into a file, and compares it with its snapshot.
fn same(host: &Millpond, place: &Place, name: &str, room: &Path) -> Result<()> {
    let file = room.join("restored.raw");
    if file.exists() {
        fs::remove_file(&file)?;
    }
    place.run(host, "restore", &[name, "--to", &file.display().to_string()])?;
    ensure!(fs::read(&file)? == content(host, name, room)?, "{name} differs");
    Ok(())
}

/// A host with a volume that is written until the work on it has ended.
fn under_load(subject: &Subject, work: impl FnOnce(&mut Millpond, &Path) -> Result<()>) -> Result<()> {
    let room = subject.file("room");
    fs::create_dir_all(&room)?;
    let mut host = host(&subject.file("here"))?;
    host.cli(&["create", "tank/disk", "-L", &SIZE.to_string()])?;
    let socket = room.join("disk.sock");
    host.cli(&["export", "nbd", "tank/disk", "--unix", &socket.display().to_string()])?;
    let stop = Arc::new(AtomicBool::new(false));
    let loading = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || load(&socket, 5, &stop))
    };
    let done = work(&mut host, &room);
    stop.store(true, Ordering::Relaxed);
    loading.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
    done?;
    host.stop()
}

pub fn directory(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("nas");
    fs::create_dir_all(&dir)?;
    let place = Place { target: dir.display().to_string(), options: Vec::new() };
    under_load(subject, |host, room| {
        rounds(host, &place, room)?;
        place.run(host, "prune", &["--keep", "1d:1d"])?;
        let left = place.names(host)?;
        ensure!(left.len() == 2 && left.contains(&format!("tank/disk@r{}", ROUNDS - 1)), "{left:?}");
        left.iter().try_for_each(|name| same(host, &place, name, room))?;
        place.run(host, "verify", &[]).map(drop)
    })
}

pub fn bucket(subject: &mut Subject) -> Result<()> {
    let store = Store::start(subject, "versitygw")?;
    let options = vec!["-o".to_owned(), format!("endpoint=http://{}", store.address)];
    let place = Place { target: "s3://pond/a".to_owned(), options };
    under_load(subject, |host, room| {
        let names = ["tank/disk@one", "tank/disk@two"];
        names.iter().try_for_each(|name| host.cli(&["snapshot", name]).map(drop))?;
        place.run(host, "create", &[names[0]])?;
        // two at once are let in, and a prune waits for both
        host.cli(&["create", "tank/other", "-L", "64M"])?;
        host.cli(&["snapshot", "tank/other@three"])?;
        let mut first = place.command(host, "create", &[names[1]]).spawn()?;
        let mut second = place.command(host, "create", &["tank/other@three"]).spawn()?;
        place.run(host, "prune", &[])?;
        ensure!(first.wait()?.success() && second.wait()?.success(), "two backups at once fail");
        for name in names {
            same(host, &place, name, room)?;
        }
        place.run(host, "verify", &[])?;
        place.run(host, "prune", &[names[0], "-y"])?;
        ensure!(place.names(host)? == [names[1], "tank/other@three"], "{:?}", place.names(host)?);
        same(host, &place, names[1], room)?;
        // a killed one is in nobody's way but a prune's
        host.cli(&["snapshot", "tank/disk@four"])?;
        place.killed(host, "create", &["tank/disk@four"], Duration::from_millis(150))?;
        place.run(host, "create", &["tank/disk@four"])?;
        same(host, &place, "tank/disk@four", room)
    })
}

/// A mount that ends with the case.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // it may be gone already
        let _ = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// One file of a file system comes back through a mount of the backups.
pub fn one_file(subject: &mut Subject) -> Result<()> {
    let room = subject.file("room");
    let (disks, guest, image) = (room.join("disks"), room.join("guest"), room.join("disk.raw"));
    fs::create_dir_all(&guest)?;
    fs::create_dir_all(&disks)?;
    let host = host(&subject.file("here"))?;
    fs::File::create_new(&image)?.set_len(64 << 20)?;
    let file = |path: &Path| path.display().to_string();
    run_tool("mkfs.ext4", &["-q", &file(&image)])?;
    run_tool("mount", &["-o", "loop", &file(&image), &file(&guest)])?;
    let letter = vec![0x5a; 300_000];
    {
        let _mounted = Unmount(guest.clone());
        fs::write(guest.join("letter"), &letter)?;
    }
    host.cli(&["import-image", &file(&image), "tank/disk", "-f", "raw"])?;
    let target = subject.file("nas");
    fs::create_dir_all(&target)?;
    let place = Place { target: file(&target), options: Vec::new() };
    host.cli(&["snapshot", "tank/disk@monday"])?;
    place.run(&host, "create", &["tank/disk@monday"])?;
    let mut serving = place.command(&host, "mount", &[&file(&disks)]).stderr(Stdio::null()).spawn()?;
    let shown = Unmount(disks.clone());
    let disk = disks.join("tank/disk/monday.raw");
    wait_until("the backups are shown", PATIENCE, || disk.exists())?;
    ensure!(fs::read(&disk)? == fs::read(&image)?, "the disk differs");
    run_tool("mount", &["-o", "loop,ro", &file(&disk), &file(&guest)])?;
    let read = {
        let _mounted = Unmount(guest.clone());
        fs::read(guest.join("letter"))
    };
    ensure!(read? == letter, "the file differs");
    ensure!(fs::write(disks.join("tank/new"), b"x").is_err() && fs::write(&disk, b"x").is_err(), "the mount can be written");
    drop(shown);
    wait_until("the mount ends", PATIENCE, || matches!(serving.try_wait(), Ok(Some(_))))?;
    ensure!(serving.wait().context("the mount")?.success(), "the mount failed");
    let mut host = host;
    host.stop()
}
