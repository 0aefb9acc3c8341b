//! The five cache modes of a volume, after QEMU's names.

use std::fmt;
use std::str::FromStr;

/// When a write is acknowledged and what a flush does. In every mode, acknowledged writes survive
/// the death of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CacheMode {
    /// Write acknowledged when written; a flush makes writes durable.
    None,
    /// Write acknowledged when durable.
    Directsync,
    /// Write acknowledged when durable; the daemon may cache reads.
    Writethrough,
    /// Write acknowledged when written; a flush makes writes durable; the daemon may cache reads.
    #[default]
    Writeback,
    /// Write acknowledged when written; flushes are ignored: a power failure may lose everything
    /// since the last checkpoint.
    Unsafe,
}

impl CacheMode {
    /// All modes, in the order of the documentation.
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

    /// True when the daemon may keep data that guests read in its memory.
    pub fn caches_reads(self) -> bool {
        !matches!(self, CacheMode::None | CacheMode::Directsync)
    }

    /// The name that users type.
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

/// Error: the word is not a cache mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a cache mode (none, directsync, writethrough, writeback, unsafe)")]
pub struct UnknownCacheMode(pub String);

impl FromStr for CacheMode {
    type Err = UnknownCacheMode;
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|mode| mode.name() == word).ok_or_else(|| UnknownCacheMode(word.to_owned()))
    }
}
