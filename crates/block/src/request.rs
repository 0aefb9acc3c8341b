//! Guest requests, and the only function that validates them.

use crate::{DiskError, Features, Geometry};

/// Longest accepted request in bytes: twice what QEMU and libnbd may send (32 MiB).
pub const MAX_REQUEST_BYTES: u64 = 64 << 20;

/// A half-open range of bytes on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl ByteRange {
    /// The byte after the last one, or `None` on overflow.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    /// Checks bounds only: for files, which have no sectors.
    ///
    /// # Errors
    /// [`DiskError::OutOfBounds`].
    pub fn validate_bounds(&self, geometry: &Geometry) -> Result<(), DiskError> {
        if self.end().is_none_or(|end| end > geometry.size) { Err(DiskError::OutOfBounds) } else { Ok(()) }
    }

    /// Checks bounds and sector alignment.
    ///
    /// # Errors
    /// [`DiskError::OutOfBounds`], [`DiskError::Invalid`].
    pub fn validate(&self, geometry: &Geometry) -> Result<(), DiskError> {
        self.validate_bounds(geometry)?;
        let sector = u64::from(geometry.sector.logical());
        let aligned = self.offset.is_multiple_of(sector) && self.length.is_multiple_of(sector);
        if aligned { Ok(()) } else { Err(DiskError::Invalid) }
    }
}

/// Operation of a guest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read the range.
    Read,
    /// Write the payload to the range.
    Write,
    /// Make every write durable whose completion was delivered before this request was submitted.
    Flush,
    /// Drop the range's content: whole blocks read as zeroes afterwards; partly covered blocks at
    /// the ends stay unchanged.
    Discard,
    /// Make the range read as zeroes.
    WriteZeroes {
        /// True when the space may be freed.
        may_unmap: bool,
    },
    /// Hint that the range will be read soon.
    Cache,
}

impl Op {
    /// True for operations that change the disk.
    pub fn modifies(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes { .. })
    }
}

/// A guest request. For [`Op::Flush`] the range is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// Bytes that it applies to.
    pub range: ByteRange,
    /// Force unit access: the request completes only when its data is durable.
    pub fua: bool,
}

impl Request {
    /// Checks bounds, sector alignment, length and writability. Every request passes this function.
    ///
    /// # Errors
    /// [`DiskError::ReadOnly`], [`DiskError::OutOfBounds`], [`DiskError::Invalid`].
    pub fn validate(&self, geometry: &Geometry, features: &Features) -> Result<(), DiskError> {
        self.validate_bytes(geometry, features)?;
        if self.op == Op::Flush { Ok(()) } else { self.range.validate(geometry) }
    }

    /// Checks the same except sector alignment: for disks that are served as files, where single
    /// bytes can be written.
    ///
    /// # Errors
    /// [`DiskError::ReadOnly`], [`DiskError::OutOfBounds`], [`DiskError::Invalid`].
    pub fn validate_bytes(&self, geometry: &Geometry, features: &Features) -> Result<(), DiskError> {
        if self.op == Op::Flush {
            return Ok(());
        }
        if self.op.modifies() && features.read_only {
            return Err(DiskError::ReadOnly);
        }
        self.range.validate_bounds(geometry)?;
        if matches!(self.op, Op::Read | Op::Write) && self.range.length > MAX_REQUEST_BYTES {
            return Err(DiskError::Invalid);
        }
        Ok(())
    }
}
