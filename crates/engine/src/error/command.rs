//! Reasons why a command is refused or fails.

use millpond_block::{DiskError, MemberId};
use millpond_format::{MAX_BUCKET_SEGMENTS, MAX_COPIES, MAX_DEVICES, MAX_PARITY_WIDTH, Term};

use super::fault::Fault;

/// Reason why a [`Command`](crate::Command) was refused or failed; the variant is the kind, from
/// the caller's point of view. `Display` is one line: the subject and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The name exists already. The user chooses another.
    #[error("'{0}' exists already; choose another name")]
    Exists(String),
    /// The object does not exist.
    #[error("{0} does not exist")]
    NotFound(Absent),
    /// An argument is not acceptable in any state of the pool, or not in this one.
    #[error("{0}")]
    Invalid(Invalid),
    /// The object is in use, or another change is in progress. The same command may succeed later.
    #[error("{0}")]
    Busy(Busy),
    /// Out of space. The user frees or adds some.
    #[error("the pool is full; destroy snapshots, discard data or add a device")]
    NoSpace,
    /// A map node that the command needs could not be read from any copy. The pool is in service;
    /// the user repairs its devices and scrubs it.
    #[error("a map node cannot be read on any device")]
    NodeUnreadable,
    /// A request that the command made failed; the pool is in service.
    #[error("the command could not be carried out: {0}")]
    Request(DiskError),
    /// The pool is stopped, for this reason.
    #[error("the pool is stopped: {0}")]
    Faulted(Fault),
}

/// The object of a command that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// A device of the pool, by its number in the labels.
    #[error("member {0}")]
    Member(MemberId),
    /// The volume.
    #[error("the volume")]
    Volume,
    /// The snapshot.
    #[error("the snapshot")]
    Snapshot,
    /// The volume or snapshot that is read.
    #[error("the volume or snapshot")]
    Target,
    /// A version of a comparison.
    #[error("one of the two")]
    Version,
    /// A removal to stop.
    #[error("a removal")]
    Removal,
    /// A wipe to stop.
    #[error("a wipe")]
    Wipe,
    /// A scrub to stop.
    #[error("a scrub")]
    Scrub,
    /// A rebalance to stop.
    #[error("a rebalance")]
    Rebalance,
    /// A key, or a wrap of a key.
    #[error("the key")]
    Key,
}

/// Reason of [`CommandError::Busy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// The import has not ended. The user tries again.
    #[error("the pool is still being opened; try again when it is online")]
    Opening,
    /// The pool is being closed. The user imports it again.
    #[error("the pool is being closed")]
    Closing,
    /// The pool was imported without leave to write. The user imports it again.
    #[error("the pool is imported read-only")]
    ReadOnly,
    /// A device is being removed, which has planned the shape of the pool. The user waits for the
    /// removal or stops it.
    #[error("a device is being removed")]
    Removing,
    /// A device is being removed, and data cannot be evened out meanwhile. The user waits.
    #[error("a device is being removed")]
    RemovingBeforeRebalance,
    /// Labels are being written. The user tries again.
    #[error("devices are just being changed; try again")]
    Relabeling,
    /// The import could not write a copy of the label of a device, and the pool would stop if it
    /// failed again. The user replaces the device.
    #[error("a copy of the label of member {0} cannot be written")]
    LabelUnwritten(MemberId),
    /// A device is being filled, replaced or removed. The user waits for that.
    #[error("devices are just being changed")]
    DevicesChanging,
    /// The device has a replacement that is being filled. The user waits for that.
    #[error("this device is being replaced already")]
    Replacing,
    /// A scrub runs. The user waits for it or stops it.
    #[error("a scrub is running")]
    Scrubbing,
    /// A rebalance runs. The user waits for it or stops it.
    #[error("a rebalance is running")]
    Rebalancing,
    /// A wipe would miss copies on cache devices. The user removes them first.
    #[error("the pool has a cache, which may hold copies")]
    HasCache,
    /// A wipe would miss data on an absent device. The user brings it back or replaces it.
    #[error("a device is missing or being filled, and could not be wiped")]
    DeviceMissing,
    /// Data that an earlier shrink cut off is still there, and must not appear again. The user
    /// repairs the cause and tries again.
    #[error("what lies beyond the volume's end cannot be discarded ({0}), so it cannot grow")]
    Untrimmed(DiskError),
    /// A promotion would give two snapshots of a volume one name. The user renames them.
    #[error("both volumes have snapshots named {}{}; rename one of each first", quoted(.names), if *.more { " and others" } else { "" })]
    SnapshotNames {
        /// The first of the names.
        names: Vec<String>,
        /// There are others.
        more: bool,
    },
    /// A snapshot has clones. The user destroys or promotes them.
    #[error("snapshot '{snapshot}'{} has clones; destroy or promote them first", if *.hidden { ", which was destroyed," } else { "" })]
    HasClones {
        /// Name of the snapshot.
        snapshot: String,
        /// It was destroyed before, and exists for its clones.
        hidden: bool,
    },
    /// A key may be in a page of the key table that is damaged on all devices in service. The user brings
    /// back those that are missing.
    #[error("part of the key table is damaged on all devices in service, and the key may be there; bring back devices that are missing")]
    KeysUnknown,
    /// The volume is a base, which cannot be changed. The user changes a clone of it.
    #[error("this volume is the base of clones of a publication, and cannot be changed; change a clone of it")]
    Base,
    /// A snapshot is held. The user releases it.
    #[error("snapshot '{snapshot}' is held; release it first")]
    Held {
        /// Name of the snapshot.
        snapshot: String,
    },
}

