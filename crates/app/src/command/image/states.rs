//! What an image holds: the states of one disk in order of time, all but the last to become snapshots.

use std::path::Path;
use std::sync::Arc;

use super::chain::{Layer, walk};
use super::format::Format;
use super::library::{Qcow2Image, reads};
use super::names::{fitting, of_layer};
use super::qcow2::{Internal, MAX_SIZE};
use super::qemu::Said;
use super::raw::RawImage;
use super::served::QemuImage;
use super::source::{Image, Source};
use crate::failure::{Failure, Outcome};

/// Bytes that sectors and blocks of volumes are multiples of.
const GRAIN: u64 = 4096;

/// The disk at one time.
pub struct State {
    /// What to read.
    pub image: Arc<dyn Image>,
    /// Bytes of the disk.
    pub size: u64,
    /// The snapshot that it becomes; none for the last.
    pub snapshot: Option<String>,
    /// Where it comes from, for the snapshot's description.
    pub told: String,
}

impl State {
    /// Size of a volume for it: whole blocks.
    pub fn volume_size(&self) -> u64 {
        self.size.next_multiple_of(GRAIN)
    }
}

/// An image, looked at.
pub struct States {
    /// Oldest first; at least one.
    pub states: Vec<State>,
}

impl States {
    /// Looks at an image. With `flat`, only its last state counts.
    ///
    /// # Errors
    /// When it cannot be read, makes no sense, or needs a tool that is missing.
    pub fn of(path: &Path, format: Option<Format>, flat: bool, follow: bool) -> Outcome<States> {
        let layers = walk(path, format, follow)?;
        let Some(top) = layers.last() else { return Err(Failure::failed("there is no layer")) };
        let internal: &[Internal] = top.header.as_ref().map_or(&[], |header| &header.snapshots);
        let mut states = Vec::new();
        let mut taken = Vec::new();
        let mut add = |name: String, told: String, states: &mut Vec<State>, image: Arc<dyn Image>| -> Outcome {
            let name = fitting(&name, &taken);
            taken.push(name.clone());
            states.push(state(path, image, Some(name), told)?);
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
                let told = format!("snapshot '{}' of {}, taken {taken}", snapshot.name, path.display());
                let image = QemuImage::new(&layers, Some(snapshot.id.clone()), false);
                add(name, told, &mut states, Arc::new(image))?;
            }
        }
        // A layer says what differs from the one below; what internal snapshots hold differs from that.
        let layered = states.len() + 1 == layers.len() && layers.len() > 1;
        states.push(state(path, image(&layers, layered)?, None, String::new())?);
        Ok(States { states })
    }

    /// A reader of the last state, which the volume will have.
    ///
    /// # Errors
    /// The host's; or when the image makes no sense.
    pub fn head(&self) -> std::io::Result<Option<Box<dyn Source>>> {
        self.states.last().map(|state| state.image.open()).transpose()
    }
}

fn state(path: &Path, image: Arc<dyn Image>, snapshot: Option<String>, told: String) -> Outcome<State> {
    let wrong = |why: String| Failure::failed(format!("cannot import {}: {why}", path.display()));
    let opened = image.open().map_err(|e| match e.get_ref().and_then(|inner| inner.downcast_ref::<Said>()) {
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
    Ok(State { image, size, snapshot, told })
}

/// The disk of the last of `layers`.
fn image(layers: &[Layer], layered: bool) -> Outcome<Arc<dyn Image>> {
    if let [Layer { path, format: Format::Raw, .. }] = layers {
        return Ok(Arc::new(RawImage::new(path)?));
    }
    if reads(layers) {
        return Ok(Arc::new(Qcow2Image::new(layers, layered)?));
    }
    Ok(Arc::new(QemuImage::new(layers, None, layered)))
}
