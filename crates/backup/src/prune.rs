//! Deleting backups, and the chunks that no other one has.
//!
//! Order: all lists of the backups that stay are read; then the records are deleted, durably; then the
//! chunks, durably; then the notes of damaged chunks. What is interrupted between leaves chunks or notes
//! that nothing names, which the next prune deletes. A note is deleted after its chunk is durably gone:
//! else a power cut could bring back the chunk alone, and the next backup would rely on it.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use millpond_api::names::SnapshotName;
use millpond_images::copy::CopyProgress;

use crate::target::{CHUNKS, DAMAGED};
use crate::{BackupError, ChunkId, Record, Target};

/// Chunks that are deleted at once.
const BATCH: usize = 1000;

/// Result of a prune, or of its dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of the target.
    pub bytes: u64,
}

/// Deletes these backups, and all chunks that no other backup names; with `dry`, only counts them.
/// No other command uses the target meanwhile.
///
/// # Errors
/// [`BackupError`]; nothing is deleted if a backup that stays cannot be read.
pub fn prune(target: &Target, remove: &[SnapshotName], dry: bool, progress: &CopyProgress) -> Result<Pruned, BackupError> {
    prune_if(target, remove, dry, progress, || Ok(()))
}

/// As [`prune`], unless `check` fails once no other command uses the target.
pub(crate) fn prune_if(
    target: &Target,
    remove: &[SnapshotName],
    dry: bool,
    progress: &CopyProgress,
    check: impl FnOnce() -> Result<(), BackupError>,
) -> Result<Pruned, BackupError> {
    let store = target.store();
    let lock = store.lock(!dry, &progress.stop)?;
    check()?;
    let gone: HashSet<String> = remove.iter().map(ToString::to_string).collect();
    let stay: Vec<SnapshotName> = target.names()?.into_iter().filter(|name| !gone.contains(&name.to_string())).collect();
    let named = named(target, &stay)?;
    let mut pruned = Pruned::default();
    let mut unnamed = |folder| {
        let mut paths = Vec::new();
        store.list(folder, &mut |path, bytes| {
            if ChunkId::of_path(&path).is_some_and(|id| !named.contains(&id)) {
                pruned.chunks += u64::from(folder == CHUNKS);
                pruned.bytes += bytes;
                paths.push(path);
            }
        })?;
        Ok::<_, BackupError>(paths)
    };
    let unnamed = [unnamed(CHUNKS)?, unnamed(DAMAGED)?];
    if dry {
        return Ok(pruned);
    }
    lock.check()?;
    target.delete_records(remove)?;
    for paths in unnamed {
        for batch in paths.chunks(BATCH) {
            if progress.stop.load(Relaxed) {
                return Err(BackupError::Stopped);
            }
            lock.check()?;
            store.delete(batch)?;
            progress.done.fetch_add(batch.len() as u64, Relaxed);
        }
        store.settle()?;
    }
    Ok(pruned)
}

/// Returns all chunks that these backups need.
fn named(target: &Target, names: &[SnapshotName]) -> Result<HashSet<ChunkId>, BackupError> {
    let mut named = HashSet::new();
    for (name, record) in names.iter().zip(target.records(names)) {
        let all = record.and_then(|record| add(target, &record, &mut named));
        all.map_err(|error| if error.is_damage() { target.unreadable(name, &error) } else { error })?;
    }
    Ok(named)
}

fn add(target: &Target, record: &Record, named: &mut HashSet<ChunkId>) -> Result<(), BackupError> {
    if !named.insert(record.root) {
        return Ok(());
    }
    for page in target.pages(record)? {
        if named.insert(page) {
            named.extend(target.slots(page)?);
        }
    }
    Ok(())
}
