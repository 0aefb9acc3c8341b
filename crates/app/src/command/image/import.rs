//! `import-image`: makes a volume from an image. Backing files and internal snapshots become
//! snapshots of the volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::VolumeName;
use millpond_api::path::absolute;
use millpond_api::size::Size;
use millpond_api::{CreateSnapshots, Created, SetProperties, VolumeSector};
use millpond_block::SectorProfile;
use millpond_daemon::Signals;
use millpond_images::copy::{Target, Task, copy};
use millpond_images::format::Format;
use millpond_images::sectors::{Finding, describe, look};
use millpond_images::states::{State, States};

use super::from_pipe::{self, FromPipe};
use super::incomplete::Incomplete;
use super::into::IntoVolume;
use super::to_pipe::is_pipe;
use super::transient_export::{TransientExport, compared, copy_failure, with_progress, written};
use crate::command::{candidates, create};
use crate::output::{Cell, Column, Listing, Shown, print, write_out};
use serde::Serialize;

/// Most bytes of a snapshot's description.
const MAX_DESCRIPTION: usize = 1024;

/// Create a volume from a disk image
///
/// Reads raw, qcow2 (with zstd, backing files, internal snapshots), vmdk, vhdx, vdi, vhd and parallels. Backing files and internal
/// snapshots of a qcow2 image become snapshots of the volume; in a Proxmox VE volume chain they are named after the files.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond import-image debian-12.qcow2 tank/vm1
  millpond import-image disk.raw tank/vm2 -f raw --sector 4kn --verify
  millpond import-image -n /dev/pve/vm-100-disk-0.qcow2 tank/vm-100-disk-0       its snapshots and their sizes
  millpond import-image /var/lib/vz/images/100/vm-100-disk-0.qcow2 tank/vm-100-disk-0
  millpond import-image golden.qcow2 tank/vm1 --into          only blocks that differ are written; see 'millpond rollback'
  ssh host cat /dev/vg/vm1 | millpond import-image - tank/vm1 --size 20G

With - for FILE a raw image is read from standard input, of any length.
Until all of it is there, the volume is called importing-VOL.
An import that was killed leaves that; --restart destroys it and starts again.")]
pub struct ImportImage {
    /// The image: a file or a block device, or - for standard input
    file: PathBuf,
    /// POOL/VOL to create, or to write into
    #[arg(add = candidates::old_and_new_volumes())]
    name: String,
    /// Format of the image [default: detected]
    #[arg(short = 'f', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Sector profile: 512n, 512e, 4kn [default: the profile that the disk was made for]
    #[arg(long, value_name = "PROFILE", add = candidates::words(create::SECTORS))]
    sector: Option<String>,
    /// Bytes that follow on standard input; fewer or more are an error, so that a copy that was cut off is found [default: all]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Import only the present state of the disk, without snapshots
    #[arg(long)]
    flat: bool,
    /// Write the present state of the image into VOL, which exists, after a snapshot of VOL named pre-import-TIME
    #[arg(long, conflicts_with_all = ["sector", "restart", "dry_run", "properties"])]
    into: bool,
    /// Follow backing files outside the image's directory
    #[arg(long)]
    follow: bool,
    /// Read both again afterwards and compare
    #[arg(long)]
    verify: bool,
    /// Destroy what an import to VOL that was killed has left, and start again
    #[arg(long, conflicts_with = "dry_run")]
    restart: bool,
    /// Only list the snapshots that the volume would have, and the data of each
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Set a property
    #[arg(short = 'o', value_name = "PROP=VAL", add = candidates::settings(create::settable()))]
    properties: Vec<String>,
}

