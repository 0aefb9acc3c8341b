//! Finds pools by the labels on their devices, and removes labels.
//!
//! Reading takes no lock: a label is written in one piece, and a torn one fails its checksum and
//! counts as absent.

use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use millpond_device::{HostDevice, OpenOptions};
use millpond_format::{AREA_BYTES, DeviceId, FEATURES, FormatError, Label, PoolId, SECTOR_BYTES, second_area};
use rustix::io::Errno;

#[cfg(test)]
mod tests;

/// Sizes of devices are rounded down to a multiple of this, in bytes.
const GRAIN: u64 = 4096;

/// A pool as its labels describe it, with the paths of its devices.
pub type Labelled = millpond_engine::Labelled<PathBuf>;

/// Label and claim of a device.
pub type Looked = millpond_engine::Looked<PathBuf>;

/// Usable bytes of an open device.
fn size(file: &mut File) -> io::Result<u64> {
    Ok(file.seek(SeekFrom::End(0))? / GRAIN * GRAIN)
}

/// Offsets of the two areas of a device of `size` bytes; none when it is too small for a pool.
fn areas(size: u64) -> impl Iterator<Item = u64> {
    (size >= 2 * AREA_BYTES).then(|| [0, second_area(size)]).into_iter().flatten()
}

fn sector(file: &File, offset: u64) -> io::Result<[u8; SECTOR_BYTES]> {
    let mut sector = [0; SECTOR_BYTES];
    file.read_exact_at(&mut sector, offset)?;
    Ok(sector)
}

/// Opens a device for reading, without a lock, and returns its usable bytes.
///
/// # Errors
/// I/O errors of the host.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut file = File::open(path)?;
    let size = size(&mut file)?;
    Ok((file, size))
}

/// Returns the label of a device: the first intact copy; `None` when there is none.
///
/// # Errors
/// I/O errors of the host, when the device cannot be opened or read.
pub fn read(path: &Path) -> io::Result<Option<Label>> {
    Ok(look(path)?.map(|looked| looked.label))
}

/// Returns label and claim of a device; `None` when it belongs to no pool.
///
/// # Errors
/// I/O errors of the host, when the device cannot be opened or read.
pub fn look(path: &Path) -> io::Result<Option<Looked>> {
    let (file, size) = open(path)?;
    Looked::read(path.to_owned(), size, |offset| sector(&file, offset))
}

/// Returns the sector of the second label of a device; `None` when it is too small for a pool.
///
/// # Errors
/// I/O errors of the host, when the device cannot be opened or read.
pub fn second_sector(path: &Path) -> io::Result<Option<[u8; SECTOR_BYTES]>> {
    let (file, size) = open(path)?;
    areas(size).last().map(|area| sector(&file, area)).transpose()
}

/// Returns the pool of a device whose label this version does not know, and the reason; `None` for
/// other devices.
///
/// # Errors
/// I/O errors of the host, when the device cannot be opened or read.
pub fn of_other_program(path: &Path) -> io::Result<Option<(PoolId, String, FormatError)>> {
    let (file, size) = open(path)?;
    other_program(size, |offset| sector(&file, offset))
}

/// As [`of_other_program`], for a device of `size` usable bytes; `sector` reads one at an offset in
/// bytes.
///
/// # Errors
/// Those of `sector`, unless the other area has such a label.
fn other_program(
    size: u64,
    mut sector: impl FnMut(u64) -> io::Result<[u8; SECTOR_BYTES]>,
) -> io::Result<Option<(PoolId, String, FormatError)>> {
    let mut unread = Ok(None);
    for area in areas(size) {
        match sector(area).map(|bytes| Label::of_other_program(&bytes)) {
            Ok(Some(other)) => return Ok(Some(other)),
            Ok(None) => {}
            Err(error) => unread = Err(error),
        }
    }
    unread
}

