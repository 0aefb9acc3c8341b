//! What a drive is asked for, and what it answers. Times are nanoseconds since the drive was switched on.

/// A moment, or how long something takes.
pub type Nanos = u64;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read a range.
    Read,
    /// Write a range; done when the drive says so, which may be before it is on the medium.
    Write,
    /// Put all that was written before on the medium.
    Flush,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Of the caller's choice, not in use by another request.
    pub id: u64,
    /// What.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Request {
    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// When.
    pub at: Nanos,
    /// Which.
    pub id: u64,
}

/// Time that so many bytes take at a rate in bytes per second.
pub(super) fn transfer(bytes: u64, rate: u64) -> Nanos {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX)
}
