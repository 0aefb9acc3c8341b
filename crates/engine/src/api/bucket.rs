//! Work on the bucket of a pool, which the caller does. Types of the interface.

use millpond_format::ObjectName;

/// A request to a bucket, to be made on any thread and in any order.
#[derive(Debug)]
pub struct BucketWork {
    /// Number of the work, not used again by this import or a later one that writes.
    pub id: u64,
    /// The operation.
    pub op: BucketOp,
}

/// An operation of a bucket.
#[derive(Debug)]
pub enum BucketOp {
    /// Read part of an object: its result is `length` bytes or more.
    Read {
        /// The object.
        name: ObjectName,
        /// First byte.
        offset: u64,
        /// Number of bytes; the object has as many from `offset` on.
        length: usize,
    },
}

/// An object that cannot be had. A store that does not answer is no such error: the caller asks it
/// again, for as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The store does not have the object.
    #[error("the bucket does not have the object")]
    Missing,
    /// Its content is wrong, or too short.
    #[error("the object is damaged")]
    Damaged,
}
