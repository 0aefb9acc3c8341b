//! `convert-sectors`: converts a disk to another sector size.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::VolumeName;
use millpond_api::size::Size;
use millpond_api::{Export, SetSector, Volume};
use millpond_block::SectorProfile;
use millpond_daemon::Signals;
use millpond_images::nbd::{self, BLOCK, Nbd};
use millpond_images::sectors::fat;
use millpond_images::sectors::finding::{Finding, look};
use millpond_images::sectors::plan::{Plan, Rebuild, plan};

use crate::command::image::{TransientExport, all_of, keep, with_progress};
use crate::command::{candidates, create};
use crate::output::write_out;
use millpond_images::copy::CopyProgress;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;
/// Largest FAT file system in bytes that is rebuilt. A larger one is no system partition but user
/// data, and would fill TMPDIR.
const MAX_FAT: u64 = 16 << 30;

/// Convert a disk between 512-byte and 4096-byte sectors
///
/// Rewrites the protective MBR and both GPTs (or the MBR), and recreates FAT filesystems, like the EFI system partition, with the same
/// files. Any other content that depends on the sector size is reported, and the conversion is refused. A snapshot is taken first.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond convert-sectors tank/vm1 4kn -n
  millpond convert-sectors tank/vm1 4kn")]
pub struct ConvertSectors {
    /// POOL/VOL; it must not be exported, except with -n
    #[arg(add = candidates::volumes())]
    name: String,
    /// New sector profile: 512e, 4kn, or 512n
    #[arg(value_name = "512e|4kn", add = candidates::words(create::SECTORS))]
    profile: String,
    /// Only report what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Convert although the content of LUKS, LVM or RAID cannot be checked
    #[arg(long)]
    force: bool,
}

impl ConvertSectors {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let profile: SectorProfile = self.profile.parse().map_err(|e| Failure::usage(format!("{e}; give one of them")))?;
        let volume: Volume = client.get(&format!("/v1/volumes/{name}")).await?;
        let exports: Vec<Export> = client.get("/v1/exports").await?;
        // a dry run only reads
        if let Some(export) = exports.iter().find(|export| export.name == volume.name && !self.dry_run) {
            let line =
                format!("cannot convert '{name}': it is exported; shut its guest down and run 'millpond unexport {}' first", export.id);
            return Err(Failure::failed(line));
        }
        let mut signals = Signals::catch()?;
        let to = u64::from(profile.logical());
        let work = prepare(client, &mut signals, &name, to, self.force, self.dry_run).await?;
        let lines: String = work.plan.lines.iter().map(|line| format!("{line}\n")).collect();
        write_out(&lines)?;
        if let Some(why) = work.plan.refusals.first() {
            let more = work.plan.refusals.len() - 1;
            let more = if more > 0 { format!(" ({more} more like it, see -n)") } else { String::new() };
            work.plan.refusals.iter().filter(|_| self.dry_run).try_for_each(|line| write_out(&format!("refused: {line}\n")))?;
            return Err(Failure::failed(format!("cannot convert '{name}' to {profile}: {why}{more}")));
        }
        if self.dry_run {
            return write_out(&format!("{name} would become {profile}; nothing is changed\n"));
        }
        let kept = keep(client, &name, "pre-convert", "before 'millpond convert-sectors'").await?;
        let undo = format!("millpond rollback {kept}, then millpond convert-sectors {name} {}", volume.sector);
        self.carry_out(client, &mut signals, &name, profile, work)
            .await
            .map_err(|failure| Failure::failed(format!("{failure}; the volume may be changed in part, to go back: {undo}")))?;
        write_out(&format!("{name} is {profile} now; to go back: {undo}\n"))
    }

    async fn carry_out(&self, client: &Client, signals: &mut Signals, name: &VolumeName, profile: SectorProfile, work: Work) -> Outcome {
        // First the step that may be refused; afterwards the old sector size is no longer reported
        // to clients.
        let request = SetSector { sector: profile.into() };
        client.post::<_, Volume>(&format!("/v1/volumes/{name}/sector"), &request).await?;
        if work.plan.writes.is_empty() && work.rebuilt.is_empty() {
            return Ok(());
        }
        let transient_export = TransientExport::open(client, &name.to_string(), false).await?;
        let socket = transient_export.socket().to_owned();
        let total = work.rebuilt.iter().map(|(rebuild, _)| rebuild.length).sum();
        let written = with_progress(format!("convert {name}"), (total, all_of), signals, move |progress| {
            write(&socket, &work, progress).map_err(|e| Failure::failed(format!("cannot write the volume: {e}; see the daemon's messages")))
        });
        let written = written.await;
        transient_export.close(client).await.and(written)
    }
}

/// A conversion with the file systems that were prepared for it.
struct Work {
    plan: Plan,
    rebuilt: Vec<(Rebuild, PathBuf)>,
    /// Temporary directories of the new file systems, kept until they are written.
    _rooms: Vec<tempfile::TempDir>,
}

