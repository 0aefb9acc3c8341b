//! Requests to a drive and their completions. Times are nanoseconds since the drive was switched
//! on.

/// A point in time, or a duration, in nanoseconds.
pub type Nanos = u64;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read a range.
    Read,
    /// Write a range. Completes when the drive acknowledges it, which may be before it is on the
    /// medium.
    Write,
    /// Put all earlier writes on the medium.
    Flush,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Id chosen by the caller, unique among requests in flight.
    pub id: u64,
    /// Kind of the request.
    pub op: Op,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Request {
    /// Offset of the first byte after the range.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Time of the completion.
    pub at: Nanos,
    /// Id of the request.
    pub id: u64,
}

/// Returns the time to transfer `bytes` at a rate in bytes per second.
pub(super) fn transfer(bytes: u64, rate: u64) -> Nanos {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX)
}
