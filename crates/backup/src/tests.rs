//! Backups in a target in memory that stops at any step, and in a directory.

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
mod format;
mod memory;
mod world;

use memory::{Memory, Shared};

/// Bytes of a part of a volume, each of which has one value.
const PART: u64 = CHUNK / 4;

/// Content of a snapshot: the value of each part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content(Vec<u8>);

impl Content {
    fn size(&self) -> u64 {
        self.0.len() as u64 * PART
    }

    /// True if a backup has this content.
    fn is(&self, image: &BackupImage) -> bool {
        let Ok(mut source) = image.open() else { return false };
        let mut part = vec![0; PART as usize];
        source.size() == self.size()
            && self
                .0
                .iter()
                .enumerate()
                .all(|(at, value)| source.read(at as u64 * PART, &mut part).is_ok() && part.iter().all(|byte| byte == value))
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
        let run = |at: u64| {
            let value = self.content.0.get((at / PART) as usize).copied().unwrap_or(0);
            // the map reports nothing beyond the end of the older one but data
            let older = self.older.as_ref().map(|older| older.0.get((at / PART) as usize).copied().unwrap_or(0));
            let kind = match older {
                Some(older) if older == value => Kind::Keep,
                _ if value == 0 => Kind::Zero,
                _ => Kind::Data,
            };
            Run { offset: at, length: PART, kind }
        };
        let mut runs: Vec<Run> = Vec::new();
        for run in (offset..offset + length).step_by(PART as usize).map(run) {
            match runs.last_mut().filter(|last| last.kind == run.kind) {
                Some(last) => last.length += run.length,
                None => runs.push(run),
            }
        }
        Ok(runs)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = self.content.0.get(((offset + at as u64) / PART) as usize).copied().ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }
}

fn identity(number: u64) -> SnapshotIdentity {
    SnapshotIdentity::new(&"0f".repeat(16), number, number, number)
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
    }
}

/// Opens a target, which is prepared if it is empty.
fn target(store: impl Fn() -> Box<dyn Store>) -> Result<Target, BackupError> {
    match Target::open(store()) {
        Err(BackupError::Empty) => Target::prepare(store(), "00".repeat(16), Timestamp::UNIX_EPOCH),
        other => other,
    }
}
