//! Writes a disk in order: one thread plans, several threads read ahead, and one writes.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::outlet::Outlet;
use crate::copy::{BLOCK, CopyError, CopyProgress, Piece, plan};
use crate::source::Image;

#[cfg(test)]
mod tests;

/// Threads that read; each has one piece in flight.
const READERS: usize = 4;
/// Pieces queued for each reader, and pieces that it has read and that wait to be written.
const AHEAD: usize = 2;
/// Maximum bytes of zeroes between looks at whether the copy is asked to stop.
const ZEROES: u64 = 4 << 20;

type Read = Result<Vec<u8>, CopyError>;

/// Writes all bytes of a disk to `out`, in order; zeroes too, unless `out` is a file that can have
/// holes. A file or device is durable on return.
///
/// # Errors
/// The first error. A pipe without a reader is [`CopyError::Target`] with `BrokenPipe`.
pub fn write(source: &dyn Image, out: File, progress: &CopyProgress) -> Result<(), CopyError> {
    let mut outlet = Outlet::new(out).map_err(|e| CopyError::Target(0, e))?;
    let written = thread::scope(|scope| {
        // The receivers are dropped before the scope waits, so that every thread ends.
        let (order, next) = sync_channel::<Result<Piece, CopyError>>(READERS * AHEAD);
        let (mut queues, mut results) = (Vec::new(), Vec::new());
        for _ in 0..READERS {
            let (queue, pieces) = sync_channel::<Piece>(AHEAD);
            let (send, result) = sync_channel::<Read>(AHEAD);
            scope.spawn(move || read(source, &pieces, &send));
            queues.push(queue);
            results.push(result);
        }
        scope.spawn(move || {
            let mut queues = queues.iter().cycle();
            let planned = plan(source, BLOCK, progress, &mut |piece: Piece| {
                let queued = piece.zero || queues.next().is_some_and(|queue| queue.send(piece).is_ok());
                queued && order.send(Ok(piece)).is_ok()
            });
            // Without a receiver, the writer has ended with an error of its own.
            planned.or_else(|error| order.send(Err(error))).unwrap_or_default();
        });
        write_in_order(&mut outlet, &next, &results, progress).inspect_err(|_| progress.stop.store(true, Relaxed))
    });
    written?;
    let end = progress.done.load(Relaxed);
    outlet.end(&|| progress.stop.load(Relaxed)).map_err(|e| target_error(end, e))
}

/// Reads the pieces of one queue until the planner or the writer has ended.
fn read(source: &dyn Image, pieces: &Receiver<Piece>, send: &SyncSender<Read>) {
    let mut opened = None;
    while let Ok(piece) = pieces.recv() {
        let mut read = || {
            let source = match &mut opened {
                Some(source) => source,
                None => opened.insert(source.open()?),
            };
            let mut bytes = vec![0; usize::try_from(piece.length).unwrap_or(0)];
            source.read(piece.offset, &mut bytes)?;
            Ok(bytes)
        };
        if send.send(read().map_err(|e: io::Error| CopyError::Source(piece.offset, e))).is_err() {
            return;
        }
    }
}

fn write_in_order(
    outlet: &mut Outlet,
    next: &Receiver<Result<Piece, CopyError>>,
    results: &[Receiver<Read>],
    progress: &CopyProgress,
) -> Result<(), CopyError> {
    let stopped = || progress.stop.load(Relaxed);
    let mut results = results.iter().cycle();
    while let Ok(piece) = next.recv() {
        let piece = piece?;
        if stopped() {
            return Err(CopyError::Stopped);
        }
        if !piece.zero {
            let read = results.next().and_then(|result| result.recv().ok());
            let bytes = read.ok_or(CopyError::Stopped)??;
            outlet.data(bytes, &stopped).map_err(|e| target_error(piece.offset, e))?;
            progress.written.fetch_add(piece.length, Relaxed);
            progress.done.fetch_add(piece.length, Relaxed);
            continue;
        }
        let (mut at, end) = (piece.offset, piece.offset + piece.length);
        while at < end {
            let part = if outlet.is_sparse() { end - at } else { (end - at).min(ZEROES) };
            outlet.zeroes(part, &stopped).map_err(|e| target_error(at, e))?;
            progress.done.fetch_add(part, Relaxed);
            at += part;
        }
    }
    Ok(())
}

/// Error of the outlet near a byte.
fn target_error(at: u64, error: io::Error) -> CopyError {
    if error.kind() == io::ErrorKind::Interrupted { CopyError::Stopped } else { CopyError::Target(at, error) }
}
