//! The end of a pipe, a file or a device that a shell has opened for this process, written in order.
//!
//! A thread of its own writes, because a reader that does not read blocks a write for ever. The
//! thread is left behind when the copy is asked to stop, and ends with the process.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use super::stop_error;

#[cfg(test)]
mod tests;

/// Interval between looks at whether the copy is asked to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that an [`OutletWriter`] collects before it writes.
const BUFFER: usize = 1 << 20;
/// Bytes of zeroes that are written at once.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

enum Order {
    Data(Vec<u8>),
    Zeroes(u64),
    End,
}

/// Writes in order to a file descriptor of any kind.
pub struct Outlet {
    orders: SyncSender<Order>,
    answers: Receiver<io::Result<()>>,
    /// An order was sent whose answer was not received yet.
    waiting: bool,
    sparse: bool,
}

impl Outlet {
    /// Starts the thread that writes to `file`.
    ///
    /// # Errors
    /// When the state of the file descriptor cannot be read.
    pub fn new(file: File) -> io::Result<Outlet> {
        let mut outlet = Plain { sparse: can_be_sparse(&file)?, file };
        let sparse = outlet.sparse;
        let (orders, next) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        thread::spawn(move || {
            while let Ok(order) = next.recv() {
                // Without a receiver the answer is not needed.
                if answer.send(outlet.carry_out(&order)).is_err() {
                    return;
                }
            }
        });
        Ok(Outlet { orders, answers, waiting: false, sparse })
    }

    /// Whether ranges of zeroes become holes. It is false for pipes.
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Appends bytes. They are not written yet on return.
    ///
    /// # Errors
    /// The error of an earlier write, or `Interrupted` when `stopped` returns true.
    pub fn data(&mut self, bytes: Vec<u8>, stopped: &dyn Fn() -> bool) -> io::Result<()> {
        self.order(Order::Data(bytes), stopped)
    }

    /// Appends zeroes. They are not written yet on return.
    ///
    /// # Errors
    /// Those of [`Outlet::data`].
    pub fn zeroes(&mut self, length: u64, stopped: &dyn Fn() -> bool) -> io::Result<()> {
        self.order(Order::Zeroes(length), stopped)
    }

    /// Waits until everything is written. A file or device is durable on return.
    ///
    /// # Errors
    /// Those of [`Outlet::data`].
    pub fn end(mut self, stopped: &dyn Fn() -> bool) -> io::Result<()> {
        self.order(Order::End, stopped)?;
        self.answer(stopped)
    }

    fn order(&mut self, order: Order, stopped: &dyn Fn() -> bool) -> io::Result<()> {
        self.answer(stopped)?;
        self.orders.send(order).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.waiting = true;
        Ok(())
    }

    /// Waits for the answer to the last order.
    fn answer(&mut self, stopped: &dyn Fn() -> bool) -> io::Result<()> {
        while self.waiting {
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => {
                    self.waiting = false;
                    answer?;
                }
                Err(RecvTimeoutError::Timeout) if stopped() => return Err(io::ErrorKind::Interrupted.into()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(())
    }
}

/// An outlet as a [`Write`] with a buffer. A stop is an error that is not `Interrupted`, after which
/// callers would write again.
pub struct OutletWriter {
    outlet: Outlet,
    buffer: Vec<u8>,
    stop: Arc<AtomicBool>,
}

impl OutletWriter {
    /// Starts the thread that writes to `file`.
    ///
    /// # Errors
    /// When the state of the file descriptor cannot be read.
    pub fn new(file: File) -> io::Result<OutletWriter> {
        Ok(OutletWriter { outlet: Outlet::new(file)?, buffer: Vec::new(), stop: Arc::default() })
    }

    /// From now on this asks to stop.
    pub fn stop_with(&mut self, stop: &Arc<AtomicBool>) {
        self.stop = Arc::clone(stop);
    }

    /// Waits until everything is written. A file or device is durable on return.
    ///
    /// # Errors
    /// The error of a write, or of a stop.
    pub fn end(mut self) -> io::Result<()> {
        self.flush()?;
        let stop = self.stop;
        self.outlet.end(&|| stop.load(Relaxed)).map_err(stop_error)
    }
}

impl Write for OutletWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Passes the buffer on; [`OutletWriter::end`] waits until it is written.
    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer);
        self.outlet.data(bytes, &|| self.stop.load(Relaxed)).map_err(stop_error)
    }
}

/// Whether a range that is skipped reads as zeroes afterwards: the position is at or beyond the end
/// of a file, and writes go to the position.
fn can_be_sparse(mut file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    Ok(meta.is_file() && !fcntl_getfl(file)?.contains(OFlags::APPEND) && file.stream_position()? >= meta.len())
}

/// The file descriptor, used by the thread alone.
struct Plain {
    file: File,
    sparse: bool,
}

impl Plain {
    fn carry_out(&mut self, order: &Order) -> io::Result<()> {
        match order {
            Order::Data(bytes) => self.write(bytes),
            Order::Zeroes(length) if self.sparse => {
                let skipped = i64::try_from(*length).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
                self.file.seek(SeekFrom::Current(skipped)).map(drop)
            }
            Order::Zeroes(length) => {
                let mut left = *length;
                while left > 0 {
                    let part = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROES.len());
                    self.write(ZEROES.get(..part).unwrap_or_default())?;
                    left -= part as u64;
                }
                Ok(())
            }
            Order::End => self.end(),
        }
    }

    /// Writes all bytes, also to a pipe that does not block.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // After an error, of a signal for one, the next write says more.
                    let _ = poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], None);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        let meta = self.file.metadata()?;
        if self.sparse {
            let end = self.file.stream_position()?;
            if end > meta.len() {
                self.file.set_len(end)?;
            }
        }
        if meta.is_file() || meta.file_type().is_block_device() { self.file.sync_all() } else { Ok(()) }
    }
}
