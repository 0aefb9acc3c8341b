//! Interface of the disks that are copied: an image file, read by the library or by QEMU, or an
//! export.

use std::io;

/// Content of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data, possibly zeroes.
    Data,
    /// Zeroes.
    Zero,
    /// The same as the layer below.
    Keep,
}

/// A contiguous range of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes, not 0.
    pub length: u64,
    /// Kind of its content.
    pub kind: Kind,
}

/// A reader of a disk.
pub trait Source: Send {
    /// Size of the disk in bytes.
    fn size(&self) -> u64;

    /// Returns runs from `offset` on, without gaps: at least one, not necessarily `length` bytes.
    /// The range lies within the disk.
    ///
    /// # Errors
    /// The host's I/O error, or that the image is invalid.
    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>>;

    /// Fills `into` from a range within the disk. Ranges of lower layers are read from them.
    ///
    /// # Errors
    /// The host's I/O error, or that the image is invalid.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A disk that can have several readers.
pub trait Image: Send + Sync {
    /// Opens another reader.
    ///
    /// # Errors
    /// The host's I/O error, or that the image is invalid.
    fn open(&self) -> io::Result<Box<dyn Source>>;
}
