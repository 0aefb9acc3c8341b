//! Reasons why a pool is not opened.

use std::fmt;

use millpond_block::{DeviceError, DeviceSlot, MemberId};
use millpond_format::{Addr, FormatError, Lsn, PoolId, Unknown};

use super::damage::Damage;

/// Reason why an import was refused or failed, or why restore points cannot be listed. Nothing was
/// lost by it: devices are as they were, or hold the state that they held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    /// The reason.
    pub kind: OpenErrorKind,
    /// The devices that did not answer.
    pub unanswered: Vec<DeviceSlot>,
    /// A device failed a read of the import: what it holds may be sound, and readable again once the
    /// user has repaired the device.
    pub unreadable: bool,
    /// The import was to go back to the newest whole checkpoint, and had chosen one: the user may
    /// choose an older one.
    pub went_back: bool,
}

impl From<OpenErrorKind> for OpenError {
    fn from(kind: OpenErrorKind) -> OpenError {
        OpenError { kind, unanswered: Vec::new(), unreadable: false, went_back: false }
    }
}

impl OpenError {
    /// Returns the line about the devices that did not answer, unless the reason is about them.
    pub fn silence(&self) -> Option<String> {
        let named = matches!(self.kind, OpenErrorKind::NoAnswer { .. } | OpenErrorKind::NoLabel { why: Unlabelled::Silent, .. });
        (!named && !self.unanswered.is_empty()).then(|| format!("no answer from {}", device_list(&self.unanswered)))
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        self.silence().map_or(Ok(()), |silence| write!(f, "; {silence}"))
    }
}

impl std::error::Error for OpenError {}

