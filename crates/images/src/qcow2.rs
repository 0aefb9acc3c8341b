//! Parser for the header of a qcow2 image: backing file, required features, internal snapshots.
//! Source: QEMU's docs/interop/qcow2.txt.
//!
//! Only the fields that say which files belong to a disk, and whether the library can read them,
//! are parsed; the data is read by the library or by QEMU.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

#[cfg(test)]
mod tests;

/// Cluster sizes of 512 bytes to 2 MiB, as in QEMU.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Longest name of a backing file in bytes, by the format.
const MAX_NAME: u32 = 1023;
/// Maximum number of internal snapshots that are read. QEMU allows 65,536; users keep tens.
const MAX_SNAPSHOTS: u32 = 4096;
/// Maximum bytes of the snapshot table that are read; up to 2 KiB are read for each snapshot.
const MAX_TABLE: u64 = 8 << 20;
/// Largest disk in bytes: the largest volume of the engine.
pub const MAX_SIZE: u64 = 1 << 56;
/// Bytes of the file that are read for the header of version 3 and its extensions.
const HEADER: usize = 4096;

/// Incompatible features that are evaluated.
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;
/// All incompatible features that are known: dirty, corrupt, and the three above.
const KNOWN: u64 = 0b1_1111;
const CORRUPT: u64 = 1 << 1;

/// Fields of the header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Name of the backing file, as written in the image.
    pub backing: Option<String>,
    /// Format of the backing file, if the image has it.
    pub backing_format: Option<String>,
    /// Name of the external data file, as written in the image; `None` if the data is in the image,
    /// empty if the data is external but the image has no name for it.
    pub data_file: Option<String>,
    /// Whether the image is encrypted by a method of the format.
    pub encrypted: bool,
    /// Whether the image uses features that only QEMU reads: zstd, subclusters, or unknown ones.
    pub needs_qemu: bool,
    /// Internal snapshots, oldest first.
    pub snapshots: Vec<Internal>,
}

/// A snapshot inside an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Internal {
    /// Id that QEMU gave it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Time of creation, in seconds since 1970.
    pub seconds: u32,
    /// Nanoseconds of the time of creation.
    pub nanos: u32,
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> io::Result<[u8; N]> {
    from.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or_else(|| wrong("it is truncated in its header"))
}

fn u16_at(from: &[u8], at: usize) -> io::Result<u16> {
    bytes(from, at).map(u16::from_be_bytes)
}

fn u32_at(from: &[u8], at: usize) -> io::Result<u32> {
    bytes(from, at).map(u32::from_be_bytes)
}

fn u64_at(from: &[u8], at: usize) -> io::Result<u64> {
    bytes(from, at).map(u64::from_be_bytes)
}

fn read_some(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut read = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = read.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64))? {
            0 => break,
            more => filled += more,
        }
    }
    read.truncate(filled);
    Ok(read)
}

fn text(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).into_owned()
}

impl Header {
    /// Reads and checks the header of a file.
    ///
    /// # Errors
    /// The host's I/O error, or `InvalidData` with the reason.
    pub fn read(file: &File) -> io::Result<Header> {
        let head = read_some(file, 0, HEADER)?;
        let version = u32_at(&head, 4)?;
        if !matches!(version, 2 | 3) {
            return Err(wrong(format!("version {version} of qcow2 is not known")));
        }
        let cluster_bits = u32_at(&head, 20)?;
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(wrong(format!("its clusters have 2^{cluster_bits} bytes")));
        }
        let size = u64_at(&head, 24)?;
        if size > MAX_SIZE {
            return Err(wrong(format!("its disk has {size} bytes")));
        }
        let features = if version == 3 { u64_at(&head, 72)? } else { 0 };
        if features & CORRUPT != 0 {
            return Err(wrong("it is marked corrupt; see 'qemu-img check -r all'"));
        }
        let mut header = Header {
            size,
            encrypted: u32_at(&head, 32)? != 0,
            needs_qemu: features & (COMPRESSION_TYPE | EXTENDED_L2 | !KNOWN) != 0,
            data_file: (features & DATA_FILE != 0).then(String::new),
            ..Header::default()
        };
        header.extensions(&head, if version == 3 { u32_at(&head, 100)? } else { 72 })?;
        let (at, length) = (u64_at(&head, 8)?, u32_at(&head, 16)?);
        if at != 0 {
            if length > MAX_NAME {
                return Err(wrong(format!("the name of its backing file has {length} bytes")));
            }
            let name = read_some(file, at, usize::try_from(length).unwrap_or(0))?;
            if name.len() != usize::try_from(length).unwrap_or(0) || name.contains(&0) {
                return Err(wrong("the name of its backing file is truncated"));
            }
            header.backing = Some(text(&name)).filter(|name| !name.is_empty());
        }
        header.snapshots = snapshots(file, u64_at(&head, 64)?, u32_at(&head, 60)?)?;
        Ok(header)
    }

    fn extensions(&mut self, head: &[u8], length: u32) -> io::Result<()> {
        let mut at = usize::try_from(length).unwrap_or(usize::MAX);
        while at.saturating_add(8) <= head.len() {
            let (kind, size) = (u32_at(head, at)?, usize::try_from(u32_at(head, at + 4)?).unwrap_or(usize::MAX));
            let content = head.get(at + 8..).and_then(|rest| rest.get(..size));
            match (kind, content) {
                (0, _) | (_, None) => break,
                (0xe279_2aca, Some(content)) => self.backing_format = Some(text(content)),
                (0x4441_5441, Some(content)) if self.data_file.is_some() => self.data_file = Some(text(content)),
                _ => {}
            }
            at = at.saturating_add(8).saturating_add(size.next_multiple_of(8));
        }
        Ok(())
    }
}

/// Reads the snapshot table; returns the snapshots by age, oldest first.
fn snapshots(file: &File, offset: u64, count: u32) -> io::Result<Vec<Internal>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > MAX_SNAPSHOTS {
        return Err(wrong(format!("it says that it holds {count} snapshots")));
    }
    let most = u64::from(count).saturating_mul(2048).min(MAX_TABLE);
    let table = read_some(file, offset, usize::try_from(most).unwrap_or(0))?;
    let cut = |_| wrong("its table of snapshots is truncated");
    let (mut found, mut at) = (Vec::new(), 0usize);
    for _ in 0..count {
        let (id_size, name_size) = (u16_at(&table, at + 12).map_err(cut)?, u16_at(&table, at + 14).map_err(cut)?);
        let (seconds, nanos) = (u32_at(&table, at + 16).map_err(cut)?, u32_at(&table, at + 20).map_err(cut)?);
        let extra = u32_at(&table, at + 36).map_err(cut)?;
        let id_at = at.saturating_add(40).saturating_add(usize::try_from(extra).unwrap_or(usize::MAX));
        let name_at = id_at.saturating_add(usize::from(id_size));
        let end = name_at.saturating_add(usize::from(name_size));
        let (id, name) = table.get(id_at..name_at).zip(table.get(name_at..end)).ok_or_else(|| cut(wrong("")))?;
        found.push(Internal { id: text(id), name: text(name), seconds, nanos });
        at = end.next_multiple_of(8);
    }
    found.sort_by_key(|snapshot| (snapshot.seconds, snapshot.nanos));
    Ok(found)
}
