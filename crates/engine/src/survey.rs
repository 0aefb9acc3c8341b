//! [`Survey`]: what restore points the devices of a pool hold, without taking it into service.

use millpond_device::{DeviceGeometry, Io, IoDone};
use millpond_format::Lsn;

use crate::open::Import;
use crate::{Time, Tuning};

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
        self.import.turn(Time(0));
        if let Some(why) = self.import.failure() {
            return Some(Err(why.to_owned()));
        }
        self.import.surveyed().map(Ok)
    }
}

/// A restore point of a pool: a root and its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePoint {
    /// Generation of the root.
    pub id: u64,
    /// When its checkpoint was begun.
    pub time: Time,
    /// An older root on the devices names the same checkpoint: this one was written by an import, which replayed the log after it.
    pub again: bool,
    /// Last batch of the log that it contains.
    pub lsn: Lsn,
    /// Copies of the root that can be read.
    pub copies: u32,
    /// Is everything there that it refers to?
    pub whole: Whole,
    /// Bytes that guests had ever written to the pool; `None` when the checkpoint cannot be read.
    pub written: Option<u64>,
}

impl RestorePoint {
    /// May an import come to it? Where it is not known whether all is there, reads find out: they check what they get.
    pub fn is_usable(&self) -> bool {
        matches!(self.whole, Whole::Yes | Whole::Unknown(_))
    }

    /// The same, with the log after it as far as it is sound.
    pub fn is_start(&self) -> bool {
        !matches!(self.whole, Whole::No(_))
    }
}

/// Is everything there that a restore point refers to?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// Its objects match their checksums, and no segment was used for something else since.
    Yes,
    /// No, and why.
    No(String),
    /// With the log after it up to this batch alone: by then segments were emptied that were used again.
    WithLog(Lsn),
    /// Segments do not say, as those of pools made by older versions.
    Unknown(String),
}

/// The restore points of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// The newest first.
    pub points: Vec<RestorePoint>,
    /// Bytes that guests wrote after the newest one, as far as the log is sound.
    pub after: u64,
    /// The log goes no further although more of it was durable.
    pub log_damaged: bool,
}
