//! Publications in a bucket that two hosts use: one publishes, the other lists, verifies and clones.

use super::PATIENCE;
use super::bucket::Store;
use super::bucket_proxy::{Fault, Proxy};
use super::metrics::scrape;
use super::send_receive::{content, host};
use super::subject::Subject;
use anyhow::{Context, Result, anyhow, ensure};
use millpond_export::nbd::client::Client;
use millpond_lab::load::Rng;
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::wait_until;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

const SIZE: u64 = 64 << 20;
/// Bytes of a chunk of a publication.
const CHUNK: u64 = 256 << 10;
/// Chunks that are written before the first snapshot. The last one is written again for each later one.
const FIRST: u64 = 48;
pub const TARGET: &str = "s3://pond/images";
/// Age of a lock that counts for nothing, and a bit.
const DEAD: Duration = Duration::from_secs(31 * 60);

/// The target in the bucket, and its files in the store.
pub struct Images {
    options: [String; 2],
    files: PathBuf,
}

impl Images {
    pub fn of(store: &Store) -> Images {
        Images { options: ["-o".to_owned(), format!("endpoint=http://{}", store.address)], files: store.dir().join("images") }
    }

    /// The same target behind a proxy.
    pub fn behind(&self, proxy: &Proxy) -> Images {
        Images { options: ["-o".to_owned(), format!("endpoint=http://{}", proxy.address())], files: self.files.clone() }
    }

    fn command(&self, host: &Millpond, words: &[&str]) -> Command {
        let mut command = host.command(words);
        command.args(&self.options).stdin(Stdio::null());
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "testtest").env_remove("AWS_SESSION_TOKEN");
        command
    }

    pub fn run(&self, host: &Millpond, words: &[&str]) -> Result<Output> {
        let output = self.command(host, words).output()?;
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(output)
    }

    /// Starts a command, whose output is small.
    fn start(&self, host: &Millpond, words: &[&str]) -> Result<Child> {
        self.command(host, words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().with_context(|| format!("{words:?}"))
    }

    fn refused(&self, host: &Millpond, words: &[&str], reason: &str) -> Result<()> {
        let output = self.command(host, words).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && said.contains(reason), "{words:?}: {}: {said}", output.status);
        Ok(())
    }

    /// Publishes a snapshot; returns what the command printed of it.
    fn publish(&self, host: &Millpond, name: &str) -> Result<Value> {
        let made = self.run(host, &["pool", "publish", name, TARGET, "--verify", "--format", "json"])?;
        let made: Value = serde_json::from_slice(&made.stdout)?;
        Ok(made[0].clone())
    }

    fn names(&self, host: &Millpond) -> Result<Vec<String>> {
        let listed: Value = serde_json::from_slice(&self.run(host, &["pool", "publications", TARGET, "--format", "json"])?.stdout)?;
        let name = |row: &Value| row["name"].as_str().map(str::to_owned);
        Ok(listed.as_array().into_iter().flatten().filter_map(name).collect())
    }

    /// Number and bytes of the chunks in the store.
    fn stored(&self) -> Result<(usize, u64)> {
        files(&self.files.join("chunks"))?.iter().try_fold((0, 0), |(count, bytes), file| Ok((count + 1, bytes + file.metadata()?.len())))
    }

    /// Locks of commands.
    fn locks(&self) -> Result<Vec<PathBuf>> {
        files(&self.files.join("locks"))
    }
}

/// Files below a directory, which may be missing.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if dir.is_dir() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
        }
    }
    Ok(found)
}

/// Writes to some chunks of the volume and takes a snapshot.
fn change(host: &Millpond, client: &mut Client<UnixStream>, rng: &mut Rng, chunks: impl Iterator<Item = u64>, name: &str) -> Result<()> {
    let mut data = vec![0; usize::try_from(CHUNK)?];
    for chunk in chunks {
        rng.fill(&mut data);
        client.write(chunk * CHUNK, &data)?;
    }
    client.flush()?;
    host.cli(&["snapshot", name]).map(drop)
}

fn same(one: (&Millpond, &str), other: (&Millpond, &str), room: &Path) -> Result<()> {
    ensure!(content(one.0, one.1, room)? == content(other.0, other.1, room)?, "{} differs from {}", other.1, one.1);
    Ok(())
}

