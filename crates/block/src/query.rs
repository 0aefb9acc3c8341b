//! Questions about what a disk's map says, apart from its content.

use crate::{ByteRange, DiskError, Geometry, Tag};

/// Names an older state of a disk. Handed out by whoever serves the disk; who asks hands it back unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Since(pub u64);

/// Asks which parts of a range hold data, or which changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Where; not empty.
    pub range: ByteRange,
    /// `None`: what holds data, as opposed to holes, which read as zeroes. Otherwise: what may differ from that state.
    pub since: Option<Since>,
    /// Most runs of interest; at least 1.
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

/// Neighbouring bytes of which the same is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes; not 0.
    pub length: u64,
    /// True for data, or for what may have changed.
    pub set: bool,
}

/// The one answer to a query.
#[derive(Debug)]
pub struct Answer {
    /// The tag of the query.
    pub tag: Tag,
    /// Runs from the start of the range on, neighbours different: at least one, at most as many as asked for. Together they are no longer
    /// than the range; they are shorter when there are more, or when the rest would take long to find out.
    pub result: Result<Vec<Run>, DiskError>,
}
