//! The interface through which a FUSE session reads a pool's volumes and snapshots.

use millpond_block::{Payload, Query, Request, Tag};

/// Id of a file's volume or snapshot. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Image {
    /// The head of a volume.
    Volume(u32),
    /// A snapshot.
    Snapshot(u64),
}

/// Description of an image, for `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name in its directory: one path component of at most 255 bytes.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that hold data.
    pub allocated: u64,
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created: u64,
    /// True if writes are refused.
    pub read_only: bool,
}

/// Space of a pool, for `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Total bytes.
    pub size: u64,
    /// Bytes that can still be written.
    pub free: u64,
}

/// A pool as a directory of images. The loop implements it.
///
/// Requests are in bytes, not in sectors: any range within the image. The session gets completions
/// and answers as from a [`millpond_block::Disk`]: exactly one for each request, in any order, with
/// the same guarantees about flushes.
pub trait Tree {
    /// Returns the time in milliseconds since the Unix epoch.
    fn now(&self) -> u64;
    /// Returns nanoseconds of a clock with any starting point. Latencies are measured with it.
    fn nanos(&self) -> u64;
    /// Returns the pool's space.
    fn space(&self) -> Space;
    /// Returns the id of the volume of this name.
    fn volume_named(&self, name: &str) -> Option<u32>;
    /// Returns the id of the volume's snapshot of this name.
    fn snapshot_named(&self, volume: u32, name: &str) -> Option<u64>;
    /// Returns the description of an image; `None` if it does not exist any more.
    fn image(&self, image: Image) -> Option<ImageInfo>;
    /// Returns the size in bytes and whether writes are refused: the cheap part of [`Tree::image`],
    /// used for every read and write.
    fn extent(&self, image: Image) -> Option<(u64, bool)>;
    /// Returns up to `most` volumes with ids above `after`, sorted by id.
    fn volumes(&self, after: Option<u32>, most: usize) -> Vec<(u32, ImageInfo)>;
    /// Returns up to `most` snapshots of a volume with ids above `after`, sorted by id.
    fn snapshots(&self, volume: u32, after: Option<u64>, most: usize) -> Vec<(u64, ImageInfo)>;
    /// Reserves memory for a request that moves this many bytes. Returns false if there is none
    /// now: the request waits, and the loop that drives the session continues it when there may be
    /// memory ([`Session::resume`](super::Session::resume)). The loop also returns the memory.
    fn reserve(&mut self, _bytes: u64) -> bool {
        true
    }
    /// Starts a request to an image. Never blocks.
    fn submit(&mut self, image: Image, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts a query of an image's map. The range is aligned to 4 KiB.
    fn query(&mut self, image: Image, tag: Tag, query: Query);
}
