//! Making a backup.
//!
//! Order of what becomes durable: chunks and pages, then the record that names them. A backup whose
//! record is there is complete.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use millpond_api::instant;
use millpond_api::names::SnapshotName;
use millpond_images::copy::{CopyError, CopyProgress, Piece, plan};
use millpond_images::source::{Image, Source};

use crate::page::{self, SLOTS};
use crate::parallel::WORKERS;
use crate::verify::{damage, is_good, mark};
use crate::{BackupError, ChunkId, Purpose, Record, Target};

/// Most tasks that wait for a worker.
const AHEAD: usize = 16;

/// Cost of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Created {
    /// Bytes that were read from the volume.
    pub read: u64,
    /// Bytes that were written to the target.
    pub stored: u64,
}

/// Work for a worker.
enum Task {
    /// Read the chunk at this byte of the volume, and store it.
    Chunk(u64),
    /// Store the list of a page.
    Page(u64, Vec<ChunkId>),
}

/// Work that was done: its result and what it cost.
enum Done {
    Chunk(u64, ChunkId, Created),
    Page(u64, ChunkId, Created),
}

/// A page of which chunks are being read.
struct Open {
    slots: Vec<ChunkId>,
    /// Chunks that were given to workers.
    missing: usize,
}

/// Makes a backup of `image`, and its record: `record` with the root and the costs filled in. With a
/// base, ranges that `image` reports as kept are those of the base, and all others are read again.
/// The target is shared meanwhile.
///
/// # Errors
/// [`BackupError`]; without the record then. What was stored is used by the next try.
pub fn create(
    target: &Target,
    image: &dyn Image,
    record: Record,
    base: Option<&Record>,
    progress: &CopyProgress,
) -> Result<Record, BackupError> {
    let of = target.purpose();
    let name: SnapshotName = record.name.parse().map_err(|_| BackupError::NotThere { of, name: record.name.clone() })?;
    if record.size > of.largest_volume() {
        return Err(BackupError::TooLarge(of));
    }
    let lock = target.store().lock(false, &progress.stop)?;
    let suspects = target.suspects()?;
    let (record, new) = match target.record(&name) {
        // one with damage is made again, from the whole volume
        Ok(there) if there.identity == record.identity && (base.is_some() || !target.is_damaged(&name)?) => {
            // the command that made it may have been killed before it was durable
            target.settle_record(&name)?;
            return Ok(there);
        }
        // it stays the same publication
        Ok(there) if there.identity == record.identity => (Record { publication: there.publication, ..record }, false),
        Ok(_) => return Err(BackupError::Exists { of, name: record.name }),
        Err(BackupError::NotThere { .. }) => {
            // before the work: a command that makes one of this name meanwhile keeps its result
            target.forget_verified(&name)?;
            (record, true)
        }
        Err(error) => return Err(error),
    };
    let pages = match base {
        Some(base) => pages_of_base(target, base)?,
        None => Vec::new(),
    };
    let mut making = Making::new(target, pages, record.size, &suspects);
    let image = Resized { image, size: record.size, borders: borders(of, base.map(|base| base.size), record.size) };
    let (root, cost) = making.run(&image, progress)?;
    target.store().settle()?;
    lock.check()?;
    let complete = Record { root, read: cost.read, stored: cost.stored, made: instant::now(), ..record };
    if !new {
        target.forget_verified(&name)?;
    }
    if let Some(there) = target.put_record(&name, &complete, new)? {
        return Ok(there);
    }
    // others that did not see this command may have deleted chunks
    if let Err(late) = lock.check() {
        if target.record(&name).is_ok_and(|there| there == complete) {
            target.delete_records(std::slice::from_ref(&name))?;
        }
        return Err(late.into());
    }
    mark_kept(target, (&name, &complete))?;
    Ok(complete)
}

/// Reads the pages of the base. It was chosen before the lock was taken.
fn pages_of_base(target: &Target, base: &Record) -> Result<Vec<ChunkId>, BackupError> {
    let name = target.is_still(base)?;
    if target.is_damaged(&name)? {
        return Err(BackupError::Changed { of: target.purpose(), name: base.name.clone() });
    }
    target.pages(base)
}

/// Notes the damage of a new backup: chunks of its base that a verification found damaged meanwhile. It
/// may have marked the backups that it found before this one had a record.
fn mark_kept(target: &Target, (name, record): (&SnapshotName, &Record)) -> Result<(), BackupError> {
    let mut own = HashSet::new();
    damage(target, record, &target.suspects()?, &mut own)?;
    let mut bad = HashSet::new();
    for id in own {
        // this command may have stored it again
        if !is_good(target, id)? {
            bad.insert(id);
        }
    }
    mark(target, &[(name, record)], &bad)
}

