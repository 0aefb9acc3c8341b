//! Types of the engine's interface: commands, replies and errors. No logic.

mod listed;

use millpond_block::{ByteRange, CacheMode, DeviceGeometry, DeviceSlot, MemberId, SectorProfile};

use crate::{VolumeOptions, Whole};

pub use millpond_format::{Class, DeviceId, Holder, Layout, Lsn, MemberState, PoolId, SnapshotId, VolumeId};

pub use self::listed::*;

/// Milliseconds since the Unix epoch, supplied by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

/// Compression of new data of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Stored as written.
    #[default]
    Off,
    /// LZ4: fast.
    Lz4,
    /// Zstandard level 1: denser.
    Zstd,
}

/// Specification of a new pool.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Name, see `check_name`.
    pub name: String,
    /// Identity; from the caller's source of entropy.
    pub id: PoolId,
    /// Groups that the devices form, in their order; the first is of the data class.
    pub groups: Vec<GroupSpec>,
    /// Bytes of an extent (power of two, 64 KiB to 64 MiB); `None` chooses by the size of the pool.
    pub extent_bytes: Option<u64>,
}

/// Specification of a group of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Class of the group.
    pub class: Class,
    /// Layout of its segments.
    pub layout: Layout,
    /// Number of devices, taken after those of the groups before it; `None`: all that are left.
    pub devices: Option<usize>,
}

/// A restore point of a pool: a root and its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePoint {
    /// Generation of the root.
    pub id: u64,
    /// Time at which its checkpoint was begun.
    pub time: Time,
    /// An older root on the devices names the same checkpoint: this root was written by an import,
    /// which replayed the log after it.
    pub again: bool,
    /// Last batch of the log that the checkpoint contains.
    pub lsn: Lsn,
    /// Number of readable copies of the root.
    pub copies: u32,
    /// Whether all of its data still exists.
    pub whole: Whole,
    /// Bytes that guests had ever written to the pool; `None` when the checkpoint cannot be read.
    pub written: Option<u64>,
}

/// The object that a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The writable head of a volume.
    Head(VolumeId),
    /// A snapshot; read-only.
    Snapshot(SnapshotId),
}

impl RestorePoint {
    /// Returns whether an import may go back to it without the log. Where [`Self::whole`] is
    /// unknown it may: reads verify checksums.
    pub fn is_usable(&self) -> bool {
        matches!(self.whole, Whole::Yes | Whole::Unknown(_))
    }

    /// Returns whether an import may start from it, with the log after it as far as it is sound.
    pub fn is_start(&self) -> bool {
        !matches!(self.whole, Whole::No(_))
    }
}

impl GroupSpec {
    /// Returns a data group on all devices that are left.
    pub fn data(layout: Layout) -> GroupSpec {
        GroupSpec { class: Class::Data, layout, devices: None }
    }
}

/// A device that is not part of the pool yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Its slot in the caller's table.
    pub slot: DeviceSlot,
    /// Its size and sectors.
    pub geometry: DeviceGeometry,
}

/// A change of devices, to be checked before the devices are created or opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// [`Command::AddDevices`].
    Add {
        /// The class of the devices.
        groups: Vec<GroupSpec>,
        /// Sizes and sectors of the devices, in the order of the groups.
        devices: Vec<DeviceGeometry>,
    },
    /// [`Command::Replace`].
    Replace {
        /// The member to be replaced.
        member: MemberId,
        /// Size and sectors of the new device.
        device: DeviceGeometry,
    },
}

