//! Copies a disk: one thread plans, several threads read and write, so that requests are always in
//! flight. Ranges that read as zeroes are not written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::source::{Image, Kind, Run, Source};
use crate::nbd::{self, Nbd};

#[cfg(test)]
mod tests;

/// Granularity in bytes of telling data from zeroes. Ranges are widened to it, because a volume
/// stores blocks of this size.
pub(crate) const BLOCK: u64 = 4096;
/// Bytes of a cluster of a layer, QEMU's default for qcow2.
const CLUSTER: u64 = 64 << 10;
/// Maximum bytes of a data piece, read and written at once.
pub(crate) const PIECE: u64 = 1 << 20;
/// Maximum bytes of a zero piece.
const ZEROES: u64 = 1 << 30;
/// Bytes of the disk whose runs are queried at once.
const WINDOW: u64 = 4 << 30;
/// Worker threads; each has one piece in flight.
const WORKERS: usize = 4;
/// Maximum number of pieces queued for the workers.
const AHEAD: usize = 16;

/// Destination of a copy.
#[derive(Clone, Debug)]
pub enum Target {
    /// NBD server on a unix socket.
    Socket(PathBuf),
    /// A new file of this size in bytes that reads as zeroes.
    File(Arc<File>, u64),
}

/// Operation on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The target reads as zeroes: only blocks that are not zero are written.
    Fill,
    /// The target holds another version: only blocks that differ are written.
    Update,
    /// The target is a new layer whose lower layer is not known: everything that the source does
    /// not [keep](Kind::Keep) is written in whole clusters, zeroes too. The target is a socket.
    Layer,
    /// Nothing is written; a difference is an error.
    Compare,
}

/// Progress of a copy, shared with the thread that shows it and may stop it.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Bytes of the disk that were processed, written or not.
    pub done: AtomicU64,
    /// Bytes that were written.
    pub written: AtomicU64,
    /// Asks the copy to stop. Shared with what waits for another program.
    pub stop: Arc<AtomicBool>,
}

/// Reason why a copy ended early; numbers are byte offsets.
#[derive(Debug)]
pub enum CopyError {
    /// The source cannot be read.
    Source(u64, io::Error),
    /// The target cannot be read or written.
    Target(u64, io::Error),
    /// Source and target differ.
    Differs(u64),
    /// The copy was asked to stop.
    Stopped,
}

/// A range of the disk for one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// True if it reads as zeroes.
    pub zero: bool,
}

/// Makes `target` equal to `source`, whose size is at most that of the target. Durable on return,
/// except for `Task::Compare`, which writes nothing.
///
/// # Errors
/// The first error of any thread.
pub fn copy(source: &dyn Image, target: &Target, task: Task, progress: &CopyProgress) -> Result<(), CopyError> {
    let (send, receive) = sync_channel::<Piece>(AHEAD);
    let receive = Mutex::new(receive);
    let first: Mutex<Option<CopyError>> = Mutex::new(None);
    let note = |error| {
        let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        first.get_or_insert(error);
        progress.stop.store(true, Relaxed);
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                work(source, target, task, progress, &receive).unwrap_or_else(note);
                // `plan` stops before its next piece, but may be waiting for room for this one
                while receive.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv().is_ok() {}
            });
        }
        let unit = if task == Task::Layer { CLUSTER } else { BLOCK };
        let planned = plan(source, unit, progress, &mut |piece| send.send(piece).is_ok());
        drop(send);
        planned.unwrap_or_else(note);
    });
    if let Some(error) = first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(error);
    }
    if task == Task::Compare {
        return Ok(());
    }
    let flush = match target {
        // A flush on one connection covers all writes that were answered on any connection.
        Target::Socket(socket) => nbd::connect(socket).and_then(|mut nbd| nbd.flush()),
        Target::File(file, _) => file.sync_all(),
    };
    flush.map_err(|e| CopyError::Target(0, e))
}

/// Cuts the disk into pieces of whole units in bytes, in order, and passes them to `send`, which
/// returns false when no receiver is left.
pub fn plan(source: &dyn Image, unit: u64, progress: &CopyProgress, send: &mut dyn FnMut(Piece) -> bool) -> Result<(), CopyError> {
    let mut source = source.open().map_err(|e| CopyError::Source(0, e))?;
    let size = source.size();
    let mut cutter = Cutter { covered: 0, size, unit };
    let mut at = 0;
    while at < size {
        let runs = source.runs(at, (size - at).min(WINDOW)).map_err(|e| CopyError::Source(at, e))?;
        for run in runs {
            if run.offset != at || run.length == 0 || run.length > size - at {
                return Err(CopyError::Source(at, io::Error::new(io::ErrorKind::InvalidData, "its map makes no sense")));
            }
            at += run.length;
            for piece in cutter.cut(run) {
                if progress.stop.load(Relaxed) {
                    return Err(CopyError::Stopped);
                }
                if !send(piece) {
                    return Err(CopyError::Stopped);
                }
            }
            if run.kind == Kind::Keep {
                progress.done.fetch_add(run.length, Relaxed);
            }
        }
    }
    Ok(())
}

