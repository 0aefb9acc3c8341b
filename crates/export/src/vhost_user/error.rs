//! Reasons why a front end is disconnected or refused.

use super::wire::Malformed;

/// Reason for which a front end is disconnected. `E` is the back end's error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError<E> {
    /// The front end sent an invalid message, or one that was not agreed on.
    #[error("{0}")]
    Malformed(Malformed),
    /// The front end requested something impossible with a message that has no reply.
    #[error("message {code} was refused: {reason}")]
    Refused {
        /// Code of the message.
        code: u32,
        /// Reason.
        reason: Refusal,
    },
    /// The back end could not carry out a message that has no reply.
    #[error("message {code} was refused: {error}")]
    Backend {
        /// Code of the message.
        code: u32,
        /// The back end's error.
        error: E,
    },
}

impl<E> From<Malformed> for SessionError<E> {
    fn from(malformed: Malformed) -> SessionError<E> {
        SessionError::Malformed(malformed)
    }
}

/// Reason for which a message is refused. Display is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The guest accepts these features, which are not all offered.
    #[error("features that were not offered")]
    Features(u64),
    /// The front end accepts these protocol features, which are not all offered.
    #[error("protocol features that were not offered")]
    ProtocolFeatures(u64),
    /// A queue cannot have this number of entries.
    #[error("a queue's size is a power of two up to 32768")]
    QueueSize(u32),
    /// A queue without a kick descriptor would have to be polled.
    #[error("queues that are looked at all the time are not offered")]
    Polled,
    /// There is no queue of this number.
    #[error("there is no queue {0}")]
    NoQueue(usize),
    /// A part of a queue has an address that is not in the guest's memory.
    #[error("a queue lies outside the guest's memory")]
    QueueAddress(u64),
    /// The queue has more entries than its record of requests in flight.
    #[error("the queue is longer than its record of requests in flight")]
    QueueLength {
        /// Entries of the queue.
        size: u16,
        /// Entries of its record.
        record: u16,
    },
    /// No record of requests in flight is made for that many queues and entries.
    #[error("a record of so many queues of that size is not kept")]
    RecordShape {
        /// Number of queues.
        queues: u16,
        /// Entries of each.
        size: u16,
    },
    /// The record of requests in flight is too short for its queues, or too long, in bytes.
    #[error("the record of requests in flight has an impossible size")]
    RecordSize(u64),
    /// The log of dirty pages comes with a descriptor to wait for.
    #[error("the log of dirty pages is looked at, not waited for")]
    LogDescriptor,
    /// The log of dirty pages is not in shared memory.
    #[error("a log of dirty pages comes as shared memory")]
    LogNotShared,
    /// The log of dirty pages is empty or too long, in bytes.
    #[error("the log of dirty pages has an impossible size")]
    LogSize(u64),
    /// The guest has [`MAX_REGIONS`](super::MAX_REGIONS) regions of memory already.
    #[error("too many regions of memory")]
    RegionCount,
    /// The region to remove is not known.
    #[error("there is no such region of memory")]
    NoRegion,
    /// The guest writes to another part of the configuration.
    #[error("of the configuration the guest can change the write cache alone")]
    Configuration,
}

/// Reason for which a message was not carried out.
pub(super) enum Trouble<E> {
    Malformed,
    Refused(Refusal),
    Backend(E),
}

impl<E> From<Refusal> for Trouble<E> {
    fn from(reason: Refusal) -> Trouble<E> {
        Trouble::Refused(reason)
    }
}

impl<E> From<Malformed> for Trouble<E> {
    fn from(_: Malformed) -> Trouble<E> {
        Trouble::Malformed
    }
}
