//! Checking that backups can be restored: every chunk is read and compared with its hash.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use jiff::Timestamp;
use millpond_api::names::SnapshotName;
use millpond_images::copy::CopyProgress;

use crate::parallel::parallel;
use crate::target::CHUNKS;
use crate::{BackupError, ChunkId, Record, Target, Verified};

/// A backup that cannot be restored as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBackup {
    /// Its name.
    pub name: String,
    /// Ranges of the volume that are lost: offset and length in bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Why, in words.
    pub why: String,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Backups that were checked.
    pub backups: usize,
    /// Backups with damage.
    pub damaged: Vec<DamagedBackup>,
    /// Damaged chunks that no backup has.
    pub unnamed: u64,
}

/// Reads all chunks of these backups, or of the target: then also those that no backup names, because
/// the next one may find them. Damaged chunks are noted, so that no backup relies on them; the results
/// are kept beside the records of all backups that have one.
///
/// # Errors
/// The store's, where that says nothing about the content; [`BackupError::Stopped`].
pub fn verify(
    target: &Target,
    names: Option<&[SnapshotName]>,
    now: Timestamp,
    progress: &CopyProgress,
) -> Result<Verification, BackupError> {
    let _lock = target.store().lock(false, &progress.stop)?;
    let (whole, names) = (names.is_none(), names.map_or_else(|| target.names(), |names| Ok(names.to_vec()))?);
    let mut result = Verification { backups: names.len(), ..Verification::default() };
    let records = readable(target, &names, &mut result)?;
    let mut lists = Lists { target, known: HashSet::new(), bad: HashSet::new() };
    let mut wanted = HashSet::new();
    for (_, record) in &records {
        lists.each_page(record, &mut |slots| wanted.extend(slots.iter().copied().filter(|id| !id.is_zero())))?;
    }
    if whole {
        target.store().list(CHUNKS, &mut |path, _| {
            wanted.extend(ChunkId::of_path(&path).filter(|id| !lists.known.contains(id)));
        })?;
    }
    let wanted: Vec<ChunkId> = wanted.into_iter().collect();
    let checked = parallel(&wanted, |id| {
        if progress.stop.load(Relaxed) {
            return Err(BackupError::Stopped);
        }
        progress.done.fetch_add(target.purpose().chunk_bytes(), Relaxed);
        is_good(target, *id)
    })?;
    let mut bad = std::mem::take(&mut lists.bad);
    bad.extend(wanted.iter().zip(&checked).filter(|(_, good)| !**good).map(|(id, _)| *id));
    // first the notes: from here on no new backup relies on these chunks
    target.suspect(&bad)?;
    let mut hit = HashSet::new();
    for (name, record) in &records {
        let damaged = damage(target, record, &bad, &mut hit)?;
        if !damaged.is_empty() {
            let one = target.purpose().one();
            let why = format!("chunks are missing or damaged; make the {one} again while its snapshot exists");
            result.damaged.push(DamagedBackup { name: name.to_string(), ranges: damaged.clone(), why });
        }
        target.put_verified(name, Verified { at: now, damaged })?;
    }
    if !bad.is_empty() {
        // others have the same chunks, also backups that were made meanwhile
        let all = target.names()?;
        let mut unread = Verification::default();
        let others: Vec<_> = readable(target, &all, &mut unread)?.into_iter().filter(|(name, _)| !names.contains(name)).collect();
        mark(target, &others.iter().map(|(name, record)| (*name, record)).collect::<Vec<_>>(), &bad)?;
    }
    target.store().settle()?;
    result.unnamed = bad.difference(&hit).count() as u64;
    Ok(result)
}

