//! `export-image`: writes a volume or snapshot into a file, or a volume with its snapshots into a
//! chain of files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::path::absolute;
use millpond_api::{Destroy, Destroyed, DiffExtent, Snapshot, Volume, VolumeSector};
use millpond_daemon::Signals;
use millpond_images::copy::{CopyProgress, Target, Task, copy};
use millpond_images::format::Format;
use millpond_images::names::fitting;
use millpond_images::qemu::{Convert, Served, Server};
use millpond_images::raw::RawImage;
use millpond_images::served::ServedImage;
use millpond_images::source::Image;
use millpond_images::states::States;

use super::differences::DiffImage;
use super::keep::keep;
use super::overlay::{Overlay, make_layer};
use super::to_pipe;
use super::transient_export::{TransientExport, compared, copy_failure, whole, with_progress, written};
use crate::command::candidates;

/// Write a volume or snapshot to a disk image
///
/// A volume is copied from a snapshot of one instant, also while its guest writes. The file appears when it is complete and durable.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond export-image tank/vm1@monday /backup/vm1.raw
  millpond export-image tank/vm1 vm1.qcow2 --verify
  millpond export-image tank/vm1 vm1.qcow2 --snapshots   # snap_NAME_vm1.qcow2 for each, vm1.qcow2 on top
  millpond export-image tank/vm1@tuesday tuesday.qcow2 --from @monday --backing monday.qcow2
  millpond export-image tank/vm1 - | zstd >vm1.raw.zst

