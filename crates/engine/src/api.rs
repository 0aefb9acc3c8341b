//! Types of the engine's interface: commands, replies and errors. No logic.

mod bases;
mod bucket;
mod command;
mod keys;
mod listed;

use millpond_block::{ByteRange, DeviceGeometry, DeviceSlot, MemberId};

use crate::Whole;

pub use millpond_format::{Class, DeviceId, FeatureSet, Holder, Layout, Lsn, MemberState, PoolId, SnapshotId, VolumeId};

pub use self::bases::*;
pub use self::bucket::*;
pub use self::command::*;
pub use self::keys::*;
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
    /// True to turn on all features of the format that this version has, as
    /// [`TurnFeaturesOn`](DeviceCommand::TurnFeaturesOn) does: older versions cannot use the pool then.
    pub features: bool,
}

/// Specification of a group of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Class of the group.
    pub class: Class,
    /// Layout of its segments.
    pub layout: Layout,
    /// Number of devices, taken after those of the groups before it; `None`: all that are left. A
    /// bucket takes none.
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
    /// [`DeviceCommand::AddDevices`].
    Add {
        /// The class of the devices.
        groups: Vec<GroupSpec>,
        /// Sizes and sectors of the devices, in the order of the groups.
        devices: Vec<DeviceGeometry>,
    },
    /// [`DeviceCommand::Replace`].
    Replace {
        /// The member to be replaced.
        member: MemberId,
        /// Size and sectors of the new device.
        device: DeviceGeometry,
    },
}

/// The reply to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success without a result.
    Done,
    /// The new volume.
    Volume(VolumeId),
    /// The new base.
    Base(NewBase),
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
    /// Features that the command turned on. They are in force, and so are those that were on before.
    TurnedOn(FeatureSet),
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
