//! The volume that a stream is received into, as the receive uses it.

use crc_fast::{CrcAlgorithm, checksum};
use millpond_api::Snapshot;
use millpond_api::failure::Outcome;
use millpond_api::identity::SnapshotOrigin;

/// Content of a range when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// Bytes with this checksum, CRC-64/NVME.
    Data(u64),
}

/// A range that was written, to read it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes; at most 1 MiB where it has data.
    pub length: u64,
    /// The content.
    pub content: Content,
}

impl Check {
    /// Returns the check of data that was written.
    pub fn of(offset: u64, bytes: &[u8]) -> Check {
        Check { offset, length: bytes.len() as u64, content: Content::Data(checksum(CrcAlgorithm::Crc64Nvme, bytes)) }
    }

    /// True if the bytes read back are those that were written.
    pub fn agrees(&self, bytes: &[u8]) -> bool {
        match self.content {
            Content::Zero => bytes.iter().all(|byte| *byte == 0),
            Content::Data(sum) => checksum(CrcAlgorithm::Crc64Nvme, bytes) == sum,
        }
    }
}

/// A volume that is received into. Every change but a write is durable on return, with all writes
/// before it.
pub trait Target {
    /// True if the volume has its final name: a new one gets that with its first complete snapshot.
    fn is_published(&self) -> bool;

    /// Gives a new volume its final name.
    ///
    /// # Errors
    /// The daemon's.
    fn publish(&mut self) -> Outcome;

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// The daemon's.
    fn size(&mut self) -> Outcome<u64>;

    /// Changes the size.
    ///
    /// # Errors
    /// The daemon's.
    fn resize(&mut self, size: u64) -> Outcome;

    /// Returns the snapshots, oldest first.
    ///
    /// # Errors
    /// The daemon's.
    fn snapshots(&mut self) -> Outcome<Vec<Snapshot>>;

    /// Takes a snapshot of what was written so far; `name` is the part after `@`.
    ///
    /// # Errors
    /// The daemon's.
    fn take(&mut self, name: &str, description: &str, origin: &SnapshotOrigin) -> Outcome;

    /// Renames a snapshot.
    ///
    /// # Errors
    /// The daemon's.
    fn rename(&mut self, from: &str, to: &str) -> Outcome;

    /// Destroys a snapshot.
    ///
    /// # Errors
    /// The daemon's.
    fn destroy(&mut self, name: &str) -> Outcome;

    /// Rolls the volume back to a snapshot; returns the name of the snapshot that keeps its state.
    /// With `incomplete`, that state is of no instant, and its name says so.
    ///
    /// # Errors
    /// The daemon's; clients that are connected.
    fn roll_back(&mut self, to: &str, incomplete: bool) -> Outcome<String>;

    /// Makes sure that writes still go to the volume, and that other receives are kept away.
    ///
    /// # Errors
    /// The export that keeps them away is gone.
    fn reconnect(&mut self) -> Outcome;

    /// Returns the ranges in which `newer`, or the volume, differs from `older`: offset and length
    /// in bytes, ascending.
    ///
    /// # Errors
    /// The daemon's.
    fn differences(&mut self, older: &str, newer: Option<&str>) -> Outcome<Vec<(u64, u64)>>;

    /// Writes data.
    ///
    /// # Errors
    /// The daemon's, such as a full pool.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome;

    /// Writes zeroes.
    ///
    /// # Errors
    /// The daemon's.
    fn write_zeroes(&mut self, offset: u64, length: u64) -> Outcome;

    /// Reads ranges of a snapshot; returns the offset of the first that is not as written.
    ///
    /// # Errors
    /// The daemon's.
    fn first_difference(&mut self, snapshot: &str, checks: &[Check]) -> Outcome<Option<u64>>;
}
