//! The bucket of a pool, as a checkpoint has it.

use super::Field;
use crate::codec::{Decoder, Encoder, FormatError};
use crate::{SegmentName, Term};

/// Most bytes of the place of a bucket.
const SOURCE_MAX: usize = 512;

fields!(
    /// The bucket that the data of a pool is in.
    BucketRecord {
        /// Where it is, in the caller's words, at most 512 bytes.
        source: String,
        /// Most bytes of all objects.
        quota: u64,
        /// Latest term that an import of this pool took; 0 before the first one.
        term: Term,
        /// Counts below this one under that term are settled: their objects are in the
        /// table of names, are doomed, or were never written.
        settled: u64,
    }
);

impl BucketRecord {
    /// Returns whether its numbers are in range.
    pub(super) fn is_sound(&self) -> bool {
        self.source.len() <= SOURCE_MAX && self.quota < 1 << 62 && self.settled <= SegmentName::COUNTS
    }
}
