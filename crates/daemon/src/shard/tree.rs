//! A pool as the directory tree of a mount.

use millpond_block::{Op, Payload, Query, Request, Tag};
use millpond_engine::{Entry, ImageInfo as EngineImage, SnapshotId, Target, Throttles, Time, VolumeId};
use millpond_export::fuse::{Image, ImageInfo, Space, Tree};

use super::load::FileRequests;
use super::pool::Pool;
use crate::budget::{PoolBudget, Purse};

/// The pool as a directory.
pub(super) struct PoolTree<'a, P> {
    pub pool: &'a mut P,
    pub throttles: &'a mut Throttles,
    /// Milliseconds since the Unix epoch.
    pub wall: Time,
    /// Reading of the shard's clock, in nanoseconds.
    pub nanos: u64,
    /// Memory that the mount's requests hold; `memory` is where more comes from.
    pub purse: &'a mut Purse,
    pub memory: &'a PoolBudget,
    pub requests: &'a mut FileRequests,
}

/// Returns the target that an image stands for.
pub(super) fn target_of(image: Image) -> Target {
    match image {
        Image::Volume(id) => Target::Head(VolumeId(id)),
        Image::Snapshot(id) => Target::Snapshot(SnapshotId(id)),
    }
}

fn shown(image: EngineImage) -> ImageInfo {
    let EngineImage { name, size, referenced_bytes, created, read_only } = image;
    ImageInfo { name, size, allocated: referenced_bytes, created: created.0, read_only }
}

impl<P: Pool> Tree for PoolTree<'_, P> {
    fn now(&self) -> u64 {
        self.wall.0
    }

    fn nanos(&self) -> u64 {
        self.nanos
    }

    fn space(&self) -> Space {
        self.pool.pool().map_or(Space::default(), |pool| Space { size: pool.size, free: pool.free })
    }

    fn volume_named(&self, name: &str) -> Option<u32> {
        self.pool.find_volume(name).map(|volume| volume.id.0)
    }

    fn snapshot_named(&self, volume: u32, name: &str) -> Option<u64> {
        self.pool.older_state(Target::Head(VolumeId(volume)), name).map(|id| id.0)
    }

    fn image(&self, image: Image) -> Option<ImageInfo> {
        self.pool.image(target_of(image)).map(shown)
    }

    fn extent(&self, image: Image) -> Option<(u64, bool)> {
        self.pool.geometry(target_of(image)).map(|(geometry, features)| (geometry.size, features.read_only))
    }

    fn volumes(&self, after: Option<u32>, most: usize) -> Vec<(u32, ImageInfo)> {
        let found = self.pool.volume_images(after.map(VolumeId), most);
        found.into_iter().map(|(id, image)| (id.0, shown(image))).collect()
    }

    fn snapshots(&self, volume: u32, after: Option<u64>, most: usize) -> Vec<(u64, ImageInfo)> {
        let found = self.pool.snapshot_images(VolumeId(volume), after.map(SnapshotId), most);
        found.into_iter().map(|(id, image)| (id.0, shown(image))).collect()
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        self.purse.take(self.memory, bytes)
    }

    fn submit(&mut self, image: Image, tag: Tag, request: Request, payload: Payload<'_>) {
        debug_assert!(request.op != Op::Discard, "what is discarded from a file reads as zeroes");
        self.requests.begin(tag, target_of(image), &request, self.nanos);
        let entry = Entry { target: target_of(image), tag, request, payload, bytes: true };
        if let Some(entry) = self.throttles.admit(entry, self.nanos, self.pool.buffers()) {
            self.pool.enter(entry);
        }
    }

    fn query(&mut self, image: Image, tag: Tag, query: Query) {
        self.pool.query(target_of(image), tag, query);
    }
}