With - for FILE the image goes to standard output, in format raw; all messages go to standard error.")]
pub struct ExportImage {
    /// POOL/VOL or POOL/VOL@SNAP
    #[arg(add = candidates::names())]
    name: String,
    /// The file to create, or - for standard output
    file: PathBuf,
    /// Format: raw, qcow2, vmdk, vhdx, vdi, vhd, parallels [default: by the file's extension, otherwise raw]
    #[arg(short = 'f', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Write a qcow2 chain: one file per snapshot, each backed by the previous one, and the volume on top
    #[arg(long)]
    snapshots: bool,
    /// Write qcow2 with only the blocks that changed since this snapshot: POOL/VOL@SNAP or @SNAP
    #[arg(long, value_name = "SNAP", conflicts_with = "snapshots", add = candidates::snapshots())]
    from: Option<String>,
    /// Name of the backing file to write into it, seen from FILE; it need not exist here [default: none, for 'qemu-img rebase -u']
    #[arg(long, value_name = "NAME", requires = "from")]
    backing: Option<String>,
    /// Format of the backing file [default: by its extension, otherwise raw]
    #[arg(long, value_name = "FORMAT", requires = "backing")]
    backing_format: Option<String>,
    /// Read both again afterwards and compare
    #[arg(long)]
    verify: bool,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// Removes incomplete files when dropped.
pub(in crate::command) struct Unfinished(pub Vec<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        for path in &self.0 {
            // A missing file is fine, and other errors cannot be reported from `drop`.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

impl ExportImage {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: Name = self.name.parse()?;
        let path = absolute(&self.file);
        let format = match &self.format {
            Some(word) => Format::of_word(word)?,
            None if self.snapshots || self.from.is_some() => Format::Qcow2,
            None => Format::of_extension(&path).unwrap_or(Format::Raw),
        };
        if self.snapshots && (format != Format::Qcow2 || matches!(name, Name::Snapshot(_))) {
            return Err(Failure::usage("--snapshots writes a volume as qcow2; give POOL/VOL, and no other format"));
        }
        let overlay = match &self.from {
            Some(_) if format != Format::Qcow2 => {
                return Err(Failure::usage("--from writes qcow2, because only that has backing files; give no other format"));
            }
            Some(from) => Some(Overlay::parse(&name, from, self.backing.as_deref(), self.backing_format.as_deref())?),
            None => None,
        };
        if matches!(format, Format::Qcow | Format::Qed) {
            return Err(Failure::usage(format!("format {} cannot be written; give qcow2", format.name())));
        }
        if self.to_pipe() {
            self.check_pipe(format)?;
        } else {
            free(&path, self.force)?;
        }
        let of = match &name {
            Name::Volume(of) => of.clone(),
            Name::Snapshot(name) => name.of.clone(),
        };
        let volume: Volume = client.get(&format!("/v1/volumes/{of}")).await?;
        let mut signals = Signals::catch()?;
        let written = match &name {
            Name::Snapshot(name) => self.one(client, &mut signals, name, &path, (format, overlay)).await,
            Name::Volume(of) => {
                let instant = keep(client, of, "export", "for 'millpond export-image'; it is removed afterwards").await?;
                let written = if self.snapshots {
                    self.chain(client, &mut signals, of, &instant, &path).await
                } else {
                    self.one(client, &mut signals, &instant, &path, (format, overlay)).await
                };
                let_go(client, &instant, written).await
            }
        };
        written?;
        if volume.sector == VolumeSector::S4kn {
            let shown = if self.to_pipe() { self.name.clone() } else { path.display().to_string() };
            eprintln!("millpond: {shown} is a disk of 4096-byte sectors; use it with logical_block_size=4096");
        }
        Ok(())
    }

    fn to_pipe(&self) -> bool {
        to_pipe::is_pipe(&self.file)
    }

    /// Checks what was asked of an export to standard output.
    fn check_pipe(&self, format: Format) -> Outcome {
        if self.snapshots {
            return Err(Failure::usage("--snapshots writes several files; give a file instead of -"));
        }
        if self.verify {
            return Err(Failure::usage("--verify reads the image again, which standard output cannot; give a file instead of -"));
        }
        to_pipe::check(format)
    }

    /// Writes one version, or its difference from an older one, into one file, or to standard output.
    async fn one(
        &self,
        client: &Client,
        signals: &mut Signals,
        name: &SnapshotName,
        path: &Path,
        (format, overlay): (Format, Option<Overlay>),
    ) -> Outcome {
        if self.to_pipe() {
            return to_pipe::export(client, signals, name).await;
        }
        let part = with_ending(path, ".part");
        let unfinished = Unfinished(vec![part.clone()]);
        match overlay {
            Some(overlay) => overlay.write(client, signals, name, &part, self.verify).await?,
            None => self.whole(client, signals, name, &part, format).await?,
        }
        publish(&part, path)?;
        drop(unfinished);
        Ok(())
    }

    /// Writes one version into a file.
    async fn whole(&self, client: &Client, signals: &mut Signals, name: &SnapshotName, part: &Path, format: Format) -> Outcome {
        let transient_export = TransientExport::open(client, &name.to_string(), true).await?;
        let snapshot: Outcome<Snapshot> = client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await;
        let written = match snapshot {
            Ok(snapshot) => self.file(signals, name, transient_export.socket(), snapshot.size, part, format).await,
            Err(failure) => Err(failure),
        };
        transient_export.close(client).await.and(written)
    }

    /// Writes the file and, with `--verify`, compares it with the snapshot.
    async fn file(&self, signals: &mut Signals, name: &SnapshotName, socket: &Path, size: u64, part: &Path, format: Format) -> Outcome {
        let (what, from, to) = (format!("export {name}"), name.to_string(), part.display().to_string());
        let (socket, file) = (socket.to_owned(), part.to_owned());
        let serving = socket.clone();
        // other formats are written by qemu-img, which does not report the bytes of data
        let came = if format == Format::Raw { written } else { whole };
        with_progress(what, (size, came), signals, move |progress| {
            if format == Format::Raw {
                let image = ServedImage { socket: serving, layered: false, server: None };
                let made = create(&file).and_then(|file| file.set_len(size).map(|()| file));
                let made = made.map_err(|e| Failure::failed(format!("cannot make {}: {e}; give another path", file.display())))?;
                return copy(&image, &Target::File(Arc::new(made), size), Task::Fill, progress).map_err(|e| copy_failure(e, &from, &to));
            }
            let report = |per_cent: f64| progress.done.store((per_cent / 100.0 * size as f64) as u64, Relaxed);
            // Without the option, QEMU rounds the size up to one that fits cylinders, heads and
            // sectors.
            let options: &[&str] = if format == Format::Vhd { &["force_size=on"] } else { &[] };
            Convert::start(&serving, format, options, &file)?.finish(report, || progress.stop.load(Relaxed))
        })
        .await?;
        if !self.verify {
            return Ok(());
        }
        let (file, from, to) = (part.to_owned(), part.display().to_string(), name.to_string());
        with_progress(format!("verify {name}"), (size, compared), signals, move |progress| {
            let image: Arc<dyn Image> = if format == Format::Raw {
                Arc::new(RawImage::new(&file)?)
            } else {
                let states = States::of(&file, Some(format), true, false)?;
                Arc::clone(&states.states.last().ok_or_else(|| Failure::failed("there is nothing to compare"))?.image)
            };
            copy(&*image, &Target::Socket(socket), Task::Compare, progress).map_err(|e| copy_failure(e, &from, &to))
        })
        .await
    }

    /// Writes a volume with its snapshots into a chain of files.
    async fn chain(&self, client: &Client, signals: &mut Signals, of: &VolumeName, head: &SnapshotName, path: &Path) -> Outcome {
        let mut snapshots: Vec<Snapshot> =
            client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&of.pool), quoted(&of.volume))).await?;
        snapshots.sort_by_key(|snapshot| (snapshot.epoch, snapshot.id));
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let dir = path.parent().unwrap_or(Path::new("/"));
        let room = tempfile::Builder::new().prefix(&format!(".{file}.part-")).tempdir_in(dir);
        let room = room.map_err(|e| Failure::failed(format!("cannot make a directory in {}: {e}; give another path", dir.display())))?;
        let mut below: Option<(String, String)> = None;
        let mut made = Vec::new();
        for snapshot in &snapshots {
            let own: SnapshotName = snapshot.name.parse()?;
            let name = if own == *head { file.clone() } else { format!("snap_{}_{file}", fitting(&own.snapshot, &[])) };
            free(&dir.join(&name), self.force)?;
            let layer = room.path().join(&name);
            make_layer(&layer, below.as_ref().map(|(_, file)| file.as_str()), snapshot.size)?;
            let older = below.as_ref().map(|(older, _)| older.clone());
            self.layer(client, signals, snapshot, older, &layer).await?;
            made.push(name.clone());
            below = Some((snapshot.name.clone(), name));
            if own == *head {
                break;
            }
        }
        // The base first, so that a published file always has its backing file.
        made.iter().try_for_each(|name| publish(&room.path().join(name), &dir.join(name)))
    }

    /// Writes the difference between two snapshots into a layer on top of the older one.
    async fn layer(&self, client: &Client, signals: &mut Signals, snapshot: &Snapshot, older: Option<String>, layer: &Path) -> Outcome {
        let extents: Option<Vec<DiffExtent>> = match &older {
            Some(older) => Some(client.get(&format!("/v1/diff?older={}&newer={}", quoted(older), quoted(&snapshot.name))).await?),
            None => None,
        };
        let transient_export = TransientExport::open(client, &snapshot.name, true).await?;
        let serving = ServedImage { socket: transient_export.socket().to_owned(), layered: false, server: None };
        let (file, from, to, verify) = (layer.to_owned(), snapshot.name.clone(), layer.display().to_string(), self.verify);
        let again = transient_export.socket().to_owned();
        let came = if verify { compared } else { written };
        let written = with_progress(format!("export {from}"), (snapshot.size, came), signals, move |progress| {
            let server = Server::start(&Served::New(&file))?;
            let target = Target::Socket(server.socket().to_owned());
            let copied = match extents.map(Arc::new) {
                Some(extents) => {
                    let image = DiffImage { image: Arc::new(serving), extents };
                    copy(&image, &target, Task::Update, progress)
                }
                None => copy(&serving, &target, Task::Fill, progress),
            };
            copied.map_err(|e| copy_failure(e, &from, &to))?;
            server.finish()?;
            if verify {
                let states = States::of(&file, Some(Format::Qcow2), true, false)?;
                let progress = CopyProgress::default();
                for state in states.states {
                    copy(&*state.image, &Target::Socket(again.clone()), Task::Compare, &progress)
                        .map_err(|e| copy_failure(e, &to, &from))?;
                }
            }
            Ok(())
        })
        .await;
        transient_export.close(client).await.and(written)
    }
}