/// Cuts runs into pieces of whole units: blocks, or clusters.
struct Cutter {
    /// Offset in bytes up to which the disk was cut.
    covered: u64,
    size: u64,
    /// Bytes of a unit.
    unit: u64,
}

impl Cutter {
    /// Returns the pieces of the next run. A unit that contains the border of a run is treated as
    /// data, because reading it is always right.
    fn cut(&mut self, run: Run) -> Vec<Piece> {
        let (start, end) = (run.offset, run.offset + run.length);
        let (down, up) = (start / self.unit * self.unit, end.next_multiple_of(self.unit).min(self.size));
        let mut pieces = Vec::new();
        match run.kind {
            Kind::Keep => {}
            Kind::Data => self.push(&mut pieces, down, up, false),
            Kind::Zero => {
                let inner = (start.next_multiple_of(self.unit), if end == self.size { end } else { end / self.unit * self.unit });
                if inner.0 >= inner.1 {
                    self.push(&mut pieces, down, up, false);
                } else {
                    self.push(&mut pieces, down, inner.0, false);
                    self.push(&mut pieces, inner.0, inner.1, true);
                    self.push(&mut pieces, inner.1, up, false);
                }
            }
        }
        pieces
    }

    fn push(&mut self, pieces: &mut Vec<Piece>, from: u64, to: u64, zero: bool) {
        let mut from = from.max(self.covered);
        let unit = if zero { ZEROES } else { PIECE };
        while from < to {
            let next = ((from / unit + 1) * unit).min(to);
            pieces.push(Piece { offset: from, length: next - from, zero });
            from = next;
        }
        self.covered = self.covered.max(to);
    }
}

fn work(
    source: &dyn Image,
    target: &Target,
    task: Task,
    progress: &CopyProgress,
    receive: &Mutex<Receiver<Piece>>,
) -> Result<(), CopyError> {
    let target_error = |e| CopyError::Target(0, e);
    let mut worker = Worker {
        source: source.open().map_err(|e| CopyError::Source(0, e))?,
        target: Writer::open(target).map_err(target_error)?,
        map: match target {
            Target::Socket(socket) if !matches!(task, Task::Fill | Task::Layer) => {
                Some(nbd::connect_for_extents(socket, "base:allocation").map_err(target_error)?)
            }
            _ => None,
        },
        task,
        new: Vec::new(),
        old: Vec::new(),
    };
    loop {
        let next = receive.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
        let Ok(piece) = next else { return Ok(()) };
        if progress.stop.load(Relaxed) {
            return Err(CopyError::Stopped);
        }
        let written = if piece.zero { worker.zero(piece)? } else { worker.data(piece)? };
        progress.done.fetch_add(piece.length, Relaxed);
        progress.written.fetch_add(written, Relaxed);
    }
}

/// A connection to the target.
enum Writer {
    Socket(Nbd),
    File(Arc<File>, u64),
}

impl Writer {
    fn open(target: &Target) -> io::Result<Writer> {
        Ok(match target {
            Target::Socket(socket) => Writer::Socket(nbd::connect(socket)?),
            Target::File(file, size) => Writer::File(Arc::clone(file), *size),
        })
    }

    fn size(&self) -> u64 {
        match self {
            Writer::Socket(nbd) => nbd.size(),
            Writer::File(_, size) => *size,
        }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Writer::Socket(nbd) => nbd.read(offset, into),
            Writer::File(file, _) => file.read_exact_at(into, offset),
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Writer::Socket(nbd) => nbd.write(offset, bytes),
            Writer::File(file, _) => file.write_all_at(bytes, offset),
        }
    }

    fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        match self {
            Writer::Socket(nbd) => nbd.write_zeroes(offset, length),
            Writer::File(..) => Ok(()), // it reads as zeroes
        }
    }
}

struct Worker {
    source: Box<dyn Source>,
    target: Writer,
    map: Option<Nbd>,
    task: Task,
    new: Vec<u8>,
    old: Vec<u8>,
}

