//! `demo`: a guided tour on a temporary pool. Every figure that it prints was measured just before.

mod load;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::SnapshotName;
use millpond_api::path::absolute;
use millpond_api::size::Size;
use millpond_api::{ApiError, CreateExport, CreateNbd, CreateSnapshots, Destroy, ImportPool, Rollback};
use millpond_daemon::{Daemon, Helpers, Options, Signals, StateDir, format_file, this_host};
use millpond_engine::{ReadySpace, Tuning};

use self::load::{BLOCK, Load, Measured, between};
use crate::output::write_out;
use millpond_images::nbd;

const POOL: &str = "demo";
const DISK: &str = "demo/disk";
const POOL_BYTES: u64 = 4 << 30;
const DISK_BYTES: u64 = 1 << 30;
/// Bytes at the start of the disk that the load writes to.
const REGION: u64 = 256 << 20;
/// Offset of the blocks that are checked after the rollback: beyond the region of the load.
const CHECKED_AT: u64 = 512 << 20;
const CHECKED_BYTES: usize = 8 << 20;
const SNAPSHOTS: u32 = 24;
const PAUSE: Duration = Duration::from_millis(250);
const PHASE: Duration = Duration::from_secs(5);

/// Show snapshots, rollback and constant speed on a temporary pool, in about a minute
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond demo\n  millpond demo --dir /mnt/fast")]
pub struct Demo {
    /// Directory in which the temporary pool is created; it needs 4 GiB of free space
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn failed(error: ApiError) -> Failure {
    Failure::failed(error.message)
}

fn broken(error: io::Error) -> Failure {
    Failure::failed(format!("the demo's load failed: {error}"))
}

impl Demo {
    pub async fn run(self) -> Outcome {
        let base = self.dir.as_deref().map_or_else(std::env::temp_dir, absolute);
        let room = rustix::fs::statvfs(&base).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).unwrap_or(u64::MAX);
        if room < POOL_BYTES {
            return Err(Failure::failed(format!(
                "{} has {} free, the demo needs {}; give --dir DIR",
                base.display(),
                Size(room),
                Size(POOL_BYTES)
            )));
        }
        // Dropping it removes the directory, however this function ends; only a kill leaves it.
        let dir = tempfile::Builder::new().prefix("millpond-demo-").tempdir_in(&base);
        let dir = dir.map_err(|e| Failure::failed(format!("cannot make a directory in {}: {e}; give --dir DIR", base.display())))?;
        let mut signals = Signals::catch()?;
        let (daemon, socket) = start(dir.path()).await?;
        let shown = tokio::select! {
            shown = show(&daemon, &socket) => shown,
            () = signals.next() => Err(Failure::failed("interrupted; the temporary pool is removed")),
        };
        let closed = daemon.close().await;
        drop(daemon);
        shown.and(closed)?;
        dir.close().map_err(|e| Failure::failed(format!("the temporary directory could not be removed: {e}")))
    }
}

/// Starts a daemon with one pool, one volume and one export, all in `dir`.
async fn start(dir: &Path) -> Outcome<(Arc<Daemon>, PathBuf)> {
    let file = dir.join("demo.millpond");
    say(&format!("A pool of {} in {} with a volume of {}, served over NBD.\n", Size(POOL_BYTES), file.display(), Size(DISK_BYTES)))?;
    let (pool, disk) = DISK.split_once('/').unwrap_or((POOL, DISK));
    let state = StateDir::open(dir)?;
    let tuning = Tuning { holder: Some(this_host(None, dir)?), ready: ReadySpace::ahead(), ..Tuning::default() };
    format_file(&file, pool, POOL_BYTES, disk, DISK_BYTES, tuning.clone()).await?;
    let options =
        Options { socket: dir.join("control.sock"), tuning, helpers: Arc::new(Helpers::start(Helpers::usual())), ..Options::default() };
    let daemon = Arc::new(Daemon::new(options, state)?);
    let request = ImportPool { name: Some(POOL.to_owned()), search: vec![file.display().to_string()], ..ImportPool::default() };
    daemon.import_pool(request).await.map_err(failed)?;
    let socket = dir.join("disk.sock");
    let unix = Some(socket.display().to_string());
    let request = CreateExport::Nbd(CreateNbd { name: DISK.to_owned(), unix, ..CreateNbd::default() });
    daemon.create_export(&request, false).await.map_err(failed)?;
    Ok((daemon, socket))
}

