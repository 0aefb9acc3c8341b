//! Faults: the kinds, when a fault strikes, and what a pool without redundancy must still
//! guarantee.
//!
//! *Budget*: one fault per world. Pools are linear or striped, so nothing can be repaired from
//! another copy.
//! - A fault that damages no data (a reported error, a full or slow device, a device that is gone
//!   for a while) loses nothing acknowledged.
//! - A fault that damages data (rot, lost write, misdirected write, pages dropped by a failed
//!   flush) is *detected* (EIO, refused import) or has no effect. Data that is read is never wrong.
//!
//! Excluded by construction, because no pool without redundancy could detect it:
//! - Loss of the tail of the log. A lost write that is the last of its pool looks exactly like a
//!   write that was never sent. After a damaging fault the world therefore asks for a checkpoint
//!   before it crashes: everything in a checkpoint is checksummed from its root.
//! - Rot of all copies of the checkpoint root at once. Only one page rots, and copies are at least
//!   a page apart.

use millpond_block::DeviceError;

use crate::rng::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Reads fail.
    ReadError,
    /// Writes fail; part of the data may have been written.
    WriteError,
    /// Flushes fail; the data stays in the cache, so that a later flush covers it.
    FlushError,
    /// Flushes fail, and the device drops half of the pages that they should have covered.
    FlushDrop,
    /// Writes to never written pages fail for lack of space, for a while.
    Full,
    /// Operations take fifty times as long.
    Slow,
    /// The device fails all operations. It is back before the next import, with its cache lost.
    Gone,
    /// A write is acknowledged and not done.
    Lost,
    /// A write is acknowledged and done at another place.
    Misdirected,
    /// A page at rest is corrupted.
    Rot,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 10] = [
        FaultKind::ReadError,
        FaultKind::WriteError,
        FaultKind::FlushError,
        FaultKind::FlushDrop,
        FaultKind::Full,
        FaultKind::Slow,
        FaultKind::Gone,
        FaultKind::Lost,
        FaultKind::Misdirected,
        FaultKind::Rot,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::ReadError => "read-error",
            FaultKind::WriteError => "write-error",
            FaultKind::FlushError => "flush-error",
            FaultKind::FlushDrop => "flush-drop",
            FaultKind::Full => "full",
            FaultKind::Slow => "slow",
            FaultKind::Gone => "gone",
            FaultKind::Lost => "lost",
            FaultKind::Misdirected => "misdirected",
            FaultKind::Rot => "rot",
        }
    }

    /// Returns whether the fault damages data on the media, so that errors may be permanent.
    pub fn damages(self) -> bool {
        matches!(self, FaultKind::FlushDrop | FaultKind::Lost | FaultKind::Misdirected | FaultKind::Rot)
    }

    /// Returns whether the tail of the log may be lost undetectably, so that only data in a
    /// checkpoint can be judged.
    pub fn needs_checkpoint(self) -> bool {
        matches!(self, FaultKind::Lost | FaultKind::Misdirected | FaultKind::Rot)
    }
}

/// Kind of a device operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A read.
    Read,
    /// A write; true if it covers pages that were never written, for which the device needs space.
    Write(bool),
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// The fault of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub device: usize,
    /// Number of the era (time between two crashes) in which the fault is armed.
    pub era: u32,
    /// Number of matching operations that pass before the fault strikes.
    pub after: u64,
    /// Number of times that the fault strikes.
    pub times: u64,
}

impl Fault {
    /// Draws a fault of this kind.
    pub fn random(kind: FaultKind, devices: usize, eras: u32, rng: &mut Rng) -> Fault {
        let times = match kind {
            FaultKind::Lost | FaultKind::Misdirected | FaultKind::FlushDrop | FaultKind::Rot => 1,
            FaultKind::ReadError | FaultKind::WriteError | FaultKind::FlushError if rng.percent(50) => 1,
            FaultKind::ReadError | FaultKind::WriteError | FaultKind::FlushError => rng.between(2, 40),
            // Space comes back: writes for which there was none are retried.
            FaultKind::Full => 100,
            FaultKind::Slow | FaultKind::Gone => u64::MAX,
        };
        let reach = if matches!(kind, FaultKind::FlushError | FaultKind::FlushDrop) { 20 } else { 200 };
        Fault { kind, device: rng.index(devices), era: rng.below(u64::from(eras)) as u32, after: rng.below(reach), times }
    }
}

/// Effect of a fault on a device operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None.
    Fine,
    /// The operation fails.
    Fail(DeviceError),
    /// The flush fails, and the device drops pages that it should have covered.
    FailAndDrop,
    /// The operation succeeds without being done.
    Lose,
    /// The write succeeds at another place.
    Misdirect,
}

const EIO: i32 = 5;

/// The fault that is armed, if any.
#[derive(Clone, Debug, Default)]
pub struct Armed {
    fault: Option<Fault>,
    seen: u64,
    /// Number of times that it struck.
    pub struck: u64,
}

impl Armed {
    /// Arms a fault, or none.
    pub fn new(fault: Option<Fault>) -> Armed {
        Armed { fault, seen: 0, struck: 0 }
    }

    /// Counts an operation and returns the effect of the fault on it.
    pub fn effect(&mut self, device: usize, touch: Touch) -> Effect {
        let Some(fault) = self.fault.as_ref().filter(|f| f.device == device) else { return Effect::Fine };
        let effect = match (fault.kind, touch) {
            (FaultKind::ReadError, Touch::Read) | (FaultKind::WriteError, Touch::Write(_)) | (FaultKind::FlushError, Touch::Flush) => {
                Effect::Fail(DeviceError::Failed(EIO))
            }
            (FaultKind::FlushDrop, Touch::Flush) => Effect::FailAndDrop,
            (FaultKind::Full, Touch::Write(true)) => Effect::Fail(DeviceError::Full),
            (FaultKind::Gone, _) => Effect::Fail(DeviceError::Gone),
            (FaultKind::Lost, Touch::Write(_)) => Effect::Lose,
            (FaultKind::Misdirected, Touch::Write(_)) => Effect::Misdirect,
            _ => return Effect::Fine,
        };
        self.seen += 1;
        if self.seen <= fault.after || self.struck >= fault.times {
            return Effect::Fine;
        }
        self.struck += 1;
        effect
    }

    /// Returns the factor by which operations on this device are slower.
    pub fn slowness(&self, device: usize) -> u64 {
        match &self.fault {
            Some(f) if f.device == device && f.kind == FaultKind::Slow => 50,
            _ => 1,
        }
    }

    /// Returns the kind of the fault, if it has struck.
    pub fn kind(&self) -> Option<FaultKind> {
        self.fault.as_ref().filter(|_| self.struck > 0).map(|f| f.kind)
    }

    /// Returns the armed fault, whether it has struck or not.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }
}