/// Returns whether an error of a path says that there is nothing. A disk that is offline (`ENXIO`,
/// `ENODEV`) is there: it may come back.
pub fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Returns the files and block devices for a path: the path itself, or the entries of a directory;
/// none if there is nothing.
///
/// # Errors
/// I/O errors of the host, when it cannot be found out whether there is a device.
pub fn candidates(path: &Path) -> io::Result<Vec<PathBuf>> {
    let usable = |meta: &Metadata| meta.is_file() || meta.file_type().is_block_device();
    let meta = match fs::metadata(path) {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        meta => meta?,
    };
    if !meta.is_dir() {
        return Ok(if usable(&meta) { vec![path.to_owned()] } else { Vec::new() });
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| fs::metadata(path).is_ok_and(|meta| usable(&meta))).collect();
    paths.sort();
    Ok(paths)
}

/// Returns the block devices of this host.
pub fn host_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| Path::new("/dev").join(entry.file_name())).collect();
    paths.sort();
    paths
}

/// The result of a wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiped {
    /// The device has no label of the pool any more, or had none.
    Done,
    /// Another device of the pool is at the path; nothing was written.
    Other(DeviceId),
}

/// Overwrites both areas of a device of `pool` with zeroes, so that no import finds the pool on it.
/// A device without a label of the pool, and one that is not `meant`, is left alone. The label is
/// read through the descriptor that is written to, under the device's lock: a disk that is plugged
/// into the place of another one meanwhile is not overwritten. Durable on return.
///
/// # Errors
/// When another program holds the device, it cannot be written, or its label is one of the pool that
/// this version does not know, or one with features that this version lacks.
pub fn wipe(path: &Path, pool: PoolId, meant: impl Fn(DeviceId) -> bool) -> io::Result<Wiped> {
    match read(path)? {
        Some(label) if label.pool == pool => {}
        Some(_) => return Ok(Wiped::Done),
        None => return refuse_other_program(path, pool).map(|()| Wiped::Done),
    }
    let device = HostDevice::open(path, OpenOptions::default()).map_err(io::Error::other)?;
    let locked = Looked::read(path.to_owned(), device.geometry().size, |offset| {
        let mut sector = [0; SECTOR_BYTES];
        let read = rustix::io::pread(&device, &mut sector, offset)?;
        if read == SECTOR_BYTES { Ok(sector) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) }
    })?;
    match locked.map(|looked| looked.label) {
        Some(label) if label.pool != pool => return Ok(Wiped::Done),
        Some(label) if !meant(label.device) => return Ok(Wiped::Other(label.device)),
        Some(label) => label.unknown_to_writers(FEATURES).map_or(Ok(()), |unknown| Err(of_newer_version(format!("it has {unknown}"))))?,
        None => return refuse_other_program(path, pool).map(|()| Wiped::Done),
    }
    let zeroes = vec![0; usize::try_from(AREA_BYTES).unwrap_or(usize::MAX)];
    let zero = |area: u64| {
        let (mut rest, mut offset) = (zeroes.as_slice(), area);
        while !rest.is_empty() {
            let written = rustix::io::pwrite(&device, rest, offset)?;
            rest = rest.get(written..).unwrap_or_default();
            offset += written as u64;
        }
        Ok::<(), Errno>(())
    };
    // an area that cannot be written is no reason to leave the label in the other one
    let zeroed: Vec<Result<(), Errno>> = areas(device.geometry().size).map(zero).collect();
    rustix::fs::fsync(&device)?;
    zeroed.into_iter().collect::<Result<(), Errno>>()?;
    Ok(Wiped::Done)
}

/// Checks that a device has no label of the pool that this version does not know.
///
/// # Errors
/// When it has one, or cannot be read.
fn refuse_other_program(path: &Path, pool: PoolId) -> io::Result<()> {
    match of_other_program(path)? {
        Some((id, _, why)) if id == pool => Err(of_newer_version(why)),
        _ => Ok(()),
    }
}

/// Returns the error for a device whose label only a newer version may overwrite.
fn of_newer_version(why: impl Display) -> io::Error {
    io::Error::other(format!("it has a label of a newer version of Millpond ({why})"))
}
