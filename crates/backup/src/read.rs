//! Reading a backup as a disk, to restore it or to compare it.

use std::io;
use std::sync::Arc;

use millpond_images::source::{Image, Kind, Run, Source};

use crate::{BackupError, ChunkId, Lock, Record, Target};

/// A backup as a disk. The target is not pruned while it, or a reader of it, is there.
pub struct BackupImage {
    target: Arc<Target>,
    lock: Arc<dyn Lock>,
    pages: Arc<Vec<ChunkId>>,
    size: u64,
}

impl BackupImage {
    /// Reads the list of its pages. The lock is one of [`Target::share`].
    ///
    /// # Errors
    /// [`BackupError`]: that the backup was deleted since its record was read, among others.
    pub fn new(target: Arc<Target>, record: &Record, lock: &Arc<dyn Lock>) -> Result<BackupImage, BackupError> {
        let lock = Arc::clone(lock);
        target.is_still(record)?;
        let pages = Arc::new(target.pages(record)?);
        Ok(BackupImage { target, lock, pages, size: record.size })
    }
}

impl Image for BackupImage {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(Reader {
            target: Arc::clone(&self.target),
            _lock: Arc::clone(&self.lock),
            pages: Arc::clone(&self.pages),
            size: self.size,
            page: None,
            chunk: None,
        }))
    }
}

/// A reader, with the page and the chunk that it read last.
struct Reader {
    target: Arc<Target>,
    _lock: Arc<dyn Lock>,
    pages: Arc<Vec<ChunkId>>,
    size: u64,
    page: Option<(u64, Vec<ChunkId>)>,
    chunk: Option<(ChunkId, Vec<u8>)>,
}

fn error(error: BackupError) -> io::Error {
    io::Error::other(error)
}

fn beyond() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the volume")
}

impl Reader {
    fn chunk_bytes(&self) -> u64 {
        self.target.purpose().chunk_bytes()
    }

    /// Returns the chunk at a byte.
    fn id(&mut self, at: u64) -> io::Result<ChunkId> {
        let (chunk, span) = (self.chunk_bytes(), self.target.purpose().page_span());
        let number = at / span;
        if self.page.as_ref().is_none_or(|(have, _)| *have != number) {
            let id = usize::try_from(number).ok().and_then(|number| self.pages.get(number)).copied().ok_or_else(beyond)?;
            self.page = Some((number, self.target.slots(id).map_err(error)?));
        }
        let slot = usize::try_from(at % span / chunk).map_err(|_| beyond())?;
        self.page.as_ref().and_then(|(_, slots)| slots.get(slot)).copied().ok_or_else(beyond)
    }

    /// Copies a part of one chunk.
    fn part(&mut self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let id = self.id(at)?;
        if id.is_zero() {
            into.fill(0);
            return Ok(());
        }
        if self.chunk.as_ref().is_none_or(|(have, _)| *have != id) {
            self.chunk = Some((id, self.target.chunk(id).map_err(error)?));
        }
        let from = usize::try_from(at % self.chunk_bytes()).map_err(|_| beyond())?;
        let part = self.chunk.as_ref().and_then(|(_, content)| content.get(from..from + into.len())).ok_or_else(beyond)?;
        into.copy_from_slice(part);
        Ok(())
    }
}

impl Source for Reader {
    fn size(&self) -> u64 {
        self.size
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let (end, chunk) = ((offset + length).min(self.size), self.chunk_bytes());
        let mut runs: Vec<Run> = Vec::new();
        let mut at = offset;
        while at < end {
            let kind = if self.id(at)?.is_zero() { Kind::Zero } else { Kind::Data };
            let next = ((at / chunk + 1) * chunk).min(end);
            match runs.last_mut().filter(|run| run.kind == kind) {
                Some(run) => run.length += next - at,
                None => runs.push(Run { offset: at, length: next - at, kind }),
            }
            at = next;
        }
        Ok(runs)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let chunk = self.chunk_bytes();
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let room = usize::try_from(chunk - at % chunk).unwrap_or(rest.len()).min(rest.len());
            let (part, more) = rest.split_at_mut(room);
            self.part(at, part)?;
            at += room as u64;
            rest = more;
        }
        Ok(())
    }
}
