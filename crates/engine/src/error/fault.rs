//! Reasons why a pool is stopped.

use millpond_block::{DeviceError, DeviceSlot};
use millpond_format::ObjectName;

use super::open::{OpenError, device_list};

/// Reason of [`PoolState::Faulted`](crate::PoolState::Faulted): reads are answered where possible,
/// nothing is written. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An import was refused or failed: the pool was never in service. See [`OpenError`].
    #[error("{0}")]
    Open(Box<OpenError>),
    /// Its state was read, but devices did not answer before it was in service. The user checks
    /// them, or imports the pool without them.
    #[error("it cannot be opened: no answer from {}", device_list(.devices))]
    NoAnswer {
        /// The devices.
        devices: Vec<DeviceSlot>,
    },
    /// Its state was read, but the host has no space for the writes of an import. The user makes
    /// room and imports it again.
    #[error("it cannot be opened: no room on {}; make room there", device_list(.devices))]
    NoRoom {
        /// The devices.
        devices: Vec<DeviceSlot>,
    },
    /// An import found no segment for the log. The pool can be imported for reading.
    #[error("no segment is free to go on with the log; the pool cannot be written")]
    NoLogSegment,
    /// No segment is left for a checkpoint, although some are reserved: a defect of the engine. The
    /// import that follows starts from the last checkpoint.
    #[error("no segment is left for a checkpoint")]
    NoCheckpointSegment,
    /// Labels could not be written to enough devices. The user repairs the devices.
    #[error("writing the labels failed ({0})")]
    Labels(DeviceError),
    /// The key table could not be written to enough devices. The user repairs the devices.
    #[error("writing the key table failed ({0})")]
    Keys(DeviceError),
    /// A checkpoint could not be written to enough devices. The user repairs the devices.
    #[error("writing a checkpoint failed ({0})")]
    Checkpoint(DeviceError),
    /// The log could not be written to enough devices. The user repairs the devices.
    #[error("a write to the log failed ({0})")]
    Log(DeviceError),
    /// Devices failed to flush: it is unknown which writes they have. The user repairs the devices
    /// and imports the pool again, which reads what they have.
    #[error("a device flush failed ({0})")]
    Flush(DeviceError),
    /// The claim could not be read for too long, so the pool may have been taken over unnoticed.
    /// The user repairs the devices.
    #[error(
        "the claim cannot be read on any device ({0}), so another host may have taken the pool: repair the devices, then export the pool here \
         and import it again"
    )]
    ClaimUnreadable(DeviceError),
    /// Another import has the pool. The user stops the guests here.
    #[error("{by} took the pool over while this one was not heard of: stop the guests here, and export the pool here; it is in use there")]
    TakenOver {
        /// The host, for people.
        by: String,
    },
    /// An object could not be created, because another one has its name: another import writes under the
    /// term of this one. The user looks for it, and imports the pool again.
    #[error("the bucket has another object '{0}': look for another host that uses this pool, then import it again")]
    ObjectTaken(ObjectName),
    /// The program around the engine stopped the pool, for this reason. See there.
    #[error("{0}")]
    Caller(String),
}
