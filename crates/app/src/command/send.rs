//! `send`: writes snapshots of a volume as a stream, for `receive`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::ResumeToken;
use millpond_api::instant;
use millpond_api::names::{SnapshotName, VolumeName};
use millpond_api::path::absolute;
use millpond_api::size::Size;
use millpond_api::{CreateSnapshots, Created, DiffExtent, Snapshot, Volume};
use millpond_daemon::Signals;
use millpond_images::copy::CopyProgress;
use millpond_images::pipe::OutletWriter;
use millpond_images::served::ServedImage;
use millpond_images::source::Image;
use millpond_images::stream::{FrameWriter, SendError, StreamHead, StreamSnapshot, send_snapshot};
use serde::Serialize;

use super::candidates;
use super::holds::Held;
use super::image::{DiffImage, Total, TransientExport, watched};
use crate::output::{Cell, Column, Listing, Shown, print};

mod range;

use range::Wanted;

/// Write snapshots of a volume as a stream
///
/// The stream goes to standard output or a file; 'millpond receive' makes a volume of it, in any pool of any host. POOL/VOL takes a
/// snapshot and sends it with all before it; a range sends what changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond send tank/vm1 | ssh backup millpond receive tank/vm1          all snapshots, and a new one
  millpond send tank/vm1@monday --to vm1.stream                          one snapshot, whole
  millpond send tank/vm1@monday%friday | ssh backup millpond receive tank/vm1
                                                                         what changed, with the snapshots between
  millpond send tank/vm1@monday% | ...                                   from monday to the newest snapshot
  millpond send -n tank/vm1@monday%                                      only list them
  millpond send tank/vm1@monday% --resume \"$(ssh backup millpond receive tank/vm1 --token)\" | ...")]
pub struct Send {
    /// POOL/VOL, POOL/VOL@A (whole), POOL/VOL@A%B (what changed from A to B), POOL/VOL@A% (to the newest), POOL/VOL@%B (all up to B)
    #[arg(add = candidates::names())]
    name: String,
    /// File to create, or - for standard output
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    to: PathBuf,
    /// Continue an interrupted receive; 'millpond receive POOL/VOL --token' prints the token
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
    /// Only list the snapshots, and the data of each
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    how: Listing,
}

/// A snapshot to send: a row of the dry run.
#[derive(Serialize)]
struct Planned {
    name: String,
    /// Bytes that differ from the one before, or all.
    data: u64,
    created: jiff::Timestamp,
}

const PLANNED: &[Column<Planned>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "data", cell: |row| Cell::Bytes(row.data), shown: Shown::Always },
    Column { name: "created", cell: |row| Cell::Time(row.created), shown: Shown::Always },
];

/// The snapshots to send, and where to begin.
struct Plan {
    head: StreamHead,
    /// Where it begins: index of a snapshot, and position in bytes.
    from: (usize, u64),
}

impl Send {
    pub async fn run(self, client: &Client) -> Outcome {
        let wanted: Wanted = self.name.parse()?;
        let token = self.resume.as_deref().map(str::parse::<ResumeToken>).transpose();
        let token = token.map_err(|e| Failure::usage(format!("--resume: {e}")))?;
        let during = |failure: Failure| failure.during(format!("cannot send '{}'", self.name));
        let to_stdout = self.to == Path::new("-");
        if !self.dry_run && to_stdout && io::stdout().is_terminal() {
            return Err(Failure::usage("a stream is not for a terminal; give --to FILE, or a pipe to 'millpond receive'"));
        }
        let mut signals = Signals::catch()?;
        if wanted.takes_new() && !self.dry_run && token.is_none() {
            take(client, &wanted.of).await?;
        }
        let plan = plan(client, &wanted, token.as_ref()).await.map_err(during)?;
        if self.dry_run {
            return list(client, &wanted.of, &plan, &self.how).await;
        }
        let wanted_names = plan.head.base.iter().chain(&plan.head.snapshots);
        let wanted_names = wanted_names.map(|snapshot| SnapshotName { of: wanted.of.clone(), snapshot: snapshot.name.clone() });
        let held = Held::hold(client, "send", wanted_names.collect()).await;
        let names: Vec<String> = plan.head.snapshots.iter().skip(plan.from.0).map(|snapshot| snapshot.name.clone()).collect();
        let sent = if to_stdout {
            let out = io::stdout().as_fd().try_clone_to_owned().map(File::from);
            let out = out.map_err(|e| Failure::failed(format!("cannot use standard output: {e}")))?;
            send(client, &mut signals, &wanted.of, plan, out).await
        } else {
            self.send_to_file(client, &mut signals, &wanted.of, plan).await
        };
        held.release(client, if sent.is_ok() { &names } else { &[] }).await;
        sent.map_err(during)
    }

