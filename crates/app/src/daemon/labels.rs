//! Finds pools by the labels on their devices, lists their restore points, and takes labels away.
//!
//! Reading takes no lock: labels and roots are written whole, and a torn one fails its checksum and counts as absent.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use millpond_device::{HostDevice, OpenOptions};
use millpond_format::{AREA_BYTES, Label, PoolId, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES};

#[cfg(test)]
mod tests;

/// Sizes of devices are rounded down to this.
const GRAIN: u64 = 4096;

/// A pool as its labels tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// Identity.
    pub id: PoolId,
    /// Name.
    pub name: String,
    /// Where each member was found, in member order.
    pub members: Vec<Option<PathBuf>>,
}

impl Labelled {
    /// Paths in member order; `None` when one is missing.
    pub fn complete(&self) -> Option<Vec<PathBuf>> {
        self.members.iter().cloned().collect()
    }

    /// Numbers of the members that were not found.
    pub fn missing(&self) -> Vec<u16> {
        let numbered = self.members.iter().zip(0u16..);
        numbered.filter(|(path, _)| path.is_none()).map(|(_, member)| member).collect()
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

/// Every pool found on the files and block devices named, or lying directly in the directories named. What cannot be read is passed over.
pub fn scan(search: &[PathBuf]) -> Vec<Labelled> {
    let mut found: BTreeMap<PoolId, Labelled> = BTreeMap::new();
    for path in search.iter().flat_map(|path| candidates(path)) {
        let Ok(Some(label)) = read(&path) else { continue };
        let entry = found.entry(label.pool).or_insert_with(|| Labelled {
            id: label.pool,
            name: label.name.clone(),
            members: vec![None; label.extents.len()],
        });
        if let Some(place) = entry.members.get_mut(usize::from(label.member))
            && place.is_none()
        {
            *place = Some(path);
        }
    }
    found.into_values().collect()
}

/// The files and block devices that a path stands for.
fn candidates(path: &Path) -> Vec<PathBuf> {
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

/// A root of the ring, and how many intact copies of it there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingEntry {
    /// The root.
    pub root: Root,
    /// Copies.
    pub copies: u32,
}

/// The roots of `pool` that the devices still hold, newest first.
///
/// # Errors
/// The host's, when a device cannot be opened or read.
pub fn ring(devices: &[PathBuf], pool: PoolId) -> io::Result<Vec<RingEntry>> {
    let mut roots: BTreeMap<u64, RingEntry> = BTreeMap::new();
    for path in devices {
        let mut file = File::open(path)?;
        for area in areas(size(&mut file)?) {
            for slot in 0..RING_SLOTS {
                let bytes = sector(&file, area + RING_OFFSET + slot * SECTOR_BYTES as u64)?;
                if let Ok(root) = Root::decode(&bytes)
                    && root.pool == pool
                {
                    roots.entry(root.generation).or_insert(RingEntry { root, copies: 0 }).copies += 1;
                }
            }
        }
    }
    Ok(roots.into_values().rev().collect())
}

/// Overwrites both areas of a device with zeroes, so that no import finds a pool on it. Durable on return.
///
/// # Errors
/// When another program holds the device, or it cannot be written.
pub fn wipe(path: &Path) -> io::Result<()> {
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