/// Returns the chunk that has the end of the base or of the volume, where these differ: a backup
/// fills its last chunk up with zeroes, and the map does not report what is beyond the end.
fn borders(of: Purpose, base: Option<u64>, size: u64) -> Option<u64> {
    let (chunk, end) = (of.chunk_bytes(), base.filter(|base| *base != size)?.min(size));
    Some(end / chunk * chunk).filter(|_| !end.is_multiple_of(chunk))
}

/// An image of which one chunk is always read.
struct Resized<'a> {
    image: &'a dyn Image,
    /// Bytes of the volume.
    size: u64,
    borders: Option<u64>,
}

/// The state of a backup that is being made.
struct Making<'a> {
    target: &'a Target,
    /// Bytes of a chunk.
    chunk: u64,
    /// Bytes of a volume that a page stands for.
    span: u64,
    /// Pages, first those of the base.
    pages: Vec<ChunkId>,
    open: BTreeMap<u64, Open>,
    cost: Created,
    /// Chunks that may be damaged.
    suspects: &'a HashSet<ChunkId>,
}

impl<'a> Making<'a> {
    fn new(target: &'a Target, mut pages: Vec<ChunkId>, size: u64, suspects: &'a HashSet<ChunkId>) -> Making<'a> {
        pages.resize(target.purpose().pages_of(size), ChunkId::ZERO);
        let (chunk, span) = (target.purpose().chunk_bytes(), target.purpose().page_span());
        Making { target, chunk, span, pages, open: BTreeMap::new(), cost: Created::default(), suspects }
    }

    /// Stores everything but the record; returns the root.
    fn run(&mut self, image: &Resized, progress: &CopyProgress) -> Result<(ChunkId, Created), BackupError> {
        let (tasks, waiting) = sync_channel::<Task>(AHEAD);
        let (results, done) = channel();
        let waiting = Mutex::new(waiting);
        let (target, failed) = (self.target, AtomicBool::new(false));
        let made = thread::scope(|scope| {
            for _ in 0..WORKERS {
                let worker = Worker { target, image: image.image, waiting: &waiting, failed: &failed, progress, suspects: self.suspects };
                let results = results.clone();
                scope.spawn(move || worker.run(&results));
            }
            drop(results);
            let made = self.plan(image, &tasks, &done, progress);
            drop(tasks);
            made
        });
        made?;
        let list = page::encode(&self.pages);
        let root = ChunkId::of(&list);
        self.cost.stored += self.target.put_chunk(root, &list, self.suspects)?;
        Ok((root, self.cost))
    }

    fn plan(
        &mut self,
        image: &Resized,
        tasks: &SyncSender<Task>,
        done: &Receiver<Result<Done, BackupError>>,
        progress: &CopyProgress,
    ) -> Result<(), BackupError> {
        let mut failed = None;
        let (chunk, span) = (self.chunk, self.span);
        self.forget_beyond(image.size)?;
        if let Some(at) = image.borders {
            self.begin(at, tasks)?;
        }
        let planned = plan(image.image, chunk, progress, &mut |piece| {
            let taken = self.take(piece, image.borders, tasks, progress);
            let taken = taken.and_then(|()| done.try_iter().try_for_each(|result| self.end(result?)));
            // pages before this piece get no more
            let taken = taken.and_then(|()| self.close(piece.offset / span, tasks));
            taken.map_err(|error| failed = Some(error)).is_ok()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        planned.map_err(|error| match error {
            CopyError::Source(at, e) => BackupError::Source(at, e),
            _ => BackupError::Stopped,
        })?;
        self.close(u64::MAX, tasks)?;
        while !self.open.is_empty() {
            let result = done.recv().map_err(|_| BackupError::Stopped)?;
            self.end(result?)?;
            self.close(u64::MAX, tasks)?;
        }
        Ok(())
    }

    /// Takes a piece of the plan: whole chunks with data, or of zeroes. The borders are read anyway.
    fn take(&mut self, piece: Piece, borders: Option<u64>, tasks: &SyncSender<Task>, progress: &CopyProgress) -> Result<(), BackupError> {
        if piece.zero {
            progress.done.fetch_add(piece.length, Relaxed);
        }
        let mut at = piece.offset;
        while at < piece.offset + piece.length {
            match piece.zero {
                _ if borders == Some(at) => {}
                true => self.set(at, ChunkId::ZERO)?,
                false => self.begin(at, tasks)?,
            }
            at += self.chunk;
        }
        Ok(())
    }

    /// Clears the chunks of the base beyond the end of the volume: a later backup of a larger volume
    /// would take them for its own.
    fn forget_beyond(&mut self, size: u64) -> Result<(), BackupError> {
        let (number, end) = (size / self.span, size.div_ceil(self.chunk));
        let first = usize::try_from(end - number * SLOTS as u64).unwrap_or(SLOTS);
        let of_base = usize::try_from(number).ok().and_then(|at| self.pages.get(at)).is_some_and(|page| !page.is_zero());
        if !of_base {
            return Ok(());
        }
        self.page(number)?.slots.iter_mut().skip(first).for_each(|slot| *slot = ChunkId::ZERO);
        Ok(())
    }

    /// Gives a chunk to the workers.
    fn begin(&mut self, at: u64, tasks: &SyncSender<Task>) -> Result<(), BackupError> {
        self.page(at / self.span)?.missing += 1;
        tasks.send(Task::Chunk(at)).map_err(|_| BackupError::Stopped)
    }

    fn set(&mut self, at: u64, id: ChunkId) -> Result<(), BackupError> {
        let slot = usize::try_from(at % self.span / self.chunk).unwrap_or(SLOTS);
        let page = self.page(at / self.span)?;
        page.slots.get_mut(slot).into_iter().for_each(|slot| *slot = id);
        Ok(())
    }

    /// Returns a page to change; reads it, if it is one of the base.
    fn page(&mut self, number: u64) -> Result<&mut Open, BackupError> {
        if !self.open.contains_key(&number) {
            let id = usize::try_from(number).ok().and_then(|at| self.pages.get(at)).copied().unwrap_or(ChunkId::ZERO);
            let slots = self.target.slots(id)?;
            self.open.insert(number, Open { slots, missing: 0 });
        }
        self.open.get_mut(&number).ok_or(BackupError::Stopped)
    }

    /// Takes a result of a worker.
    fn end(&mut self, done: Done) -> Result<(), BackupError> {
        let cost = match done {
            Done::Chunk(at, id, cost) => {
                self.set(at, id)?;
                self.page(at / self.span)?.missing -= 1;
                cost
            }
            Done::Page(number, id, cost) => {
                self.open.remove(&number);
                let place = usize::try_from(number).ok().and_then(|at| self.pages.get_mut(at));
                place.into_iter().for_each(|place| *place = id);
                cost
            }
        };
        self.cost.read += cost.read;
        self.cost.stored += cost.stored;
        Ok(())
    }

    /// Stores the pages before `number` whose chunks are all there.
    fn close(&mut self, number: u64, tasks: &SyncSender<Task>) -> Result<(), BackupError> {
        for (number, page) in self.open.range_mut(..number).filter(|(_, page)| page.missing == 0 && !page.slots.is_empty()) {
            // empty until the worker has answered
            let slots = std::mem::take(&mut page.slots);
            tasks.send(Task::Page(*number, slots)).map_err(|_| BackupError::Stopped)?;
        }
        Ok(())
    }
}

/// A thread that reads and stores.
struct Worker<'a> {
    target: &'a Target,
    image: &'a dyn Image,
    waiting: &'a Mutex<Receiver<Task>>,
    /// Set by the first one that fails; the others pass over the tasks that are left, so that the
    /// planner never waits for room.
    failed: &'a AtomicBool,
    progress: &'a CopyProgress,
    suspects: &'a HashSet<ChunkId>,
}

