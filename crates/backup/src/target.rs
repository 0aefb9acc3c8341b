//! A target: its head, its chunks, its records.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use millpond_api::identity::SnapshotIdentity;
use millpond_api::names::{SnapshotName, VolumeName};
use serde::{Deserialize, Serialize};

use crate::chunk;
use crate::page::{self, SLOTS};
use crate::parallel::parallel;
use crate::record::{self, FORMAT, VERIFIED};
use crate::{BackupError, ChunkId, Lock, Purpose, Record, Store, StoreError, Verified};

/// Files and folders that say nothing about what a directory or prefix is.
const OWN: [&str; 4] = ["incoming", "lock", "locks", "generation"];
/// Most bytes of a record.
pub(crate) const RECORD: u64 = 1 << 20;
/// Most bytes of a stored chunk beside those of its content.
const FRAME: u64 = 4096;
/// Folder of the chunks.
pub(crate) const CHUNKS: &str = "chunks";
/// Folder of notes of damaged chunks, each named as the chunk is.
pub(crate) const DAMAGED: &str = "damaged";
/// Format of the head of a target of publications that may have pins, which programs before 0.2.0 would
/// not heed. Nothing else differs.
const WITH_PINS: u32 = 2;
/// Most ranges in the result of a verification.
const MOST_RANGES: usize = 1000;

/// Head of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetHead {
    /// Version of the format.
    pub format: u32,
    /// Random name of the target: 32 hexadecimal digits.
    pub id: String,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// When it was prepared.
    pub created: Timestamp,
}

/// A target of backups or of publications.
pub struct Target {
    store: Box<dyn Store>,
    purpose: Purpose,
    head: TargetHead,
}

