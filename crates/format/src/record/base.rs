//! Bases in the catalog.

use super::Field;
use crate::VolumeId;
use crate::codec::{Decoder, Encoder, FormatError};

fields!(
    /// A base: a volume whose blocks are fetched when they are read.
    BaseRecord {
        /// The volume.
        volume: VolumeId,
        /// Bytes that are fetched at a time: a power of two, 4 KiB to 4 MiB.
        unit: u32,
        /// The place from which they are fetched, in the caller's words.
        source: String,
    }
);

impl BaseRecord {
    /// Returns whether a number of bytes may be fetched at a time.
    pub fn is_unit(unit: u32) -> bool {
        unit.is_power_of_two() && (4 << 10..=4 << 20).contains(&unit)
    }
}
