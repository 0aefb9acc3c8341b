//! What a disk is read from: an image file, by a library or through QEMU, or an export.

use std::io;

/// What a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes to read; they may be zeroes.
    Data,
    /// Zeroes.
    Zero,
    /// The same as the layer below.
    Keep,
}

/// Neighbouring bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub offset: u64,
    /// Bytes, not 0.
    pub length: u64,
    /// What they are.
    pub kind: Kind,
}

/// One reader of a disk.
pub trait Source: Send {
    /// Bytes that the disk has.
    fn size(&self) -> u64;

    /// The runs from `offset` on, without a gap: at least one, not necessarily all of `length` bytes, which lie within the disk.
    ///
    /// # Errors
    /// The host's; or when the image makes no sense.
    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>>;

    /// Reads all of `into`, which lies within the disk. What lies in a layer below is read from there.
    ///
    /// # Errors
    /// The host's; or when the image makes no sense.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A disk that several readers can be had of.
pub trait Image: Send + Sync {
    /// One more reader.
    ///
    /// # Errors
    /// The host's; or when the image makes no sense.
    fn open(&self) -> io::Result<Box<dyn Source>>;
}