    /// Writes a file that appears when it is complete and durable.
    async fn send_to_file(&self, client: &Client, signals: &mut Signals, of: &VolumeName, plan: Plan) -> Outcome {
        let path = absolute(&self.to);
        if path.symlink_metadata().is_ok() {
            return Err(Failure::failed(format!("{} exists; give another path", path.display())));
        }
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let cannot = |e: io::Error| Failure::failed(format!("cannot write {}: {e}; give another path", path.display()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&part).map_err(cannot)?;
        let sent = send(client, signals, of, plan, file).await;
        let published = sent.and_then(|()| {
            fs::rename(&part, &path).map_err(cannot)?;
            let dir = path.parent().unwrap_or(Path::new("/"));
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(cannot)
        });
        if published.is_err() {
            // it may be gone already
            let _ = fs::remove_file(&part);
        }
        published
    }
}

/// Takes a snapshot of the present state, the base of the next send.
async fn take(client: &Client, of: &VolumeName) -> Outcome {
    let name = format!("{of}@{}", instant::now().strftime("send-%Y%m%dT%H%M%S%3fZ"));
    let request =
        CreateSnapshots { names: vec![name.clone()], description: "for 'millpond send'".to_owned(), ..CreateSnapshots::default() };
    client.post::<_, Created>("/v1/snapshots", &request).await?;
    eprintln!("millpond: took {name}; the next 'millpond send {name}%NEW' sends what changed since");
    Ok(())
}

/// Finds out which snapshots are sent.
async fn plan(client: &Client, wanted: &Wanted, token: Option<&ResumeToken>) -> Outcome<Plan> {
    let of = &wanted.of;
    let volume: Volume = client.get(&format!("/v1/volumes/{of}")).await?;
    let mut all: Vec<Snapshot> = client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&of.pool), quoted(&of.volume))).await?;
    all.sort_by_key(|snapshot| (snapshot.epoch, snapshot.id));
    let all: Vec<StreamSnapshot> = all.iter().filter_map(StreamSnapshot::of).collect();
    let (base, snapshots) = wanted.select(all)?;
    let from = match token {
        None => (0, 0),
        Some(token) => {
            let index = snapshots.iter().position(|snapshot| snapshot.identity == token.identity);
            let index =
                index.ok_or_else(|| Failure::failed("the token is of a snapshot that is not among them; send the range that was sent"))?;
            let size = snapshots.get(index).map_or(0, |snapshot| snapshot.size);
            if token.position > size || !token.position.is_multiple_of(4096) {
                return Err(Failure::failed("the token has an impossible position"));
            }
            (index, token.position)
        }
    };
    let (sector, cache, compression) = (volume.sector, volume.cache, volume.compression);
    let head = StreamHead { volume: of.to_string(), sector, cache, compression, base, snapshots };
    head.check().map_err(|e| Failure::failed(e.to_string()))?;
    Ok(Plan { head, from })
}

/// Returns the differences of the snapshot at `index` from the one before; none where all is sent.
async fn differences(client: &Client, of: &VolumeName, head: &StreamHead, index: usize) -> Outcome<Option<Vec<DiffExtent>>> {
    let (Some(base), Some(snapshot)) = (head.base_of(index), head.snapshots.get(index)) else { return Ok(None) };
    let name = |snapshot: &StreamSnapshot| quoted(&format!("{of}@{}", snapshot.name));
    client.get(&format!("/v1/diff?older={}&newer={}", name(base), name(snapshot))).await.map(Some)
}

/// Checks that the names still stand for the snapshots that were planned: holds prevent no rename.
///
/// # Errors
/// When one does not.
async fn same_as_planned(client: &Client, of: &VolumeName, head: &StreamHead, index: usize) -> Outcome {
    for planned in head.base_of(index).into_iter().chain(head.snapshots.get(index)) {
        let now: Snapshot = client.get(&format!("/v1/snapshots/{of}/{}", planned.name)).await?;
        if now.identity.as_ref() != Some(&planned.identity) {
            return Err(Failure::failed(format!("'{of}@{}' is another snapshot now; send again", planned.name)));
        }
    }
    Ok(())
}

