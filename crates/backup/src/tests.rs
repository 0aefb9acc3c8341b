//! Backups and publications in a target in memory that stops at any step, and in a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use millpond_api::identity::SnapshotIdentity;
use millpond_api::names::SnapshotName;
use millpond_api::{VolumeCache, VolumeCompression, VolumeSector};
use millpond_images::copy::CopyProgress;
use millpond_images::source::{Image, Kind, Run, Source};
use millpond_testing::Random;

use crate::record::FORMAT;
use crate::*;

mod directory;
mod fetches;
mod format;
mod meanwhile;
mod memory;
mod publications;
mod world;

use memory::{Memory, Shared};

/// Bytes of a chunk of a backup.
const CHUNK: u64 = Purpose::Backups.chunk_bytes();
/// Bytes of a part of a volume under backup.
const PART: u64 = CHUNK / 4;

/// Content of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    /// The value of each part.
    values: Vec<u8>,
    /// Bytes of a part: a quarter of a chunk.
    part: u64,
}

impl Content {
    fn new(values: Vec<u8>) -> Content {
        Content { values, part: PART }
    }

    fn of(purpose: Purpose, values: Vec<u8>) -> Content {
        Content { values, part: purpose.chunk_bytes() / 4 }
    }

    fn size(&self) -> u64 {
        self.values.len() as u64 * self.part
    }

    /// Value of the part that has this byte; none beyond the end.
    fn at(&self, byte: u64) -> Option<u8> {
        self.values.get((byte / self.part) as usize).copied()
    }

    /// True if a backup has this content.
    fn is(&self, image: &BackupImage) -> bool {
        let Ok(mut source) = image.open() else { return false };
        let mut part = vec![0; self.part as usize];
        source.size() == self.size()
            && self
                .values
                .iter()
                .enumerate()
                .all(|(at, value)| source.read(at as u64 * self.part, &mut part).is_ok() && part.iter().all(|byte| byte == value))
    }
}

/// A snapshot as the daemon serves it: whole, or what differs from an older one.
#[derive(Clone)]
struct Served {
    content: Content,
    older: Option<Content>,
}

impl Image for Served {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(self.clone()))
    }
}

impl Source for Served {
    fn size(&self) -> u64 {
        self.content.size()
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let part = self.content.part;
        let run = |at: u64| {
            let value = self.content.at(at).unwrap_or(0);
            // the map reports nothing beyond the end of the older one but data
            let older = self.older.as_ref().map(|older| older.at(at).unwrap_or(0));
            let kind = match older {
                Some(older) if older == value => Kind::Keep,
                _ if value == 0 => Kind::Zero,
                _ => Kind::Data,
            };
            Run { offset: at, length: part, kind }
        };
        let mut runs: Vec<Run> = Vec::new();
        for run in (offset..offset + length).step_by(part as usize).map(run) {
            match runs.last_mut().filter(|last| last.kind == run.kind) {
                Some(last) => last.length += run.length,
                None => runs.push(run),
            }
        }
        Ok(runs)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = self.content.at(offset + at as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }
}

fn identity(number: u64) -> SnapshotIdentity {
    SnapshotIdentity::new(&"0f".repeat(16), number, number, number)
}

/// Record of a publication.
fn published(number: u64, size: u64, base: Option<&Record>) -> Record {
    Record { publication: Some(format!("{number:032x}")), ..record(number, size, base) }
}

fn record(number: u64, size: u64, base: Option<&Record>) -> Record {
    Record {
        format: FORMAT,
        name: format!("tank/vm1@s{number}"),
        identity: identity(number),
        description: String::new(),
        created: Timestamp::UNIX_EPOCH,
        size,
        sector: VolumeSector::S512e,
        cache: VolumeCache::Writeback,
        compression: VolumeCompression::Off,
        host: String::new(),
        made: Timestamp::UNIX_EPOCH,
        base: base.map(|base| base.name.clone()),
        read: 0,
        stored: 0,
        root: ChunkId::ZERO,
        publication: None,
    }
}

/// Opens a target of backups, which is prepared if it is empty.
fn target(store: impl Fn() -> Box<dyn Store>) -> Result<Target, BackupError> {
    target_of(Purpose::Backups, store)
}

fn target_of(purpose: Purpose, store: impl Fn() -> Box<dyn Store>) -> Result<Target, BackupError> {
    match Target::open(store(), purpose) {
        Err(BackupError::Empty(_)) => Target::prepare(store(), purpose, "00".repeat(16), Timestamp::UNIX_EPOCH),
        other => other,
    }
}