fn success(mut child: Child, what: &str) -> Result<()> {
    wait_until(what, PATIENCE, || matches!(child.try_wait(), Ok(Some(_)) | Err(_)))?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A second snapshot stores what changed; the other host gets both.
fn both_arrive(images: &Images, [here, there]: [&Millpond; 2], client: &mut Client<UnixStream>, room: &Path) -> Result<()> {
    let mut rng = Rng::new(3);
    change(here, client, &mut rng, 0..FIRST, "tank/golden@v1")?;
    let first = images.publish(here, "tank/golden@v1")?;
    let (chunks, bytes) = images.stored()?;
    ensure!(first["read"] == FIRST * CHUNK && first["base"].is_null() && bytes >= FIRST * CHUNK, "{first}, {bytes} bytes are stored");
    ensure!(images.names(there)? == ["tank/golden@v1"], "{:?}", images.names(there)?);
    images.run(there, &["clone", "--full", &format!("{TARGET}#golden@v1"), "tank/one"])?;
    same((here, "tank/golden@v1"), (there, "tank/one"), room)?;
    // chunks within the first ones, one beyond them
    change(here, client, &mut rng, [5, 20, FIRST + 100].into_iter(), "tank/golden@v2")?;
    let second = images.publish(here, "tank/golden@v2")?;
    ensure!(second["read"] == 3 * CHUNK && second["base"] == "tank/golden@v1", "{second}");
    let (more_chunks, more_bytes) = images.stored()?;
    // the chunks that differ, and two with the list
    ensure!(more_chunks - chunks == 5, "{chunks} chunks, then {more_chunks}");
    ensure!((3 * CHUNK..4 * CHUNK).contains(&(more_bytes - bytes)), "{bytes} bytes are stored, then {more_bytes}");
    images.publish(here, "tank/golden@v2")?;
    ensure!(images.stored()? == (more_chunks, more_bytes), "a snapshot is stored twice");
    ensure!(images.names(there)? == ["tank/golden@v1", "tank/golden@v2"], "{:?}", images.names(there)?);
    images.run(there, &["pool", "publications", TARGET, "--verify"])?;
    Ok(())
}

/// A delete waits for the clones of other hosts, and deletes what no other publication needs.
fn deletes(images: &Images, [here, there]: [&Millpond; 2], room: &Path) -> Result<()> {
    let (before, v1, v2) = (images.stored()?, format!("{TARGET}#golden@v1"), format!("{TARGET}#golden@v2"));
    images.refused(here, &["pool", "unpublish", &v1], "-y")?;
    images.run(here, &["pool", "unpublish", &v1, "-n"])?;
    images.refused(there, &["backup", "list", TARGET], "it has publications")?;
    ensure!(images.stored()? == before && images.names(here)?.len() == 2, "a refused command deleted something");
    let clone = images.start(there, &["clone", "--full", &v2, "tank/golden"])?;
    images.run(here, &["pool", "unpublish", &v1, "-y"])?;
    success(clone, "a clone beside a delete ends")?;
    same((here, "tank/golden@v2"), (there, "tank/golden"), room)?;
    same((here, "tank/golden@v1"), (there, "tank/one"), room)?;
    let after = images.stored()?;
    // two chunks have other content in v2; v1 had a list of its own
    ensure!(images.names(there)? == ["tank/golden@v2"] && before.0 - after.0 == 4, "{before:?}, then {after:?}");
    images.run(there, &["pool", "publications", TARGET, "--verify"])?;
    // the other host has a volume of this name, and a snapshot that is not this one
    there.cli(&["snapshot", "tank/golden@v2"])?;
    images.refused(there, &["pool", "publish", "tank/golden@v2", TARGET], "of another snapshot")?;
    images.run(there, &["pool", "unpublish", &v2, "-y"])?;
    ensure!(images.stored()?.0 == 0 && images.names(here)?.is_empty(), "{:?} is left", images.stored()?);
    Ok(())
}

/// Kills a command as soon as its lock is in the store.
fn killed(images: &Images, host: &Millpond, name: &str) -> Result<()> {
    let mut child = images.start(host, &["pool", "publish", name, TARGET])?;
    wait_until("a publish locks its target", PATIENCE, || images.locks().is_ok_and(|locks| !locks.is_empty()))?;
    child.kill()?;
    child.wait()?;
    ensure!(!images.locks()?.is_empty(), "the publish ended before it was killed");
    Ok(())
}

/// The lock of a killed publish delays deletes for half an hour, and nothing else.
fn kill(images: &Images, [here, there]: [&Millpond; 2], room: &Path) -> Result<()> {
    killed(images, here, "tank/golden@v1")?;
    ensure!(images.names(there)?.is_empty(), "an incomplete publication is listed");
    images.publish(here, "tank/golden@v1")?;
    images.publish(here, "tank/golden@v2")?;
    images.run(there, &["clone", "--full", &format!("{TARGET}#golden@v1"), "tank/again"])?;
    same((here, "tank/golden@v1"), (there, "tank/again"), room)?;
    let mut delete = images.start(there, &["pool", "unpublish", &format!("{TARGET}#golden@v1"), "-y"])?;
    thread::sleep(Duration::from_secs(2));
    let waits = delete.try_wait()?.is_none() && images.names(here)?.len() == 2;
    for lock in images.locks()? {
        // that of the delete comes and goes
        if lock.to_string_lossy().contains("shared-") {
            fs::File::options().write(true).open(&lock)?.set_modified(SystemTime::now() - DEAD)?;
        }
    }
    success(delete, "a delete ends after the lock of a killed command")?;
    ensure!(waits, "a delete did not wait for the lock of a killed command");
    ensure!(images.names(here)? == ["tank/golden@v2"] && images.locks()?.is_empty(), "{:?}, {:?}", images.names(here)?, images.locks()?);
    images.run(here, &["pool", "publications", TARGET, "--verify"]).map(drop)
}

/// Writes the credentials of the store to a file; returns its path.
pub fn credentials(dir: &Path) -> Result<String> {
    let keys = dir.join("keys");
    fs::write(&keys, "AWS_ACCESS_KEY_ID=test\nAWS_SECRET_ACCESS_KEY=testtest\n")?;
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
    Ok(keys.display().to_string())
}

/// Returns the value of a metric of the host's one pool.
pub fn metric(host: &Millpond, name: &str) -> Result<u64> {
    let (_, text) = scrape(&host.control_socket(), None)?;
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).with_context(|| format!("no {name}"))?;
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).with_context(|| line.to_owned())
}