/// Kinds of [`OpenError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenErrorKind {
    /// No device has space for labels. The user names other devices.
    #[error("no device is large enough to hold a pool")]
    TooSmall,
    /// A device has no usable label, and no missing cache device or spare explains it. The user
    /// leaves it out, or checks it where it could not be read.
    #[error("device {device} {why}")]
    NoLabel {
        /// The device.
        device: DeviceSlot,
        /// The flaw of its label.
        why: Unlabelled,
    },
    /// The pool has features that a program has to know to write to it. The user imports it
    /// read-only, or uses a newer program.
    #[error("pool '{pool}' can only be read by this program: writing needs {unknown}")]
    OnlyReadable {
        /// Name of the pool.
        pool: String,
        /// The features.
        unknown: Unknown,
    },
    /// Devices of several pools were given. The user names those of one.
    #[error("device {device} belongs to pool '{pool}' ({id}), not to '{wanted}' ({wanted_id})")]
    OtherPool {
        /// The device.
        device: DeviceSlot,
        /// Name of its pool.
        pool: String,
        /// Identity of its pool.
        id: PoolId,
        /// Name of the pool of the first device.
        wanted: String,
        /// Identity of the pool of the first device.
        wanted_id: PoolId,
    },
    /// Only cache devices were given, whose labels never decide. The user names the others too.
    #[error("only devices of the pool's cache were given; name the others too")]
    OnlyCache,
    /// A label has the generation of the newest one and other content: the pool was written to on
    /// both sides apart, or power failed between writes of labels. The user leaves one side out.
    #[error("the label of device {device} contradicts the others: it was written to without them; leave it out or leave them out")]
    Contradicts {
        /// The device.
        device: DeviceSlot,
    },
    /// The pool was in service with and without this device, apart. The user leaves one side out.
    #[error("device {device} was written to without the others, and they without it; leave it out, or leave them out")]
    WrittenApart {
        /// The device.
        device: DeviceSlot,
    },
    /// The device was removed or replaced. The user leaves it out.
    #[error("device {device} was removed from pool '{pool}'; leave it out")]
    Removed {
        /// The device.
        device: DeviceSlot,
        /// Name of the pool.
        pool: String,
    },
    /// Two devices have the label of one member. The user leaves one out.
    #[error("device {device} is given twice, or is a copy of another")]
    Duplicate {
        /// The second one.
        device: DeviceSlot,
    },
    /// Devices of the pool were not given, or have no label. What the user can do is in `need`.
    #[error("member {} of the {of} devices of pool '{pool}' is missing{}", numbers(.members), .need.note())]
    MemberMissing {
        /// Name of the pool.
        pool: String,
        /// The members without a device.
        members: Vec<MemberId>,
        /// Number of members that the pool has or had.
        of: usize,
        /// Whether the pool could do without them.
        need: Missing,
    },
    /// Labels that the caller has seen cannot be read any more. The user checks the devices.
    #[error(
        "the newest labels of pool '{pool}' cannot be read any more, and the others are of an older state; check the devices and try again"
    )]
    LabelsOlder {
        /// Name of the pool.
        pool: String,
    },
    /// The pool has no group left without the lost special devices. The user names them.
    #[error("the pool cannot do without the devices that are missing: name them too")]
    Indispensable,
    /// A device is smaller than its part of the pool. The user enlarges it again.
    #[error("member {member} of pool '{pool}' is smaller than it was: it was cut off")]
    CutOff {
        /// Name of the pool.
        pool: String,
        /// The member.
        member: MemberId,
    },
    /// Devices did not answer in time, and the import may not do without them. The user checks
    /// them, or allows it to.
    #[error("no answer from {}", device_list(.devices))]
    NoAnswer {
        /// The devices.
        devices: Vec<DeviceSlot>,
    },
    /// The host has no space for a write of the import. The user makes room.
    #[error("{write}: no room on {}; make room there", device_list(.devices))]
    NoRoom {
        /// The write.
        write: OpenWrite,
        /// The devices.
        devices: Vec<DeviceSlot>,
    },
    /// A write of the import failed on too many devices. The user repairs them.
    #[error("{write} ({error})")]
    NotWritten {
        /// The write.
        write: OpenWrite,
        /// Error of the last device.
        error: DeviceError,
    },
    /// Another host has the pool, or it is unknown whether one has. What the user can do is in
    /// `why`.
    #[error("pool '{pool}' is not taken: {why}")]
    Claimed {
        /// Name of the pool.
        pool: String,
        /// The reason.
        why: ClaimRefusal,
    },
    /// A root has a format that this program does not know. The user takes the newer program.
    #[error("device {}, slot {slot} of its roots: {error}", of_member(*.device, *.member))]
    NewerRoot {
        /// The member.
        member: MemberId,
        /// Its device, if one is open.
        device: Option<DeviceSlot>,
        /// Slot of the root in the ring.
        slot: usize,
        /// The difference in format.
        error: FormatError,
    },
    /// No ring has a readable root. The user has the devices searched for checkpoints.
    #[error("no root of the pool is readable")]
    NoRoot,
    /// The newest root was durable and is not readable. The user goes back to an older checkpoint.
    #[error(
        "root {generation} was committed and is damaged in both copies (device {}, slot {slot}): an older root would lose what came after it",
        of_member(*.device, *.member)
    )]
    RootDamaged {
        /// Generation of the root.
        generation: u64,
        /// The member that proves that it was written.
        member: MemberId,
        /// Its device, if one is open.
        device: Option<DeviceSlot>,
        /// Slot of the root in the ring.
        slot: u64,
    },
    /// A device failed to read the log. The user repairs it, or goes back.
    #[error("the log cannot be read ({0})")]
    LogUnreadable(DeviceError),
    /// A batch was read, and then on no copy any more. The user repairs the device, or goes back.
    #[error("batch {0} of the log cannot be read any more")]
    BatchUnreadable(Lsn),
    /// The log ends before a batch that was durable. The user goes back to an older checkpoint.
    #[error("batch {0} of the log was durable and is gone: data written after it cannot be trusted")]
    LogGone(Lsn),
    /// A rewind chose a checkpoint that is whole only with more of the log than is sound. The user
    /// chooses an older one.
    #[error("the log is sound up to batch {end}, and what the newest checkpoint lacks was used again by batch {needs}")]
    LogReused {
        /// Last sound batch.
        end: Lsn,
        /// Batch up to which the checkpoint needs the log.
        needs: Lsn,
    },
    /// A device failed to read a part of the checkpoint. The user repairs it, or goes back.
    #[error("a checkpoint object cannot be read ({0})")]
    ObjectUnreadable(DeviceError),
    /// A map node that replay needs is damaged or unreadable. The user repairs the device, or goes
    /// back.
    #[error("the map node at {0:?} cannot be read or does not match its checksum")]
    NodeUnreadable(Addr),
    /// The state is damaged. The user goes back to an older checkpoint.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// A search of all segments found no checkpoint. The user brings missing devices back.
    #[error("no segment holds a checkpoint: the devices were overwritten, or written by an older version alone")]
    NoCheckpointFound,
    /// No checkpoint is left to go back to. The user brings missing devices back.
    #[error("the devices hold no checkpoint")]
    NoCheckpoint,
    /// The checkpoint that the user named is not there. The user chooses another.
    #[error("checkpoint {id} is not on the devices")]
    CheckpointAbsent {
        /// Number of the checkpoint.
        id: u64,
    },
    /// The checkpoint that the user named is not whole. The user chooses another.
    #[error("checkpoint {id} is not whole: {}", flaw(.whole))]
    CheckpointNotWhole {
        /// Number of the checkpoint.
        id: u64,
        /// Its state.
        whole: Whole,
    },
    /// No checkpoint is whole. The user brings missing devices back.
    #[error("none of the {count} checkpoints is whole; of the newest, {}", flaw(.newest))]
    NoneWhole {
        /// Number of checkpoints on the devices.
        count: usize,
        /// State of the newest.
        newest: Whole,
    },
    /// A rewind refused the checkpoint that it chose first, and no older one is whole. The user
    /// chooses one that may not be whole.
    #[error("{0}, and no older checkpoint is whole")]
    NoOlderWhole(Box<OpenErrorKind>),
    /// A step of the import ran before the one that gives its input: a defect of the engine. The
    /// user reports it.
    #[error("the import went wrong ({0}): a defect in the program; report it")]
    OutOfOrder(&'static str),
}