/// Reason of [`CommandError::Invalid`]. `device` is a position in the list of the command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The pool lacks the feature. The user upgrades it.
    #[error("the pool lacks the feature 'bases'")]
    NoBases,
    /// The pool lacks the feature. The user upgrades it.
    #[error("the pool lacks the feature 'encryption'")]
    NoEncryption,
    /// A key that the pool has already: an error of the caller.
    #[error("the pool has this key already")]
    KeyExists,
    /// A wrap with a field that no key table holds: an error of the caller.
    #[error("a key table cannot hold such a key")]
    KeyWrap,
    /// No page of the key table has room. The user removes secrets that are not used any more.
    #[error("the key table is full; remove secrets that are not used any more")]
    KeyTableFull,
    /// The last wrap of a key. The user adds another one first, or erases the key.
    #[error("this is the last secret of the key; add another one first")]
    LastWrap,
    /// A base fetches too much or too little at a time, or its source is too long: an error of the
    /// caller.
    #[error("a base fetches 4 KiB to 4 MiB at a time, a power of two, and names its source in at most 4,096 bytes")]
    Base,
    /// The volume has blocks of its own, and no place to fetch them from. The user names a base.
    #[error("this volume is no base: it fetches nothing")]
    NotBase,
    /// A name or tag that is not possible. The user chooses another.
    #[error("'{name}' is not a name: {flaw}")]
    Name {
        /// The name.
        name: String,
        /// The rule that it breaks.
        flaw: NameFlaw,
    },
    /// A name that does not fit into a label.
    #[error("'{0}' is too long for a pool; use up to 64 characters")]
    PoolName(String),
    /// No device, or more than a label lists.
    #[error("a pool has 1 to {MAX_DEVICES} devices, not {0}")]
    DeviceCount(usize),
    /// The first group is for something else than data.
    #[error("a pool begins with devices for data; name them first")]
    NoDataGroup,
    /// A group without a device.
    #[error("a group has no device; name one at least for each")]
    EmptyGroup,
    /// Devices after those of the last group.
    #[error("there are more devices than the groups take")]
    DevicesLeft,
    /// The shape of a new pool does not fit into a label.
    #[error("so many devices and groups do not fit into a label; use fewer")]
    LabelFull,
    /// The shape with the added devices does not fit into a label.
    #[error("so many devices and groups do not fit into a label; replace devices by larger ones instead")]
    LabelFullOfGroups,
    /// An extent size that is not possible.
    #[error("extents of {0} bytes are not possible; use a power of two from 64k to 64M")]
    ExtentBytes(u64),
    /// An extent size that no object has.
    #[error("extents of {0} bytes are not possible with a bucket; use a power of two from 64k to 16M")]
    BucketExtentBytes(u64),
    /// A bucket for something else than data.
    #[error("a bucket is for data")]
    BucketClass,
    /// A number of segments that no bucket has.
    #[error("a bucket of {0} segments is not possible; use 1 to {MAX_BUCKET_SEGMENTS}")]
    BucketSegments(u32),
    /// A bucket without devices for a log.
    #[error("a bucket takes no small writes; name devices for the log, too")]
    BucketWithoutLog,
    /// The state of a bucket, for a pool without one: an error of the caller.
    #[error("the pool has no bucket")]
    NoBucket,
    /// A term that is not later than those of all imports before, or another one than this import has
    /// taken. The caller takes a later one, for a new import.
    #[error("term {term} is not possible: the pool has term {recorded}")]
    BucketTerm {
        /// The term.
        term: Term,
        /// The term that the pool has.
        recorded: Term,
    },
    /// Data on devices of a pool with a bucket.
    #[error("a pool has its data in a bucket or on devices, not in both; use the devices for the log")]
    DataBesideBucket,
    /// Too few segments for the cleaner to have a choice.
    #[error("the devices for data hold {segments} segments of {} KiB on each; {least} are needed: use larger devices", .extent_bytes >> 10)]
    FewSegments {
        /// Number of segments.
        segments: usize,
        /// Bytes of an extent.
        extent_bytes: u64,
        /// Fewest segments of a pool.
        least: usize,
    },
    /// Too few segments for the log.
    #[error("the devices are too small")]
    DevicesTooSmall,
    /// A device without space for one extent.
    #[error("device {device} is too small; it needs {} KiB at least", .least_bytes >> 10)]
    DeviceTooSmall {
        /// The device.
        device: usize,
        /// Bytes that it needs.
        least_bytes: u64,
    },
    /// A device without space for the data of the device that it replaces.
    #[error("the new device is too small; it needs {} MiB", .0 >> 20)]
    ReplacementTooSmall(u64),
    /// A device without space for one extent, for the cache or as a spare.
    #[error("the new device is too small; use a larger one")]
    AuxiliaryTooSmall,
    /// A cache with a layout.
    #[error("a cache has no layout")]
    CacheLayout,
    /// Spares with a layout.
    #[error("spares have no layout")]
    SpareLayout,
    /// A stripe unit that is not possible.
    #[error("a stripe unit of {0} bytes is not possible; use a power of two from 4k")]
    StripeUnit(u32),
    /// A mirror with fewer devices than copies.
    #[error("{copies} copies need {copies} devices, not {devices}; name more")]
    MirrorDevices {
        /// Copies of everything.
        copies: u16,
        /// Devices of the group.
        devices: u16,
    },
    /// A number of copies that is not possible.
    #[error("a mirror of {0} copies is not possible; use 2 to {MAX_COPIES}")]
    MirrorCopies(u16),
    /// A number of parity blocks that is not possible.
    #[error("parity of {0} is not possible; use 1 or 2")]
    Parity(u8),
    /// Parity for something else than data.
    #[error("parity{0} is for data; use a mirror for small writes")]
    ParityClass(u8),
    /// Too few or too many devices for parity.
    #[error("parity{parity} needs {} to {MAX_PARITY_WIDTH} devices, not {devices}", .parity + 2)]
    ParityDevices {
        /// Parity blocks of a stripe.
        parity: u8,
        /// Devices of the group.
        devices: u16,
    },
    /// A removal that would leave no pool.
    #[error("the pool needs this device: nothing would be left, or it could not be told in a label")]
    DeviceNeeded,
    /// A removal whose data has no space on the other devices.
    #[error(
        "what is on this device does not fit on the others: {} MiB more are needed; add a device or destroy something first",
        .lacking_bytes.div_ceil(1 << 20)
    )]
    NoSpaceElsewhere {
        /// Bytes that the others lack.
        lacking_bytes: u64,
    },
    /// A removal that cannot move a part at a time either.
    #[error("too little is free, so there is no room to move to; add a device or destroy something first")]
    NoRoomToMove,
    /// A rate of jobs that would never end them.
    #[error("{0} bytes per second are too few for jobs; give 64k or more, or none")]
    JobRate(u64),
    /// A command with more names than a batch of the log takes.
    #[error("that many names do not fit into a segment of this pool; take fewer at a time")]
    TooManyNames,
    /// A size that no volume can have.
    #[error("{0} bytes is not a volume size; use a multiple of 4096 up to 64 PiB")]
    VolumeSize(u64),
    /// A promotion of a volume that was not cloned.
    #[error("it is not a clone: no snapshot has to stay for it")]
    NotAClone,
    /// A snapshot of no volume or of too many, or too long a description.
    #[error("a group snapshot takes 1 to {most} volumes and a description of up to {most_description} bytes")]
    GroupSnapshot {
        /// Most volumes.
        most: usize,
        /// Most bytes of a description.
        most_description: usize,
    },
    /// A volume twice in one group snapshot.
    #[error("a volume can be in a group snapshot only once")]
    TwiceInGroup,
    /// One hold more than a snapshot can have.
    #[error("the snapshot has {0} holds, and can have no more; release some")]
    TooManyHolds(usize),
    /// A tag of too many bytes.
    #[error("the tag has {length} characters; use at most {most}")]
    TagTooLong {
        /// Its bytes.
        length: usize,
        /// Most bytes of a tag.
        most: usize,
    },
    /// A tag that another hold of the snapshot has.
    #[error("it is held with tag '{0}' already; choose another tag, or release that one first")]
    TagTaken(String),
    /// A lock without a tag.
    #[error("a lock needs a tag")]
    LockWithoutTag,
    /// A lock without an end.
    #[error("a lock needs a time when it ends")]
    LockWithoutEnd,
    /// A lock that is too long. The user gives a shorter one.
    #[error("a lock lasts {most_days} days at most")]
    LockTooLong {
        /// Longest lock in days.
        most_days: u64,
    },
    /// A release of a hold that is not there.
    #[error("the snapshot has no hold {}", .0.as_ref().map_or_else(|| "without a tag".to_owned(), |tag| format!("with tag '{tag}'")))]
    NoHold(Option<String>),
    /// A release of a lock before its end.
    #[error("'{0}' is a lock, and its time has not come")]
    Locked(String),
    /// The program around the engine refused the command, for this reason. See there.
    #[error("{0}")]
    Caller(String),
}

/// The rule that a name breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFlaw {
    /// It is empty or too long.
    #[error("use 1 to 255 characters")]
    Length,
    /// It has a character that names may not have.
    #[error("'{0}' is not allowed (letters, digits, . _ : - are)")]
    Character(char),
    /// It begins with a character that names may not begin with.
    #[error("begin with a letter, a digit or _")]
    Start,
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}
