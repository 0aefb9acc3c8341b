//! Encoding of the reference system's log.

use std::hash::Hasher;

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{CatalogCommand, Command, Compression, SnapshotId, VolumeId};

use super::{BUG, Bug};
use crate::disk::PAGE;
use crate::trace::Digest;

/// Bytes of a record's header.
pub const HEADER: usize = PAGE;
const MAGIC: &[u8; 8] = b"refrecrd";
const LABEL: &[u8; 8] = b"reflabel";

/// A record.
#[derive(Clone, Debug)]
pub enum Entry {
    Write { volume: VolumeId, offset: u64, length: u64 },
    Zero { volume: VolumeId, offset: u64, length: u64 },
    Command(Command),
}

pub fn encode_label(pool: &[u8; 16], member: usize, members: usize) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..8].copy_from_slice(LABEL);
    page[16..32].copy_from_slice(pool);
    page[32] = member as u8;
    page[33] = members as u8;
    let sum = digest(&[&page[16..]]);
    page[8..16].copy_from_slice(&sum.to_le_bytes());
    page
}

pub fn decode_label(image: &[u8]) -> Option<([u8; 16], usize, usize)> {
    let page = image.get(..PAGE)?;
    let good = page[..8] == LABEL[..] && page[8..16] == digest(&[&page[16..]]).to_le_bytes();
    good.then(|| page[16..32].try_into().ok().map(|pool| (pool, usize::from(page[32]), usize::from(page[33]))))?
}