impl OpenErrorKind {
    /// Returns the device that the user may leave out to get past this refusal.
    pub fn device_to_leave_out(&self) -> Option<DeviceSlot> {
        match self {
            OpenErrorKind::NoLabel { device, why: Unlabelled::TooSmall | Unlabelled::NotAPool(_) }
            | OpenErrorKind::Contradicts { device }
            | OpenErrorKind::WrittenApart { device }
            | OpenErrorKind::Removed { device, .. } => Some(*device),
            _ => None,
        }
    }
}

/// Reason why a device has no usable label. `Display` follows the name of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub enum Unlabelled {
    /// Its size does not allow for one.
    #[default]
    #[error("is too small to hold a pool; leave it out or name the right device")]
    TooSmall,
    /// The label is of a format that this program does not know.
    #[error("has a label for another program ({0}); use the one that it was made with, or a newer one")]
    OtherProgram(FormatError),
    /// It holds something else, or a damaged label.
    #[error("has no label of a pool ({0}); leave it out or name the right device")]
    NotAPool(FormatError),
    /// The device failed to read it.
    #[error("has a label that cannot be read ({0})")]
    Unreadable(DeviceError),
    /// The device did not answer, and counts as missing.
    #[error("does not answer")]
    Silent,
}

/// Whether all data of a restore point still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// Its objects match their checksums, and no segment was reused since.
    Yes,
    /// No, and why.
    No(String),
    /// Only with the log after it up to this batch: by then segments were emptied that were reused.
    WithLog(Lsn),
    /// Unknown, and why: segments do not record it, as in pools made by older versions.
    Unknown(String),
}

/// Whether a pool could do without its missing members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It has data that no other device has. The user brings it back.
    Needed,
    /// They are special devices: the pool can do without them for good, and loses what only they
    /// have, if the user says so.
    Special,
    /// Others have the same. The user allows it to do without them.
    Redundant,
}

impl Missing {
    fn note(self) -> &'static str {
        if self == Missing::Special { ", a special one" } else { "" }
    }
}

/// A write of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenWrite {
    /// The claim of this host.
    #[error("the pool cannot be claimed for this host")]
    Claim,
    /// Batches at the end of the log, to copies that lack them.
    #[error("the end of the log cannot be written again")]
    Log,
    /// The newest root, where a copy is missing.
    #[error("the newest root cannot be written again")]
    Root,
    /// Pages of the key table, where a copy is missing.
    #[error("the key table cannot be written again")]
    Keys,
}

/// Reason why an import does not take a pool because of claims of other hosts. `Display` follows
/// the name of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefusal {
    /// The claim has a format that this program does not know. The user takes the newer program.
    #[error("its claim is of a newer program ({0}); use that")]
    Newer(FormatError),
    /// Another host's import was seen. The user looks there, or tries again.
    #[error("another host is just importing it; see there, or try again")]
    Importing,
    /// Another host had the pool while its state was read. The user tries again.
    #[error("another host had it in use just now; try again")]
    UsedMeanwhile,
    /// A host has the pool and writes heartbeats. The user exports it there.
    #[error("it is in use on host '{host}', which was heard of {}", ago(*.heard_millis))]
    InUse {
        /// Name of the host.
        host: String,
        /// Milliseconds since its last heartbeat, by this host's clock.
        heard_millis: u64,
    },
    /// A host has the pool and writes no heartbeat. The user exports it there, or takes it over.
    #[error("host '{host}' has not closed it: it was last heard of {}, and has been silent for {} s", ago(*.heard_millis), .watched_millis / 1000)]
    NotClosed {
        /// Name of the host.
        host: String,
        /// Milliseconds since its last heartbeat, by this host's clock.
        heard_millis: u64,
        /// Milliseconds for which the import waited for a heartbeat.
        watched_millis: u64,
    },
    /// This import's claim cannot be read back. The user checks the devices.
    #[error("its claim cannot be read on any device; check the devices, then try again")]
    Unreadable,
}

/// Names devices by their slots, for messages.
pub(super) fn device_list(slots: &[DeviceSlot]) -> String {
    format!("device{} {}", if slots.len() == 1 { "" } else { "s" }, numbers(slots))
}

fn numbers<N: fmt::Display>(of: &[N]) -> String {
    of.iter().map(N::to_string).collect::<Vec<_>>().join(", ")
}

/// Names a member's device in messages; the ring of a member without one is never read.
fn of_member(device: Option<DeviceSlot>, member: MemberId) -> String {
    device.map_or_else(|| format!("of member {member}"), |slot| slot.to_string())
}

/// Formats how long ago a time was.
fn ago(millis: u64) -> String {
    match millis / 1000 {
        seconds @ 0..=119 => format!("{seconds} s ago"),
        seconds @ 120..=7_199 => format!("{} min ago", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Returns why a checkpoint is not whole.
fn flaw(whole: &Whole) -> &str {
    match whole {
        Whole::No(why) | Whole::Unknown(why) => why,
        Whole::WithLog(_) => "segments of it were used again since",
        Whole::Yes => "",
    }
}