impl Target {
    /// Opens a target of this purpose.
    ///
    /// # Errors
    /// [`BackupError::Empty`], [`BackupError::NotATarget`], [`BackupError::Other`], [`BackupError::Newer`],
    /// the store's.
    pub fn open(store: Box<dyn Store>, purpose: Purpose) -> Result<Target, BackupError> {
        // also beside the own head: a store that lost its locks may have both
        if store.has(purpose.other().head())? {
            return Err(BackupError::Other(purpose.other()));
        }
        match store.get(purpose.head(), RECORD) {
            Ok(text) => {
                let head: TargetHead = record::decode(purpose, &text, purpose.head())?;
                let known = head.format == FORMAT || (head.format == WITH_PINS && purpose == Purpose::Publications);
                if !known || head.chunk != purpose.chunk_bytes() {
                    return Err(BackupError::Newer(store.name()));
                }
                // the command that wrote it may have been killed before it was durable: it becomes so
                // with the first backup
                store.has(purpose.head())?;
                Ok(Target { store, purpose, head })
            }
            Err(StoreError::Missing(_)) => {
                let mut empty = true;
                // what a command left that was killed while it prepared the target
                let own =
                    |name: &str| OWN.iter().any(|own| name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
                store.list("", &mut |name, _| empty &= own(&name))?;
                Err(if empty { BackupError::Empty(purpose) } else { BackupError::NotATarget(purpose) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Prepares an empty directory or prefix, unless another command does so meanwhile; `id` is a new
    /// random name.
    ///
    /// # Errors
    /// Those of [`open`](Target::open).
    pub fn prepare(store: Box<dyn Store>, purpose: Purpose, id: String, now: Timestamp) -> Result<Target, BackupError> {
        // alone: a head of each purpose would make the target useless for both
        let lock = store.lock(true, &AtomicBool::new(false))?;
        if !store.has(purpose.other().head())? && !store.has(purpose.head())? {
            let head = TargetHead { format: FORMAT, id, chunk: purpose.chunk_bytes(), created: now };
            lock.check()?;
            store.put(purpose.head(), &record::encode(&head))?;
        }
        store.settle()?;
        drop(lock);
        Target::open(store, purpose)
    }

    /// The kind of its records.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The head.
    pub fn head(&self) -> &TargetHead {
        &self.head
    }

    /// Where it keeps its files.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Checks that the target is still where it was.
    ///
    /// # Errors
    /// [`BackupError::Empty`], [`BackupError::OtherTarget`], the store's: try again later.
    pub(crate) fn is_there(&self) -> Result<(), BackupError> {
        let name = self.purpose.head();
        match self.store.get(name, RECORD) {
            Ok(text) => match record::decode::<TargetHead>(self.purpose, &text, name)? {
                head if head.id == self.head.id => Ok(()),
                _ => Err(BackupError::OtherTarget),
            },
            Err(StoreError::Missing(_)) => Err(BackupError::Empty(self.purpose)),
            Err(error) => Err(error.into()),
        }
    }

    /// Raises the format of the head, durably, so that programs that do not know pins refuse the target.
    pub(crate) fn raise(&self) -> Result<(), BackupError> {
        if self.head.format < WITH_PINS {
            let head = TargetHead { format: WITH_PINS, ..self.head.clone() };
            self.store.put(self.purpose.head(), &record::encode(&head))?;
            self.store.settle()?;
        }
        Ok(())
    }

    /// Keeps prunes away, until the lock and its copies are dropped.
    ///
    /// # Errors
    /// The store's.
    pub fn share(&self, stop: &AtomicBool) -> Result<Arc<dyn Lock>, BackupError> {
        Ok(Arc::from(self.store.lock(false, stop)?))
    }

    /// Names of all backups, sorted by name.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self) -> Result<Vec<SnapshotName>, BackupError> {
        self.names_in(self.purpose.records())
    }

    fn names_in(&self, folder: &str) -> Result<Vec<SnapshotName>, BackupError> {
        let mut names = Vec::new();
        self.store.list(folder, &mut |path, _| names.extend(Record::name_of(&path)))?;
        names.sort_by_key(ToString::to_string);
        Ok(names)
    }

    /// Reads records of these backups, in the same order. One that cannot be read is an error in its
    /// place.
    pub fn records(&self, names: &[SnapshotName]) -> Vec<Result<Record, BackupError>> {
        let read = |name: &SnapshotName| Ok::<_, BackupError>(self.record(name));
        parallel(names, read).unwrap_or_default()
    }

    /// Reads the record of a backup.
    ///
    /// # Errors
    /// [`BackupError::NotThere`], [`BackupError::Damaged`], [`BackupError::Newer`], the store's.
    pub fn record(&self, name: &SnapshotName) -> Result<Record, BackupError> {
        let path = Record::path(self.purpose.records(), name);
        match self.store.get(&path, RECORD) {
            Ok(text) => record::decode::<Record>(self.purpose, &text, &path)?.check(self.purpose, &path),
            Err(StoreError::Missing(_)) => Err(BackupError::NotThere { of: self.purpose, name: name.to_string() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the record of this snapshot if it is there without known damage; then it is durable.
    ///
    /// # Errors
    /// Those of [`record`](Target::record).
    pub fn complete(&self, name: &SnapshotName, identity: &SnapshotIdentity) -> Result<Option<Record>, BackupError> {
        match self.record(name) {
            Ok(there) if there.identity == *identity && !self.is_damaged(name)? => {
                // the command that made it may have been killed before it was durable
                self.settle_record(name)?;
                Ok(Some(there))
            }
            Ok(_) | Err(BackupError::NotThere { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that a record that was read before is still there. With a lock it stays so: a prune deletes
    /// chunks after the record alone.
    ///
    /// # Errors
    /// [`BackupError::Changed`]; those of [`record`](Target::record).
    pub(crate) fn is_still(&self, record: &Record) -> Result<SnapshotName, BackupError> {
        let changed = || BackupError::Changed { of: self.purpose, name: record.name.clone() };
        let name: SnapshotName = record.name.parse().map_err(|_| changed())?;
        match self.record(&name) {
            Ok(there) if there.identity == record.identity && there.root == record.root => Ok(name),
            Ok(_) | Err(BackupError::NotThere { .. }) => Err(changed()),
            Err(error) => Err(error),
        }
    }

    /// The error that says that this record, or a list of it, cannot be read.
    pub(crate) fn unreadable(&self, name: &SnapshotName, why: &BackupError) -> BackupError {
        BackupError::Unreadable { of: self.purpose, name: name.to_string(), why: why.to_string() }
    }

    /// Makes a record durable that another command wrote.
    pub(crate) fn settle_record(&self, name: &SnapshotName) -> Result<(), BackupError> {
        self.store.has(&Record::path(self.purpose.records(), name))?;
        Ok(self.store.settle()?)
    }

    /// Writes the record of a backup whose chunks are settled, durably: a new one, or in the place of
    /// one of the same snapshot. Returns the one that another command wrote meanwhile instead.
    pub(crate) fn put_record(&self, name: &SnapshotName, record: &Record, new: bool) -> Result<Option<Record>, BackupError> {
        let (path, text) = (Record::path(self.purpose.records(), name), record::encode(record));
        if !new {
            self.store.put(&path, &text)?;
        } else if !self.store.put_new(&path, &text)? {
            let there = self.record(name)?;
            if there.identity != record.identity {
                return Err(BackupError::Exists { of: self.purpose, name: record.name.clone() });
            }
            self.settle_record(name)?;
            return Ok(Some(there));
        }
        self.store.settle()?;
        Ok(None)
    }

    /// Deletes records. Chunks may be deleted only after this has returned.
    pub(crate) fn delete_records(&self, names: &[SnapshotName]) -> Result<(), BackupError> {
        let paths = |folder| names.iter().map(move |name| Record::path(folder, name));
        self.store.delete(&paths(self.purpose.records()).collect::<Vec<_>>())?;
        self.store.settle()?;
        self.store.delete(&paths(VERIFIED).collect::<Vec<_>>())?;
        Ok(self.store.settle()?)
    }

    /// Result of the last verification of a backup, if there was one.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], the store's.
    pub fn verified(&self, name: &SnapshotName) -> Result<Option<Verified>, BackupError> {
        let path = Record::path(VERIFIED, name);
        match self.store.get(&path, RECORD) {
            Ok(text) => record::decode(self.purpose, &text, &path).map(Some),
            Err(StoreError::Missing(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// True if the last verification found damage in this backup.
    pub(crate) fn is_damaged(&self, name: &SnapshotName) -> Result<bool, BackupError> {
        Ok(self.verified(name)?.is_some_and(|verified| !verified.damaged.is_empty()))
    }

    /// Returns the record on which the next one of this volume builds: that of the newest of the
    /// snapshots, given newest first, that has one without known damage.
    ///
    /// # Errors
    /// The store's.
    pub fn base(&self, of: &VolumeName, snapshots: &[SnapshotIdentity]) -> Result<Option<Record>, BackupError> {
        let names: Vec<SnapshotName> = self.names_in(&format!("{}/{}/{}", self.purpose.records(), of.pool, of.volume))?;
        let records: Vec<Record> = self.records(&names).into_iter().filter_map(Result::ok).collect();
        for identity in snapshots {
            for record in records.iter().filter(|record| record.identity == *identity) {
                let Ok(name) = record.name.parse() else { continue };
                // a result that cannot be read says nothing good
                if !self.is_damaged(&name).unwrap_or(true) {
                    return Ok(Some(record.clone()));
                }
            }
        }
        Ok(None)
    }

    /// Writes the result of a verification, durable after the next settle. Of very many ranges, the last
    /// ones are one.
    ///
    /// # Errors
    /// The store's.
    pub fn put_verified(&self, name: &SnapshotName, mut verified: Verified) -> Result<(), BackupError> {
        if let Some((last, length)) = verified.damaged.last().copied().filter(|_| verified.damaged.len() > MOST_RANGES) {
            verified.damaged.truncate(MOST_RANGES);
            verified.damaged.last_mut().into_iter().for_each(|range| range.1 = last + length - range.0);
        }
        Ok(self.store.put(&Record::path(VERIFIED, name), &record::encode(&verified))?)
    }

    /// Deletes the result of a verification of another backup of this name.
    pub(crate) fn forget_verified(&self, name: &SnapshotName) -> Result<(), BackupError> {
        let path = Record::path(VERIFIED, name);
        if self.store.has(&path)? { Ok(self.store.delete(&[path])?) } else { Ok(()) }
    }

    /// Chunks that a verification found damaged, and that may be whole again.
    pub(crate) fn suspects(&self) -> Result<HashSet<ChunkId>, BackupError> {
        let mut suspects = HashSet::new();
        self.store.list(DAMAGED, &mut |path, _| suspects.extend(ChunkId::of_path(&path)))?;
        Ok(suspects)
    }

    /// Notes damaged chunks, so that the next backup does not rely on them. Durable on return.
    pub(crate) fn suspect(&self, bad: &HashSet<ChunkId>) -> Result<(), BackupError> {
        bad.iter().try_for_each(|id| self.store.put(&format!("{DAMAGED}/{id}"), b"damaged\n"))?;
        Ok(self.store.settle()?)
    }

    /// Stores a chunk, unless it is there; returns the bytes that were written. A suspect is read first.
    /// The chunk is durable after the next settle, also one that was there.
    pub(crate) fn put_chunk(&self, id: ChunkId, content: &[u8], suspects: &HashSet<ChunkId>) -> Result<u64, BackupError> {
        let is_whole = || !suspects.contains(&id) || self.chunk(id).is_ok();
        if id.is_zero() || (is_whole() && self.store.has(&id.path())?) {
            return Ok(0);
        }
        let stored = chunk::encode(content);
        self.store.put(&id.path(), &stored)?;
        Ok(stored.len() as u64)
    }

    /// Reads a chunk, and compares it with its name.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], also when it is missing; the store's.
    pub fn chunk(&self, id: ChunkId) -> Result<Vec<u8>, BackupError> {
        if id.is_zero() {
            return Ok(vec![0; self.purpose.chunk_len()]);
        }
        let missing = || BackupError::Damaged { of: self.purpose, name: id.path(), why: "it is missing".to_owned() };
        self.find_chunk(id)?.ok_or_else(missing)
    }

    /// Reads a chunk that is not zero, and compares it with its name; `None` when it is missing.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], the store's.
    pub(crate) fn find_chunk(&self, id: ChunkId) -> Result<Option<Vec<u8>>, BackupError> {
        match self.store.get(&id.path(), self.purpose.chunk_bytes() + FRAME) {
            Ok(stored) => chunk::decode(self.purpose, id, &stored).map(Some),
            Err(StoreError::Missing(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a list of `count` ids.
    ///
    /// # Errors
    /// Those of [`chunk`](Target::chunk).
    pub(crate) fn ids(&self, list: ChunkId, count: usize) -> Result<Vec<ChunkId>, BackupError> {
        if list.is_zero() {
            return Ok(vec![ChunkId::ZERO; count]);
        }
        page::decode(self.purpose, &self.chunk(list)?, count, &list.path())
    }

    /// Reads the pages of a backup.
    ///
    /// # Errors
    /// Those of [`chunk`](Target::chunk).
    pub(crate) fn pages(&self, record: &Record) -> Result<Vec<ChunkId>, BackupError> {
        self.ids(record.root, self.purpose.pages_of(record.size))
    }

    /// Reads the chunks of a page.
    ///
    /// # Errors
    /// Those of [`chunk`](Target::chunk).
    pub(crate) fn slots(&self, page: ChunkId) -> Result<Vec<ChunkId>, BackupError> {
        self.ids(page, SLOTS)
    }
}