/// Returns the checksum in a header, which covers header and payload.
pub fn checksum(header: &[u8]) -> u64 {
    header.get(8..16).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Encodes a record. OFFSET 0 magic, 8 checksum, 16 pool, 32 number, 40 previous checksum, 48
/// payload length, 56 number of durable records at the time of writing, 64 count of words, words,
/// strings.
pub fn encode(entry: &Entry, number: u64, chain: u64, durable: u64, pool: &[u8; 16], payload: &[u8]) -> Vec<u8> {
    let (words, strings) = to_words(entry);
    let mut body = Vec::new();
    body.extend_from_slice(pool);
    for word in [number, chain, payload.len() as u64, durable, words.len() as u64].iter().chain(&words) {
        body.extend_from_slice(&word.to_le_bytes());
    }
    for string in strings {
        body.extend_from_slice(&(string.len() as u64).to_le_bytes());
        body.extend_from_slice(string.as_bytes());
    }
    assert!(body.len() + 16 <= HEADER, "command too long for the reference system");
    body.resize(HEADER - 16, 0);
    let sum = digest(&[&body, payload]);
    [&MAGIC[..], &sum.to_le_bytes(), &body].concat()
}

/// Returns the record with this number at this place, if it is there.
pub fn decode<'a>(
    image: &'a [u8],
    at: usize,
    number: u64,
    chain: Option<u64>,
    pool: &[u8; 16],
    careless: bool,
) -> Option<(Entry, &'a [u8], &'a [u8])> {
    let header = image.get(at..at + HEADER)?;
    let word = |offset: usize| header.get(offset..offset + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    if header[..8] != MAGIC[..] || header[16..32] != pool[..] || word(32)? != number || chain.is_some_and(|c| word(40) != Some(c)) {
        return None;
    }
    let payload = image.get(at + HEADER..at + HEADER + word(48)? as usize)?;
    if !careless && word(8)? != digest(&[&header[16..], payload]) {
        return None;
    }
    let count = word(64)? as usize;
    let words: Vec<u64> = (0..count).map(|i| word(72 + i * 8)).collect::<Option<_>>()?;
    let mut strings = Vec::new();
    let mut at = 72 + count * 8;
    while let Some(length) = word(at).map(|l| l as usize).filter(|l| *l > 0) {
        strings.push(String::from_utf8(header.get(at + 8..at + 8 + length)?.to_vec()).ok()?);
        at += 8 + length;
    }
    Some((from_words(&words, &strings)?, header, payload))
}

/// Returns whether an intact record says that record `number` was durable.
pub fn was_durable<'a>(images: impl Iterator<Item = &'a Vec<u8>>, number: u64, pool: &[u8; 16]) -> bool {
    let word = |header: &[u8], at: usize| header.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    images.into_iter().any(|image| {
        (0..image.len()).step_by(PAGE).any(|at| {
            let Some(header) = image.get(at..at + HEADER) else { return false };
            word(header, 56) > number && decode(image, at, word(header, 32), None, pool, false).is_some()
        })
    })
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u64 {
    all.iter().position(|x| x == one).unwrap_or(0) as u64
}

const COMPRESSIONS: [Compression; 3] = [Compression::Off, Compression::Lz4, Compression::Zstd];

fn to_words(entry: &Entry) -> (Vec<u64>, Vec<String>) {
    let option = |value: Option<u64>| value.map_or(u64::MAX, |v| v);
    match entry {
        Entry::Write { volume, offset, length } => (vec![0, volume.0.into(), *offset, *length], vec![]),
        Entry::Zero { volume, offset, length } => (vec![1, volume.0.into(), *offset, *length], vec![]),
        Entry::Command(Command::Close) => (vec![14], vec![]),
        Entry::Command(Command::Checkpoint) => (vec![15], vec![]),
        Entry::Command(Command::Devices(_) | Command::Keys(_) | Command::Job(_) | Command::Query(_)) => {
            unreachable!("the reference system refuses them")
        }
        Entry::Command(Command::Catalog(command)) => match command {
            CatalogCommand::CreateVolume { name, size, sector, cache, compression } => {
                let places = [place(&SectorProfile::ALL, sector), place(&CacheMode::ALL, cache), place(&COMPRESSIONS, compression)];
                ([2, *size].into_iter().chain(places).collect(), vec![name.clone()])
            }
            CatalogCommand::DestroyVolume { volume } => (vec![3, volume.0.into()], vec![]),
            CatalogCommand::RenameVolume { volume, name } => (vec![4, volume.0.into()], vec![name.clone()]),
            CatalogCommand::ResizeVolume { volume, size } => (vec![5, volume.0.into(), *size], vec![]),
            CatalogCommand::SetProperties { volume, cache, compression, read_only } => {
                let cache = option(cache.map(|c| place(&CacheMode::ALL, &c)));
                let compression = option(compression.map(|c| place(&COMPRESSIONS, &c)));
                (vec![6, volume.0.into(), cache, compression, option(read_only.map(u64::from))], vec![])
            }
            CatalogCommand::Snapshot { targets, .. } => {
                ([7].into_iter().chain(targets.iter().map(|t| t.0.0.into())).collect(), targets.iter().map(|t| t.1.clone()).collect())
            }
            CatalogCommand::DestroySnapshots { snapshots } => ([8].into_iter().chain(snapshots.iter().map(|s| s.0)).collect(), vec![]),
            CatalogCommand::RenameSnapshot { snapshot, name } => (vec![9, snapshot.0], vec![name.clone()]),
            CatalogCommand::Rollback { snapshot, keep_as } => (vec![10, snapshot.0], vec![keep_as.clone()]),
            CatalogCommand::Clone { snapshot, name } => (vec![11, snapshot.0], vec![name.clone()]),
            CatalogCommand::Hold { snapshot, tag, .. } => {
                (vec![12, snapshot.0], tag.iter().filter(|_| BUG.get() != Bug::TagNotLogged).cloned().collect())
            }
            CatalogCommand::Release { snapshot, tag } => (vec![13, snapshot.0], tag.iter().cloned().collect()),
            CatalogCommand::SetSector { volume, sector } => (vec![16, volume.0.into(), place(&SectorProfile::ALL, sector)], vec![]),
            CatalogCommand::Promote { volume, .. } => (vec![17, volume.0.into()], vec![]),
            CatalogCommand::SetOptions { .. } | CatalogCommand::CreateBase { .. } | CatalogCommand::MoveBase { .. } => {
                unreachable!("no workload submits it")
            }
        },
    }
}

fn from_words(words: &[u64], strings: &[String]) -> Option<Entry> {
    let at = |i: usize| words.get(i).copied();
    let volume = |i| at(i).map(|id| VolumeId(id as u32));
    let snapshot = at(1).map(SnapshotId);
    let name = strings.first().cloned();
    let picked = |i: usize| at(i).map(|v| v as usize);
    Some(match at(0)? {
        0 => Entry::Write { volume: volume(1)?, offset: at(2)?, length: at(3)? },
        1 => Entry::Zero { volume: volume(1)?, offset: at(2)?, length: at(3)? },
        2 => Entry::Command(Command::Catalog(CatalogCommand::CreateVolume {
            name: name?,
            size: at(1)?,
            sector: *SectorProfile::ALL.get(picked(2)?)?,
            cache: *CacheMode::ALL.get(picked(3)?)?,
            compression: *COMPRESSIONS.get(picked(4)?)?,
        })),
        3 => Entry::Command(Command::Catalog(CatalogCommand::DestroyVolume { volume: volume(1)? })),
        4 => Entry::Command(Command::Catalog(CatalogCommand::RenameVolume { volume: volume(1)?, name: name? })),
        5 => Entry::Command(Command::Catalog(CatalogCommand::ResizeVolume { volume: volume(1)?, size: at(2)? })),
        6 => Entry::Command(Command::Catalog(CatalogCommand::SetProperties {
            volume: volume(1)?,
            cache: CacheMode::ALL.get(picked(2)?).copied(),
            compression: COMPRESSIONS.get(picked(3)?).copied(),
            read_only: at(4).filter(|v| *v != u64::MAX).map(|v| v != 0),
        })),
        7 => {
            let targets = words[1..].iter().zip(strings).map(|(id, name)| (VolumeId(*id as u32), name.clone())).collect();
            Entry::Command(Command::Catalog(CatalogCommand::Snapshot {
                targets,
                description: String::new(),
                expires: None,
                lock_millis: None,
            }))
        }
        8 => Entry::Command(Command::Catalog(CatalogCommand::DestroySnapshots {
            snapshots: words[1..].iter().map(|id| SnapshotId(*id)).collect(),
        })),
        9 => Entry::Command(Command::Catalog(CatalogCommand::RenameSnapshot { snapshot: snapshot?, name: name? })),
        10 => Entry::Command(Command::Catalog(CatalogCommand::Rollback { snapshot: snapshot?, keep_as: name? })),
        11 => Entry::Command(Command::Catalog(CatalogCommand::Clone { snapshot: snapshot?, name: name? })),
        12 => Entry::Command(Command::Catalog(CatalogCommand::Hold { snapshot: snapshot?, tag: name, until: None, locked: false })),
        13 => Entry::Command(Command::Catalog(CatalogCommand::Release { snapshot: snapshot?, tag: name })),
        14 => Entry::Command(Command::Close),
        15 => Entry::Command(Command::Checkpoint),
        16 => {
            Entry::Command(Command::Catalog(CatalogCommand::SetSector { volume: volume(1)?, sector: *SectorProfile::ALL.get(picked(2)?)? }))
        }
        17 => Entry::Command(Command::Catalog(CatalogCommand::Promote { volume: volume(1)?, dry_run: false })),
        _ => return None,
    })
}

/// Checksum of some bytes.
fn digest(parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::default();
    parts.iter().for_each(|part| digest.write(part));
    digest.finish()
}
