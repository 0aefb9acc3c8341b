//! Purposes of targets.
//!
//! | | head | records | chunks |
//! |---|---|---|---|
//! | backups | `millpond-backup.json` | `backups` | 1 MiB |
//! | publications | `millpond-publications.json` | `publications` | 256 KiB |
//!
//! The sizes are a compromise: of a backup, more and smaller files cost more than the bytes that a small
//! write stores; of a publication, single blocks are read while a guest boots.

use std::fmt;

use crate::id::ID_BYTES;
use crate::page::SLOTS;

/// Kind of the records of a target. A target has one kind only: a prune deletes every chunk that no
/// record of its kind names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Backups of volumes, one after the other.
    Backups,
    /// Snapshots that any number of pools clone.
    Publications,
}

impl Purpose {
    /// The purpose that a target cannot have as well.
    pub(crate) const fn other(self) -> Purpose {
        match self {
            Purpose::Backups => Purpose::Publications,
            Purpose::Publications => Purpose::Backups,
        }
    }

    /// File that makes a directory or prefix a target.
    pub(crate) const fn head(self) -> &'static str {
        match self {
            Purpose::Backups => "millpond-backup.json",
            Purpose::Publications => "millpond-publications.json",
        }
    }

    /// Folder of the records.
    pub(crate) const fn records(self) -> &'static str {
        match self {
            Purpose::Backups => "backups",
            Purpose::Publications => "publications",
        }
    }

    /// Bytes of a chunk of a volume. The last one of a volume is filled up with zeroes.
    pub const fn chunk_bytes(self) -> u64 {
        self.chunk_len() as u64
    }

    /// The same as a length of a buffer.
    pub(crate) const fn chunk_len(self) -> usize {
        match self {
            Purpose::Backups => 1 << 20,
            Purpose::Publications => 256 << 10,
        }
    }

    /// Bytes of a volume that a page stands for.
    pub(crate) const fn page_span(self) -> u64 {
        SLOTS as u64 * self.chunk_bytes()
    }

    /// Most bytes of a volume: its root is one chunk.
    pub(crate) const fn largest_volume(self) -> u64 {
        self.chunk_bytes() / ID_BYTES as u64 * self.page_span()
    }

    /// Number of pages of a volume of this size in bytes.
    pub(crate) fn pages_of(self, size: u64) -> usize {
        usize::try_from(size.div_ceil(self.page_span())).unwrap_or(usize::MAX)
    }

    /// Word for one record.
    pub const fn one(self) -> &'static str {
        match self {
            Purpose::Backups => "backup",
            Purpose::Publications => "publication",
        }
    }

    /// Command that makes one.
    pub const fn maker(self) -> &'static str {
        match self {
            Purpose::Backups => "millpond backup create",
            Purpose::Publications => "millpond pool publish",
        }
    }

    /// Command that lists the records.
    pub const fn lister(self) -> &'static str {
        match self {
            Purpose::Backups => "millpond backup list",
            Purpose::Publications => "millpond pool publications",
        }
    }

    /// Command that finds damage.
    pub const fn verifier(self) -> &'static str {
        match self {
            Purpose::Backups => "millpond backup verify",
            Purpose::Publications => "millpond pool publications --verify",
        }
    }

    /// Command that deletes a record by its name, also one that cannot be read.
    pub const fn deleter(self) -> &'static str {
        match self {
            Purpose::Backups => "millpond backup prune",
            Purpose::Publications => "millpond pool unpublish --force",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.records())
    }
}
