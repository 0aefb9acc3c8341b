//! GUID partition tables, after the UEFI specification 2.10, chapter 5.

use std::io;

use crc_fast::{CrcAlgorithm, checksum};

use super::finding::Read;

const SIGNATURE: &[u8] = b"EFI PART";
/// Bytes of the header that are defined; longer headers are allowed within a sector.
const HEADER: usize = 92;
/// Maximum bytes of entries: 1,024 entries of 128 bytes. Usual tables have 128 entries.
const MAX_ENTRIES: u64 = 128 << 10;
/// Minimum bytes of entries, by the specification.
const MIN_ENTRIES: u64 = 16 << 10;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1.
    pub number: usize,
    /// Partition type GUID, as on the disk.
    pub kind: [u8; 16],
    /// First sector.
    pub first: u64,
    /// Last sector, inclusive.
    pub last: u64,
}

/// Type of an EFI system partition.
pub const ESP: [u8; 16] = [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];
/// Type of a partition for a BIOS boot loader.
pub const BIOS_BOOT: [u8; 16] = *b"Hah!IdontNeedEFI";

/// A GUID partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// Sector size in bytes of its sector numbers.
    pub sector: u64,
    header: Vec<u8>,
    entries: Vec<u8>,
    entry_size: usize,
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    from.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    from.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from_le_bytes(*raw))
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = into.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn crc(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32IsoHdlc, bytes)).unwrap_or(0)
}

impl Gpt {
    /// Reads the `first` or the second copy of the table for a sector size; `None` if it is not
    /// valid.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn read(size: u64, sector: u64, first: bool, read: Read<'_>) -> io::Result<Option<Gpt>> {
        let sectors = size / sector;
        if sectors < 8 {
            return Ok(None);
        }
        let own = if first { 1 } else { sectors - 1 };
        let mut header = vec![0; usize::try_from(sector).unwrap_or(512)];
        read(own * sector, &mut header)?;
        let length = usize::try_from(u32_at(&header, 12)).unwrap_or(0);
        let sound = header.starts_with(SIGNATURE) && (HEADER..=header.len()).contains(&length) && u64_at(&header, 24) == own;
        if !sound {
            return Ok(None);
        }
        header.truncate(length);
        let stored_crc = u32_at(&header, 16);
        put(&mut header, 16, &[0; 4]);
        let (at, count, entry_size) = (u64_at(&header, 72), u64::from(u32_at(&header, 80)), u64::from(u32_at(&header, 84)));
        let bytes = count.saturating_mul(entry_size);
        let within = at.checked_mul(sector).filter(|at| at.checked_add(bytes).is_some_and(|end| end <= size));
        let (Some(at), 128..=4096, 1..=MAX_ENTRIES) = (within, entry_size, bytes) else { return Ok(None) };
        if crc(&header) != stored_crc {
            return Ok(None);
        }
        let mut entries = vec![0; usize::try_from(bytes).unwrap_or(0)];
        read(at, &mut entries)?;
        if crc(&entries) != u32_at(&header, 88) {
            return Ok(None);
        }
        Ok(Some(Gpt { sector, header, entries, entry_size: usize::try_from(entry_size).unwrap_or(128) }))
    }

    /// Makes a table; [`Gpt::encode`] fills in checksums and positions.
    #[cfg(test)]
    pub fn of_parts(sector: u64, header: Vec<u8>, entries: Vec<u8>) -> Gpt {
        Gpt { sector, header, entries, entry_size: 128 }
    }

    /// Lists the partitions.
    pub fn partitions(&self) -> Vec<Partition> {
        let used = |(index, entry): (usize, &[u8])| {
            let kind = *entry.first_chunk::<16>()?;
            let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
            (kind != [0; 16]).then_some(Partition { number: index + 1, kind, first, last })
        };
        self.entries.chunks_exact(self.entry_size).enumerate().filter_map(used).collect()
    }

    /// Sectors of this size that the entries occupy.
    fn entry_sectors(&self, sector: u64) -> u64 {
        (self.entries.len() as u64).max(MIN_ENTRIES).div_ceil(sector)
    }

    /// Bytes at the start of a disk that a table for this sector size occupies, with the protective
    /// MBR.
    pub fn head(&self, sector: u64) -> u64 {
        (2 + self.entry_sectors(sector)) * sector
    }

    /// Bytes at the end of a disk that the second copy occupies.
    pub fn tail(&self, sector: u64) -> u64 {
        (1 + self.entry_sectors(sector)) * sector
    }

    /// Converts the partitions to another sector size at the same byte offsets. Starts must be
    /// multiples of the new sector size; ends are rounded up.
    pub fn convert(&self, to: u64) -> Gpt {
        let mut gpt = Gpt { sector: to, ..self.clone() };
        for entry in gpt.entries.chunks_exact_mut(self.entry_size).filter(|entry| entry.first_chunk() != Some(&[0; 16])) {
            let (start, end) = (u64_at(entry, 32) * self.sector, (u64_at(entry, 40) + 1) * self.sector);
            put(entry, 32, &(start / to).to_le_bytes());
            put(entry, 40, &(end.div_ceil(to) - 1).to_le_bytes());
        }
        gpt
    }

    /// Encodes the table as the bytes from sector 1 on, and those at the end of the disk.
    pub fn encode(&self, size: u64) -> (Vec<u8>, Vec<u8>) {
        let (sectors, entry_sectors) = (size / self.sector, self.entry_sectors(self.sector));
        let last = sectors - 1;
        let bytes = |sectors: u64| usize::try_from(sectors * self.sector).unwrap_or(0);
        let copy = |own: u64, other: u64, entries: u64| {
            let mut header = self.header.clone();
            put(&mut header, 24, &own.to_le_bytes());
            put(&mut header, 32, &other.to_le_bytes());
            put(&mut header, 40, &(2 + entry_sectors).to_le_bytes());
            put(&mut header, 48, &(last - entry_sectors - 1).to_le_bytes());
            put(&mut header, 72, &entries.to_le_bytes());
            put(&mut header, 88, &crc(&self.entries).to_le_bytes());
            put(&mut header, 16, &[0; 4]);
            let sum = crc(&header);
            put(&mut header, 16, &sum.to_le_bytes());
            header
        };
        let mut head = vec![0; bytes(1 + entry_sectors)];
        put(&mut head, 0, &copy(1, last, 2));
        put(&mut head, bytes(1), &self.entries);
        let mut tail = vec![0; bytes(1 + entry_sectors)];
        put(&mut tail, 0, &self.entries);
        put(&mut tail, bytes(entry_sectors), &copy(last, 1, last - entry_sectors));
        (head, tail)
    }
}
