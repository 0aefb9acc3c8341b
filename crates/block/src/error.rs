//! What can go wrong with a guest request, in the terms every storage protocol can carry.

/// The outcome of a failed guest request; the variant says what the guest may do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The medium failed or its checksum did not match: the data cannot be had (EIO).
    #[error("input/output error")]
    Io,
    /// The pool has no room for new data; reads, flushes and discards go on (ENOSPC).
    #[error("no space left in the pool")]
    NoSpace,
    /// The request is malformed or not aligned to the sector (EINVAL).
    #[error("invalid request")]
    Invalid,
    /// The range ends beyond the disk (EINVAL for reads, ENOSPC for writes, as NBD asks).
    #[error("beyond the end of the disk")]
    OutOfBounds,
    /// The disk is read-only (EPERM).
    #[error("read-only")]
    ReadOnly,
    /// The operation is not offered (ENOTSUP).
    #[error("not supported")]
    NotSupported,
    /// The disk is going away (ESHUTDOWN).
    #[error("shutting down")]
    Shutdown,
}
