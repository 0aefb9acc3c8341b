//! Device operations as values: operations that the engine requests, and their completions.

use crate::{Buf, BufSlice, DeviceSlot};

/// Identity of an operation in flight; unique within an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// Size and sectors of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Usable bytes.
    pub size: u64,
    /// Smallest addressable unit in bytes, 512 or 4096. Offsets, lengths and buffers of every
    /// [`Io`] are multiples of 4096 anyway.
    pub logical_sector: u32,
    /// Largest unit in bytes that the device may write atomically.
    pub physical_sector: u32,
}

/// Kind of an operation. Offsets and lengths are in bytes and multiples of 4096; buffers are
/// page-aligned.
#[derive(Debug)]
pub enum IoKind {
    /// Read `length` bytes into the start of `buf`, which is returned with the completion, filled
    /// or not.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: usize,
        /// Buffer to fill.
        buf: Buf,
    },
    /// Write the pieces one after another. Completes when the kernel, or the device's volatile
    /// cache, has all data.
    Write {
        /// First byte.
        offset: u64,
        /// IoSlices in order; the length of each piece is a multiple of 4096.
        pieces: Vec<BufSlice>,
    },
    /// Make the range read as zeros and allocate its space on the host, so that later writes to it
    /// are as fast as overwrites. Uses a system call that need not write, if the host has one, else
    /// writes zeros. May take long, but runs beside other operations.
    Zero {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Completes when all writes whose completions were delivered before are on stable media.
    Flush,
    /// Drop the range's content, so that its space may be freed; its content is undefined
    /// afterwards.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

impl IoKind {
    /// False for a read; all other operations may change the device's content or what is on stable
    /// media.
    pub fn changes(&self) -> bool {
        !matches!(self, IoKind::Read { .. })
    }
}

/// An operation on one device.
#[derive(Debug)]
pub struct Io {
    /// Identity, returned with the completion.
    pub id: IoId,
    /// The device.
    pub device: DeviceSlot,
    /// The operation.
    pub kind: IoKind,
    /// True for operations that overtake all others: caps and queues do not delay them.
    pub urgent: bool,
}

impl Io {
    /// Ends an operation that was not carried out, with an error.
    pub fn fail(self, error: DeviceError) -> IoDone {
        let buf = match self.kind {
            IoKind::Read { buf, .. } => Some(buf),
            _ => None,
        };
        IoDone { id: self.id, result: Err(error), buf }
    }
}

/// Reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device reported an error: its errno, if known.
    #[error("device error {0}")]
    Failed(i32),
    /// The device, or the filesystem below it, has no space.
    #[error("device full")]
    Full,
    /// The device was removed.
    #[error("device gone")]
    Gone,
}

/// The completion of an [`Io`].
#[derive(Debug)]
pub struct IoDone {
    /// The operation.
    pub id: IoId,
    /// Its result.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read.
    pub buf: Option<Buf>,
}
