//! Options of a volume: its reservation, rates and cache share. The engine only stores the rates;
//! the caller enforces them, because it has a clock.

use millpond_format::{LimitRecord, OptionsRecord};

/// A rate limit, and a higher one allowed for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Per second; 0: unlimited.
    pub sustained: u64,
    /// Per second in a burst; 0: none.
    pub burst: u64,
    /// Seconds that a burst lasts; 0: one second.
    pub seconds: u32,
}

/// Limits of the requests to a volume. All that are set apply at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests.
    pub iops: Rate,
    /// Reads.
    pub iops_rd: Rate,
    /// Writes, zeroings and discards.
    pub iops_wr: Rate,
    /// Bytes read and written.
    pub bps: Rate,
    /// Bytes read.
    pub bps_rd: Rate,
    /// Bytes written.
    pub bps_wr: Rate,
}

impl Limits {
    /// Returns all rates, in a fixed order.
    pub fn rates(&self) -> [&Rate; 6] {
        [&self.iops, &self.iops_rd, &self.iops_wr, &self.bps, &self.bps_rd, &self.bps_wr]
    }

    /// As [`Self::rates`], mutable.
    pub fn rates_mut(&mut self) -> [&mut Rate; 6] {
        [&mut self.iops, &mut self.iops_rd, &mut self.iops_wr, &mut self.bps, &mut self.bps_rd, &mut self.bps_wr]
    }
}

/// Options that most volumes have at their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Bytes of the pool that the volume, with its snapshots, can always have.
    pub reservation: u64,
    /// Writes of at most so many bytes go to special devices, while these have room; 0: none. Data
    /// that was written before is not moved.
    pub special_small_blocks: u32,
    /// Size in bytes of the volume's own part of the pool's read cache; `None`: it uses the part
    /// that all such volumes share.
    pub read_cache: Option<u64>,
    /// Rate limits.
    pub limits: Limits,
}

/// Code of a limit record that is not a rate: the size of the own read cache.
const READ_CACHE: u8 = 6;

impl VolumeOptions {
    /// Encodes the options as a record of the catalog.
    pub(crate) fn record(&self) -> OptionsRecord {
        let limits = self.limits.rates().into_iter().zip(0u8..).filter(|(rate, _)| **rate != Rate::default());
        let limit = |(rate, what): (&Rate, u8)| LimitRecord { what, sustained: rate.sustained, burst: rate.burst, seconds: rate.seconds };
        let memory = self.read_cache.map(|bytes| LimitRecord { what: READ_CACHE, sustained: bytes, burst: 0, seconds: 0 });
        let VolumeOptions { reservation, special_small_blocks, .. } = *self;
        OptionsRecord { reservation, special_small_blocks, limits: limits.map(limit).chain(memory).collect() }
    }

    /// Decodes a record of the catalog. Unknown codes are ignored.
    pub(crate) fn of(record: &OptionsRecord) -> VolumeOptions {
        let OptionsRecord { reservation, special_small_blocks, .. } = *record;
        let mut options = VolumeOptions { reservation, special_small_blocks, ..VolumeOptions::default() };
        for limit in &record.limits {
            if limit.what == READ_CACHE {
                options.read_cache = Some(limit.sustained);
            }
            if let Some(rate) = options.limits.rates_mut().into_iter().nth(usize::from(limit.what)) {
                *rate = Rate { sustained: limit.sustained, burst: limit.burst, seconds: limit.seconds };
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_kept_as_they_are() {
        let mut options = VolumeOptions { reservation: 7, special_small_blocks: 9, read_cache: Some(0), ..VolumeOptions::default() };
        options.limits.bps_rd = Rate { sustained: 1, burst: 2, seconds: 3 };
        options.limits.iops = Rate { sustained: 4, burst: 0, seconds: 0 };
        assert_eq!(options.record().limits.len(), 3);
        assert_eq!(VolumeOptions::of(&options.record()), options);
        assert_eq!(VolumeOptions::of(&VolumeOptions::default().record()), VolumeOptions::default());
    }
}
