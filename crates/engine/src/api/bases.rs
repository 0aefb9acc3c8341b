//! Bases: volumes whose blocks are fetched by the caller when they are read. Types of the interface.

use super::{SnapshotId, VolumeId};

/// Name of the one snapshot of a base, from which clones start.
pub const BASE_SNAPSHOT: &str = "origin";
/// Most bytes of [`BaseInfo::source`].
pub const MAX_BASE_SOURCE: usize = 4096;

/// The source of the blocks of a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseInfo {
    /// Bytes that are fetched at a time: a power of two, 4 KiB to 4 MiB.
    pub unit: u32,
    /// The place from which they are fetched, in the caller's words.
    pub source: String,
}

/// A chunk of a base that the caller fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fetch {
    /// Number of the fetch, never used again while the pool is open.
    pub id: u64,
    /// The base.
    pub base: VolumeId,
    /// Number of the chunk: the bytes from this times [`BaseInfo::unit`] on, as many as that or up to
    /// the end of the base.
    pub chunk: u64,
    /// No read waited for it when it was passed out: it is fetched ahead of a guest.
    pub ahead: bool,
}

/// A chunk that cannot be had. A store that does not answer is no such error: the caller asks it
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The store does not have it.
    #[error("the store does not have the chunk")]
    Missing,
    /// Its content is wrong.
    #[error("the chunk is damaged")]
    Damaged,
    /// The caller has given the fetch up. The chunk is passed out again if a read waits for it by now, or
    /// when one does.
    #[error("the store does not answer now")]
    NotNow,
}

/// A new base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBase {
    /// The volume.
    pub volume: VolumeId,
    /// Its snapshot, from which clones start.
    pub snapshot: SnapshotId,
}
