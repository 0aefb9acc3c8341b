//! Commands to a pool.

use millpond_block::{CacheMode, MemberId, SectorProfile};

use super::{BaseInfo, Compression, DeviceChange, GroupSpec, KeyCommand, NewDevice, Target, Wipe};
use crate::{SnapshotId, Time, VolumeId, VolumeOptions};

/// A command to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A change of the catalog.
    Catalog(CatalogCommand),
    /// A change of the devices.
    Devices(DeviceCommand),
    /// A change of the key table.
    Keys(KeyCommand),
    /// Starts, stops or limits a job.
    Job(JobCommand),
    /// A query that takes several turns.
    Query(QueryCommand),
    /// Closes the pool: stops accepting requests and writes a checkpoint.
    Close,
    /// Writes a checkpoint now.
    Checkpoint,
}

/// A change of the catalog. It is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogCommand {
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
    /// Creates a base: a read-only volume whose blocks are fetched when they are read, with one
    /// snapshot, [`BASE_SNAPSHOT`](crate::BASE_SNAPSHOT), for clones to start from. The pool needs the
    /// feature [`BASES`](millpond_format::BASES).
    CreateBase {
        /// Name without the pool's.
        name: String,
        /// Bytes, a multiple of 4096.
        size: u64,
        /// Sector sizes that guests of clones see.
        sector: SectorProfile,
        /// Compression of what was fetched, and of new data of clones.
        compression: Compression,
        /// The source of its blocks.
        source: BaseInfo,
    },
    /// Changes the place from which the blocks of a base are fetched. The caller has made sure that
    /// the same blocks are there. Fetches that are out keep the old place, and are passed out again
    /// if the caller gives them up.
    MoveBase {
        /// The base.
        volume: VolumeId,
        /// The new place, in the caller's words.
        source: String,
    },
    /// Removes a volume and all its snapshots. Refused while another volume is a clone of one of
    /// them.
    DestroyVolume {
        /// The volume.
        volume: VolumeId,
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
        /// Milliseconds in service for which they are locked: each gets a hold with the tag
        /// [`LOCK_TAG`](crate::LOCK_TAG) that cannot be released.
        lock_millis: Option<u64>,
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
}

/// A change of the devices of a pool. It is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCommand {
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
    /// Turns on every feature that the program knows and the pool lacks. Answered when every label
    /// names them. For the feature [`ENCRYPTION`](millpond_format::ENCRYPTION) every device gets an empty
    /// key table before that.
    TurnFeaturesOn,
}

/// Starts, stops or limits a job. It is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCommand {
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
}

/// Kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// Writes the data to a member that it lacks.
    Resilver,
    /// Writes a member's data to its replacement.
    Replace,
    /// Moves data off a member, to remove it.
    Remove,
    /// Makes segments of extents that a stopped removal has left without one.
    Rejoin,
    /// Evens out how full groups are.
    Rebalance,
    /// Makes data unreadable that nothing refers to.
    Wipe,
    /// Reads and checks all copies of everything.
    Scrub,
}

/// A query that takes several turns. It changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryCommand {
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
}

impl From<CatalogCommand> for Command {
    fn from(command: CatalogCommand) -> Command {
        Command::Catalog(command)
    }
}

impl From<DeviceCommand> for Command {
    fn from(command: DeviceCommand) -> Command {
        Command::Devices(command)
    }
}

impl From<KeyCommand> for Command {
    fn from(command: KeyCommand) -> Command {
        Command::Keys(command)
    }
}

impl From<JobCommand> for Command {
    fn from(command: JobCommand) -> Command {
        Command::Job(command)
    }
}

impl From<QueryCommand> for Command {
    fn from(command: QueryCommand) -> Command {
        Command::Query(command)
    }
}

impl JobCommand {
    /// Returns whether the command only reports what a job would do.
    pub fn is_dry_run(&self) -> bool {
        matches!(self, JobCommand::Rebalance { dry_run: true } | JobCommand::Wipe { dry_run: true, .. })
    }
}