/// Reads records; those that are damaged go into the result.
fn readable<'a>(
    target: &Target,
    names: &'a [SnapshotName],
    result: &mut Verification,
) -> Result<Vec<(&'a SnapshotName, Record)>, BackupError> {
    let mut records = Vec::new();
    for (name, record) in names.iter().zip(target.records(names)) {
        match record {
            Ok(record) => records.push((name, record)),
            // another command deleted it
            Err(BackupError::NotThere { .. }) => {}
            Err(error) if error.is_damage() => {
                result.damaged.push(DamagedBackup { name: name.to_string(), ranges: Vec::new(), why: error.to_string() });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(records)
}

/// Notes the damage of backups that have these chunks. Durable on return.
pub(crate) fn mark(target: &Target, records: &[(&SnapshotName, &Record)], bad: &HashSet<ChunkId>) -> Result<(), BackupError> {
    if bad.is_empty() {
        return Ok(());
    }
    for (name, record) in records {
        let mut damaged = damage(target, record, bad, &mut HashSet::new())?;
        if damaged.is_empty() {
            continue;
        }
        // a result that cannot be read is replaced
        damaged.extend(target.verified(name).ok().flatten().into_iter().flat_map(|before| before.damaged));
        damaged.sort_unstable();
        damaged.dedup();
        target.put_verified(name, Verified { at: millpond_api::instant::now(), damaged })?;
    }
    Ok(target.store().settle()?)
}

/// True if a chunk can be read and is as written.
pub(crate) fn is_good(target: &Target, id: ChunkId) -> Result<bool, BackupError> {
    match target.chunk(id) {
        Ok(_) => Ok(true),
        Err(error) if error.is_damage() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lists of chunks, each of which is read once.
struct Lists<'a> {
    target: &'a Target,
    /// Lists that were read, or cannot be.
    known: HashSet<ChunkId>,
    bad: HashSet<ChunkId>,
}

impl Lists<'_> {
    /// Calls `each` for the pages of a backup that were not seen before.
    fn each_page(&mut self, record: &Record, each: &mut dyn FnMut(&[ChunkId])) -> Result<(), BackupError> {
        let Some(pages) = self.read(record.root, |target| target.pages(record))? else { return Ok(()) };
        for page in pages {
            if page.is_zero() || self.known.contains(&page) {
                continue;
            }
            if let Some(slots) = self.read(page, |target| target.slots(page))? {
                each(&slots);
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        list: ChunkId,
        read: impl FnOnce(&Target) -> Result<Vec<ChunkId>, BackupError>,
    ) -> Result<Option<Vec<ChunkId>>, BackupError> {
        let ids = match read(self.target) {
            Err(error) if error.is_damage() => {
                self.bad.insert(list);
                None
            }
            ids => Some(ids?),
        };
        self.known.insert(list);
        Ok(ids)
    }
}

/// Returns the ranges of a backup that are lost with these chunks, and adds those that it has to `hit`.
pub(crate) fn damage(
    target: &Target,
    record: &Record,
    bad: &HashSet<ChunkId>,
    hit: &mut HashSet<ChunkId>,
) -> Result<Vec<(u64, u64)>, BackupError> {
    if bad.is_empty() {
        return Ok(Vec::new());
    }
    if bad.contains(&record.root) {
        hit.insert(record.root);
        return Ok(vec![(0, record.size)]);
    }
    // a list that cannot be read is damage as well, also one that this verification did not look at
    let pages = match target.pages(record) {
        Err(error) if error.is_damage() => return Ok(vec![(0, record.size)]),
        pages => pages?,
    };
    let (chunk, span) = (target.purpose().chunk_bytes(), target.purpose().page_span());
    let mut lost = Vec::new();
    for (number, page) in pages.into_iter().enumerate().filter(|(_, page)| !page.is_zero()) {
        let first = number as u64 * span;
        let slots = if bad.contains(&page) {
            None
        } else {
            target.slots(page).map(Some).or_else(|e| if e.is_damage() { Ok(None) } else { Err(e) })?
        };
        let Some(slots) = slots else {
            hit.insert(page);
            lost.push((first, span));
            continue;
        };
        for (slot, id) in slots.iter().enumerate().filter(|(_, id)| bad.contains(id)) {
            hit.insert(*id);
            lost.push((first + slot as u64 * chunk, chunk));
        }
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (at, length) in lost {
        let length = length.min(record.size.saturating_sub(at));
        match ranges.last_mut().filter(|(from, have)| from + have == at) {
            Some((_, have)) => *have += length,
            None => ranges.push((at, length)),
        }
    }
    Ok(ranges)
}
