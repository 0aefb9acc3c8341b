//! Words of the trace.

use millpond_block::{DiskError, Op};

pub(super) fn operation(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes { .. } => "zero",
        Op::Cache => "cache",
    }
}

pub(super) fn outcome(result: &Result<(), DiskError>) -> &'static str {
    match result {
        Ok(()) => "done",
        Err(DiskError::Io) => "EIO",
        Err(DiskError::NoSpace) => "ENOSPC",
        Err(DiskError::Invalid) => "EINVAL",
        Err(DiskError::OutOfBounds) => "beyond the end",
        Err(DiskError::ReadOnly) => "EPERM",
        Err(DiskError::NotSupported) => "ENOTSUP",
        Err(DiskError::Shutdown) => "ESHUTDOWN",
    }
}