/// A change to the catalog, or a job. Each is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates a volume.
    CreateVolume {
        /// Name without the pool's.
        name: String,
        /// Bytes, a multiple of 4096.
        size: u64,
        /// Sector sizes that the guest sees.
        sector: SectorProfile,
        /// When writes are acknowledged.
        cache: CacheMode,
        /// Compression of new data.
        compression: Compression,
    },
    /// Removes a volume and all its snapshots. Refused while another volume is a clone of one of
    /// them.
    DestroyVolume {
        /// The volume.
        volume: VolumeId,
    },
    /// Adds devices. Their space is usable when the command is answered.
    AddDevices {
        /// The class of the devices.
        groups: Vec<GroupSpec>,
        /// The devices, in the order of the groups.
        devices: Vec<NewDevice>,
    },
    /// Replaces a member's device. Answered when copying has begun; see [`PoolInfo::jobs`].
    Replace {
        /// The member to be replaced.
        member: MemberId,
        /// The new device.
        device: NewDevice,
    },
    /// Checks a change of devices as the real command does, without changing anything.
    CheckDevices(DeviceChange),
    /// Removes a device from the pool, with those that cannot be used without it. Answered when the
    /// labels record it; see [`PoolInfo::jobs`]. Continues after an import.
    Remove {
        /// The member to be removed.
        member: MemberId,
        /// Only return what the removal would take.
        dry_run: bool,
    },
    /// Cancels the removal of a device.
    StopRemoving,
    /// Reads every copy of all data and repairs wrong ones. Answered when it has begun; see
    /// [`PoolInfo::jobs`] and [`PoolInfo::scrub`]. Continues after an import, about where it was.
    Scrub,
    /// Stops a scrub.
    StopScrub,
    /// Evens out how full data groups are. Answered with their fill when it has begun, or when
    /// there is nothing to do; see [`PoolInfo::jobs`]. Continues after an import.
    Rebalance {
        /// Only return what would move.
        dry_run: bool,
    },
    /// Stops a rebalance.
    StopRebalance,
    /// Makes unreferenced data unreadable on the devices: data that was destroyed, overwritten or
    /// discarded before, and old copies of moved data. Answered when it has begun; see
    /// [`PoolInfo::jobs`]. Starts over after an import, and when it is requested again.
    Wipe {
        /// The method.
        how: Wipe,
        /// Only return what would be moved and overwritten.
        dry_run: bool,
    },
    /// Stops a wipe.
    StopWipe,
    /// Sets the bytes per second that all jobs together may read, from now on and after every
    /// import.
    SetJobRate {
        /// 0: 64 MiB/s while guests are active, else unlimited.
        rate: u64,
    },
    /// Renames a volume.
    RenameVolume {
        /// The volume.
        volume: VolumeId,
        /// The new name.
        name: String,
    },
    /// Grows or shrinks a volume; data beyond a smaller size is discarded.
    ResizeVolume {
        /// The volume.
        volume: VolumeId,
        /// Bytes, a multiple of 4096.
        size: u64,
    },
    /// Changes properties; `None` leaves one as it is.
    SetProperties {
        /// The volume.
        volume: VolumeId,
        /// Cache mode.
        cache: Option<CacheMode>,
        /// Compression of new data.
        compression: Option<Compression>,
        /// Whether writes are refused.
        read_only: Option<bool>,
    },
    /// Changes the options of a volume.
    SetOptions {
        /// The volume.
        volume: VolumeId,
        /// The new options, all of them.
        options: VolumeOptions,
    },
    /// Finds the segments that hold a volume's or snapshot's data. Changes nothing.
    Places {
        /// The volume or snapshot.
        target: Target,
    },
    /// Finds the data of a volume or snapshot that was lost with special devices. Changes nothing.
    Lost {
        /// The volume or snapshot.
        target: Target,
    },
    /// Counts how much of each volume, with its snapshots, was written by requests of which size.
    /// Changes nothing, and reads all map nodes.
    WriteSizes,
    /// Changes the sector sizes that the guest sees. Stored data does not change: the caller has
    /// converted it, and exports the volume to no client.
    SetSector {
        /// The volume.
        volume: VolumeId,
        /// The new sector sizes.
        sector: SectorProfile,
    },
    /// Takes snapshots of one or more volumes at one instant.
    Snapshot {
        /// Volumes, each with the name of its snapshot.
        targets: Vec<(VolumeId, String)>,
        /// Free text.
        description: String,
        /// Time after which the caller may remove them automatically.
        expires: Option<Time>,
    },
    /// Destroys snapshots; their space is released in the background. Those with clones or holds
    /// are refused. Up to 32 are destroyed at one instant; more are destroyed in parts in the given
    /// order, so that after a crash before the answer the later ones may still exist.
    DestroySnapshots {
        /// The snapshots.
        snapshots: Vec<SnapshotId>,
    },
    /// Renames a snapshot.
    RenameSnapshot {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The new name.
        name: String,
    },
    /// Rolls a volume's head back to a snapshot. Newer snapshots stay, and the old head is kept as
    /// snapshot `keep_as`.
    Rollback {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Name of the snapshot that keeps the old head.
        keep_as: String,
    },
    /// Creates a writable volume from a snapshot.
    Clone {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Name of the new volume.
        name: String,
    },
    /// Makes a clone independent: its origin snapshot and those before it move to the clone, and
    /// the volume that they belonged to becomes a clone of the last of them. No block is copied.
    /// Refused when both volumes have snapshots of the same name.
    Promote {
        /// The clone.
        volume: VolumeId,
        /// Only return what would move.
        dry_run: bool,
    },
    /// Holds a snapshot, so that it cannot be destroyed, at most until a time. Holds without a tag
    /// are counted; a tag that the snapshot is held with already is refused.
    Hold {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Tag of the hold: up to 64 of the characters that names may have.
        tag: Option<String>,
        /// Time at which the hold expires.
        until: Option<Time>,
        /// A lock: the hold cannot be released before its time; needs a tag and a time.
        locked: bool,
    },
    /// Releases one hold: the one with a tag, which must not be a lock in force, or one without a
    /// tag.
    Release {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Tag of the hold.
        tag: Option<String>,
    },
    /// Closes the pool: stops accepting requests and writes a checkpoint.
    Close,
    /// Writes a checkpoint now.
    Checkpoint,
}

