//! Faults: what kinds there are, when one strikes, and what may be expected of a pool without redundancy afterwards.
//!
//! *Budget*: one fault per world. Pools are linear or striped, so nothing can be repaired from another copy:
//! - a fault that damages no data (an error that is reported, a full or slow device, one that is gone for a while): nothing acknowledged is lost;
//! - a fault that damages data (rot, lost write, misdirected write, pages dropped by a failed flush): it is *detected* (EIO, refused import), or
//!   without effect; never wrong data.
//!
//! Excluded by construction, because no pool without redundancy could detect it:
//! - loss of the tail of the log. A write that was swallowed and is the last of its pool looks exactly like a write that was never sent. Where a
//!   damaging fault struck, the world therefore asks for a checkpoint before it crashes: what a checkpoint covers is checksummed from its root.
//! - rot of the checkpoint root in all its copies at once: one page rots, and copies are at least a page apart.

use millpond_device::DeviceError;

use crate::rng::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Reads fail.
    ReadError,
    /// Writes fail; some of the data may have got there.
    WriteError,
    /// Flushes fail; the data stays in the cache, so that a later flush covers it.
    FlushError,
    /// Flushes fail, and the device drops half of what they should have covered.
    FlushDrop,
    /// Writes to pages that were never written fail for want of space, for a while.
    Full,
    /// Everything takes fifty times as long.
    Slow,
    /// The device is gone; it comes back before the next import, its cache empty.
    Gone,
    /// A write is acknowledged and never done.
    Lost,
    /// A write is acknowledged and done elsewhere.
    Misdirected,
    /// A page rots at rest.
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

    /// The word users type.
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

    /// True when data on the media is damaged, so that errors may stay for ever.
    pub fn damages(self) -> bool {
        matches!(self, FaultKind::FlushDrop | FaultKind::Lost | FaultKind::Misdirected | FaultKind::Rot)
    }

    /// True when the tail of the log may be gone undetectably, so that only what a checkpoint covers may be judged.
    pub fn needs_checkpoint(self) -> bool {
        matches!(self, FaultKind::Lost | FaultKind::Misdirected | FaultKind::Rot)
    }
}

/// What the device operation at hand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A read.
    Read,
    /// A write; true when it needs space that the device has not yet given.
    Write(bool),
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// One fault of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// On which device.
    pub device: usize,
    /// In which era of the world it is armed (an era lies between two crashes).
    pub era: u32,
    /// Operations of its kind that pass before it strikes.
    pub after: u64,
    /// How often it strikes.
    pub times: u64,
}

impl Fault {
    /// A fault by chance.
    pub fn random(kind: FaultKind, devices: usize, eras: u32, rng: &mut Rng) -> Fault {
        let times = match kind {
            FaultKind::Lost | FaultKind::Misdirected | FaultKind::FlushDrop | FaultKind::Rot => 1,
            FaultKind::ReadError | FaultKind::WriteError | FaultKind::FlushError if rng.percent(50) => 1,
            FaultKind::ReadError | FaultKind::WriteError | FaultKind::FlushError => rng.between(2, 40),
            // room comes back: writes that find none are tried again and again
            FaultKind::Full => 100,
            FaultKind::Slow | FaultKind::Gone => u64::MAX,
        };
        let reach = if matches!(kind, FaultKind::FlushError | FaultKind::FlushDrop) { 20 } else { 200 };
        Fault { kind, device: rng.index(devices), era: rng.below(u64::from(eras)) as u32, after: rng.below(reach), times }
    }
}

/// What to do with a device operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// As asked.
    Fine,
    /// Fail it.
    Fail(DeviceError),
    /// Fail it and drop what it should have covered.
    FailAndDrop,
    /// Say it is done and do nothing.
    Lose,
    /// Say it is done and do it elsewhere.
    Misdirect,
}

/// EIO, as Linux numbers it.
const EIO: i32 = 5;

/// A fault that is armed.
#[derive(Clone, Debug, Default)]
pub struct Armed {
    fault: Option<Fault>,
    seen: u64,
    /// How often it struck.
    pub struck: u64,
}

impl Armed {
    /// Arms a fault, or none.
    pub fn new(fault: Option<Fault>) -> Armed {
        Armed { fault, seen: 0, struck: 0 }
    }

    /// Passes an operation by the fault.
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

    /// By how much operations on this device are slower.
    pub fn slowness(&self, device: usize) -> u64 {
        match &self.fault {
            Some(f) if f.device == device && f.kind == FaultKind::Slow => 50,
            _ => 1,
        }
    }

    /// The kind of fault that has struck, if any.
    pub fn kind(&self) -> Option<FaultKind> {
        self.fault.as_ref().filter(|_| self.struck > 0).map(|f| f.kind)
    }

    /// The armed fault, struck or not.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }
}
