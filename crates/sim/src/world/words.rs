//! Words of the trace.

use millpond_block::{DiskError, Op};
use millpond_engine::CommandError;

use crate::trace::DONE;

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

/// Returns the kind of a reply. Digests contain it, so each kind keeps its word when its type
/// changes.
pub(super) fn reply_kind<T>(result: &Result<T, CommandError>) -> &'static str {
    match result {
        Ok(_) => DONE,
        Err(CommandError::Exists(_)) => "exists",
        Err(CommandError::NotFound(_)) => "not found",
        Err(CommandError::Invalid(_)) => "invalid",
        Err(CommandError::Busy(_)) => "busy",
        Err(CommandError::NoSpace) => "no space",
        Err(CommandError::Faulted(_) | CommandError::NodeUnreadable | CommandError::Request(_)) => "stopped",
    }
}
