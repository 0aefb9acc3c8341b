//! A disk of which only the difference from another one is copied, and the layer that it becomes.

use std::io;
use std::sync::Arc;

use millpond_api::{DiffExtent, ExtentKind};
use millpond_images::source::{Image, Kind, Run, Source};

#[cfg(test)]
mod tests;

/// A disk with the ranges that differ from a lower layer. All others are [`Kind::Keep`].
pub struct DiffImage {
    /// The disk.
    pub image: Arc<dyn Image>,
    /// The ranges, in order.
    pub extents: Arc<Vec<DiffExtent>>,
}

impl Image for DiffImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(DiffSource { source: self.image.open()?, extents: Arc::clone(&self.extents) }))
    }
}

struct DiffSource {
    source: Box<dyn Source>,
    extents: Arc<Vec<DiffExtent>>,
}

impl Source for DiffSource {
    fn size(&self) -> u64 {
        self.source.size()
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let end = offset + length;
        let next = self.extents.partition_point(|extent| extent.offset + extent.length <= offset);
        let (kind, until) = match self.extents.get(next) {
            Some(extent) if extent.offset <= offset => {
                let kind = match extent.kind {
                    ExtentKind::Zero => Kind::Zero,
                    // content of a kind that this version does not know is read
                    ExtentKind::Data | ExtentKind::Other(_) => Kind::Data,
                };
                (kind, extent.offset + extent.length)
            }
            Some(extent) => (Kind::Keep, extent.offset),
            None => (Kind::Keep, end),
        };
        Ok(vec![Run { offset, length: until.min(end) - offset, kind }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.source.read(offset, into)
    }
}

/// A layer without the layer below it, which is an error unless it has content of its own in all
/// ranges that changed.
pub struct LayerImage {
    /// The layer. It reports ranges of the layer below as [`Kind::Keep`].
    pub layer: Arc<dyn Image>,
    /// The ranges, in order.
    pub changes: Arc<Vec<DiffExtent>>,
}

impl Image for LayerImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(LayerSource { layer: self.layer.open()?, changes: Arc::clone(&self.changes) }))
    }
}

struct LayerSource {
    layer: Box<dyn Source>,
    changes: Arc<Vec<DiffExtent>>,
}

impl Source for LayerSource {
    fn size(&self) -> u64 {
        self.layer.size()
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let runs = self.layer.runs(offset, length)?;
        for run in runs.iter().filter(|run| run.kind == Kind::Keep) {
            let next = self.changes.partition_point(|change| change.offset + change.length <= run.offset);
            if self.changes.get(next).is_some_and(|change| change.offset < run.offset + run.length) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it lacks blocks that changed"));
            }
        }
        Ok(runs)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.layer.read(offset, into)
    }
}
