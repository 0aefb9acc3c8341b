//! An image that is extended with zeroes to the size of the volume that it is written to.

use std::io;
use std::sync::Arc;

use super::source::{Image, Kind, Run, Source};

#[cfg(test)]
mod tests;

/// An image with zeroes after its end.
pub struct ExtendedImage {
    /// The image.
    pub image: Arc<dyn Image>,
    /// Size of the whole in bytes, not less than that of the image.
    pub size: u64,
}

impl Image for ExtendedImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(ExtendedSource { source: self.image.open()?, size: self.size }))
    }
}

struct ExtendedSource {
    source: Box<dyn Source>,
    size: u64,
}

impl Source for ExtendedSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let end = self.source.size();
        if offset >= end {
            return Ok(vec![Run { offset, length, kind: Kind::Zero }]);
        }
        self.source.runs(offset, length.min(end - offset))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let own = self.source.size().saturating_sub(offset).min(into.len() as u64);
        let (image, zeroes) = into.split_at_mut(usize::try_from(own).unwrap_or(usize::MAX));
        zeroes.fill(0);
        if image.is_empty() { Ok(()) } else { self.source.read(offset, image) }
    }
}