const ZERO_BLOCK: [u8; BLOCK as usize] = [0; BLOCK as usize];

impl Worker {
    /// Makes a range read as zeroes; returns the bytes written.
    fn zero(&mut self, piece: Piece) -> Result<u64, CopyError> {
        // If an image ends within a block, the volume has the rest of this block: zeroes.
        let end = (piece.offset + piece.length).next_multiple_of(BLOCK).min(self.target.size());
        if self.task == Task::Layer {
            let length =
                u32::try_from(end - piece.offset).map_err(|_| CopyError::Target(piece.offset, io::ErrorKind::InvalidData.into()))?;
            self.target.write_zeroes(piece.offset, length).map_err(|e| CopyError::Target(piece.offset, e))?;
            return Ok(0);
        }
        let (mut at, mut written) = (piece.offset, 0);
        while at < end {
            let Some(map) = &mut self.map else { break };
            let extents = map.extents(at, end - at).map_err(|e| CopyError::Target(at, e))?;
            for extent in extents {
                at = extent.offset + extent.length;
                if extent.flags & 2 != 0 {
                    continue;
                }
                if self.task == Task::Compare {
                    self.is_zero(extent.offset, extent.length)?;
                    continue;
                }
                let length = u32::try_from(extent.length).map_err(|_| CopyError::Target(at, io::ErrorKind::InvalidData.into()))?;
                self.target.write_zeroes(extent.offset, length).map_err(|e| CopyError::Target(extent.offset, e))?;
                written += extent.length;
            }
        }
        Ok(written)
    }

    fn is_zero(&mut self, offset: u64, length: u64) -> Result<(), CopyError> {
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let part = (end - at).min(PIECE);
            resize(&mut self.old, part);
            self.target.read(at, &mut self.old).map_err(|e| CopyError::Target(at, e))?;
            if let Some(place) = self.old.iter().position(|byte| *byte != 0) {
                return Err(CopyError::Differs(at + place as u64));
            }
            at += part;
        }
        Ok(())
    }

    /// Writes the blocks of a range that differ; returns the bytes written.
    fn data(&mut self, piece: Piece) -> Result<u64, CopyError> {
        let offset = piece.offset;
        resize(&mut self.new, piece.length);
        self.source.read(offset, &mut self.new).map_err(|e| CopyError::Source(offset, e))?;
        let whole = piece.length.next_multiple_of(BLOCK).min(self.target.size().saturating_sub(offset));
        if self.task == Task::Compare {
            if whole == 0 {
                // Formats that round the size of a disk up append zeroes.
                return self.new.iter().position(|byte| *byte != 0).map_or(Ok(0), |place| Err(CopyError::Differs(offset + place as u64)));
            }
            resize(&mut self.old, whole);
            self.target.read(offset, &mut self.old).map_err(|e| CopyError::Target(offset, e))?;
            let differs = self.new.iter().zip(&self.old).position(|(new, old)| new != old);
            return differs.map_or(Ok(0), |place| Err(CopyError::Differs(offset + place as u64)));
        }
        resize(&mut self.new, whole);
        if self.task == Task::Update {
            resize(&mut self.old, self.new.len() as u64);
            self.target.read(offset, &mut self.old).map_err(|e| CopyError::Target(offset, e))?;
        }
        let mut written = 0;
        let ranges = match self.task {
            Task::Layer => vec![(0, self.new.len())],
            Task::Update => changed(&self.new, Some(&self.old)),
            Task::Fill | Task::Compare => changed(&self.new, None),
        };
        for (start, end) in ranges {
            let at = offset + start as u64;
            let bytes = self.new.get(start..end).unwrap_or_default();
            self.target.write(at, bytes).map_err(|e| CopyError::Target(at, e))?;
            written += bytes.len() as u64;
        }
        Ok(written)
    }
}

/// Returns the ranges of `new` that differ from `old`, or from zero without it, in whole blocks.
pub(crate) fn changed(new: &[u8], old: Option<&[u8]>) -> Vec<(usize, usize)> {
    let block = ZERO_BLOCK.len();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, new) in new.chunks(block).enumerate() {
        let start = index * block;
        let old = match old {
            Some(old) => old.get(start..start + new.len()),
            None => ZERO_BLOCK.get(..new.len()),
        };
        if old == Some(new) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 += new.len(),
            _ => ranges.push((start, start + new.len())),
        }
    }
    ranges
}

fn resize(buffer: &mut Vec<u8>, length: u64) {
    buffer.resize(usize::try_from(length).unwrap_or(0), 0);
}
