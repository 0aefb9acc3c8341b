//! Interface between a shard and its pool: the engine's facade as a trait, so that the loop can be
//! tested and measured on a medium in memory.

use millpond_block::{BufPool, ByteRange, DeviceSlot, DeviceSpace, Features, Geometry};
use millpond_engine::{Engine, ImageInfo, ReadCacheSize, SnapshotId, SnapshotInfo, StateMachine, Target, VolumeId, VolumeInfo};
use millpond_format::DeviceNote;

/// The calls of a shard beyond those of a [`StateMachine`]. The methods are those of [`Engine`],
/// where they are documented.
pub trait Pool: StateMachine + 'static {
    /// Announces that reads or writes of these ranges will be submitted next.
    fn expect(&mut self, _target: Target, _ranges: &[ByteRange]) {}
    /// Sets what space the host provides for a device.
    fn set_space(&mut self, _device: DeviceSlot, _space: DeviceSpace) {}
    /// Sets whether the file systems below the devices are nearly full.
    fn set_short(&mut self, _short: bool) {}
    /// Returns the generation of the labels in force; `None` while they are being written.
    fn label_generation(&self) -> Option<u64> {
        None
    }
    /// Returns up to `most` volumes with ids above `after`, by id.
    fn volumes_after(&self, after: Option<VolumeId>, most: usize) -> Vec<VolumeInfo>;
    /// Returns the volume that a target belongs to.
    fn volume_of(&self, target: Target) -> Option<VolumeId>;
    /// Returns the volume of this name.
    fn find_volume(&self, name: &str) -> Option<VolumeInfo>;
    /// Returns up to `most` snapshots with ids above `after`, by id.
    fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo>;
    /// Returns the snapshot of this name.
    fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo>;
    /// Returns the file that stands for a target.
    fn image(&self, target: Target) -> Option<ImageInfo>;
    /// Returns up to `most` volumes with ids above `after`, by id.
    fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)>;
    /// Returns up to `most` snapshots of a volume with ids above `after`, by id.
    fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)>;
    /// Returns up to `most` snapshots that a target can be compared with.
    fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)>;
    /// Returns the snapshot of this name that a target can be compared with.
    fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId>;
    /// Sets the size of the read cache.
    fn set_read_cache(&mut self, _size: ReadCacheSize) {}
    /// Describes its devices, for their labels.
    fn describe_devices(&mut self, _seen: Vec<DeviceNote>) {}
    /// Returns geometry and features of a target; `None` when there is no such target.
    fn geometry(&self, target: Target) -> Option<(Geometry, Features)>;
    /// Returns how many times the bytes that it moves a request to a target holds in memory, at most.
    fn memory_times(&self, _target: Target) -> u64 {
        1
    }
    /// Returns the pool of reusable buffers.
    fn buffers(&mut self) -> &mut BufPool;
}

impl Pool for Engine {
    fn expect(&mut self, target: Target, ranges: &[ByteRange]) {
        Engine::expect(self, target, ranges);
    }
    fn set_space(&mut self, device: DeviceSlot, space: DeviceSpace) {
        Engine::set_space(self, device, space);
    }
    fn set_short(&mut self, short: bool) {
        Engine::set_short(self, short);
    }
    fn label_generation(&self) -> Option<u64> {
        Engine::label_generation(self)
    }
    fn volumes_after(&self, after: Option<VolumeId>, most: usize) -> Vec<VolumeInfo> {
        Engine::volumes_after(self, after, most)
    }
    fn volume_of(&self, target: Target) -> Option<VolumeId> {
        Engine::volume_of(self, target)
    }
    fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        Engine::find_volume(self, name)
    }
    fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo> {
        Engine::snapshots_after(self, after, most)
    }
    fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo> {
        Engine::find_snapshot(self, volume, name)
    }
    fn image(&self, target: Target) -> Option<ImageInfo> {
        Engine::image(self, target)
    }
    fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)> {
        Engine::volume_images(self, after, most)
    }
    fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)> {
        Engine::snapshot_images(self, volume, after, most)
    }
    fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)> {
        Engine::older_states(self, target, most)
    }
    fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId> {
        Engine::older_state(self, target, name)
    }
    fn set_read_cache(&mut self, size: ReadCacheSize) {
        Engine::set_read_cache(self, size);
    }
    fn describe_devices(&mut self, seen: Vec<DeviceNote>) {
        Engine::describe_devices(self, seen);
    }
    fn geometry(&self, target: Target) -> Option<(Geometry, Features)> {
        Engine::geometry(self, target)
    }
    fn memory_times(&self, target: Target) -> u64 {
        Engine::memory_times(self, target)
    }
    fn buffers(&mut self) -> &mut BufPool {
        Engine::buffers(self)
    }
}
