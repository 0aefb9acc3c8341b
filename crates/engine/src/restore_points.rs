//! [`RestorePointScan`]: lists the restore points on the devices of a pool, without taking it into service.

use millpond_block::{DeviceGeometry, Io, IoDone};

use crate::api::RestorePoint;
use crate::open::Import;
use crate::{OpenError, Time, Tuning};

/// A scan for a pool's restore points, with reads only. The pool may be in service meanwhile; space
/// that is reused during the scan counts as gone.
pub struct RestorePointScan {
    import: Box<Import>,
}

impl RestorePointScan {
    /// Starts to scan the pool on `devices`, in any order.
    pub fn new(devices: Vec<DeviceGeometry>, tuning: Tuning) -> RestorePointScan {
        RestorePointScan { import: Box::new(Import::survey(devices, tuning)) }
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
