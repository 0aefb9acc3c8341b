//! Devices of messages, `/dev/fuse`: a read takes one message out, a write puts one in, both at once or not at all.
//!
//! The ring polls them as it polls connections, and tells [`super::Event::Readable`]. Reading through the ring would save no system call: the device
//! cannot tell io_uring that it would not wait, so each read would go to a worker thread, or wait for a poll of its own.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smallvec::SmallVec;

use super::event::ConnectionId;
use super::ring::Ring;

/// Pieces of a message that are listed on the stack: a header and a few runs of data.
const PIECES: usize = 16;

impl Ring {
    /// Takes a device over that does not wait (`O_NONBLOCK`). It is closed with [`Ring::close`].
    pub fn attach(&mut self, device: OwnedFd) -> ConnectionId {
        self.connect(device)
    }

    /// Reads the next message into two places, one after the other; gives its length.
    ///
    /// # Errors
    /// `WOULDBLOCK` when there is none: wait for [`super::Event::Readable`]. `NODEV` when nothing is mounted any more. Else the device's.
    pub fn read_message(&mut self, id: ConnectionId, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        let device = self.sockets.socket(id).ok_or(Errno::BADF)?;
        loop {
            match rustix::io::readv(device, &mut [IoSliceMut::new(first), IoSliceMut::new(second)]) {
                // interrupted by a signal, or the request was taken back before it was read
                Err(Errno::INTR | Errno::NOENT) => {}
                other => return other,
            }
        }
    }

    /// Writes a message made of slices.
    ///
    /// # Errors
    /// The device's: `NOENT` when nobody waits for this reply any more.
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
