//! What a FUSE session shows: the volumes and snapshots of a pool, and their content.

use millpond_block::{Payload, Query, Request, Tag};

/// Names what is served as one file; ids are never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Image {
    /// The head of a volume.
    Volume(u32),
    /// A snapshot.
    Snapshot(u64),
}

/// An image, as `stat` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name in its directory: one path component, at most 255 bytes.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that hold data.
    pub allocated: u64,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created: u64,
    /// Writes are refused.
    pub read_only: bool,
}

/// Room, as `statfs` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub size: u64,
    /// Bytes that can still be written.
    pub free: u64,
}

/// A pool as a directory of images. The loop implements it over whatever it serves.
///
/// Requests are of bytes, not of sectors: any range within the image. Completions and answers come to the session as from a
/// [`millpond_block::Disk`]: exactly one each, in any order, with the same promises about flushes.
pub trait Tree {
    /// Milliseconds since the Unix epoch.
    fn now(&self) -> u64;
    /// Nanoseconds of a clock that begins anywhere: how long requests take is counted by it.
    fn nanos(&self) -> u64;
    /// Room.
    fn space(&self) -> Space;
    /// The volume of this name.
    fn volume_named(&self, name: &str) -> Option<u32>;
    /// The snapshot of this name.
    fn snapshot_named(&self, volume: u32, name: &str) -> Option<u64>;
    /// An image; `None` when it is gone.
    fn image(&self, image: Image) -> Option<ImageInfo>;
    /// Size in bytes and whether writes are refused: the cheap part of [`Tree::image`], asked for with every read and write.
    fn extent(&self, image: Image) -> Option<(u64, bool)>;
    /// Up to `most` volumes of ids above `after`, by id.
    fn volumes(&self, after: Option<u32>, most: usize) -> Vec<(u32, ImageInfo)>;
    /// Up to `most` snapshots of a volume of ids above `after`, by id.
    fn snapshots(&self, volume: u32, after: Option<u64>, most: usize) -> Vec<(u64, ImageInfo)>;
    /// Asks for memory for a request that moves so many bytes. False when there is none just now: the request waits, and whoever drives the session
    /// goes on with it when there may be some ([`Session::resume`](super::Session::resume)). It is given back by that one, too.
    fn reserve(&mut self, _bytes: u64) -> bool {
        true
    }
    /// Starts a request to an image; never blocks.
    fn submit(&mut self, image: Image, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts to find out what an image's map says; its range is aligned to 4 KiB.
    fn query(&mut self, image: Image, tag: Tag, query: Query);
}
