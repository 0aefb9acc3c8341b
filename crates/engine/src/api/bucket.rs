//! Work on the bucket of a pool, which the caller does. Types of the interface.

use millpond_block::BufSlice;
use millpond_format::{Holder, ObjectName, Term};

/// State of the bucket of a pool, as the caller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketState {
    /// The bucket answers, and this import has taken a term: it may write.
    Ready {
        /// The term, later than those of all imports before. An import takes one.
        term: Term,
        /// Holder of that term, for the heads of objects.
        holder: Holder,
    },
    /// The bucket does not answer. Data stays in the log.
    Away,
    /// The bucket takes no more objects. Data stays in the log.
    Full,
}

/// An object of the bucket that the pool has a segment for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketObject {
    /// Its name.
    pub name: ObjectName,
    /// Its pages of 4 KiB, with the head.
    pub pages: u32,
    /// Blocks in it are live. Others are retained for a rewind, or are about to be doomed.
    pub is_live: bool,
}

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
    /// Create an object. Its result has no bytes, and means that the object is durable. The caller finds
    /// out by the head of an object of that name whether it is this one, and tries again until it knows.
    /// While the lease of the pool has expired nothing is created.
    Create {
        /// The object.
        name: ObjectName,
        /// The whole object, its head first.
        pieces: Vec<BufSlice>,
    },
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

/// An object that cannot be had, or not be created. A store that does not answer is no such error: the
/// caller asks it again, for as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The store does not have the object.
    #[error("the bucket does not have the object")]
    Missing,
    /// Its content is wrong, or too short.
    #[error("the object is damaged")]
    Damaged,
    /// Another object has the name of one that was to be created.
    #[error("the bucket has another object of that name")]
    Taken,
}
