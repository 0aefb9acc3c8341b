//! Ends a thread that waits for a front end or talks to one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::Shutdown;

/// The sockets of such a thread, to be shut down from outside.
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

    /// Remembers the connection that is being served, or that there is none. False when it is to be dropped at once.
    pub fn serving(&self, connection: Option<OwnedFd>) -> bool {
        let mut place = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *place = connection;
        !self.is_ended()
    }

    /// Ends the connection that is being served; the next one is served as ever.
    pub fn break_off(&self) {
        let place = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(connection) = place.as_ref() {
            let _ = rustix::net::shutdown(connection, Shutdown::Both);
        }
    }

    /// Wakes the thread from whatever it waits for, for ever.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // Both fail when there is nothing to be shut down any more.
        let _ = rustix::net::shutdown(self.listener.as_fd(), Shutdown::Both);
        let place = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(connection) = place.as_ref() {
            let _ = rustix::net::shutdown(connection, Shutdown::Both);
        }
    }
}
