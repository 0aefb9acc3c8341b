//! A pool as a mounted directory: operations on files, entries of the directory, and the fate of
//! the mount when the daemon stops or dies.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::{Contender, DISK, Millpond, POOL};
use millpond_lab::process::{run_command, run_tool, wait_until};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

const SIZE: u64 = 64 << 20;

/// Starts the daemon and mounts its pool; returns the directory.
pub fn mount(subject: &mut Subject, size: u64) -> Result<PathBuf> {
    subject.start(size)?;
    let dir = subject.file("mnt");
    subject.millpond()?.cli(&["export", "fuse", POOL, &dir.display().to_string()])?;
    Ok(dir)
}

/// Whether a file system is mounted on a directory.
pub fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

fn names(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns the id of the export, for `unexport`.
pub fn export_id(millpond: &Millpond) -> Result<String> {
    let list = millpond.json(&["exports"])?;
    let found = list.as_array().into_iter().flatten().find(|export| export["kind"] == "fuse");
    Ok(found.context("no fuse export is listed")?["id"].to_string())
}

/// Returns the message of a command that must be refused.
fn refusal(millpond: &Millpond, args: &[&str]) -> Result<String> {
    let output = millpond.command(args).output().context("starting millpond")?;
    ensure!(output.status.code() == Some(1), "millpond {args:?} was not refused: {output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// I/O of each file is listed with the mount and used by `cache advise`; files that were never
/// opened are not listed.
fn counted(millpond: &Millpond, path: &Path, snapshot: &Path) -> Result<()> {
    let exports = millpond.json(&["exports"])?;
    let mount = exports.as_array().into_iter().flatten().find(|export| export["kind"] == "fuse").context("no fuse export is listed")?;
    let files: Vec<&Path> =
        mount["volumes"].as_array().into_iter().flatten().filter_map(|file| file["address"].as_str().map(Path::new)).collect();
    ensure!(files == [path, snapshot], "{mount}");
    let [disk, older] = [&mount["volumes"][0], &mount["volumes"][1]];
    ensure!(
        disk["name"] == "lab/disk" && disk["readonly"] == false && older["name"] == "lab/disk@s1" && older["readonly"] == true,
        "{mount}"
    );
    let number = |of: &Value, key: &str| of["io"][key].as_u64().unwrap_or(0);
    ensure!(number(disk, "write_bytes") == 203 * 300_000 && number(disk, "flushes") > 0 && number(older, "writes") == 0, "{mount}");
    ensure!(number(older, "read_bytes") >= 4 * SIZE, "{mount}");
    ensure!(["reads", "writes"].iter().all(|key| number(disk, key) + number(older, key) == number(mount, key)), "{mount}");
    let lines = |args: &[&str]| millpond.cli(args).map(|said| said.lines().filter(|line| line.contains("/mnt/disk")).count());
    ensure!((lines(&["exports"])?, lines(&["exports", "-H"])?) == (1, 0), "{}", millpond.cli(&["exports"])?);
    let advice = millpond.cli(&["cache", "advise", "lab/disk"])?;
    ensure!(advice.contains("flushes per write: 0.0"), "{advice}");
    Ok(())
}

/// The directory follows changes of the pool; files have a fixed size, are sparse, and are copied
/// with their holes; snapshots are constant and read-only.
pub fn files(subject: &mut Subject) -> Result<()> {
    let dir = mount(subject, SIZE)?;
    let copy = subject.file("copy");
    let millpond = subject.millpond()?;
    ensure!(names(&dir)? == set(&[".snapshots", "disk"]), "{:?}", names(&dir)?);
    millpond.cli(&["create", "lab/other", "-L", "8M", "--sector", "4kn"])?;
    ensure!(names(&dir)? == set(&[".snapshots", "disk", "other"]), "a volume made while mounted");
    millpond.cli(&["resize", "lab/other", "16M"])?;
    ensure!(fs::metadata(dir.join("other"))?.len() == 16 << 20, "a volume resized while mounted");
    millpond.cli(&["rename", "lab/other", "lab/another"])?;
    ensure!(names(&dir)? == set(&[".snapshots", "disk", "another"]), "a volume renamed while mounted");

    let path = dir.join("disk");
    let file = File::options().read(true).write(true).open(&path).context("opening the volume")?;
    let block = |seed: u64| {
        let mut data = vec![0; 300_000];
        Rng::new(seed).fill(&mut data);
        data
    };
    for (place, seed) in [(0, 1), (20_000_001, 2), (SIZE - 300_000, 3)] {
        file.write_all_at(&block(seed), place)?;
    }
    ensure!(file.write_at(b"beyond", SIZE).is_err_and(|e| e.raw_os_error() == Some(28)), "a write beyond the end: no space");
    ensure!(file.set_len(0).is_err_and(|e| e.raw_os_error() == Some(1)), "a truncate is not permitted");
    ensure!(fs::write(dir.join("new"), b"x").is_err(), "files are made by 'millpond create' alone");
    file.sync_all().context("fsync")?;
    let blocks = file.metadata()?.blocks() * 512;
    ensure!((900_000..1_000_000).contains(&blocks), "{blocks} bytes in use");
    let holes = [seek(&file, SeekFrom::Hole(5))?, seek(&file, SeekFrom::Data(400_000))?, seek(&file, SeekFrom::Hole(20_000_001))?];
    ensure!(holes == [303_104, 19_996_672, 20_303_872], "{holes:?}");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 20_100_001, 100_000)?;
    fallocate(&file, FallocateFlags::ZERO_RANGE, 100, 1000)?;
    let mut expected = vec![0; SIZE as usize];
    for (place, seed) in [(0, 1), (20_000_001, 2), (SIZE as usize - 300_000, 3)] {
        expected[place..place + 300_000].copy_from_slice(&block(seed));
    }
    expected[20_100_001..20_200_001].fill(0);
    expected[100..1100].fill(0);
    run_command(Command::new("cp").args(["--sparse=auto"]).args([&path, &copy]))?;
    ensure!(fs::read(&copy)? == expected, "the copy differs");
    ensure!(fs::metadata(&copy)?.blocks() * 512 < 2_000_000, "cp did not find the holes");

    millpond.snapshot("s1")?;
    let snapshot = dir.join(".snapshots/disk/s1");
    let writer = thread::spawn(move || (0..200u64).try_for_each(|n| file.write_all_at(&block(n), n * 300_000 + n)));
    for _ in 0..3 {
        ensure!(fs::read(&snapshot)? == expected, "a snapshot changed while its volume was written");
    }
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    ensure!(fs::read(&snapshot)? == expected, "a snapshot changed");
    counted(millpond, &path, &snapshot)?;
    ensure!(File::options().write(true).open(&snapshot).is_err_and(|e| e.raw_os_error() == Some(30)), "snapshots are read-only");
    ensure!(fs::metadata(&snapshot)?.mode() & 0o7777 == 0o400);
    for n in 0..300 {
        millpond.snapshot(&format!("n{n}"))?;
    }
    let listed = names(&dir.join(".snapshots/disk"))?;
    ensure!(listed.len() == 301, "{} snapshots listed", listed.len());
    let held = File::open(&snapshot)?;
    let message = refusal(millpond, &["destroy", "-y", "lab/disk@s1"])?;
    ensure!(message.contains(&format!("process {}", std::process::id())), "{message}");
    drop(held);
    millpond.cli(&["destroy", "-y", "lab/disk@s1"])?;
    ensure!(!snapshot.exists(), "a snapshot that is destroyed is gone");
    ensure!(rustix::fs::statvfs(&dir)?.f_blocks > 0);
    Ok(())
}

/// The pool is unmounted when no file is open, on SIGTERM, and when the daemon is killed; the mount
/// is restored on start. A refusal names the process that has a file open.
pub fn comes_and_goes(subject: &mut Subject) -> Result<()> {
    let dir = mount(subject, SIZE)?;
    let full = subject.file("full");
    fs::create_dir(&full)?;
    fs::write(full.join("precious"), b"x")?;
    let millpond = subject.millpond()?;
    let message = refusal(millpond, &["export", "fuse", POOL, &full.display().to_string()])?;
    ensure!(message.contains("not empty"), "{message}");
    let file = File::options().read(true).write(true).open(dir.join("disk"))?;
    file.write_all_at(b"before", 12_345)?;
    let message = refusal(millpond, &["unexport", &export_id(millpond)?])?;
    ensure!(message.contains(&format!("process {}", std::process::id())), "the user of an open file is not named: {message}");
    ensure!(refusal(millpond, &["pool", "export", POOL])?.contains("connected"), "an open file is a client");
    // after a lazy unmount, an open file still works
    millpond.cli(&["unexport", &export_id(millpond)?, "--lazy"])?;
    ensure!(!is_mounted(&dir), "still there after --lazy");
    file.write_all_at(b"lazily", 12_345)?;
    drop(file);
    millpond.cli(&["export", "fuse", POOL, &dir.display().to_string()])?;
    let read = || -> Result<[u8; 6]> {
        let mut six = [0; 6];
        File::open(dir.join("disk"))?.read_exact_at(&mut six, 12_345)?;
        Ok(six)
    };
    ensure!(read()? == *b"lazily");
    // after --force, it does not
    let file = File::open(dir.join("disk"))?;
    millpond.cli(&["unexport", &export_id(millpond)?, "--force"])?;
    ensure!(!is_mounted(&dir) && file.read_at(&mut [0; 10], 0).is_err(), "an open file is served after --force");
    drop(file);
    millpond.cli(&["export", "fuse", POOL, &dir.display().to_string()])?;

    millpond.stop()?;
    ensure!(!is_mounted(&dir), "still there after SIGTERM");
    millpond.launch()?;
    wait_until("the mount comes back", PATIENCE, || read().is_ok_and(|six| six == *b"lazily"))?;

    let file = File::open(dir.join("disk"))?;
    millpond.kill9()?;
    wait_until("the mount of a killed daemon goes", PATIENCE, || !is_mounted(&dir))?;
    ensure!(file.read_at(&mut [0; 10], 0).is_err(), "a dead daemon answers");
    millpond.launch()?;
    wait_until("the mount comes back", PATIENCE, || read().is_ok())?;

    // if its guard dies, too, the dead mount is left and must be replaced
    let guards = run_tool("pgrep", &["-f", &format!("fuse-guard .* {}", dir.display())])?;
    for guard in guards.split_whitespace() {
        run_tool("kill", &["-KILL", guard])?;
    }
    millpond.kill9()?;
    ensure!(is_mounted(&dir) && fs::read_dir(&dir).is_err(), "the mount should be there and dead");
    millpond.launch()?;
    wait_until("a dead mount is replaced", PATIENCE, || read().is_ok())?;
    millpond.cli(&["unexport", &export_id(millpond)?])?;
    ensure!(!is_mounted(&dir) && names(&dir)?.is_empty());
    ensure!(millpond.json(&["exports"])?.as_array().is_some_and(|all| all.iter().all(|export| export["kind"] != "fuse")));
    Ok(())
}

/// Bytes of a stripe. Stripes belong to the workers in turn, and their borders are within blocks
/// and sectors.
const STRIPE: u64 = 5_003;
const WORKERS: u64 = 3;
const MODEL: u64 = 4 << 20;

/// Random writes, holes and reads of a worker in its stripes, compared with `twin`.
fn work(path: &Path, worker: u64, seed: u64, steps: u64, twin: &mut [u8]) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut rng = Rng::new(seed);
    for step in 0..steps {
        let stripe = worker + WORKERS * rng.below(MODEL / STRIPE / WORKERS);
        let from = rng.below(STRIPE - 1);
        let length = 1 + rng.below(STRIPE - from);
        let start = stripe * STRIPE + from;
        let place = start as usize..(start + length) as usize;
        match rng.below(10) {
            0..5 => {
                rng.fill(&mut twin[place.clone()]);
                file.write_all_at(&twin[place], start)?;
            }
            5 => {
                fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length)?;
                twin[place].fill(0);
            }
            6 => {
                fallocate(&file, FallocateFlags::ZERO_RANGE, start, length)?;
                twin[place].fill(0);
            }
            7 if rng.below(20) == 0 => file.sync_data()?,
            _ => {
                let mut bytes = vec![0; length as usize];
                file.read_exact_at(&mut bytes, start)?;
                ensure!(bytes == twin[place], "worker {worker} with seed {seed}, step {step}: {length} bytes at {start} differ");
            }
        }
    }
    Ok(())
}

