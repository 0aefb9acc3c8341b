//! Errors of calls to a shard.

use std::fmt;
use std::io;

use millpond_api::{ApiError, ErrorKind};
use millpond_block::{DeviceSlot, DiskError};
use millpond_engine::{CommandError, Target};

use super::report::ExportId;
use crate::descriptors;
use crate::hint;

/// Error of a call to a shard. Display is one line: the problem, the reason, the remedy.
#[derive(Debug)]
pub enum ShardError {
    /// The shard has ended.
    Gone,
    /// The shard's thread does not answer: it is blocked in the kernel.
    Silent,
    /// The engine refused or failed.
    Command(CommandError),
    /// No export has this id.
    NoExport(ExportId),
    /// An export with this id is there already.
    ExportExists(ExportId),
    /// Neither a unix path nor a TCP address was given.
    NoAddress,
    /// The volume or snapshot to export does not exist.
    NoTarget(Target),
    /// The listener could not be made.
    Listen {
        /// Address of the listener.
        address: String,
        /// Error of the host.
        source: io::Error,
    },
    /// No device has this position.
    NoDevice(DeviceSlot),
    /// A request of [`ShardHandle::read`] and its siblings failed.
    Disk(DiskError),
    /// The thread or its io_uring could not be set up.
    Start(io::Error),
    /// Nearly all file descriptors are in use.
    NoDescriptors,
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardError::Gone => f.write_str("the pool is not open any more; import it again"),
            ShardError::Silent => f.write_str(
                "the pool's thread does not answer, the host may be waiting for a device; see the host's messages, or give the pool up with 'millpond pool export NAME --force'",
            ),
            ShardError::Command(error) => f.write_str(&hint::command(error)),
            ShardError::NoExport(id) => write!(f, "no export {id}; see 'millpond exports'"),
            ShardError::ExportExists(id) => write!(f, "export {id} exists already; unexport it first"),
            ShardError::NoAddress => f.write_str("no address to export on; give --unix PATH or --tcp ADDR"),
            ShardError::NoTarget(target) => write!(f, "cannot export {target:?}, it does not exist; see 'millpond list -t all'"),
            ShardError::Listen { address, source } => {
                write!(f, "cannot listen on {address}: {source}; choose another address or end the program that uses it")
            }
            ShardError::NoDevice(index) => write!(f, "the pool has no device {}; see 'millpond pool status -v'", index.0),
            ShardError::Disk(error) => write!(f, "the request failed: {error}"),
            ShardError::NoDescriptors => f.write_str(&descriptors::refusal()),
            ShardError::Start(error) => write!(f, "cannot start the pool's thread: {error}; is io_uring allowed here?"),
        }
    }
}

impl std::error::Error for ShardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ShardError::Command(error) => Some(error),
            ShardError::Listen { source, .. } | ShardError::Start(source) => Some(source),
            ShardError::Disk(error) => Some(error),
            _ => None,
        }
    }
}

impl From<CommandError> for ShardError {
    fn from(error: CommandError) -> Self {
        ShardError::Command(error)
    }
}

impl From<ShardError> for ApiError {
    fn from(error: ShardError) -> Self {
        let kind = match error {
            ShardError::Command(error) => return refused(&error),
            ShardError::Gone | ShardError::Silent => ErrorKind::Unavailable,
            ShardError::NoExport(_) | ShardError::NoTarget(_) | ShardError::NoDevice(_) => ErrorKind::NotFound,
            ShardError::ExportExists(_) => ErrorKind::Exists,
            ShardError::NoAddress => ErrorKind::Invalid,
            ShardError::Listen { .. } | ShardError::NoDescriptors => ErrorKind::Busy,
            _ => ErrorKind::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}

/// Returns the error of the API for a refused or failed command.
pub fn refused(error: &CommandError) -> ApiError {
    let kind = match error {
        CommandError::Exists(_) => ErrorKind::Exists,
        CommandError::NotFound(_) => ErrorKind::NotFound,
        CommandError::Invalid(_) => ErrorKind::Invalid,
        CommandError::Busy(_) => ErrorKind::Busy,
        CommandError::NoSpace => ErrorKind::NoSpace,
        CommandError::NodeUnreadable | CommandError::Request(_) | CommandError::Faulted(_) => ErrorKind::Unavailable,
    };
    ApiError::new(kind, hint::command(error))
}