/// Reports the end of a worker by a panic, for which the planner would wait.
struct Panicked<'a>(&'a Sender<Result<Done, BackupError>>);

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // without a receiver nobody waits
            let _ = self.0.send(Err(BackupError::Stopped));
        }
    }
}

impl Worker<'_> {
    /// Does tasks until there are no more.
    fn run(&self, results: &Sender<Result<Done, BackupError>>) {
        let _panicked = Panicked(results);
        let mut source = None;
        let mut buffer = vec![0; self.target.purpose().chunk_len()];
        loop {
            let task = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(task) = task else { return };
            if self.failed.load(Relaxed) {
                continue;
            }
            let done = match task {
                Task::Chunk(_) if self.progress.stop.load(Relaxed) => Err(BackupError::Stopped),
                Task::Chunk(at) => self.chunk(&mut source, at, &mut buffer),
                Task::Page(number, slots) => {
                    let list = page::encode(&slots);
                    let id = ChunkId::of(&list);
                    self.target.put_chunk(id, &list, self.suspects).map(|stored| Done::Page(number, id, Created { read: 0, stored }))
                }
            };
            let failed = done.is_err();
            // without a receiver the planner has failed
            if results.send(done).is_err() || failed {
                self.failed.store(true, Relaxed);
            }
        }
    }

    /// Reads a chunk and stores it.
    fn chunk(&self, source: &mut Option<Box<dyn Source>>, at: u64, buffer: &mut [u8]) -> Result<Done, BackupError> {
        let of = |error: io::Error| BackupError::Source(at, error);
        let source = match source {
            Some(source) => source,
            None => source.insert(self.image.open().map_err(of)?),
        };
        let read = source.size().saturating_sub(at).min(self.target.purpose().chunk_bytes());
        let (content, rest) = buffer.split_at_mut(usize::try_from(read).unwrap_or(0));
        source.read(at, content).map_err(of)?;
        rest.fill(0);
        let id = ChunkId::of(buffer);
        let stored = self.target.put_chunk(id, buffer, self.suspects)?;
        self.progress.written.fetch_add(stored, Relaxed);
        self.progress.done.fetch_add(read, Relaxed);
        Ok(Done::Chunk(at, id, Created { read, stored }))
    }
}
