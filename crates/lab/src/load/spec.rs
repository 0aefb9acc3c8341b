//! Specification of a load.

use super::op::Dialect;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mix {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Discards only.
    Trim,
    /// Percentage of reads; the rest are writes.
    Both(u8),
}

/// Order in which blocks are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Access {
    /// In order; starts again at the end.
    Sequential,
    /// Random, with equal probability.
    Uniform,
    /// Random; `share` of the operations go to the first `part` of a random order of the blocks:
    /// 0.2 and 0.8 are "80/20".
    HotSet {
        /// Part of the blocks that is hot, 0 to 1.
        part: f64,
        /// Share of the operations on hot blocks, 0 to 1.
        share: f64,
    },
    /// Random with a Zipf distribution of this exponent; ranks are spread over the range at random.
    Zipf(f64),
}

/// Condition for a write to count as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Acknowledged.
    #[default]
    Acknowledged,
    /// Acknowledged, and a flush sent after that has ended; the latency covers both.
    Flush,
    /// Acknowledged, with the FUA flag on the write.
    Fua,
}

/// A load: range, operations, depth, duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Mix of operations.
    pub mix: Mix,
    /// Order of blocks.
    pub access: Access,
    /// Bytes per request.
    pub block: usize,
    /// Requests in flight per job.
    pub depth: usize,
    /// Number of connections, each with its own thread.
    pub jobs: usize,
    /// Measured seconds; ignored with `once`.
    pub secs: f64,
    /// Seconds before the measured time.
    pub ramp: f64,
    /// Offset of the first byte of the range.
    pub offset: u64,
    /// Bytes of the range; 0 = to the end of the export.
    pub size: u64,
    /// Condition for a write to count as done.
    pub durability: Durability,
    /// Access every block of the range once, then end.
    pub once: bool,
    /// End after this many requests per job; 0 = no limit.
    pub ops: u64,
    /// Seed of the random choices.
    pub seed: u64,
    /// Milliseconds of an interval of the series; 0 = no series.
    pub series_ms: u64,
    /// Dialect of the NBD protocol.
    #[serde(default)]
    pub dialect: Dialect,
}

impl Default for LoadSpec {
    fn default() -> Self {
        LoadSpec {
            mix: Mix::Read,
            access: Access::Uniform,
            block: 4096,
            depth: 1,
            jobs: 1,
            secs: 3.0,
            ramp: 0.3,
            offset: 0,
            size: 0,
            durability: Durability::Acknowledged,
            once: false,
            ops: 0,
            seed: 1,
            series_ms: 0,
            dialect: Dialect::Simple,
        }
    }
}

impl LoadSpec {
    /// Random requests of `block` bytes with `depth` in flight.
    pub fn random(mix: Mix, block: usize, depth: usize) -> LoadSpec {
        LoadSpec { mix, block, depth, ..LoadSpec::default() }
    }

    /// Writes the whole range once in order, 1 MiB at a time.
    pub fn fill() -> LoadSpec {
        LoadSpec { mix: Mix::Write, access: Access::Sequential, block: 1 << 20, depth: 4, once: true, ramp: 0.0, ..LoadSpec::default() }
    }

    /// Writes the whole range once in random order, 4 KiB at a time.
    pub fn scramble(seed: u64) -> LoadSpec {
        LoadSpec { mix: Mix::Write, depth: 32, once: true, ramp: 0.0, seed, ..LoadSpec::default() }
    }

    /// Sets operations and order by fio's names: `read`, `write`, `randread`, `randwrite`,
    /// `randrw`, `rw`, `trim`, `randtrim`.
    ///
    /// # Errors
    /// An unknown name.
    pub fn with_rw(mut self, word: &str, read_percent: u8) -> Result<LoadSpec> {
        let (random, kind) = word.strip_prefix("rand").map_or((false, word), |rest| (true, rest));
        self.mix = match kind {
            "read" => Mix::Read,
            "write" => Mix::Write,
            "trim" => Mix::Trim,
            "rw" => Mix::Both(read_percent.min(100)),
            _ => bail!("'{word}' is not one of read, write, randread, randwrite, rw, randrw, trim, randtrim"),
        };
        self.access = if random { Access::Uniform } else { Access::Sequential };
        Ok(self)
    }

    pub(super) fn check(&self, export_bytes: u64) -> Result<u64> {
        let size = if self.size == 0 { export_bytes.saturating_sub(self.offset) } else { self.size };
        if self.block == 0 || self.depth == 0 || self.jobs == 0 {
            bail!("block size, depth and jobs must be above 0");
        }
        if self.offset.checked_add(size).is_none_or(|end| end > export_bytes) {
            bail!("the range ends beyond the export of {export_bytes} bytes");
        }
        let blocks = size / self.block as u64;
        if blocks < self.jobs as u64 {
            bail!("a range of {size} bytes has too few blocks of {}", self.block);
        }
        Ok(blocks)
    }
}

impl FromStr for Access {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Access> {
        Ok(match text.split_once(':') {
            None if text == "uniform" => Access::Uniform,
            None if text == "80/20" => Access::HotSet { part: 0.2, share: 0.8 },
            Some(("zipf", exponent)) => Access::Zipf(exponent.parse()?),
            _ => bail!("'{text}' is not one of uniform, 80/20, zipf:EXPONENT"),
        })
    }
}
