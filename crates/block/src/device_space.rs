//! Space of a device on its host: where a sparse file has allocated bytes, and whether it keeps
//! them.

use std::ops::Range;

/// Space that the host has allocated for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpace {
    /// True when discards free no space: a file that was allocated in full, or a device without
    /// TRIM.
    pub kept: bool,
    /// Ranges with allocated space, in order. Elsewhere the first write allocates it.
    pub data: Vec<Range<u64>>,
}

impl DeviceSpace {
    /// True when all of a range has space.
    pub fn has(&self, range: &Range<u64>) -> bool {
        let after = self.data.partition_point(|data| data.end < range.end);
        self.data.get(after).is_some_and(|data| data.start <= range.start)
    }

    /// Number of bytes with space.
    pub fn bytes(&self) -> u64 {
        self.data.iter().map(|data| data.end - data.start).sum()
    }
}