/// The reply to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success without a result.
    Done,
    /// The new volume.
    Volume(VolumeId),
    /// The new snapshots, in the order of the command.
    Snapshots(Vec<SnapshotId>),
    /// Segments with data of the target, by number.
    Places(Vec<SegmentPlace>),
    /// Lost ranges in order, neighbours joined.
    Lost(Vec<ByteRange>),
    /// Bytes by volume and size of write.
    WriteSizes(WriteSizes),
    /// Fill of the data groups.
    Fills(Vec<GroupFill>),
    /// Amount that a wipe moves and overwrites.
    Wipe(WipePlan),
    /// Cost of a removal.
    Removal(RemovalPlan),
    /// Snapshots that a promotion moves.
    Promotion(PromotionPlan),
}

/// The method of a wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wipe {
    /// Devices are asked to discard; a device that cannot is overwritten.
    Discard,
    /// Devices are overwritten with zeroes.
    Zero,
}

impl Wipe {
    /// Returns the code in the catalog.
    pub(crate) fn code(self) -> u8 {
        match self {
            Wipe::Discard => 1,
            Wipe::Zero => 2,
        }
    }

    /// Decodes the code in the catalog.
    pub(crate) fn of(code: u8) -> Option<Wipe> {
        match code {
            0 => None,
            1 => Some(Wipe::Discard),
            _ => Some(Wipe::Zero),
        }
    }
}

/// The snapshots that a promotion moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionPlan {
    /// The volume that becomes a clone of the last of these.
    pub from: VolumeId,
    /// Snapshots that move, by id. Hidden snapshots (destroyed, but still needed by a clone) move
    /// too, and are not listed.
    pub snapshots: Vec<SnapshotId>,
    /// Bytes of data that are charged to them. Exact without compression; else distributed in
    /// proportion to blocks.
    pub bytes: u64,
}

/// The cost of removing a device, as far as it is known before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalPlan {
    /// Live bytes in segments with a part on the device: they move.
    pub moved: u64,
    /// Members that are removed with it, because too few of them stay for their layout.
    pub others: Vec<MemberId>,
    /// The other devices have no room for all of the data at once, so some of it moves more than
    /// once.
    pub in_steps: bool,
    /// Bytes per second of jobs while guests are active.
    pub rate: u64,
}

/// The cost of a wipe, as far as it is known when it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WipePlan {
    /// Live bytes beside wiped data, which are moved.
    pub moved: u64,
    /// Bytes that are overwritten or discarded, on each copy.
    pub erased: u64,
}

/// Classes of write sizes in bytes: the useful values of `special_small_blocks`.
pub const WRITE_SIZES: [u64; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// Write sizes of a volume and its snapshots. A block counts 4 KiB, as it is stored on special devices,
/// and once, however many versions share it; for clones only blocks written since they were created
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeCensus {
    /// The volume. One that was destroyed while clones still need its blocks is not listed.
    pub volume: VolumeId,
    /// Bytes by the size of the write that wrote them: up to each of [`WRITE_SIZES`], but above the
    /// one before; and larger.
    pub sizes: [u64; WRITE_SIZES.len() + 1],
    /// Of these, bytes on special devices.
    pub special: u64,
}

/// Write sizes of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteSizes {
    /// Volumes with data.
    pub volumes: Vec<VolumeCensus>,
    /// Bytes of map nodes.
    pub nodes: u64,
    /// Bytes of checkpoint objects.
    pub objects: u64,
    /// Bytes of segments on special devices for small writes; also for nodes, if `special_nodes` is
    /// 0.
    pub special: u64,
    /// Bytes of segments on special devices for nodes and objects only.
    pub special_nodes: u64,
}

/// Fill of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFill {
    /// Members of the group.
    pub members: Vec<MemberId>,
    /// Bytes of its segments.
    pub size: u64,
    /// Bytes of segments in use.
    pub allocated: u64,
    /// Of these, bytes above its share of all groups' data, if that is worth moving.
    pub surplus: u64,
}

/// A segment that holds data of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    /// Number of the segment.
    pub segment: u32,
    /// Class of its group.
    pub class: Class,
    /// Bytes of the volume's or snapshot's blocks in it, as stored; replicas count once.
    pub live_bytes: u64,
    /// Its extents.
    pub extents: Vec<ExtentPlace>,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPlace {
    /// The member that it is on.
    pub member: MemberId,
    /// Byte range on the device.
    pub range: ByteRange,
    /// Bytes of the volume's or snapshot's blocks in it; each replica counts.
    pub live_bytes: u64,
}
