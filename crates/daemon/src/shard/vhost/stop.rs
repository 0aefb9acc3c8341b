//! Ends a thread that waits for a front end or talks to one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::Shutdown;

/// Sockets of such a thread, which other threads shut down.
#[derive(Debug)]
pub(super) struct Stop {
    ended: AtomicBool,
    listener: OwnedFd,
    connection: Mutex<Option<OwnedFd>>,
}

impl Stop {
    pub fn new(listener: OwnedFd) -> Stop {
        Stop { ended: AtomicBool::new(false), listener, connection: Mutex::new(None) }
    }

    pub fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Records the connection that is being served, or that there is none. Returns false when the
    /// connection is to be dropped at once.
    pub fn serving(&self, connection: Option<OwnedFd>) -> bool {
        let mut place = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *place = connection;
        !self.is_ended()
    }

    /// Ends the connection that is being served; later ones are served.
    pub fn break_off(&self) {
        let place = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(connection) = place.as_ref() {
            let _ = rustix::net::shutdown(connection, Shutdown::Both);
        }
    }

    /// Wakes the thread from any wait, for good.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // Both fail when there is nothing left to shut down.
        let _ = rustix::net::shutdown(self.listener.as_fd(), Shutdown::Both);
        let place = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(connection) = place.as_ref() {
            let _ = rustix::net::shutdown(connection, Shutdown::Both);
        }
    }
}
