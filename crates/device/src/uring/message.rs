//! Message devices such as `/dev/fuse`: a read takes one whole message, a write passes one whole
//! message.
//!
//! The ring polls them like connections, and reports [`super::Event::Readable`]. Reading through
//! the ring would save no system call: io_uring cannot know that the device would not wait, so each
//! read would go to a worker thread, or wait for a poll of its own.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smallvec::SmallVec;

use super::event::ConnectionId;
use super::ring::Ring;

/// Pieces of a message that are listed on the stack: a header and a few runs of data.
const PIECES: usize = 16;

impl Ring {
    /// Adds a device that does not block (`O_NONBLOCK`). It is closed with [`Ring::close`].
    pub fn attach(&mut self, device: OwnedFd) -> ConnectionId {
        self.connect(device)
    }

    /// Reads the next message into two buffers, one after the other, and returns its length.
    ///
    /// # Errors
    /// `WOULDBLOCK` when there is none: wait for [`super::Event::Readable`]. `NODEV` when the
    /// filesystem is unmounted. Else the device's error.
    pub fn read_message(&mut self, id: ConnectionId, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        let device = self.sockets.socket(id).ok_or(Errno::BADF)?;
        loop {
            match rustix::io::readv(device, &mut [IoSliceMut::new(first), IoSliceMut::new(second)]) {
                // interrupted by a signal, or the request was cancelled before it was read
                Err(Errno::INTR | Errno::NOENT) => {}
                other => return other,
            }
        }
    }

    /// Writes a message that consists of slices.
    ///
    /// # Errors
    /// The device's error: `NOENT` when the request of this reply was cancelled.
    pub fn write_message<'a>(&mut self, id: ConnectionId, slices: impl Iterator<Item = &'a [u8]>) -> Result<(), Errno> {
        let device = self.sockets.socket(id).ok_or(Errno::BADF)?;
        let vectors: SmallVec<[IoSlice<'a>; PIECES]> = slices.map(IoSlice::new).collect();
        loop {
            match rustix::io::writev(device, &vectors) {
                Err(Errno::INTR) => {}
                other => return other.map(drop),
            }
        }
    }
}