/// In the manner of fsx: random ranges through several open files at once, compared with bytes in
/// memory; the daemon is killed in between.
pub fn model(subject: &mut Subject) -> Result<()> {
    let dir = mount(subject, MODEL)?;
    let path = dir.join("disk");
    let mut twin = vec![0u8; MODEL as usize];
    let mut snapshots: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..6u64 {
        let shares = thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let (mut share, path) = (twin.clone(), &path);
                    scope.spawn(move || work(path, worker, 1 + round * WORKERS + worker, 1500, &mut share).map(|()| share))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?).collect::<Result<Vec<_>>>()
        })?;
        for (at, byte) in twin.iter_mut().enumerate() {
            *byte = shares[at / STRIPE as usize % WORKERS as usize][at];
        }
        let millpond = subject.millpond()?;
        if round % 2 == 1 {
            millpond.kill9()?;
            millpond.launch()?;
            wait_until("the mount comes back", PATIENCE, || path.exists())?;
        }
        ensure!(fs::read(&path)? == twin, "round {round}: the volume differs");
        millpond.snapshot(&format!("r{round}"))?;
        snapshots.push((format!("r{round}"), twin.clone()));
        for (name, then) in &snapshots {
            ensure!(fs::read(dir.join(".snapshots/disk").join(name))? == *then, "round {round}: snapshot {name} differs");
        }
    }
    Ok(())
}

