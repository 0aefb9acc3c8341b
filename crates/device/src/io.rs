//! Device operations as values: what the engine asks for and what it is told.

use millpond_block::{Buf, Piece};

/// Names one operation in flight; unique within an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// Position of a device in its pool's member table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIndex(pub u16);

/// Size and sectors of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Usable bytes.
    pub size: u64,
    /// Smallest addressable unit in bytes, 512 or 4096. Offsets, lengths and buffers of every [`Io`] are multiples of 4096 all the same.
    pub logical_sector: u32,
    /// Unit that the device writes atomically, at best, in bytes.
    pub physical_sector: u32,
}

/// What to do. Offsets and lengths are in bytes and multiples of 4096; buffers are page-aligned.
#[derive(Debug)]
pub enum IoKind {
    /// Read `length` bytes into the start of `buf`, which comes back with the completion, filled or not.
    Read {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: usize,
        /// Where to.
        buf: Buf,
    },
    /// Write the pieces one after another. Complete when the kernel (or the device's volatile cache) has all of it.
    Write {
        /// Where.
        offset: u64,
        /// What, in order; each a multiple of 4096 long.
        pieces: Vec<Piece>,
    },
    /// Make the range read as zeros, and be space that the host has found: a later write there is as fast as one to written space. By a call that
    /// does it without writing where the host has one, else by writing zeros. It may take long, and keeps nobody waiting.
    Zero {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Everything whose completion was delivered before is on stable media when this completes.
    Flush,
    /// The range's content is not needed any more and its space may be given back; what it reads as is undefined.
    Discard {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

impl IoKind {
    /// False for a read: everything else may change what the device holds, or what of it is stable.
    pub fn changes(&self) -> bool {
        !matches!(self, IoKind::Read { .. })
    }
}

/// One operation for one device.
#[derive(Debug)]
pub struct Io {
    /// Returned with the completion.
    pub id: IoId,
    /// On which device.
    pub device: DeviceIndex,
    /// What.
    pub kind: IoKind,
    /// It overtakes operations that are not, wherever they wait: limits and queues do not delay it.
    pub urgent: bool,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device reported an error; errno where there is one.
    #[error("device error {0}")]
    Failed(i32),
    /// The device (or the filesystem below it) has no space.
    #[error("device full")]
    Full,
    /// The device is gone.
    #[error("device gone")]
    Gone,
}

/// The one answer to an [`Io`].
#[derive(Debug)]
pub struct IoDone {
    /// Which.
    pub id: IoId,
    /// How it ended.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read.
    pub buf: Option<Buf>,
}
