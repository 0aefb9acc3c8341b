//! [`Part`]: one operation on one device, of an operation of the table.

use millpond_block::{Buf, BufSlice, ByteRange, DeviceSlot, MemberId};

use super::Stage;
use super::slots::Replica;

pub(super) struct Part {
    pub(super) device: MemberId,
    /// Slot of the device that it is for; `None` when the member had none.
    pub(super) slot: Option<DeviceSlot>,
    /// The device of the member that it goes to.
    pub(super) replica: Replica,
    pub(super) range: ByteRange,
    pub(super) buf: Option<Buf>,
    /// Data of a write, kept for another try.
    pub(super) pieces: Vec<BufSlice>,
    pub(super) tries: u8,
    pub(super) stage: Stage,
    /// True when its completion does not matter any more.
    pub(super) void: bool,
}

impl Part {
    pub(super) fn new(device: MemberId, range: ByteRange) -> Part {
        Part {
            device,
            slot: None,
            replica: Replica::Current,
            range,
            buf: None,
            pieces: Vec::new(),
            tries: 0,
            stage: Stage::Waiting,
            void: false,
        }
    }
}
