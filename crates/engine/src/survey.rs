//! [`Survey`]: lists the restore points on the devices of a pool, without taking it into service.

use millpond_block::{DeviceGeometry, Io, IoDone};
use millpond_format::Lsn;

use crate::open::Import;
use crate::{OpenError, Time, Tuning, Whole};

/// A scan for a pool's restore points, with reads only. The pool may be in service meanwhile; space
/// that is reused during the scan counts as gone.
pub struct Survey {
    import: Box<Import>,
}

impl Survey {
    /// Starts to scan the pool on `devices`, in any order.
    pub fn new(devices: Vec<DeviceGeometry>, tuning: Tuning) -> Survey {
        Survey { import: Box::new(Import::survey(devices, tuning)) }
    }

    /// Returns the next read to start.
    pub fn pop_io(&mut self) -> Option<Io> {
        self.import.pop_io()
    }

    /// Reports the end of a read.
    pub fn io_done(&mut self, done: IoDone) {
        self.import.io_done(done);
    }

    /// Continues. Returns the restore points at the end, or why they cannot be listed; `None`
    /// while reads are in flight.
    pub fn turn(&mut self) -> Option<Result<Surveyed, OpenError>> {
        self.import.turn(Time(0));
        if let Some(why) = self.import.failure() {
            return Some(Err(why.clone()));
        }
        self.import.surveyed().map(Ok)
    }
}

/// A restore point of a pool: a root and its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePoint {
    /// Generation of the root.
    pub id: u64,
    /// Time at which its checkpoint was begun.
    pub time: Time,
    /// An older root on the devices names the same checkpoint: this root was written by an import,
    /// which replayed the log after it.
    pub again: bool,
    /// Last batch of the log that the checkpoint contains.
    pub lsn: Lsn,
    /// Number of readable copies of the root.
    pub copies: u32,
    /// Whether all of its data still exists.
    pub whole: Whole,
    /// Bytes that guests had ever written to the pool; `None` when the checkpoint cannot be read.
    pub written: Option<u64>,
}

impl RestorePoint {
    /// Returns whether an import may go back to it without the log. Where [`Self::whole`] is
    /// unknown it may: reads verify checksums.
    pub fn is_usable(&self) -> bool {
        matches!(self.whole, Whole::Yes | Whole::Unknown(_))
    }

    /// Returns whether an import may start from it, with the log after it as far as it is sound.
    pub fn is_start(&self) -> bool {
        !matches!(self.whole, Whole::No(_))
    }
}

/// The restore points of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// The restore points, the newest first.
    pub points: Vec<RestorePoint>,
    /// Bytes that guests wrote after the newest restore point, as far as the log is sound.
    pub after: u64,
    /// The log is damaged: more of it was durable than is readable.
    pub log_damaged: bool,
}
