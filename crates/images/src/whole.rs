//! Checks that an image is not truncated. Libraries and QEMU read missing data beyond the end of a
//! file as zeroes, so a truncated image would silently become a damaged disk. Here the offsets in
//! an image's tables are compared with the length of the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use millpond_api::size::Size;
use rustix::fs::{SeekFrom, seek};

use super::format::Format;

#[cfg(test)]
mod tests;

/// Bytes of a table that are read at once.
const PIECE: u64 = 1 << 20;
/// Maximum bytes of a top-level table: QEMU's bound for the L1 table of qcow2.
const MAX_TOP: u64 = 32 << 20;
/// Largest cluster, block or grain in bytes that is accepted.
const MAX_UNIT: u64 = 1 << 30;

/// A file and its length in bytes.
struct Held<'a> {
    file: &'a File,
    length: u64,
}

/// Reads header fields and tables, with checks against the length.
impl Held<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let mut raw = [0; N];
        self.within(at, N as u64, "its header")?;
        self.file.read_exact_at(&mut raw, at)?;
        Ok(raw)
    }

    fn le32(&self, at: u64) -> io::Result<u64> {
        self.bytes(at).map(u32::from_le_bytes).map(u64::from)
    }

    fn le64(&self, at: u64) -> io::Result<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn be32(&self, at: u64) -> io::Result<u64> {
        self.bytes(at).map(u32::from_be_bytes).map(u64::from)
    }

    fn be64(&self, at: u64) -> io::Result<u64> {
        self.bytes(at).map(u64::from_be_bytes)
    }

    /// Fails if a range does not lie within the file; `what` names it in the error.
    fn within(&self, at: u64, length: u64, what: &str) -> io::Result<()> {
        match at.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(wrong(format!("{what} lies at byte {at}, but the file has {} bytes: it is truncated", self.length))),
        }
    }

    /// Calls `each` for every entry of a table with entries of `SIZE` bytes.
    fn table<const SIZE: usize>(
        &self,
        at: u64,
        count: u64,
        what: &str,
        each: &mut dyn FnMut(&[u8; SIZE]) -> io::Result<()>,
    ) -> io::Result<()> {
        let length = count.checked_mul(SIZE as u64).ok_or_else(|| wrong(format!("{what} is invalid")))?;
        self.within(at, length, what)?;
        let mut done = 0;
        let mut piece = Vec::new();
        while done < length {
            piece.resize(usize::try_from((length - done).min(PIECE)).unwrap_or(0), 0);
            self.file.read_exact_at(&mut piece, at + done)?;
            for entry in piece.chunks_exact(SIZE) {
                entry.first_chunk().map_or(Ok(()), &mut *each)?;
            }
            done += piece.len() as u64;
        }
        Ok(())
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn unit(bytes: u64) -> io::Result<u64> {
    if (1..=MAX_UNIT).contains(&bytes) { Ok(bytes) } else { Err(wrong(format!("its blocks have {bytes} bytes"))) }
}

/// Checks that everything that the image's tables refer to lies within the file.
///
/// # Errors
/// The host's I/O error, or which part is missing.
pub fn check(file: &File, format: Format) -> io::Result<()> {
    // The metadata of a block device has no length.
    let held = Held { file, length: seek(file, SeekFrom::End(0))? };
    match format {
        Format::Qcow2 => qcow2(&held),
        Format::Vmdk => vmdk(&held),
        Format::Vdi => vdi(&held),
        Format::Vhd => vhd(&held),
        Format::Parallels => parallels(&held),
        // QEMU checks the table of VHDX against the length itself; raw has no table.
        Format::Vhdx | Format::Raw | Format::Qcow | Format::Qed => Ok(()),
    }
}

/// Checks both levels of the active cluster table, after QEMU's docs/interop/qcow2.txt.
fn qcow2(held: &Held<'_>) -> io::Result<()> {
    const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    let (version, bits) = (held.be32(4)?, held.be32(20)?);
    let features = if version >= 3 { held.be64(72)? } else { 0 };
    let (count, at) = (held.be32(36)?, held.be64(40)?);
    if !(9..=21).contains(&bits) || count * 8 > MAX_TOP {
        return Err(wrong("its table of tables is larger than any"));
    }
    let cluster = 1u64 << bits;
    let (outside, subclusters) = (features & 4 != 0, features & 16 != 0);
    // The larger the clusters, the fewer bits hold the offset of a compressed cluster.
    let compressed = (1u64 << (62 - (bits - 8))) - 1;
    let data = |entry: u64| {
        if entry & 1 << 62 != 0 {
            return held.within(entry & compressed, 1, "compressed data");
        }
        // Zero clusters need no data. The file may end within the last cluster.
        if entry & 1 != 0 || entry & OFFSET == 0 || outside {
            return Ok(());
        }
        held.within(entry & OFFSET, 1, "data")
    };
    held.table::<8>(at, count, "its table of tables", &mut |entry| {
        let table = u64::from_be_bytes(*entry) & OFFSET;
        if table == 0 {
            return Ok(());
        }
        if subclusters {
            return held.table::<16>(table, cluster / 16, "a table", &mut |entry| {
                data(entry.first_chunk().map_or(0, |raw| u64::from_be_bytes(*raw)) & !1)
            });
        }
        held.table::<8>(table, cluster / 8, "a table", &mut |entry| data(u64::from_be_bytes(*entry)))
    })
}

/// Checks the grain directory and tables of a sparse extent, after VMware's "Virtual Disk Format
/// 5.0". Text descriptors are checked in `chain.rs`, with the files that they name.
fn vmdk(held: &Held<'_>) -> io::Result<()> {
    if held.bytes::<4>(0)? != *b"KDMV" {
        return Ok(());
    }
    let mut header = 0;
    if held.le64(56)? == u64::MAX {
        // stream-optimized: the footer has the offset of the directory
        header = held.length.saturating_sub(1024);
        if held.bytes::<4>(header)? != *b"KDMV" {
            return Err(wrong("the footer of a stream is not at its end: it is truncated"));
        }
    }
    let (capacity, grain, per_table, directory) =
        (held.le64(header + 12)?, held.le64(header + 20)?, held.le32(header + 44)?, held.le64(header + 56)?);
    if capacity == 0 {
        return Ok(());
    }
    let covered = unit(grain.saturating_mul(512))? / 512 * unit(per_table)?;
    let tables = capacity.div_ceil(covered);
    if tables * 4 > MAX_TOP {
        return Err(wrong("its directory is larger than any"));
    }
    held.table::<4>(directory.saturating_mul(512), tables, "its directory", &mut |entry| {
        let table = u64::from(u32::from_le_bytes(*entry)) * 512;
        if table == 0 {
            return Ok(());
        }
        held.table::<4>(table, per_table, "a table", &mut |entry| {
            let grain = u64::from(u32::from_le_bytes(*entry));
            // 0 is a hole, 1 a grain of zeroes
            if grain < 2 { Ok(()) } else { held.within(grain * 512, 512, "data") }
        })
    })
}

/// Checks the block map of VirtualBox, and that the file has as many blocks as the header counts.
fn vdi(held: &Held<'_>) -> io::Result<()> {
    let (map, data, block) = (held.le32(0x154)?, held.le32(0x158)?, unit(held.le32(0x178)?)?);
    let (blocks, allocated) = (held.le32(0x180)?, held.le32(0x184)?);
    held.within(data, allocated.saturating_mul(block), "data")?;
    held.table::<4>(map, blocks, "its map", &mut |entry| {
        let index = u64::from(u32::from_le_bytes(*entry));
        // the two highest values are holes and zeroes
        if index >= 0xffff_fffe { Ok(()) } else { held.within(data + index * block, block, "data") }
    })
}

/// Checks the footer and, of a dynamic disk, the block table.
fn vhd(held: &Held<'_>) -> io::Result<()> {
    let footer = held.length.saturating_sub(512);
    if held.bytes::<8>(footer)? != *b"conectix" {
        return Err(wrong("there is no footer at its end: it is truncated"));
    }
    let header = held.be64(footer + 16)?;
    if header == u64::MAX {
        return held.within(0, held.be64(footer + 48)?, "data");
    }
    let (table, blocks, block) = (held.be64(header + 16)?, held.be32(header + 28)?, unit(held.be32(header + 32)?)?);
    held.table::<4>(table, blocks, "its table", &mut |entry| {
        let sector = u64::from(u32::from_be_bytes(*entry));
        if sector == 0xffff_ffff { Ok(()) } else { held.within(sector * 512, block, "data") }
    })
}

/// Checks the table of clusters, whose entries count sectors, or clusters in the later version.
fn parallels(held: &Held<'_>) -> io::Result<()> {
    let (tracks, count) = (unit(held.le32(28)?.saturating_mul(512))?, held.le32(32)?);
    let step = if held.bytes::<16>(0)? == *b"WithouFreSpacExt" { tracks } else { 512 };
    held.table::<4>(64, count, "its table", &mut |entry| {
        let place = u64::from(u32::from_le_bytes(*entry)).saturating_mul(step);
        if place == 0 { Ok(()) } else { held.within(place, 1, "data") }
    })
}

/// Checks that a file has the length of the part of a disk that it holds: `sectors` after `skipped`
/// ones, of 512 bytes.
///
/// # Errors
/// The host's I/O error, or that the file is too short.
pub fn part(file: &File, sectors: u64, skipped: u64) -> io::Result<()> {
    let held = Held { file, length: file.metadata()?.len() };
    let wanted = sectors.saturating_add(skipped).saturating_mul(512);
    if held.length > 0 && held.length < wanted {
        return Err(wrong(format!("a part of it has {} of {}: it is truncated", Size(held.length), Size(wanted))));
    }
    Ok(())
}
