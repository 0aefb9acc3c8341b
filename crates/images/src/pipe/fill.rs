//! Fills a new volume from a pipe of unknown length: one thread reads, several threads write.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use millpond_api::failure::Failure;

use super::input::Input;
use crate::copy::{BLOCK, CopyError, CopyProgress, PIECE, changed};
use crate::nbd;

#[cfg(test)]
mod tests;

/// Threads that write; each has one piece in flight.
const WRITERS: usize = 4;
/// Pieces that were read and wait for a writer.
const AHEAD: usize = 4;

/// Makes the volume larger: to this size in bytes.
pub type Grow<'a> = &'a mut dyn FnMut(u64) -> Result<(), Failure>;

/// Bytes from a pipe, of which the first were read already.
pub struct Feed {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The bytes after them.
    pub rest: Input,
}

/// Reason why a volume was not filled; numbers are byte offsets.
#[derive(Debug)]
pub enum FillError {
    /// Reading or writing failed, or it was asked to stop.
    Copy(CopyError),
    /// The volume could not become larger.
    Grow(Failure),
}

struct Piece {
    offset: u64,
    bytes: Vec<u8>,
}

/// Writes everything that `feed` has into a volume that reads as zeroes and has `size` bytes, and
/// returns the number of bytes. Blocks of zeroes are not written. When the volume is too small,
/// `grow` is called with at least twice its size. Durable on return.
///
/// # Errors
/// The first error of any thread.
pub fn fill(feed: Feed, socket: &Path, size: u64, grow: Grow<'_>, progress: &CopyProgress) -> Result<u64, FillError> {
    let first: Mutex<Option<FillError>> = Mutex::new(None);
    let note = |error| {
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        progress.stop.store(true, Relaxed);
    };
    let mut length = 0;
    thread::scope(|scope| {
        let (send, receive) = sync_channel::<Piece>(AHEAD);
        let receive = std::sync::Arc::new(Mutex::new(receive));
        for _ in 0..WRITERS {
            let receive = std::sync::Arc::clone(&receive);
            scope.spawn(move || write(socket, &receive, progress).unwrap_or_else(|error| note(FillError::Copy(error))));
        }
        // Without a writer, sending fails.
        drop(receive);
        match read(feed, size, grow, progress, &mut |piece| send.send(piece).is_ok()) {
            Ok(read) => length = read,
            Err(error) => note(error),
        }
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => {
            // A flush on one connection covers all writes that were answered on any connection.
            let flushed = nbd::connect(socket).and_then(|mut nbd| nbd.flush());
            flushed.map_err(|e| FillError::Copy(CopyError::Target(length, e)))?;
            Ok(length)
        }
    }
}

/// Reads pieces up to the end, and makes room for each before it is sent.
fn read(feed: Feed, mut size: u64, grow: Grow<'_>, progress: &CopyProgress, send: &mut dyn FnMut(Piece) -> bool) -> Result<u64, FillError> {
    let Feed { head, mut rest } = feed;
    let piece = usize::try_from(PIECE).unwrap_or(usize::MAX);
    let stopped = || progress.stop.load(Relaxed);
    let mut at = 0;
    let mut heads = head.chunks(piece);
    loop {
        let mut bytes = heads.next().map(<[u8]>::to_vec).unwrap_or_default();
        if bytes.len() < piece {
            let more = rest.next(piece - bytes.len(), &stopped);
            bytes.extend(more.map_err(|e| FillError::Copy(error_at(at, e)))?);
        }
        let (length, last) = (bytes.len() as u64, bytes.len() < piece);
        if bytes.is_empty() {
            return Ok(at);
        }
        bytes.resize(bytes.len().next_multiple_of(usize::try_from(BLOCK).unwrap_or(1)), 0);
        let end = at + bytes.len() as u64;
        if end > size {
            size = end.max(size.saturating_mul(2));
            grow(size).map_err(FillError::Grow)?;
        }
        if !send(Piece { offset: at, bytes }) {
            return Err(FillError::Copy(CopyError::Stopped));
        }
        at += length;
        if last {
            return Ok(at);
        }
    }
}

/// Error of the pipe near a byte.
fn error_at(at: u64, error: io::Error) -> CopyError {
    if error.kind() == io::ErrorKind::Interrupted { CopyError::Stopped } else { CopyError::Source(at, error) }
}

fn write(socket: &Path, receive: &Mutex<Receiver<Piece>>, progress: &CopyProgress) -> Result<(), CopyError> {
    let mut target = nbd::connect(socket).map_err(|e| CopyError::Target(0, e))?;
    loop {
        let next = receive.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Piece { offset, bytes }) = next else { return Ok(()) };
        if progress.stop.load(Relaxed) {
            return Err(CopyError::Stopped);
        }
        let mut written = 0;
        for (start, end) in changed(&bytes, None) {
            // A connection knows the size that the volume had when it was made.
            if offset + bytes.len() as u64 > target.size() {
                target = nbd::connect(socket).map_err(|e| CopyError::Target(offset, e))?;
            }
            let (at, part) = (offset + start as u64, bytes.get(start..end).unwrap_or_default());
            target.write(at, part).map_err(|e| CopyError::Target(at, e))?;
            written += part.len() as u64;
        }
        progress.done.fetch_add(bytes.len() as u64, Relaxed);
        progress.written.fetch_add(written, Relaxed);
    }
}
