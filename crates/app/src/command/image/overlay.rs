//! `export-image POOL/VOL@B FILE --from @A`: writes a qcow2 file with the blocks that changed from
//! one snapshot to another.
//!
//! The file is written without a backing file, in whole clusters, so that its content does not
//! depend on the backing file that it gets: at the end, by its name alone, or later by
//! `qemu-img rebase -u`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, SnapshotName};
use millpond_api::{DiffExtent, Snapshot};
use millpond_daemon::Signals;
use millpond_images::chain::walk;
use millpond_images::copy::{Target, Task, copy};
use millpond_images::format::Format;
use millpond_images::qemu::{Served, Server, qemu_img};
use millpond_images::served::{QemuImage, ServedImage};

use super::differences::{DiffImage, LayerImage};
use super::transient_export::{TransientExport, compared, copy_failure, with_progress, written};

/// The older snapshot of an overlay, and its backing file.
pub struct Overlay {
    older: SnapshotName,
    /// Name to write into the overlay, and the format.
    backing: Option<(String, Format)>,
}

impl Overlay {
    /// Parses the words of the command line. `@A` is a snapshot of the volume of `newer`.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn parse(newer: &Name, from: &str, backing: Option<&str>, format: Option<&str>) -> Outcome<Overlay> {
        let of = match newer {
            Name::Volume(of) => of,
            Name::Snapshot(name) => &name.of,
        };
        let full = if from.starts_with('@') { format!("{of}{from}") } else { from.to_owned() };
        let older: SnapshotName = full.parse()?;
        let backing = backing.map(|name| -> Outcome<(String, Format)> {
            let format = match format {
                Some(word) => Format::of_word(word)?,
                None => Format::of_extension(Path::new(name)).unwrap_or(Format::Raw),
            };
            Ok((name.to_owned(), format))
        });
        let backing = backing.transpose()?;
        if matches!(newer, Name::Snapshot(newer) if *newer == older) {
            return Err(Failure::usage(format!("'{older}' has no difference from itself; give an older snapshot after --from")));
        }
        Ok(Overlay { older, backing })
    }

    /// Writes the difference into a new file.
    ///
    /// # Errors
    /// The daemon's error, that of the copy or of QEMU, or that it was interrupted.
    pub async fn write(&self, client: &Client, signals: &mut Signals, newer: &SnapshotName, file: &Path, verify: bool) -> Outcome {
        let snapshot: Snapshot = client.get(&format!("/v1/snapshots/{}/{}", newer.of, newer.snapshot)).await?;
        let path = format!("/v1/diff?older={}&newer={}", quoted(&self.older.to_string()), quoted(&newer.to_string()));
        let extents: Arc<Vec<DiffExtent>> = Arc::new(client.get(&path).await?);
        make_layer(file, None, snapshot.size)?;
        let transient_export = TransientExport::open(client, &newer.to_string(), true).await?;
        let socket = transient_export.socket().to_owned();
        let written = copied(signals, (newer, snapshot.size), extents, file, (socket, verify)).await;
        transient_export.close(client).await.and(written)?;
        match &self.backing {
            Some((name, format)) => rebase(file, name, *format),
            None => Ok(()),
        }
    }
}

async fn copied(
    signals: &mut Signals,
    (newer, size): (&SnapshotName, u64),
    extents: Arc<Vec<DiffExtent>>,
    file: &Path,
    (socket, verify): (PathBuf, bool),
) -> Outcome {
    let (layer, from, to) = (file.to_owned(), newer.to_string(), file.display().to_string());
    let serving = ServedImage { socket: socket.clone(), layered: false, server: None };
    let changes = Arc::clone(&extents);
    with_progress(format!("export {newer}"), (size, written), signals, move |progress| {
        let server = Server::start(&Served::New(&layer))?;
        let image = DiffImage { image: Arc::new(serving), extents: changes };
        let target = Target::Socket(server.socket().to_owned());
        copy(&image, &target, Task::Layer, progress).map_err(|e| copy_failure(e, &from, &to))?;
        server.finish()
    })
    .await?;
    if !verify {
        return Ok(());
    }
    let (layer, from, to) = (file.to_owned(), file.display().to_string(), newer.to_string());
    with_progress(format!("verify {newer}"), (size, compared), signals, move |progress| {
        let layers = walk(&layer, Some(Format::Qcow2), false)?;
        let layer = LayerImage { layer: Arc::new(QemuImage::new(&layers, None, true)), changes: extents };
        copy(&layer, &Target::Socket(socket), Task::Compare, progress).map_err(|e| copy_failure(e, &from, &to))
    })
    .await
}

/// Makes an empty qcow2 file of this size in bytes, on a layer that exists.
///
/// # Errors
/// QEMU's error.
pub fn make_layer(path: &Path, below: Option<&str>, size: u64) -> Outcome {
    let mut words: Vec<OsString> = ["create", "-q", "-f", "qcow2"].map(OsString::from).to_vec();
    if let Some(below) = below {
        words.extend(["-F", "qcow2", "-b", below].map(OsString::from));
    }
    words.extend([path.as_os_str().to_owned(), OsString::from(size.to_string())]);
    qemu_img(&words, path).map(drop)
}

/// Writes the name of a backing file, which need not exist here.
fn rebase(path: &Path, backing: &str, format: Format) -> Outcome {
    let mut words: Vec<OsString> = ["rebase", "-u", "-f", "qcow2", "-b", backing, "-F", format.driver()].map(OsString::from).to_vec();
    words.push(path.as_os_str().to_owned());
    qemu_img(&words, path).map(drop)
}
