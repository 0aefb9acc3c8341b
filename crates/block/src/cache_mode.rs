//! The five cache modes of a volume, after QEMU's names.

use std::fmt;
use std::str::FromStr;

/// When a write is acknowledged and what a flush does. The death of the daemon loses nothing acknowledged in any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CacheMode {
    /// Acknowledged when written; flush honoured.
    None,
    /// Acknowledged when durable.
    Directsync,
    /// Acknowledged when durable; the daemon may cache reads.
    Writethrough,
    /// Acknowledged when written; flush honoured; the daemon may cache reads.
    #[default]
    Writeback,
    /// Acknowledged when written; flush ignored: a power failure may lose anything since the last checkpoint.
    Unsafe,
}

impl CacheMode {
    /// Every mode, in the order of the documentation.
    pub const ALL: [CacheMode; 5] =
        [CacheMode::None, CacheMode::Directsync, CacheMode::Writethrough, CacheMode::Writeback, CacheMode::Unsafe];

    /// True when every write must be durable before it is acknowledged.
    pub fn every_write_durable(self) -> bool {
        matches!(self, CacheMode::Directsync | CacheMode::Writethrough)
    }

    /// True when flush and FUA make data durable; false when they are acknowledged and ignored.
    pub fn honours_flush(self) -> bool {
        self != CacheMode::Unsafe
    }

    /// True when the daemon may keep what guests read in its memory.
    pub fn caches_reads(self) -> bool {
        !matches!(self, CacheMode::None | CacheMode::Directsync)
    }

    /// The word users type.
    pub fn name(self) -> &'static str {
        match self {
            CacheMode::None => "none",
            CacheMode::Directsync => "directsync",
            CacheMode::Writethrough => "writethrough",
            CacheMode::Writeback => "writeback",
            CacheMode::Unsafe => "unsafe",
        }
    }
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The word is not a cache mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a cache mode (none, directsync, writethrough, writeback, unsafe)")]
pub struct UnknownCacheMode(pub String);

impl FromStr for CacheMode {
    type Err = UnknownCacheMode;
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|mode| mode.name() == word).ok_or_else(|| UnknownCacheMode(word.to_owned()))
    }
}