impl ImportImage {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let format = self.format.as_deref().map(Format::of_word).transpose()?;
        let mut properties = SetProperties::default();
        self.properties.iter().try_for_each(|word| create::assign(word, &mut properties))?;
        if is_pipe(&self.file) {
            if self.into {
                return Err(Failure::usage("--into needs the size of the image first; save standard input to a file and import that"));
            }
            return self.stream(client, &name, format, properties).await;
        }
        if self.size.is_some() {
            return Err(Failure::usage("--size is for standard input; a file has a size of its own"));
        }
        let path = absolute(&self.file);
        let mut signals = Signals::catch()?;
        // Inspection is short but may start qemu-img, so it runs outside the event loop.
        let (flat, follow, file) = (self.flat || self.into, self.follow, path.clone());
        let looked = tokio::task::spawn_blocking(move || looked_at(&file, format, flat, follow));
        let (states, finding) = looked.await.map_err(|e| Failure::failed(format!("cannot look at the image: {e}")))??;
        if let Some(lacks) = finding.lacks() {
            let line = format!(
                "cannot import {}: its partitions end at byte {lacks}, but its disk has {} bytes: it is truncated; copy all of it",
                path.display(),
                finding.size
            );
            return Err(Failure::failed(line));
        }
        if self.into {
            let into = IntoVolume { path: &path, name: &name, verify: self.verify };
            return into.import(client, &mut signals, states, &finding).await;
        }
        let sector = agreed(&path, self.sector.as_deref(), &finding)?;
        let volume = Incomplete::new(&name);
        volume.free(client, self.restart).await?;
        if self.dry_run {
            return planned(&path, &name, &sector, states).await;
        }
        let first = states.states.first().map_or(0, State::volume_size);
        let read_only = properties.readonly.take();
        volume.create(client, first, sector, properties).await?;
        let (size, snapshots) = (states.states.last().map_or(0, |state| state.size), states.states.len().saturating_sub(1));
        let begun = Instant::now();
        let import = Import { path: &path, volume: &volume, verify: self.verify, read_only };
        if let Err(failure) = import.bring(client, &mut signals, states).await {
            return Err(volume.remove(client, failure).await);
        }
        if snapshots > 0 {
            let took = begun.elapsed().as_secs_f64();
            eprintln!("import {name}: all done, {} with {snapshots} snapshots, {took:.1} s", Size(size));
        }
        Ok(())
    }

    /// Makes the volume from standard input.
    async fn stream(&self, client: &Client, name: &VolumeName, format: Option<Format>, mut properties: SetProperties) -> Outcome {
        for (given, option) in [(self.verify, "--verify"), (self.dry_run, "--dry-run")] {
            if given {
                return Err(Failure::usage(format!("{option} reads the image twice, which standard input cannot; give a file")));
            }
        }
        let size = self.size.as_deref().map(str::parse).transpose()?.map(|Size(size)| size);
        if size == Some(0) {
            return Err(Failure::usage("--size 0 is no disk; give the number of bytes that follow"));
        }
        let sector = self.sector.as_deref().map(profile).transpose()?;
        from_pipe::check(format)?;
        let volume = Incomplete::new(name);
        volume.free(client, self.restart).await?;
        let mut signals = Signals::catch()?;
        let begun = FromPipe { size, sector, is_raw: format.is_some() }.begin(&mut signals).await?;
        let read_only = properties.readonly.take();
        volume.create(client, begun.first_size(), begun.sector.clone(), properties).await?;
        let filled = match begun.fill(client, &mut signals, &volume).await {
            Ok(()) => volume.complete(client, read_only).await,
            Err(failure) => Err(failure),
        };
        match filled {
            Ok(()) => Ok(()),
            Err(failure) => Err(volume.remove(client, failure).await),
        }
    }
}

/// A row of the dry run.
#[derive(Serialize)]
struct Planned {
    name: String,
    size: u64,
    data: u64,
    taken: Option<jiff::Timestamp>,
    from: String,
}

const PLANNED: &[Column<Planned>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "size", cell: |row| Cell::Bytes(row.size), shown: Shown::Always },
    Column { name: "data", cell: |row| Cell::Bytes(row.data), shown: Shown::Always },
    Column { name: "taken", cell: |row| row.taken.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "from", cell: |row| Cell::Text(row.from.clone()), shown: Shown::Always },
];

/// Prints the snapshots and the volume that an import would make, oldest first.
async fn planned(path: &Path, name: &VolumeName, sector: &VolumeSector, states: States) -> Outcome {
    let (file, of) = (path.display().to_string(), name.clone());
    let rows = tokio::task::spawn_blocking(move || -> Outcome<Vec<Planned>> {
        let row = |state: State| {
            let data =
                state.data_bytes().map_err(|e| Failure::failed(format!("cannot read {file}: {e}; check it with 'qemu-img check'")))?;
            let name = state.snapshot.as_ref().map_or_else(|| of.to_string(), |snapshot| format!("{of}@{snapshot}"));
            Ok(Planned { name, size: state.volume_size(), data, taken: state.taken, from: state.description })
        };
        states.states.into_iter().map(row).collect()
    });
    let rows = rows.await.map_err(|e| Failure::failed(format!("cannot look at the image: {e}")))??;
    print(&rows, PLANNED, &Listing::default())?;
    let snapshots = rows.len().saturating_sub(1);
    write_out(&format!("would create {name} with --sector {} and {snapshots} snapshots; nothing is changed\n", sector.as_str()))
}

