//! Errors of guest requests, as every storage protocol can report them.

/// Error of a guest request; the variant determines how the guest can react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The medium failed or the checksum did not match: the data cannot be returned (EIO).
    #[error("input/output error")]
    Io,
    /// The pool has no space for new data; reads, flushes and discards still work (ENOSPC).
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
    /// The disk is being closed (ESHUTDOWN).
    #[error("shutting down")]
    Shutdown,
}
