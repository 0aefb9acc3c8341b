//! Versions of a disk in an image, in order of time. All but the last become snapshots.

use std::path::Path;
use std::sync::Arc;

use millpond_api::failure::{Failure, Outcome};

use super::chain::{Layer, walk};
use super::format::Format;
use super::library::{Qcow2Image, reads};
use super::names::{fitting, of_layer};
use super::qcow2::{Internal, MAX_SIZE};
use super::qemu::QemuError;
use super::raw::RawImage;
use super::served::QemuImage;
use super::source::{Image, Source};

/// Sizes of volumes are multiples of this many bytes.
const GRAIN: u64 = 4096;

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
}

impl State {
    /// Size in bytes of a volume for this version: rounded up to whole blocks.
    pub fn volume_size(&self) -> u64 {
        self.size.next_multiple_of(GRAIN)
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
        let mut add = |name: String, description: String, states: &mut Vec<State>, image: Arc<dyn Image>| -> Outcome {
            let name = fitting(&name, &taken);
            taken.push(name.clone());
            states.push(state(path, image, Some(name), description)?);
            Ok(())
        };
        if !flat {
            for (depth, layer) in layers.iter().enumerate().take(layers.len() - 1) {
                let image = image(layers.get(..=depth).unwrap_or_default(), depth > 0)?;
                add(of_layer(&layer.path, path), format!("layer {}", layer.path.display()), &mut states, image)?;
            }
            for snapshot in internal {
                let name = if snapshot.name.is_empty() { format!("snapshot-{}", snapshot.id) } else { snapshot.name.clone() };
                let taken = jiff::Timestamp::from_second(i64::from(snapshot.seconds)).map(|time| time.to_string()).unwrap_or_default();
                let description = format!("snapshot '{}' of {}, taken {taken}", snapshot.name, path.display());
                let image = QemuImage::new(&layers, Some(snapshot.id.clone()), false);
                add(name, description, &mut states, Arc::new(image))?;
            }
        }
        // A layer reports its difference from the layer below. With internal snapshots, the version
        // before the last is not that layer, so everything is compared.
        let layered = states.len() + 1 == layers.len() && layers.len() > 1;
        states.push(state(path, image(&layers, layered)?, None, String::new())?);
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

fn state(path: &Path, image: Arc<dyn Image>, snapshot: Option<String>, description: String) -> Outcome<State> {
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
    Ok(State { image, size, snapshot, description })
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
