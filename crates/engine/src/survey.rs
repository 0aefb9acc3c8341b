//! [`Survey`]: what restore points the devices of a pool hold, without taking it into service.

use millpond_device::{DeviceGeometry, Io, IoDone};

use crate::open::Import;
use crate::{Surveyed, Tuning};

/// A look at a pool's restore points: reads only. It may be in service meanwhile; what is used again while it is read counts as gone.
pub struct Survey {
    import: Box<Import>,
}

impl Survey {
    /// Starts to look at the pool on `devices`, in any order.
    pub fn new(devices: Vec<DeviceGeometry>, tuning: Tuning) -> Survey {
        Survey { import: Box::new(Import::survey(devices, tuning)) }
    }

    /// The next read to start.
    pub fn pop_io(&mut self) -> Option<Io> {
        self.import.pop_io()
    }

    /// A read ended.
    pub fn io_done(&mut self, done: IoDone) {
        self.import.io_done(done);
    }

    /// Goes on. The restore points when all is known, or why that cannot be (one line); nothing while reads are to be done.
    pub fn turn(&mut self) -> Option<Result<Surveyed, String>> {
        self.import.turn();
        if let Some(why) = self.import.failure() {
            return Some(Err(why.to_owned()));
        }
        self.import.surveyed().map(Ok)
    }
}
