//! The end of a pipe, a file or a device that a shell has opened for this process, read in order.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::copy::CopyProgress;

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

    /// Reads what there is, at least one byte; nothing at the end. A writer that does not write
    /// delays no stop.
    ///
    /// # Errors
    /// The host's I/O error, or `Interrupted` when `stopped` returns true.
    pub fn some(&mut self, into: &mut [u8], stopped: &dyn Fn() -> bool) -> io::Result<usize> {
        let wait = Timespec::try_from(LOOK).map_err(io::Error::other)?;
        loop {
            if stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
            match self.file.read(into) {
                // Another process may have taken the bytes.
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                read => return read,
            }
        }
    }

    /// Returns the next bytes: `length` of them, or fewer before the end. A writer that does not
    /// write delays no stop.
    ///
    /// # Errors
    /// The host's I/O error, or `Interrupted` when `stopped` returns true.
    pub fn next(&mut self, length: usize, stopped: &dyn Fn() -> bool) -> io::Result<Vec<u8>> {
        let (mut bytes, mut filled) = (vec![0; length], 0);
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.some(rest, stopped)? {
                0 => break,
                more => filled += more,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// Input as a [`Read`] for parsers, which counts what it reads as done. A stop is an error that is
/// not `Interrupted`, after which they would read again.
pub struct InputReader<'a> {
    input: Input,
    progress: &'a CopyProgress,
}

impl InputReader<'_> {
    /// Reads from `file` until `progress` asks to stop.
    pub fn new(file: File, progress: &CopyProgress) -> InputReader<'_> {
        InputReader { input: Input::new(file), progress }
    }
}

impl Read for InputReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.some(into, &|| self.progress.stop.load(Relaxed)).map_err(super::stop_error)?;
        self.progress.done.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}
