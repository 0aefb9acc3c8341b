//! Writing the data of a snapshot into a stream.

use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;

use super::frame::{FrameWriter, PIECE};
use super::head::BLOCK;
use crate::copy::CopyProgress;
use crate::source::{Kind, Source};

/// Bytes of the volume whose runs are queried at once.
const WINDOW: u64 = 4 << 30;

/// Reason why a snapshot was not sent; numbers are byte offsets.
#[derive(Debug)]
pub enum SendError {
    /// The snapshot cannot be read.
    Source(u64, io::Error),
    /// The output cannot be written.
    Output(io::Error),
    /// It was asked to stop.
    Stopped,
}

/// Writes a snapshot from `position` on: with `full`, everything but zeroes; else the ranges that
/// `source` does not report as kept.
///
/// # Errors
/// The first error.
pub fn send_snapshot<W: Write>(
    out: &mut FrameWriter<W>,
    source: &mut dyn Source,
    full: bool,
    (index, position): (usize, u64),
    progress: &CopyProgress,
) -> Result<(), SendError> {
    out.snapshot(index, position).map_err(SendError::Output)?;
    let size = source.size();
    let (mut at, mut covered) = (position, position);
    let mut buffer = Vec::new();
    while at < size {
        let runs = source.runs(at, (size - at).min(WINDOW)).map_err(|e| SendError::Source(at, e))?;
        for run in runs {
            if run.offset != at || run.length == 0 || run.length > size - at {
                return Err(SendError::Source(at, io::Error::new(io::ErrorKind::InvalidData, "its map makes no sense")));
            }
            at += run.length;
            // whole blocks: a block at the border of two runs is read
            let whole = run.offset.is_multiple_of(BLOCK) && at.is_multiple_of(BLOCK);
            let (from, to) = (run.offset / BLOCK * BLOCK, at.next_multiple_of(BLOCK).min(size));
            match run.kind {
                Kind::Keep => {}
                Kind::Zero if whole && full => {}
                Kind::Zero if whole => out.zero(from, to - from).map_err(SendError::Output)?,
                Kind::Zero | Kind::Data => data(out, source, full, (from.max(covered), to), &mut buffer, progress)?,
            }
            covered = covered.max(to);
            progress.done.fetch_add(run.length, Relaxed);
        }
    }
    out.complete(index).map_err(SendError::Output)
}

/// Reads and writes a range in pieces.
fn data<W: Write>(
    out: &mut FrameWriter<W>,
    source: &mut dyn Source,
    full: bool,
    (mut from, to): (u64, u64),
    buffer: &mut Vec<u8>,
    progress: &CopyProgress,
) -> Result<(), SendError> {
    while from < to {
        if progress.stop.load(Relaxed) {
            return Err(SendError::Stopped);
        }
        let next = ((from / PIECE + 1) * PIECE).min(to);
        buffer.resize(usize::try_from(next - from).unwrap_or(0), 0);
        source.read(from, buffer).map_err(|e| SendError::Source(from, e))?;
        if buffer.iter().any(|byte| *byte != 0) {
            out.data(from, buffer).map_err(SendError::Output)?;
            progress.written.fetch_add(next - from, Relaxed);
        } else if !full {
            out.zero(from, next - from).map_err(SendError::Output)?;
        }
        from = next;
    }
    Ok(())
}
