//! Finds pools by the labels on their devices, and takes labels away.
//!
//! Reading takes no lock: labels are written whole, and a torn one fails its checksum and counts as absent.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use millpond_device::{HostDevice, OpenOptions};
use millpond_format::{AREA_BYTES, CLAIM_OFFSET, Claim, Class, Label, MemberState, PoolId, SECTOR_BYTES};

use super::decision::Evidence;

#[cfg(test)]
mod tests;

/// Sizes of devices are rounded down to this.
const GRAIN: u64 = 4096;

/// A pool as its labels tell it: the newest of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// Identity.
    pub id: PoolId,
    /// Name.
    pub name: String,
    /// Where each member was found, by its place in the table; `None` when it is missing or was removed.
    pub members: Vec<Option<PathBuf>>,
    /// Where devices were found that are taking members' places.
    pub successors: Vec<PathBuf>,
    /// Members that were not found, and were there when the newest label was written.
    pub missing: Vec<u16>,
    /// Those of them that are special devices and nothing else: a rebuild does without them.
    pub special: Vec<u16>,
    /// Members that were not found, and were not there either, or that nobody needs.
    pub down: Vec<u16>,
    /// Those of what was found that nobody needs: the pool's cache and spares.
    pub asides: Vec<PathBuf>,
    /// Generation of the newest label.
    pub generation: u64,
    /// Ids of the devices that have a label of this generation.
    pub newest_on: Vec<u64>,
    /// Ids of all devices found.
    pub ids: Vec<u64>,
    /// Who has the pool, or had it last, as the newest claim on its devices says.
    pub claim: Option<Claim>,
}

/// What was read from a device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Where it is.
    pub path: PathBuf,
    /// Its label.
    pub label: Label,
    /// The claim on it, released or not.
    pub claim: Option<Claim>,
}

impl Labelled {
    /// All paths found.
    pub fn devices(&self) -> Vec<PathBuf> {
        self.members.iter().flatten().chain(&self.successors).cloned().collect()
    }

    /// What the labels say for the decision whether the pool is imported by itself; `me`: this host.
    pub(super) fn evidence(&self, me: Option<[u8; 16]>) -> Evidence {
        let other = self.claim.as_ref().filter(|claim| me.is_some_and(|me| claim.holder.host != me));
        Evidence {
            generation: self.generation,
            newest_on: self.newest_on.clone(),
            devices: self.ids.clone(),
            missing: self.missing.clone(),
            down: self.down.clone(),
            other_host: other.map(|claim| claim.holder.name.clone()),
        }
    }

    /// Puts the pools together from what was read.
    pub fn group(looked: Vec<Looked>) -> Vec<Labelled> {
        let mut found: BTreeMap<PoolId, Vec<Looked>> = BTreeMap::new();
        for device in looked {
            let known = found.entry(device.label.pool).or_default();
            if known.iter().all(|other| other.path != device.path) {
                known.push(device);
            }
        }
        found.values().filter_map(|devices| Labelled::of(devices)).collect()
    }

    fn of(devices: &[Looked]) -> Option<Labelled> {
        // a cache may have been away, and nobody missed it: it is asked last
        let cache = |label: &Label| label.shape.is_cache(label.member);
        let labels = || devices.iter().map(|device| &device.label);
        let newest = labels().max_by_key(|label| (!cache(label), label.shape.generation))?;
        let of_newest = labels().filter(|label| !cache(label) && label.shape.generation == newest.shape.generation);
        let table = &newest.shape.members;
        let mut found = Labelled {
            id: newest.pool,
            name: newest.name.clone(),
            members: vec![None; table.len()],
            successors: Vec::new(),
            missing: Vec::new(),
            special: Vec::new(),
            down: Vec::new(),
            asides: Vec::new(),
            generation: newest.shape.generation,
            newest_on: of_newest.map(|label| label.device.0).collect(),
            ids: labels().map(|label| label.device.0).collect(),
            claim: devices.iter().filter_map(|device| device.claim.clone()).max_by_key(|claim| (claim.term, !claim.released)),
        };
        for Looked { path, label, .. } in devices {
            let member = label.member_in(&newest.shape);
            let at = usize::from(member);
            let Some(known) = table.get(at).filter(|known| known.state != MemberState::Gone) else { continue };
            if known.successor == Some(label.device) {
                found.successors.push(path.clone());
            } else if known.device == label.device
                && let Some(place) = found.members.get_mut(at)
                && place.is_none()
            {
                *place = Some(path.clone());
                found.asides.extend(newest.shape.is_aside(member).then(|| path.clone()));
            }
        }
        for ((at, known), place) in (0u16..).zip(table).zip(&found.members) {
            match known.state {
                _ if place.is_some() => {}
                MemberState::Gone => {}
                _ if newest.shape.is_aside(at) => found.down.push(at),
                MemberState::Down => found.down.push(at),
                MemberState::Present | MemberState::Filling => found.missing.push(at),
            }
        }
        let classes = |at: u16| newest.shape.groups.iter().filter(move |g| g.columns.iter().any(|c| c.member == at)).map(|g| g.class);
        found.special = found.missing.iter().copied().filter(|at| classes(*at).all(|class| class == Class::Special)).collect();
        Some(found)
    }
}