fn looked_at(path: &Path, format: Option<Format>, flat: bool, follow: bool) -> Outcome<(States, Finding)> {
    let states = States::of(path, format, flat, follow)?;
    let wrong = |e| Failure::failed(format!("cannot read {}: {e}; check it with 'qemu-img check'", path.display()));
    let finding = match states.head().map_err(wrong)? {
        Some(mut head) => {
            let size = head.size();
            look(size, &mut |offset, into: &mut [u8]| head.read(offset, into)).map_err(wrong)?
        }
        None => Finding::default(),
    };
    Ok((states, finding))
}

fn profile(word: &str) -> Outcome<SectorProfile> {
    word.parse().map_err(|e| Failure::usage(format!("{e}; give one of them")))
}

/// Chooses the sector profile of the volume: the requested one, unless the disk's contents were
/// made for another sector size.
fn agreed(path: &Path, asked: Option<&str>, finding: &Finding) -> Outcome<VolumeSector> {
    let Some(word) = asked else {
        if finding.sector == Some(4096) {
            eprintln!("millpond: {} is a disk of 4096-byte sectors; the volume gets --sector 4kn", path.display());
            return Ok(VolumeSector::S4kn);
        }
        return Ok(VolumeSector::S512e);
    };
    let profile = profile(word)?;
    match finding.sector {
        Some(found) if found != u64::from(profile.logical()) => {
            Err(Failure::failed(format!("cannot import {} with --sector {word}: {}", path.display(), describe(finding, found))))
        }
        _ => Ok(profile.into()),
    }
}

/// An import to a new volume.
struct Import<'a> {
    path: &'a Path,
    volume: &'a Incomplete<'a>,
    verify: bool,
    /// Property that the volume gets once it is written.
    read_only: Option<bool>,
}

impl Import<'_> {
    /// Copies one version after another into the volume, with a snapshot after each but the last;
    /// then gives the volume its name.
    async fn bring(&self, client: &Client, signals: &mut Signals, states: States) -> Outcome {
        let (part, mut size) = (&self.volume.part, states.states.first().map_or(0, State::volume_size));
        for (index, state) in states.states.into_iter().enumerate() {
            if state.volume_size() != size {
                size = state.volume_size();
                self.volume.resize(client, size).await?;
            }
            let task = if index == 0 { Task::Fill } else { Task::Update };
            self.one(client, signals, &state, task).await?;
            if let Some(snapshot) = state.snapshot {
                let names = vec![format!("{part}@{snapshot}")];
                let mut description = format!("imported: {}", state.description);
                while description.len() > MAX_DESCRIPTION {
                    description.pop();
                }
                let request = CreateSnapshots { names, description, ..CreateSnapshots::default() };
                client.post::<_, Created>("/v1/snapshots", &request).await?;
            }
        }
        self.volume.complete(client, self.read_only).await
    }

    async fn one(&self, client: &Client, signals: &mut Signals, state: &State, task: Task) -> Outcome {
        let transient_export = TransientExport::open(client, &self.volume.part.to_string(), false).await?;
        let target = Target::Socket(transient_export.socket().to_owned());
        let (image, target_again, image_again) = (Arc::clone(&state.image), target.clone(), Arc::clone(&state.image));
        let (file, volume) = (self.path.display().to_string(), self.volume.name.to_string());
        let what = match &state.snapshot {
            Some(snapshot) => format!("import {volume}@{snapshot}"),
            None => format!("import {volume}"),
        };
        let (from, to) = (file.clone(), volume.clone());
        let mut done = with_progress(what, (state.size, written), signals, move |progress| {
            copy(&*image, &target, task, progress).map_err(|e| copy_failure(e, &from, &to))
        })
        .await;
        if done.is_ok() && self.verify {
            done = with_progress(format!("verify {volume}"), (state.size, compared), signals, move |progress| {
                copy(&*image_again, &target_again, Task::Compare, progress).map_err(|e| copy_failure(e, &file, &volume))
            })
            .await;
        }
        let closed = transient_export.close(client).await;
        done.and(closed)
    }
}
