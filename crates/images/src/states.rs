//! Versions of a disk in an image, in order of time. All but the last become snapshots.

use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use millpond_api::failure::{Failure, Outcome};

use super::chain::{Layer, walk};
use super::format::Format;
use super::library::{Qcow2Image, reads};
use super::names::{fitting, of_layer};
use super::qcow2::{Internal, MAX_SIZE};
use super::qemu::QemuError;
use super::raw::RawImage;
use super::served::QemuImage;
use super::source::{Image, Kind, Source};

/// Sizes of volumes are multiples of this many bytes.
const GRAIN: u64 = 4096;
/// Bytes of the disk whose runs are queried at once.
const WINDOW: u64 = 4 << 30;

/// One version of the disk.
pub struct State {
    /// Reader of this version.
    pub image: Arc<dyn Image>,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Name of the snapshot that this version becomes; `None` for the last.
    pub snapshot: Option<String>,
    /// Origin of this version, for the snapshot's description.
    pub description: String,
    /// Time at which the version became final: when an internal snapshot was taken, or when the
    /// file of a layer was last written. `None` for the last version, and for block devices.
    pub taken: Option<Timestamp>,
}

impl State {
    /// Size in bytes of a volume for this version: rounded up to whole blocks.
    pub fn volume_size(&self) -> u64 {
        self.size.next_multiple_of(GRAIN)
    }

    /// Returns the bytes that are read for this version: data that the version before it does not
    /// provide. An internal snapshot is read whole.
    ///
    /// # Errors
    /// The host's I/O error, or that the image is invalid.
    pub fn data_bytes(&self) -> io::Result<u64> {
        let mut source = self.image.open()?;
        let (mut at, mut bytes) = (0, 0u64);
        while at < self.size {
            let before = at;
            for run in source.runs(at, (self.size - at).min(WINDOW))? {
                at = run.offset.saturating_add(run.length);
                if run.kind == Kind::Data {
                    bytes = bytes.saturating_add(run.length);
                }
            }
            if at <= before {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its map makes no sense"));
            }
        }
        Ok(bytes)
    }
}

/// All versions of a disk in an image.
pub struct States {
    /// Oldest first; at least one.
    pub states: Vec<State>,
}

impl States {
    /// Inspects an image. With `flat`, only the last version is returned.
    ///
    /// # Errors
    /// When the image cannot be read, is invalid, or needs a tool that is missing.
    pub fn of(path: &Path, format: Option<Format>, flat: bool, follow: bool) -> Outcome<States> {
        let layers = walk(path, format, follow)?;
        let Some(top) = layers.last() else { return Err(Failure::failed("there is no layer")) };
        let internal: &[Internal] = top.header.as_ref().map_or(&[], |header| &header.snapshots);
        let mut states = Vec::new();
        let mut taken = Vec::new();
        let mut add = |wanted: &str, origin: String, time: Option<Timestamp>, states: &mut Vec<State>, image: Arc<dyn Image>| -> Outcome {
            let name = fitting(wanted, &taken);
            taken.push(name.clone());
            states.push(state(path, image, Some(name), (origin, time))?);
            Ok(())
        };
        if !flat {
            for (depth, layer) in layers.iter().enumerate().take(layers.len() - 1) {
                let image = image(layers.get(..=depth).unwrap_or_default(), depth > 0)?;
                let written = last_written(&layer.path);
                let time = written.map(|time| format!(", last written {time}")).unwrap_or_default();
                let origin = format!("layer {}{time}", layer.path.display());
                add(&of_layer(&layer.path, path), origin, written, &mut states, image)?;
            }
            for snapshot in internal {
                let name = if snapshot.name.is_empty() { format!("snapshot-{}", snapshot.id) } else { snapshot.name.clone() };
                let time = Timestamp::from_second(i64::from(snapshot.seconds)).ok();
                let taken = time.map(|time| time.to_string()).unwrap_or_default();
                let origin = format!("snapshot '{}' of {}, taken {taken}", snapshot.name, path.display());
                let image = QemuImage::new(&layers, Some(snapshot.id.clone()), false);
                add(&name, origin, time, &mut states, Arc::new(image))?;
            }
        }
        // A layer reports its difference from the layer below. With internal snapshots, the version
        // before the last is not that layer, so everything is compared.
        let layered = states.len() + 1 == layers.len() && layers.len() > 1;
        states.push(state(path, image(&layers, layered)?, None, (path.display().to_string(), None))?);
        Ok(States { states })
    }

    /// Opens a reader of the last version.
    ///
    /// # Errors
    /// The host's I/O error, or that the image is invalid.
    pub fn head(&self) -> std::io::Result<Option<Box<dyn Source>>> {
        self.states.last().map(|state| state.image.open()).transpose()
    }
}

fn state(path: &Path, image: Arc<dyn Image>, snapshot: Option<String>, origin: (String, Option<Timestamp>)) -> Outcome<State> {
    let wrong = |why: String| Failure::failed(format!("cannot import {}: {why}", path.display()));
    let opened = image.open().map_err(|e| match e.get_ref().and_then(|inner| inner.downcast_ref::<QemuError>()) {
        Some(said) => said.0.clone(),
        None => wrong(format!("{e}; check it with 'qemu-img info'")),
    });
    let size = opened?.size();
    if size == 0 {
        return Err(wrong("its disk has no bytes; give another image".to_owned()));
    }
    if size > MAX_SIZE {
        return Err(wrong(format!("its disk has {size} bytes, more than any volume; give another image")));
    }
    let (description, taken) = origin;
    Ok(State { image, size, snapshot, description, taken })
}

/// Returns when a file was last written, to the second. Nothing is written to a lower layer, so for a
/// snapshot of a volume chain it is about the time at which the snapshot was taken.
fn last_written(path: &Path) -> Option<Timestamp> {
    let meta = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let since = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok().and_then(|seconds| Timestamp::from_second(seconds).ok())
}

/// Chooses the reader for the disk of the last of `layers`.
fn image(layers: &[Layer], layered: bool) -> Outcome<Arc<dyn Image>> {
    if let [Layer { path, format: Format::Raw, .. }] = layers {
        return Ok(Arc::new(RawImage::new(path)?));
    }
    if reads(layers) {
        return Ok(Arc::new(Qcow2Image::new(layers, layered)?));
    }
    Ok(Arc::new(QemuImage::new(layers, None, layered)))
}
