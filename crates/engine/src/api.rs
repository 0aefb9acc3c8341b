//! The engine's facade types: what a caller says and what it is told. No logic.

mod listed;

use millpond_block::{ByteRange, CacheMode, SectorProfile};
use millpond_device::DeviceGeometry;
pub use millpond_format::{Class, DeviceId, Holder, Layout, Lsn, MemberState, PoolId, SnapshotId, VolumeId};

pub use self::listed::*;
use crate::options::VolumeOptions;
use crate::pool::Target;

/// Milliseconds since the Unix epoch, handed in by the caller.
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

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Name, see `check_name`.
    pub name: String,
    /// Identity; from the caller's entropy.
    pub id: PoolId,
    /// What its devices are used for, in their order; the first is of the data class.
    pub groups: Vec<GroupSpec>,
    /// Bytes of a segment on one device (power of two, 64 KiB to 64 MiB); `None` chooses by size of the pool.
    pub extent_bytes: Option<u64>,
}

/// Devices that make up segments in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// What for.
    pub class: Class,
    /// How.
    pub layout: Layout,
    /// How many of the devices that the groups before it left; `None`: all.
    pub devices: Option<usize>,
}

impl GroupSpec {
    /// Data on all devices that are left.
    pub fn data(layout: Layout) -> GroupSpec {
        GroupSpec { class: Class::Data, layout, devices: None }
    }
}

/// A device that is no part of the pool yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Its position in the caller's vector.
    pub position: usize,
    /// Its size and sectors.
    pub geometry: DeviceGeometry,
}

/// A change of devices that is to be checked before the devices are made or opened.
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
        member: u16,
        /// Size and sectors of the new device.
        device: DeviceGeometry,
    },
}