/// fio's verification, with asynchronous direct I/O.
pub fn fio(subject: &mut Subject) -> Result<()> {
    let dir = mount(subject, SIZE)?;
    let path = format!("--filename={}", dir.join("disk").display());
    let size = format!("--size={SIZE}");
    // fio trims only block devices, so holes are punched in other tests
    for (seed, extra) in [(1, "--fsync=64"), (2, "--overwrite=1")] {
        let seed = format!("--randseed={seed}");
        let fixed = ["--name=e2e", "--ioengine=libaio", "--direct=1", "--iodepth=32", "--bsrange=4k-256k", "--allow_file_create=0"];
        let verify = ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0"];
        let args: Vec<&str> = fixed.into_iter().chain(verify).chain([path.as_str(), &size, &seed, "--rw=randwrite", extra]).collect();
        run_tool("fio", &args).with_context(|| format!("fio {seed}"))?;
    }
    Ok(())
}

/// A user other than root runs a daemon and mounts by `fusermount3`.
pub fn as_user(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("user");
    fs::create_dir(&dir)?;
    let binary = millpond_lab::peer::millpond_binary()?;
    let own = dir.join("millpond");
    fs::copy(binary, &own)?;
    for path in dir.ancestors().take_while(|path| *path != std::env::temp_dir() && path.parent().is_some()) {
        rustix::fs::chmod(path, 0o755.into())?;
    }
    std::os::unix::fs::chown(&dir, Some(65_534), Some(65_534))?;
    let script = "cd $1 && export MILLPOND_SOCKET=$1/c.sock && (./millpond serve --state $1/state > log 2>&1 & echo $! > pid) && \
        ./millpond status --wait 20 > /dev/null && ./millpond pool create tank $1/pool:64M > /dev/null && ./millpond create tank/v -L 16M > /dev/null && \
        ./millpond export fuse tank $1/mnt && printf hello | dd of=mnt/v bs=1 seek=1000 conv=notrunc status=none && dd if=mnt/v bs=1 skip=1000 count=5 status=none && \
        if [ \"$2\" = kill ]; then kill -KILL $(cat pid); else ./millpond unexport 1 && kill $(cat pid); fi";
    for end in ["kill", "stop"] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script, "sh"]).arg(&dir).arg(end);
        let output = command.stdin(Stdio::null()).output()?;
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || !words.ends_with("hello") {
            bail!("{end}: {output:?}\n{}", fs::read_to_string(dir.join("log")).unwrap_or_default());
        }
        wait_until("a user's mount goes", PATIENCE, || !is_mounted(&dir.join("mnt")))?;
        let _ = fs::remove_dir_all(dir.join("state"));
        let _ = fs::remove_file(dir.join("pool"));
    }
    Ok(())
}

/// Returns the path of a mounted volume's file, and the server.
pub fn volume(subject: &mut Subject, size: u64) -> Result<(PathBuf, &mut Millpond)> {
    let dir = mount(subject, size)?;
    let (_, name) = DISK.split_once('/').context("a name")?;
    Ok((dir.join(name), subject.millpond()?))
}