async fn show(daemon: &Arc<Daemon>, socket: &Path) -> Outcome {
    fill(socket).await?;
    let load = Load::start(socket, REGION).map_err(broken)?;
    say(&format!("\nRandom {BLOCK}-byte writes over {}, 16 in flight, continuously from here on.\n\n", Size(REGION)))?;
    say(&format!("{:44} {:>10} {:>10} {:>8}\n", "", "writes/s", "p99", ""))?;
    watch(&load, Duration::from_secs(1)).await?;
    let before = phase(&load, PHASE).await?;
    tell("no snapshot", before, None)?;

    let from = load.mark();
    let mut slowest = Duration::ZERO;
    for n in 1..=SNAPSHOTS {
        let asked = Instant::now();
        snapshot(daemon, &format!("{DISK}@s{n}")).await?;
        slowest = slowest.max(asked.elapsed());
        watch(&load, PAUSE).await?;
    }
    let during = between(&from, &load.mark());
    tell(&format!("while {SNAPSHOTS} snapshots are taken"), during, Some(before))?;
    let with = phase(&load, PHASE).await?;
    tell(&format!("with {SNAPSHOTS} snapshots"), with, Some(before))?;

    let from = load.mark();
    let asked = Instant::now();
    let request = Destroy { name: format!("{DISK}@%"), ..Destroy::default() };
    let gone = daemon.destroy(&request).await.map_err(failed)?;
    let destroyed = asked.elapsed();
    watch(&load, PHASE).await?;
    tell("while their space is reclaimed", between(&from, &load.mark()), Some(before))?;
    load.stop().map_err(broken)?;
    say(&format!("\nSlowest snapshot {}, all {} destroyed in {}.\n", millis(slowest), gone.destroyed.len(), millis(destroyed)))?;
    go_back(daemon, socket).await?;
    say("\nThe temporary pool is removed. To keep one: millpond up\n")
}

/// Writes the load's region once, so that every later write overwrites data.
async fn fill(socket: &Path) -> Outcome {
    let socket = socket.to_owned();
    let began = Instant::now();
    blocking(move || {
        let mut nbd = nbd::connect(&socket)?;
        let chunk: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for at in (0..REGION).step_by(chunk.len()) {
            nbd.write(at, &chunk)?;
        }
        nbd.flush()
    })
    .await?;
    let rate = REGION as f64 / began.elapsed().as_secs_f64();
    say(&format!("{} written in order and flushed: {}/s.\n", Size(REGION), Size(rate as u64)))
}

/// Writes known blocks, takes a snapshot, overwrites the blocks, rolls back, and checks that the
/// known blocks are back.
async fn go_back(daemon: &Arc<Daemon>, socket: &Path) -> Outcome {
    let pattern = |seed: u8| -> Vec<u8> { (0..CHECKED_BYTES).map(|n| (n / 4096).to_le_bytes()[0] ^ seed).collect() };
    let (good, bad) = (pattern(0x5a), pattern(0xa5));
    write_all(socket, good.clone()).await?;
    let name = format!("{DISK}@good");
    snapshot(daemon, &name).await?;
    write_all(socket, bad).await?;
    let name: SnapshotName = name.parse()?;
    let asked = Instant::now();
    let kept = daemon.rollback(&name, &Rollback::default()).await.map_err(failed)?;
    let took = asked.elapsed();
    let socket = socket.to_owned();
    let read = blocking(move || {
        let mut read = vec![0; CHECKED_BYTES];
        nbd::connect(&socket)?.read(CHECKED_AT, &mut read)?;
        Ok(read)
    })
    .await?;
    if read != good {
        return Err(Failure::failed("after the rollback the disk does not hold what the snapshot held; please report this"));
    }
    say(&format!(
        "{} overwritten, rolled back in {}, read again: every byte is the snapshot's.\nThe overwritten state is kept as {}.\n",
        Size(CHECKED_BYTES as u64),
        millis(took),
        kept.kept_as
    ))
}

async fn write_all(socket: &Path, bytes: Vec<u8>) -> Outcome {
    let socket = socket.to_owned();
    blocking(move || {
        let mut nbd = nbd::connect(&socket)?;
        nbd.write(CHECKED_AT, &bytes)?;
        nbd.flush()
    })
    .await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Outcome<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
    done.and_then(|done| done).map_err(broken)
}

async fn snapshot(daemon: &Arc<Daemon>, name: &str) -> Outcome {
    let request = CreateSnapshots { names: vec![name.to_owned()], ..CreateSnapshots::default() };
    daemon.create_snapshots(request).await.map(drop).map_err(failed)
}

/// Lets the load run for `time`; an error if the load has failed by then.
async fn watch(load: &Load, time: Duration) -> Outcome {
    tokio::time::sleep(time).await;
    if load.failed() { Err(Failure::failed("the demo's load ended early; see 'millpond pool status'")) } else { Ok(()) }
}

async fn phase(load: &Load, time: Duration) -> Outcome<Measured> {
    let from = load.mark();
    watch(load, time).await?;
    Ok(between(&from, &load.mark()))
}

fn tell(what: &str, measured: Measured, before: Option<Measured>) -> Outcome {
    let share = before.filter(|before| before.per_second > 0.0).map(|before| measured.per_second / before.per_second * 100.0);
    let share = share.map(|share| format!("{share:.0} %")).unwrap_or_default();
    say(&format!("{what:44} {:>10.0} {:>10} {share:>8}\n", measured.per_second, millis(measured.p99)))
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn say(text: &str) -> Outcome {
    write_out(text)
}