/// A change to the catalog, or a job. Every one is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make a volume.
    CreateVolume {
        /// Name without the pool's.
        name: String,
        /// Bytes, a multiple of 4096.
        size: u64,
        /// What the guest sees.
        sector: SectorProfile,
        /// When writes are acknowledged.
        cache: CacheMode,
        /// Compression of new data.
        compression: Compression,
    },
    /// Remove a volume and all its snapshots. Refused while another volume is a clone of one of them.
    DestroyVolume {
        /// Which.
        volume: VolumeId,
    },
    /// Add devices. Their space can be used when it is answered.
    AddDevices {
        /// The class of the devices.
        groups: Vec<GroupSpec>,
        /// The devices, in the order of the groups.
        devices: Vec<NewDevice>,
    },
    /// Put a device in the place of a member. Answered when the copying has begun; see [`PoolInfo::jobs`].
    Replace {
        /// The member to be replaced.
        member: u16,
        /// The new device.
        device: NewDevice,
    },
    /// Only say whether devices could be changed so: the command is checked as the real one is. Changes nothing.
    CheckDevices(DeviceChange),
    /// Take a device out of the pool, with those that are of no use without it. Answered when the labels say so; see [`PoolInfo::jobs`]. It
    /// goes on after an import.
    Remove {
        /// The device.
        member: u16,
        /// Only say whether it can be.
        dry_run: bool,
    },
    /// Keep the device that is being taken out.
    StopRemoving,
    /// Read every copy of everything and mend what can be mended. Answered when it has begun; see [`PoolInfo::jobs`] and [`PoolInfo::scrub`]. It
    /// goes on after an import, about where it was.
    Scrub,
    /// End that where it is.
    StopScrub,
    /// Even out what groups of data hold. Answered with what they hold when it has begun, or when there is nothing to do; see
    /// [`PoolInfo::jobs`]. It goes on after an import.
    Rebalance {
        /// Only say what would move.
        dry_run: bool,
    },
    /// End that where it is.
    StopRebalance,
    /// Make sure that what nothing refers to any more cannot be read on the devices: of what was destroyed, overwritten or discarded before, and
    /// copies that were left behind. Answered when it has begun; see [`PoolInfo::jobs`]. After an import it begins anew, as when it is asked for again.
    Wipe {
        /// In which way.
        how: Wipe,
        /// Only say what it would move and overwrite.
        dry_run: bool,
    },
    /// End that where it is.
    StopWipe,
    /// Bytes per second that all jobs together may read, from now on and after every import.
    SetJobRate {
        /// 0: 64 MiB/s while guests are active, else as many as there are.
        rate: u64,
    },
    /// Give a volume another name.
    RenameVolume {
        /// Which.
        volume: VolumeId,
        /// The new name.
        name: String,
    },
    /// Grow or shrink; what is beyond a smaller size is discarded.
    ResizeVolume {
        /// Which.
        volume: VolumeId,
        /// Bytes, a multiple of 4096.
        size: u64,
    },
    /// Change properties; `None` leaves one as it is.
    SetProperties {
        /// Which.
        volume: VolumeId,
        /// Cache mode.
        cache: Option<CacheMode>,
        /// Compression of new data.
        compression: Option<Compression>,
        /// Refuse writes.
        read_only: Option<bool>,
    },
    /// Change what a volume may take and what is kept for it.
    SetOptions {
        /// Which.
        volume: VolumeId,
        /// All of it.
        options: VolumeOptions,
    },
    /// Find out which segments hold a volume's or snapshot's data. Changes nothing.
    Places {
        /// Which.
        target: Target,
    },
    /// Find out what of a volume or snapshot was lost with special devices. Changes nothing.
    Lost {
        /// Which.
        target: Target,
    },
    /// Find out how much of each volume, its snapshots included, came with writes of which size. Changes nothing, and reads all map nodes.
    Census,
    /// Change what the guest is told of sectors. Nothing of what is stored changes: who asks has converted it, and serves the volume to nobody.
    SetSector {
        /// Which.
        volume: VolumeId,
        /// What the guest sees.
        sector: SectorProfile,
    },
    /// Take snapshots of one or more volumes at one instant.
    Snapshot {
        /// Volume and snapshot name, each.
        targets: Vec<(VolumeId, String)>,
        /// Free text.
        description: String,
        /// When it may be removed by itself.
        expires: Option<Time>,
    },
    /// Remove snapshots; their space returns in the background. Those with clones or holds are refused. Up to 32 go at one instant; more go in
    /// pieces in the order given, so that a crash before the answer may leave the later ones.
    DestroySnapshots {
        /// Which.
        snapshots: Vec<SnapshotId>,
    },
    /// Give a snapshot another name.
    RenameSnapshot {
        /// Which.
        snapshot: SnapshotId,
        /// The new name.
        name: String,
    },
    /// Make the volume's head what the snapshot holds. Newer snapshots stay, the old head stays as snapshot `keep_as`.
    Rollback {
        /// To what.
        snapshot: SnapshotId,
        /// Name of the snapshot that keeps the old head.
        keep_as: String,
    },
    /// Make a writable volume on a snapshot.
    Clone {
        /// On what.
        snapshot: SnapshotId,
        /// Name of the new volume.
        name: String,
    },
    /// Make a clone independent: the snapshots that it starts from move to it, and the volume they belonged to becomes a clone of the last
    /// of them. No block is copied. Refused when both have a snapshot of one name.
    Promote {
        /// The clone.
        volume: VolumeId,
        /// Only say what would move.
        dry_run: bool,
    },
    /// Forbid the removal of a snapshot, at most until a time. Without a tag, counted; a tag that it is held with already is refused.
    Hold {
        /// Which.
        snapshot: SnapshotId,
        /// The name of the hold, up to 64 characters of those that names have.
        tag: Option<String>,
        /// Ends by itself then.
        until: Option<Time>,
        /// Nobody can release it before then; needs a tag and a time.
        locked: bool,
    },
    /// Take one hold back: the one with a tag, which may not be locked, or one without.
    Release {
        /// Which.
        snapshot: SnapshotId,
        /// Of which hold.
        tag: Option<String>,
    },
    /// Write a checkpoint and stop accepting requests: a clean shutdown.
    Close,
    /// Write a checkpoint now.
    Checkpoint,
}

/// The answer to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// The new volume.
    Volume(VolumeId),
    /// The new snapshots, in the order asked.
    Snapshots(Vec<SnapshotId>),
    /// Segments, by number.
    Places(Vec<SegmentPlace>),
    /// Ranges in order, neighbours joined.
    Lost(Vec<ByteRange>),
    /// By volume.
    Census(Census),
    /// What groups of data hold.
    Fills(Vec<GroupFill>),
    /// What a wipe moves and overwrites.
    Wipe(WipePlan),
    /// What a removal takes.
    Removal(RemovalPlan),
    /// Snapshots that a promotion moves.
    Promotion(PromotionPlan),
}