/// Inspects the volume, plans the conversion, and prepares new file systems in temporary files.
async fn prepare(client: &Client, signals: &mut Signals, name: &VolumeName, to: u64, force: bool, dry_run: bool) -> Outcome<Work> {
    let transient_export = TransientExport::open(client, &name.to_string(), true).await?;
    let socket = transient_export.socket().to_owned();
    let looked = with_progress(format!("look at {name}"), (0, all_of), signals, move |_| {
        let broken = |e: io::Error| Failure::failed(format!("cannot read the volume: {e}; see the daemon's messages"));
        let mut nbd = nbd::connect(&socket).map_err(broken)?;
        let plan = look_and_plan(&mut nbd, to, force).map_err(broken)?;
        let mut work = Work { plan, rebuilt: Vec::new(), _rooms: Vec::new() };
        if dry_run || !work.plan.refusals.is_empty() {
            return Ok(work);
        }
        for rebuild in work.plan.rebuilds.clone() {
            if rebuild.length > MAX_FAT {
                let line = format!(
                    "a FAT filesystem of {} cannot be recreated, at most {}; copy its files in the guest",
                    Size(rebuild.length),
                    Size(MAX_FAT)
                );
                return Err(Failure::failed(line));
            }
            let room = tempfile::Builder::new().prefix("millpond-fat-").tempdir();
            let room = room.map_err(|e| Failure::failed(format!("cannot make a temporary directory: {e}; see TMPDIR")))?;
            let old = room.path().join("old.fat");
            extract(&mut nbd, rebuild, &old)
                .map_err(|e| Failure::failed(format!("cannot copy a FAT filesystem to {}: {e}; see TMPDIR", old.display())))?;
            work.rebuilt.push((rebuild, fat::rebuild(&old, to)?));
            work._rooms.push(room);
        }
        Ok(work)
    })
    .await;
    let closed = transient_export.close(client).await;
    let work = looked?;
    closed.map(|()| work)
}

fn look_and_plan(nbd: &mut Nbd, to: u64, force: bool) -> io::Result<Plan> {
    let size = nbd.size();
    let mut read = |offset: u64, into: &mut [u8]| nbd::read_widened(nbd, offset, into);
    let finding: Finding = look(size, &mut read)?;
    plan(&finding, to, force, &mut read)
}

/// Copies a file system into a sparse file.
fn extract(nbd: &mut Nbd, rebuild: Rebuild, path: &Path) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.set_len(rebuild.length)?;
    let (mut at, mut buffer) = (0, Vec::new());
    // A range that ends within a block is read up to the end of the block.
    while at < rebuild.length {
        let length = (rebuild.length - at).min(PIECE);
        let lead = (rebuild.start + at) % BLOCK;
        buffer.resize(usize::try_from((lead + length).next_multiple_of(BLOCK)).unwrap_or(0), 0);
        nbd.read(rebuild.start + at - lead, &mut buffer)?;
        let lead = usize::try_from(lead).unwrap_or(0);
        let bytes = buffer.get(lead..lead + usize::try_from(length).unwrap_or(0)).ok_or(io::ErrorKind::UnexpectedEof)?;
        if bytes.iter().any(|byte| *byte != 0) {
            file.write_all_at(bytes, at)?;
        }
        at += length;
    }
    Ok(())
}

/// Writes everything; durable on return. The partition tables are written last, so that the old
/// ones are valid until then.
fn write(socket: &Path, work: &Work, progress: &CopyProgress) -> io::Result<()> {
    let mut nbd = nbd::connect(socket)?;
    for (rebuild, path) in &work.rebuilt {
        let file = File::open(path)?;
        let (mut at, mut buffer) = (0, Vec::new());
        while at < rebuild.length {
            let length = (rebuild.length - at).min(PIECE);
            buffer.resize(usize::try_from(length).unwrap_or(0), 0);
            file.read_exact_at(&mut buffer, at)?;
            if buffer.iter().all(|byte| *byte == 0) && length.is_multiple_of(BLOCK) && (rebuild.start + at).is_multiple_of(BLOCK) {
                nbd.write_zeroes(rebuild.start + at, u32::try_from(length).unwrap_or(0))?;
            } else {
                write_widened(&mut nbd, rebuild.start + at, &buffer)?;
            }
            progress.done.fetch_add(length, Relaxed);
            at += length;
        }
    }
    for (offset, bytes) in &work.plan.writes {
        write_widened(&mut nbd, *offset, bytes)?;
    }
    nbd.flush()
}

/// Writes bytes that may begin and end within blocks, by read-modify-write.
fn write_widened(nbd: &mut Nbd, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let start = offset / BLOCK * BLOCK;
    let end = (offset + bytes.len() as u64).next_multiple_of(BLOCK).min(nbd.size());
    let mut whole = vec![0; usize::try_from(end - start).unwrap_or(0)];
    if start != offset || end != offset + bytes.len() as u64 {
        nbd.read(start, &mut whole)?;
    }
    let skip = usize::try_from(offset - start).unwrap_or(0);
    whole.get_mut(skip..skip + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
    nbd.write(start, &whole)
}
