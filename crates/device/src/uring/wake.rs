//! Wakes a ring from other threads.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Ends the current or the next wait of a [`super::Ring`], which then has the event
/// [`super::Event::Woken`].
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    pub(super) fn new() -> Result<Waker, Errno> {
        Ok(Waker { eventfd: Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?) })
    }

    /// Wakes the ring. One system call: cheap enough for control messages.
    pub fn wake(&self) {
        // An eventfd takes a write of 1 until its counter nears 2^64; a failure would mean that a
        // wake-up is pending anyway.
        while rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    pub(super) fn raw(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}