/// Destroys the snapshot of an export that has ended with this result.
async fn let_go(client: &Client, instant: &SnapshotName, written: Outcome) -> Outcome {
    let request = Destroy { name: instant.to_string(), ..Destroy::default() };
    match client.post::<_, Destroyed>("/v1/destroy", &request).await {
        Ok(_) => written,
        Err(left) => {
            let failure = written.err().unwrap_or(left);
            Err(Failure::failed(format!("{failure}; the snapshot '{instant}' may be left")))
        }
    }
}

/// Fails if something exists at `path`, unless it is a plain file and `force` is set.
pub(in crate::command) fn free(path: &Path, force: bool) -> Outcome {
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(meta) if meta.is_file() && force => Ok(()),
        Ok(meta) if meta.is_file() => {
            Err(Failure::failed(format!("{} exists; give another path, or --force to replace it", path.display())))
        }
        Ok(_) => Err(Failure::failed(format!("{} is not a regular file; give a path that does not exist", path.display()))),
    }
}

/// Returns the path with an ending after it.
pub(in crate::command) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut text = OsString::from(path);
    text.push(ending);
    PathBuf::from(text)
}

/// Makes a new file, in the place of an incomplete one.
pub(in crate::command) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
}

/// Gives a complete file its final name. Durable on return.
pub(in crate::command) fn publish(part: &Path, path: &Path) -> Outcome {
    let publish = || {
        File::open(part)?.sync_all()?;
        fs::rename(part, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    publish().map_err(|e| Failure::failed(format!("cannot complete {}: {e}; run it again", path.display())))
}
