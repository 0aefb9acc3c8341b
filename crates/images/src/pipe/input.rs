//! The end of a pipe, a file or a device that a shell has opened for this process, read in order.

use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[cfg(test)]
mod tests;

/// Interval between looks at whether the copy is asked to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Reads in order from a file descriptor of any kind.
pub struct Input {
    file: File,
}

impl Input {
    /// Reads from `file`.
    pub fn new(file: File) -> Input {
        Input { file }
    }

    /// Returns the next bytes: `length` of them, or fewer before the end. A writer that does not
    /// write delays no stop.
    ///
    /// # Errors
    /// The host's I/O error, or `Interrupted` when `stopped` returns true.
    pub fn next(&mut self, length: usize, stopped: &dyn Fn() -> bool) -> io::Result<Vec<u8>> {
        let (mut bytes, mut filled) = (vec![0; length], 0);
        let wait = Timespec::try_from(LOOK).map_err(io::Error::other)?;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            if stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(more) => filled += more,
                // Another process may have taken the bytes.
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}