/// A clone whose blocks come when they are read, from a store that fails, is away, and comes back.
fn on_demand(images: &Images, store: &Store, [here, there]: [&Millpond; 2], room: &Path) -> Result<()> {
    let (proxy, keys) = (Proxy::start(store.address)?, credentials(room)?);
    let images = images.behind(&proxy);
    let words = format!("{TARGET}#golden@v2");
    let clone = ["clone", words.as_str(), "tank/lazy", "--credentials", keys.as_str()];
    images.run(there, &clone)?;
    images.refused(here, &["pool", "unpublish", &words, "-y"], "clones in pool 'tank'")?;
    let socket = room.join("lazy.sock");
    there.cli(&["export", "nbd", "tank/lazy", "--unix", &socket.display().to_string()])?;
    let wanted = content(here, "tank/golden@v2", room)?;
    let read = |at: u64, length: usize| -> Result<bool> {
        let (from, mut bytes) = (usize::try_from(at)?, vec![0; length]);
        Client::new(UnixStream::connect(&socket)?)?.read(at, &mut bytes)?;
        Ok(bytes == wanted.get(from..from + length).context("a range")?)
    };
    ensure!(read(5 * CHUNK, 4096)?, "the first block differs");
    ensure!(metric(there, "millpond_pool_base_fetches_total")? == 1, "a block took more than one chunk");
    let faults = [Fault::CutBody, Fault::LoseAnswer, Fault::ResetAfter, Fault::Refuse(503, "SlowDown")];
    proxy.next(&[faults, faults].concat());
    ensure!((10..14).map(|chunk| read(chunk * CHUNK, 65536)).collect::<Result<Vec<_>>>()?.iter().all(|same| *same), "a block differs");
    // away for long
    proxy.always(Some(Fault::Refuse(503, "SlowDown")));
    let waits = || -> Result<bool> { Ok(there.json(&["status"])?.to_string().contains("publication.away")) };
    thread::scope(|scope| {
        let reading = scope.spawn(|| read(20 * CHUNK, 65536));
        wait_until("the condition begins", PATIENCE, || waits().is_ok_and(|waits| waits))?;
        ensure!(!reading.is_finished(), "a read ended without its data");
        proxy.always(None);
        let same = reading.join().map_err(|_| anyhow!("a panic"))??;
        ensure!(same, "a block differs");
        Ok(())
    })?;
    wait_until("the condition ends", PATIENCE, || waits().is_ok_and(|waits| !waits))?;
    same((here, "tank/golden@v2"), (there, "tank/lazy"), room)
}

pub fn bucket(subject: &mut Subject) -> Result<()> {
    let room = subject.file("room");
    fs::create_dir_all(&room)?;
    let store = Store::start(subject, "versitygw")?;
    let images = Images::of(&store);
    let (mut here, mut there) = (host(&subject.file("here"))?, host(&subject.file("there"))?);
    here.cli(&["create", "tank/golden", "-L", &SIZE.to_string(), "-o", "compression=lz4"])?;
    let socket = room.join("golden.sock");
    here.cli(&["export", "nbd", "tank/golden", "--unix", &socket.display().to_string()])?;
    let mut client = Client::new(UnixStream::connect(&socket)?).context("connecting to the volume")?;
    both_arrive(&images, [&here, &there], &mut client, &room)?;
    deletes(&images, [&here, &there], &room)?;
    kill(&images, [&here, &there], &room)?;
    on_demand(&images, &store, [&here, &there], &room)?;
    for host in [&mut here, &mut there] {
        host.stop()?;
    }
    Ok(())
}
