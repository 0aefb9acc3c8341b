//! Images that a library reads in this process: qcow2, with imago.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};

use imago::file::File;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, ShallowMapping};
use millpond_api::failure::{Failure, Outcome};

use super::chain::Layer;
use super::format::Format;
use super::raw::open_file;
use super::source::{Image, Kind, Run, Source};

/// A chain of qcow2 images on a qcow2 or raw base.
pub struct Qcow2Image {
    access: Arc<FormatAccess<File>>,
    layered: bool,
}

/// Whether the library supports every layer.
pub fn reads(layers: &[Layer]) -> bool {
    layers.iter().all(|layer| match layer.format {
        Format::Raw => layers.len() > 1,
        Format::Qcow2 => layer.header.as_ref().is_some_and(|header| !header.needs_qemu),
        _ => false,
    })
}

thread_local! {
    static IN_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// Runs library code. If it panics on invalid input, the panic becomes an error and no backtrace is
/// printed.
fn guarded<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IN_LIBRARY.get() {
                loud(info);
            }
        }));
    });
    IN_LIBRARY.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IN_LIBRARY.set(false);
    done.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::InvalidData, "the image makes no sense")))
}

impl Qcow2Image {
    /// Opens the disk of the last of `layers`. With `layered`, ranges that lower layers provide are
    /// reported as [`Kind::Keep`].
    ///
    /// # Errors
    /// When an image is invalid.
    pub fn new(layers: &[Layer], layered: bool) -> Outcome<Qcow2Image> {
        let mut below: Option<FormatAccess<File>> = None;
        for layer in layers {
            let opened = guarded(|| access(layer, below.take()));
            let why = |e| Failure::failed(format!("cannot import {}: {e}; check it with 'qemu-img check'", layer.path.display()));
            below = Some(opened.map_err(why)?);
        }
        let access = below.ok_or_else(|| Failure::failed("there is no layer"))?;
        Ok(Qcow2Image { access: Arc::new(access), layered })
    }
}

fn storage(path: &Path) -> io::Result<File> {
    let file = open_file(path).map_err(|failure| io::Error::other(failure.to_string()))?;
    File::from_open_file(file, imago::storage::StorageOpenOptions::new())
}

fn access(layer: &Layer, below: Option<FormatAccess<File>>) -> io::Result<FormatAccess<File>> {
    let file = storage(&layer.path)?;
    let gate = DenyImplicitOpenGate::default();
    if layer.format == Format::Raw {
        return Ok(FormatAccess::new(Raw::<File>::builder(file).open(gate)?));
    }
    let data = layer.data_file.as_deref().map(storage).transpose()?;
    let image = Qcow2::<File>::builder(file).backing(below).data_file(data).open(gate)?;
    Ok(FormatAccess::new(image))
}

impl Image for Qcow2Image {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(Qcow2Source { access: Arc::clone(&self.access), layered: self.layered }))
    }
}

struct Qcow2Source {
    access: Arc<FormatAccess<File>>,
    layered: bool,
}

impl Source for Qcow2Source {
    fn size(&self) -> u64 {
        self.access.size()
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let (kind, found) = guarded(|| {
            if !self.layered {
                let (mapping, found) = self.access.get_mapping(offset, length)?;
                let zero = matches!(mapping, imago::Mapping::Zero { .. } | imago::Mapping::Eof { .. });
                return Ok((if zero { Kind::Zero } else { Kind::Data }, found));
            }
            let (mapping, found) = self.access.get_shallow_mapping(offset, length)?;
            let kind = match mapping {
                ShallowMapping::Indirect { .. } => Kind::Keep,
                ShallowMapping::Zero { .. } | ShallowMapping::Eof { .. } => Kind::Zero,
                _ => Kind::Data,
            };
            Ok((kind, found))
        })?;
        if found == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its map ends too early"));
        }
        Ok(vec![Run { offset, length: found.min(length), kind }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        guarded(|| self.access.read(into, offset))
    }
}
