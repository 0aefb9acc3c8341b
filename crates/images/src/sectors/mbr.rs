//! Master boot records: protective ones in front of a GPT, and those with partitions of their own.

use std::io;

use super::finding::Read;

/// Size of an MBR in bytes.
pub const BYTES: usize = 512;
const TABLE: usize = 446;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Type of the entry that protects a GPT.
const PROTECTIVE: u8 = 0xee;
/// CHS address that stands for "use the LBA".
const BEYOND: [u8; 3] = [0xfe, 0xff, 0xff];

/// A partition of an MBR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1.
    pub number: usize,
    /// Partition type.
    pub kind: u8,
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
}

/// An MBR with a valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mbr {
    raw: Vec<u8>,
    /// Partitions, without the protective entry.
    pub partitions: Vec<Partition>,
}

impl Mbr {
    /// Reads the MBR. The boot sector of a file system, which has code in place of the table, is
    /// not an MBR.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn read(size: u64, read: Read<'_>) -> io::Result<Option<Mbr>> {
        let mut raw = vec![0; BYTES];
        if size < BYTES as u64 {
            return Ok(None);
        }
        read(0, &mut raw)?;
        if raw.get(510..) != Some(&SIGNATURE[..]) {
            return Ok(None);
        }
        let mbr = Mbr { partitions: Mbr::parse(&raw), raw };
        let sound =
            mbr.raw.get(TABLE..510).is_some_and(|table| table.chunks_exact(16).all(|entry| matches!(entry.first(), Some(0 | 0x80))));
        Ok(sound.then_some(mbr))
    }

    fn entries(raw: &[u8]) -> impl Iterator<Item = (Partition, &[u8])> {
        raw.get(TABLE..510).unwrap_or_default().chunks_exact(16).enumerate().map(|(index, entry)| {
            let word = |at: usize| entry.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from(u32::from_le_bytes(*raw)));
            let kind = entry.get(4).copied().unwrap_or(0);
            (Partition { number: index + 1, kind, first: word(8), count: word(12) }, entry)
        })
    }

    fn parse(raw: &[u8]) -> Vec<Partition> {
        let used = |p: &Partition| p.kind != 0 && p.kind != PROTECTIVE && p.count > 0;
        Mbr::entries(raw).map(|(partition, _)| partition).filter(used).collect()
    }

    /// Number of sectors that the protective entry covers; 0 if there is none.
    pub fn protected(&self) -> u64 {
        Mbr::entries(&self.raw).find(|(partition, _)| partition.kind == PROTECTIVE).map_or(0, |(partition, _)| partition.count)
    }

    /// Whether a partition type contains logical partitions.
    pub fn is_extended(kind: u8) -> bool {
        matches!(kind, 0x05 | 0x0f | 0x85)
    }

    /// Makes a protective MBR for a disk of `sectors` sectors, with the boot code of `raw`.
    pub fn protective(raw: &[u8], sectors: u64) -> Vec<u8> {
        let mut new = raw.to_vec();
        let count = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
        let mut entry = [0; 64];
        entry[1..4].copy_from_slice(&[0, 2, 0]);
        entry[4] = PROTECTIVE;
        entry[5..8].copy_from_slice(&[0xff, 0xff, 0xff]);
        entry[8..12].copy_from_slice(&1u32.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
        new.resize(BYTES, 0);
        if let Some(table) = new.get_mut(TABLE..510) {
            table.copy_from_slice(&entry);
        }
        if let Some(mark) = new.get_mut(510..) {
            mark.copy_from_slice(&SIGNATURE);
        }
        new
    }

    /// Converts the partitions to another sector size at the same byte offsets. Starts must be
    /// multiples of the new sector size; lengths are rounded up.
    pub fn convert(&self, from: u64, to: u64) -> Vec<u8> {
        let mut new = self.raw.clone();
        for partition in &self.partitions {
            let at = TABLE + (partition.number - 1) * 16;
            let scaled = |sectors: u64| u32::try_from((sectors * from).div_ceil(to)).unwrap_or(u32::MAX).to_le_bytes();
            if let Some(entry) = new.get_mut(at..at + 16) {
                entry[1..4].copy_from_slice(&BEYOND);
                entry[5..8].copy_from_slice(&BEYOND);
                entry[8..12].copy_from_slice(&scaled(partition.first));
                entry[12..16].copy_from_slice(&scaled(partition.count));
            }
        }
        new
    }
}
