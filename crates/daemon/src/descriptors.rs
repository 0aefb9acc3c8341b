//! File descriptors: the daemon takes as many as the host allows, and keeps some in reserve.
//!
//! A new descriptor gets the lowest free number, so a number near the limit means that nearly all
//! are in use. From then on clients and exports are refused with a reason; the last [`RESERVE`] are
//! for what the daemon itself has to open: the state file, devices that it examines, clients of the
//! control socket.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that neither clients nor exports get: a dozen at a time for the state file, labels
/// and mounts, and the clients of the control socket.
const RESERVE: u64 = 64;
/// Largest part of a low limit that is kept in reserve: 1/N.
const RESERVE_PART: u64 = 4;

/// Raises the soft limit to the hard one, which costs nothing until descriptors are used.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, limit = limit.current, "the limit of open files stays");
    }
}

/// Returns the first descriptor number of the reserve.
fn end(limit: u64) -> u64 {
    limit - RESERVE.min(limit / RESERVE_PART)
}

fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the message that refuses a client, with what to do about it.
pub fn refusal() -> String {
    let limit = limit().unwrap_or(0);
    format!("nearly all of {limit} file descriptors are in use; disconnect clients, remove exports, or raise LimitNOFILE of the daemon")
}

/// True when a client may keep the new descriptor `fd`.
pub fn may_keep(fd: impl AsFd) -> bool {
    let number = u64::try_from(fd.as_fd().as_raw_fd()).unwrap_or(0);
    limit().is_none_or(|limit| number < end(limit))
}

/// True when something that needs `more` descriptors may be begun.
pub fn have_room(more: u64) -> bool {
    let Some(limit) = limit() else { return true };
    let lowest = fcntl_dupfd_cloexec(std::io::stdin(), 0).ok().and_then(|fd| u64::try_from(fd.as_raw_fd()).ok());
    lowest.is_some_and(|lowest| lowest.saturating_add(more) <= end(limit))
}

#[cfg(test)]
mod tests {
    use super::end;

    #[test]
    fn low_limits_keep_less() {
        assert_eq!([1_048_576, 1024, 256, 64, 0].map(end), [1_048_512, 960, 192, 48, 0]);
    }
}