/// Usable bytes of an open device.
fn size(file: &mut File) -> io::Result<u64> {
    Ok(file.seek(SeekFrom::End(0))? / GRAIN * GRAIN)
}

/// Offsets of the two areas of a device of `size` bytes; none when it is too small for a pool.
fn areas(size: u64) -> impl Iterator<Item = u64> {
    let tail = size.checked_sub(AREA_BYTES).filter(|tail| *tail >= AREA_BYTES);
    tail.into_iter().flat_map(|tail| [0, tail])
}

fn sector(file: &File, offset: u64) -> io::Result<[u8; SECTOR_BYTES]> {
    let mut sector = [0; SECTOR_BYTES];
    file.read_exact_at(&mut sector, offset)?;
    Ok(sector)
}

/// Opens a device to read it, without a lock, and tells how many bytes of it can be used.
///
/// # Errors
/// The host's.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut file = File::open(path)?;
    let size = size(&mut file)?;
    Ok((file, size))
}

/// The label of a device: the first intact copy; `None` when there is none.
///
/// # Errors
/// The host's, when it cannot be opened or read.
pub fn read(path: &Path) -> io::Result<Option<Label>> {
    let mut file = File::open(path)?;
    for area in areas(size(&mut file)?) {
        if let Ok(label) = Label::decode(&sector(&file, area)?) {
            return Ok(Some(label));
        }
    }
    Ok(None)
}

/// The claim on a device: who has the pool, or had it last.
fn last_claim(path: &Path, pool: PoolId) -> io::Result<Option<Claim>> {
    let (file, size) = open(path)?;
    // the second one says who took it
    let claims = areas(size).map(|area| sector(&file, area + CLAIM_OFFSET)).collect::<io::Result<Vec<_>>>()?;
    Ok(claims.iter().rev().find_map(|sector| Claim::decode(sector).ok().filter(|claim| claim.pool == pool)))
}

/// Looks what is on a device: its label and the claim on it; `None` when it is of no pool.
///
/// # Errors
/// The host's, when it cannot be opened or read.
pub fn look(path: &Path) -> io::Result<Option<Looked>> {
    let Some(label) = read(path)? else { return Ok(None) };
    // one that cannot be read says nothing, and is looked at again by the import
    let claim = last_claim(path, label.pool).unwrap_or_default();
    Ok(Some(Looked { path: path.to_owned(), label, claim }))
}

/// The files and block devices that a path stands for: itself, or what lies directly in the directory.
pub fn candidates(path: &Path) -> Vec<PathBuf> {
    let usable = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device());
    if !path.is_dir() {
        return if usable(path) { vec![path.to_owned()] } else { Vec::new() };
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| usable(path)).collect();
    paths.sort();
    paths
}

/// The block devices of this host.
pub fn host_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| Path::new("/dev").join(entry.file_name())).collect();
    paths.sort();
    paths
}

/// Overwrites both areas of a device of `pool` with zeroes, so that no import finds the pool on it; one without a label of it is left alone.
/// Durable on return.
///
/// # Errors
/// When another program holds the device, or it cannot be written.
pub fn wipe(path: &Path, pool: PoolId) -> io::Result<()> {
    if read(path)?.is_none_or(|label| label.pool != pool) {
        return Ok(());
    }
    let device = HostDevice::open(path, OpenOptions::default()).map_err(io::Error::other)?;
    let zeroes = vec![0; usize::try_from(AREA_BYTES).unwrap_or(usize::MAX)];
    for area in areas(device.geometry().size) {
        let mut rest = zeroes.as_slice();
        let mut offset = area;
        while !rest.is_empty() {
            let written = rustix::io::pwrite(&device, rest, offset)?;
            rest = rest.get(written..).unwrap_or_default();
            offset += written as u64;
        }
    }
    Ok(rustix::fs::fsync(&device)?)
}