/// How bytes are made unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wipe {
    /// The devices are asked to discard them; what cannot is overwritten.
    Discard,
    /// They are overwritten with zeroes.
    Zero,
}

impl Wipe {
    /// As the pool remembers it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Wipe::Discard => 1,
            Wipe::Zero => 2,
        }
    }

    /// From what the pool remembers.
    pub(crate) fn of(code: u8) -> Option<Wipe> {
        match code {
            0 => None,
            1 => Some(Wipe::Discard),
            _ => Some(Wipe::Zero),
        }
    }
}

/// Snapshots that a promotion moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionPlan {
    /// The volume that becomes a clone of the last of these.
    pub from: VolumeId,
    /// Snapshots that move, by id. Those that were destroyed and are still needed move, too, and are not listed.
    pub snapshots: Vec<SnapshotId>,
    /// Bytes of data that they are charged with. Exact without compression; else shared out in proportion to blocks.
    pub bytes: u64,
}

/// What the removal of a device takes, as far as is known before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalPlan {
    /// Bytes that live in segments with a part on the device: they move.
    pub moved: u64,
    /// Members that leave with it: too few of them stay for their layout.
    pub others: Vec<u16>,
    /// The others have no room for all of it at once: some of it moves more than once.
    pub in_steps: bool,
    /// Bytes per second that jobs have while guests are active.
    pub rate: u64,
}

/// What a wipe does, as far as is known when it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WipePlan {
    /// Bytes that live beside what is wiped, and are moved.
    pub moved: u64,
    /// Bytes that are overwritten or discarded, on each copy.
    pub erased: u64,
}

/// Sizes of writes that are told apart, in bytes: those worth a choice of `special_small_blocks`.
pub const WRITE_SIZES: [u64; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// What a volume and its snapshots hold. A block counts whole, as special devices keep it, and once, however many versions have it; of clones, what was
/// written since they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeCensus {
    /// Which; one that was destroyed while clones still hold something of it is not listed any more.
    pub volume: VolumeId,
    /// Bytes by the size of the write that they came with: up to each of [`WRITE_SIZES`], but above the one before; and larger.
    pub sizes: [u64; WRITE_SIZES.len() + 1],
    /// Bytes of these on special devices.
    pub special: u64,
}

/// What a pool holds, by size of writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Volumes that hold something.
    pub volumes: Vec<VolumeCensus>,
    /// Bytes of map nodes.
    pub nodes: u64,
    /// Bytes of checkpoint objects.
    pub objects: u64,
    /// Bytes of the segments on special devices for small writes, and, where those below are none, for nodes.
    pub special: u64,
    /// Bytes of those for nodes and objects alone.
    pub special_nodes: u64,
}

/// How full a group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFill {
    /// Members that it is made of.
    pub members: Vec<u16>,
    /// Bytes of its segments.
    pub size: u64,
    /// Bytes of those in use.
    pub allocated: u64,
    /// Bytes of these above its share of what all groups hold, when that is worth moving.
    pub surplus: u64,
}

/// A segment that holds data of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    /// Its number.
    pub segment: u32,
    /// What it is used for.
    pub class: Class,
    /// Bytes of the volume's or snapshot's blocks in it, as stored; of one that is on several devices, once.
    pub live_bytes: u64,
    /// What it is made of.
    pub extents: Vec<ExtentPlace>,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPlace {
    /// The device that it is on.
    pub member: u16,
    /// Where.
    pub range: ByteRange,
    /// Bytes of the volume's or snapshot's blocks in it; each copy counts.
    pub live_bytes: u64,
}

/// Why a [`Command`] was refused or failed. Display is one line: what, why, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The name is taken.
    #[error("'{0}' exists already; choose another name")]
    Exists(String),
    /// No such thing.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The words or numbers are not acceptable.
    #[error("{0}")]
    Invalid(String),
    /// Something else needs it.
    #[error("{0}")]
    Busy(String),
    /// Out of space.
    #[error("the pool is full; destroy snapshots, discard data or add a device")]
    NoSpace,
    /// The pool stopped after a fault.
    #[error("the pool is stopped: {0}; export and import it again once the cause is mended")]
    Faulted(String),
}