async fn list(client: &Client, of: &VolumeName, plan: &Plan, how: &Listing) -> Outcome {
    let mut rows = Vec::new();
    for (index, snapshot) in plan.head.snapshots.iter().enumerate().skip(plan.from.0) {
        let data = match differences(client, of, &plan.head, index).await? {
            Some(extents) => {
                extents.iter().filter(|extent| extent.kind != millpond_api::ExtentKind::Zero).map(|extent| extent.length).sum()
            }
            None => client.get::<Snapshot>(&format!("/v1/snapshots/{of}/{}", snapshot.name)).await?.referenced_bytes,
        };
        rows.push(Planned { name: format!("{of}@{}", snapshot.name), data, created: snapshot.created });
    }
    print(&rows, PLANNED, how)
}

/// Writes the stream. A file is durable on return. A reader that does not read delays no signal.
async fn send(client: &Client, signals: &mut Signals, of: &VolumeName, plan: Plan, out: File) -> Outcome {
    let head = Arc::new(plan.head);
    let (begins, what) = (Arc::clone(&head), format!("send {of}"));
    let begin = move |progress: &CopyProgress| {
        let mut out = OutletWriter::new(out).map_err(cannot_write)?;
        out.stop_with(&progress.stop);
        FrameWriter::new(out, &begins).map_err(cannot_write)
    };
    let mut writer = unless_stopped(watched(what.clone(), (Total::Hidden, data), signals, begin).await)?;
    for index in plan.from.0..head.snapshots.len() {
        let position = if index == plan.from.0 { plan.from.1 } else { 0 };
        writer = send_one(client, signals, of, &head, (index, position), writer).await?;
    }
    let end = move |progress: &CopyProgress| {
        writer.get_mut().stop_with(&progress.stop);
        writer.end().and_then(OutletWriter::end).map_err(cannot_write)
    };
    unless_stopped(watched(what, (Total::Hidden, data), signals, end).await)
}

/// Writes the snapshot at an index from a position on; returns the writer.
async fn send_one(
    client: &Client,
    signals: &mut Signals,
    of: &VolumeName,
    head: &StreamHead,
    (index, position): (usize, u64),
    mut writer: FrameWriter<OutletWriter>,
) -> Outcome<FrameWriter<OutletWriter>> {
    let snapshot = head.snapshots.get(index).ok_or_else(|| Failure::failed("there is no such snapshot"))?;
    let name = format!("{of}@{}", snapshot.name);
    // the export keeps to the snapshot that has the name when it begins
    same_as_planned(client, of, head, index).await?;
    let export = TransientExport::open(client, &name, true).await?;
    let extents = match differences(client, of, head, index).await {
        Ok(extents) => same_as_planned(client, of, head, index).await.map(|()| extents),
        Err(failure) => Err(failure),
    };
    let extents = match extents {
        Ok(extents) => extents,
        Err(failure) => {
            export.close(client).await?;
            return Err(failure);
        }
    };
    let serving = ServedImage { socket: export.socket().to_owned(), layered: false, server: None };
    let full = extents.is_none();
    let image: Arc<dyn Image> = match extents {
        Some(extents) => Arc::new(DiffImage { image: Arc::new(serving), extents: Arc::new(extents) }),
        None => Arc::new(serving),
    };
    let total = Total::Of(snapshot.size - position);
    let work = move |progress: &CopyProgress| {
        writer.get_mut().stop_with(&progress.stop);
        let mut source = image.open().map_err(|e| Failure::failed(format!("cannot read the snapshot: {e}; see the daemon's messages")))?;
        send_snapshot(&mut writer, &mut *source, full, (index, position), progress).map_err(|error| match error {
            SendError::Source(at, e) => Failure::failed(format!("cannot read the snapshot at byte {at}: {e}; see the daemon's messages")),
            SendError::Output(e) => cannot_write(e),
            SendError::Stopped => Failure::failed("interrupted"),
        })?;
        Ok(writer)
    };
    let sent = unless_stopped(watched(format!("send {name}"), (total, data), signals, work).await);
    let closed = export.close(client).await;
    sent.and_then(|writer| closed.map(|()| writer))
}

/// Returns the result of [`watched`] work, or that it was interrupted.
fn unless_stopped<T>((interrupted, done): (bool, Outcome<T>)) -> Outcome<T> {
    if interrupted { Err(Failure::failed("interrupted; what was written is incomplete")) } else { done }
}

fn data(_: u64, progress: &CopyProgress) -> String {
    format!("{} of data", Size(progress.written.load(Relaxed)))
}

fn cannot_write(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::failed("the reader of the stream ended; see its message, and continue with its token");
    }
    Failure::failed(format!("cannot write the stream: {error}"))
}
