//! Queries of a disk's map, without its content.

use crate::{ByteRange, DiskError, Geometry, Tag};

/// Handle of an older state of a disk. The server of the disk issues it; clients return it
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Since(pub u64);

/// Query: which parts of a range hold data, or which may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The range to examine; not empty.
    pub range: ByteRange,
    /// `None`: find data, as opposed to holes, which read as zeroes. `Some`: find what may differ
    /// from that state.
    pub since: Option<Since>,
    /// Maximum number of runs to return; at least 1.
    pub most: usize,
}

impl Query {
    /// Checks bounds and sector alignment.
    ///
    /// # Errors
    /// [`DiskError::OutOfBounds`], [`DiskError::Invalid`].
    pub fn validate(&self, geometry: &Geometry) -> Result<(), DiskError> {
        if self.range.length == 0 {
            return Err(DiskError::Invalid);
        }
        self.range.validate(geometry)
    }
}

/// Consecutive bytes with the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of bytes; not 0.
    pub length: u64,
    /// True for data, or for bytes that may have changed.
    pub set: bool,
}

/// The result of a query.
#[derive(Debug)]
pub struct Answer {
    /// The tag of the query.
    pub tag: Tag,
    /// Runs from the start of the range on, where neighbouring runs differ: at least one, at most
    /// as many as the query allows. Together they may be shorter than the range, when there are
    /// more runs or when examining the rest would take long; they are never longer.
    pub result: Result<Vec<Run>, DiskError>,
}
