//! Moves a disk: one thread plans, several read and write, so that requests are always in flight. What reads as zeroes is not written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::source::{Image, Kind, Run, Source};
use crate::command::nbd::Nbd;

#[cfg(test)]
mod tests;

/// Unit in which data and zeroes are told apart, and to which ranges are widened: what a volume stores.
const BLOCK: u64 = 4096;
/// Bytes that are read and written at once.
const PIECE: u64 = 1 << 20;
/// Bytes that are zeroed at once.
const ZEROES: u64 = 1 << 30;
/// Bytes whose runs are asked for at once.
const WINDOW: u64 = 4 << 30;
/// Pieces in flight.
const WORKERS: usize = 4;
/// Pieces that wait.
const AHEAD: usize = 16;

/// Where it goes.
#[derive(Clone, Debug)]
pub enum Target {
    /// What a socket serves.
    Socket(PathBuf),
    /// A new file of this size, that reads as zeroes.
    File(Arc<File>, u64),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The target reads as zeroes: only what is not zero is written.
    Fill,
    /// The target holds another state: only what differs is written.
    Update,
    /// Nothing is written; a difference is an error.
    Compare,
}

/// How far it is; shared with who shows it and who may end it.
#[derive(Debug, Default)]
pub struct Course {
    /// Bytes of the disk that are done, whatever they took.
    pub done: AtomicU64,
    /// Bytes that were written.
    pub written: AtomicU64,
    /// Somebody wants it to end.
    pub stop: AtomicBool,
}

/// Why it ended.
#[derive(Debug)]
pub enum CopyError {
    /// The source cannot be read there.
    Source(u64, io::Error),
    /// The target cannot be read or written there.
    Target(u64, io::Error),
    /// They differ there.
    Differs(u64),
    /// It was to end.
    Stopped,
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    length: u64,
    zero: bool,
}

/// Makes what `target` serves the same as `source`, whose size is at most its. Durable on return.
///
/// # Errors
/// The first one.
pub fn copy(source: &dyn Image, target: &Target, task: Task, course: &Course) -> Result<(), CopyError> {
    let (send, receive) = sync_channel::<Piece>(AHEAD);
    let receive = Mutex::new(receive);
    let first: Mutex<Option<CopyError>> = Mutex::new(None);
    let note = |error| {
        let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        first.get_or_insert(error);
        course.stop.store(true, Relaxed);
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(source, target, task, course, &receive).unwrap_or_else(note));
        }
        let planned = plan(source, course, &send);
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
        // One connection's flush covers what all of them were answered.
        Target::Socket(socket) => Nbd::connect(socket).and_then(|mut nbd| nbd.flush()),
        Target::File(file, _) => file.sync_all(),
    };
    flush.map_err(|e| CopyError::Target(0, e))
}

/// Cuts the disk into pieces.
fn plan(source: &dyn Image, course: &Course, send: &SyncSender<Piece>) -> Result<(), CopyError> {
    let mut source = source.open().map_err(|e| CopyError::Source(0, e))?;
    let size = source.size();
    let mut cutter = Cutter { covered: 0, size };
    let mut at = 0;
    while at < size {
        let runs = source.runs(at, (size - at).min(WINDOW)).map_err(|e| CopyError::Source(at, e))?;
        for run in runs {
            if run.offset != at || run.length == 0 || run.length > size - at {
                return Err(CopyError::Source(at, io::Error::new(io::ErrorKind::InvalidData, "its map makes no sense")));
            }
            at += run.length;
            for piece in cutter.cut(run) {
                if course.stop.load(Relaxed) {
                    return Err(CopyError::Stopped);
                }
                // Without a receiver every worker has ended, with an error that is noted.
                if send.send(piece).is_err() {
                    return Err(CopyError::Stopped);
                }
            }
            if run.kind == Kind::Keep {
                course.done.fetch_add(run.length, Relaxed);
            }
        }
    }
    Ok(())
}

/// Widens runs to whole blocks.
struct Cutter {
    /// Everything before was cut already.
    covered: u64,
    size: u64,
}

impl Cutter {
    /// The pieces of the next run. A block with an end of a run in it is data: who reads it gets what is right.
    fn cut(&mut self, run: Run) -> Vec<Piece> {
        let (start, end) = (run.offset, run.offset + run.length);
        let (down, up) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK).min(self.size));
        let mut pieces = Vec::new();
        match run.kind {
            Kind::Keep => {}
            Kind::Data => self.push(&mut pieces, down, up, false),
            Kind::Zero => {
                let inner = (start.next_multiple_of(BLOCK), if end == self.size { end } else { end / BLOCK * BLOCK });
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

fn work(source: &dyn Image, target: &Target, task: Task, course: &Course, receive: &Mutex<Receiver<Piece>>) -> Result<(), CopyError> {
    let target_error = |e| CopyError::Target(0, e);
    let mut worker = Worker {
        source: source.open().map_err(|e| CopyError::Source(0, e))?,
        target: Writer::open(target).map_err(target_error)?,
        map: match target {
            Target::Socket(socket) if task != Task::Fill => {
                Some(Nbd::connect_for_extents(socket, "base:allocation").map_err(target_error)?)
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
        if course.stop.load(Relaxed) {
            return Err(CopyError::Stopped);
        }
        let written = if piece.zero { worker.zero(piece)? } else { worker.data(piece)? };
        course.done.fetch_add(piece.length, Relaxed);
        course.written.fetch_add(written, Relaxed);
    }
}

/// One way to the target.
enum Writer {
    Socket(Nbd),
    File(Arc<File>, u64),
}

impl Writer {
    fn open(target: &Target) -> io::Result<Writer> {
        Ok(match target {
            Target::Socket(socket) => Writer::Socket(Nbd::connect(socket)?),
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
    /// Has a range read as zeroes; gives the bytes that it took.
    fn zero(&mut self, piece: Piece) -> Result<u64, CopyError> {
        // Of an image with a size of its own, the volume has the rest of the last block: zeroes.
        let end = (piece.offset + piece.length).next_multiple_of(BLOCK).min(self.target.size());
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

    /// Writes the blocks of a range that have to be; gives the bytes that it took.
    fn data(&mut self, piece: Piece) -> Result<u64, CopyError> {
        let offset = piece.offset;
        resize(&mut self.new, piece.length);
        self.source.read(offset, &mut self.new).map_err(|e| CopyError::Source(offset, e))?;
        let whole = piece.length.next_multiple_of(BLOCK).min(self.target.size().saturating_sub(offset));
        if self.task == Task::Compare {
            if whole == 0 {
                // Formats that round a disk's size up add zeroes.
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
        for (start, end) in self.changed() {
            let at = offset + start as u64;
            let bytes = self.new.get(start..end).unwrap_or_default();
            self.target.write(at, bytes).map_err(|e| CopyError::Target(at, e))?;
            written += bytes.len() as u64;
        }
        Ok(written)
    }

    /// Ranges of `new` that differ from `old`, or from zero, in whole blocks.
    fn changed(&self) -> Vec<(usize, usize)> {
        let block = ZERO_BLOCK.len();
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for (index, new) in self.new.chunks(block).enumerate() {
            let start = index * block;
            let old = if self.task == Task::Update { self.old.get(start..start + new.len()) } else { ZERO_BLOCK.get(..new.len()) };
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
}

fn resize(buffer: &mut Vec<u8>, length: u64) {
    buffer.resize(usize::try_from(length).unwrap_or(0), 0);
}
