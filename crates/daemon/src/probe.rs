//! Detects data that a device holds already, so that `pool create` does not overwrite it.
//!
//! Sources of the magics: the headers of the respective formats (ext2 superblock, XFS superblock,
//! btrfs superblock, MBR, UEFI GPT, LVM2 label, LUKS, swap, qcow2, VMDK, VHDX, VDI, vma; the
//! superblocks of Linux md, bcache and BlueStore; ZFS's uberblocks).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millpond_format::{FormatError, Label};

use super::labels;

#[cfg(test)]
mod tests;

/// A magic number and its offset.
struct Magic {
    offset: usize,
    bytes: &'static [u8],
    name: &'static str,
}

/// Bytes at the start of a device that hold every magic below.
const PROBED: usize = ZFS_UBERBLOCKS.1;
/// Start and end of the array of uberblocks in the first label of a ZFS device; `ZFS_UBERBLOCK` is
/// the least distance between two of them.
const ZFS_UBERBLOCKS: (usize, usize) = (128 << 10, 256 << 10);
const ZFS_UBERBLOCK: usize = 1024;
/// Magic of an uberblock, in either byte order.
const ZFS_MAGICS: [[u8; 8]; 2] = [[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]];

const MAGICS: &[Magic] = &[
    Magic { offset: 0, bytes: b"XFSB", name: "an XFS filesystem" },
    Magic { offset: 1024 + 56, bytes: &[0x53, 0xef], name: "an ext2/3/4 filesystem" },
    Magic { offset: 0x1_0040, bytes: b"_BHRfS_M", name: "a btrfs filesystem" },
    Magic { offset: 512, bytes: b"EFI PART", name: "a GPT partition table" },
    Magic { offset: 4096, bytes: b"EFI PART", name: "a GPT partition table (4096-byte sectors)" },
    Magic { offset: 512, bytes: b"LABELONE", name: "an LVM physical volume" },
    Magic { offset: 0, bytes: b"LABELONE", name: "an LVM physical volume" },
    Magic { offset: 1024, bytes: b"LABELONE", name: "an LVM physical volume" },
    Magic { offset: 1536, bytes: b"LABELONE", name: "an LVM physical volume" },
    Magic { offset: 0, bytes: b"LUKS\xba\xbe", name: "a LUKS container" },
    Magic { offset: 4086, bytes: b"SWAPSPACE2", name: "a swap area" },
    Magic { offset: 0, bytes: b"QFI\xfb", name: "a qcow2 image" },
    Magic { offset: 0, bytes: b"KDMV", name: "a VMDK image" },
    Magic { offset: 0, bytes: b"vhdxfile", name: "a VHDX image" },
    Magic { offset: 64, bytes: &[0x7f, 0x10, 0xda, 0xbe], name: "a VDI image" },
    Magic { offset: 0, bytes: b"VMA\0", name: "a Proxmox backup (vma)" },
    Magic { offset: 257, bytes: b"ustar", name: "a tar archive" },
    Magic { offset: 4096, bytes: &[0xfc, 0x4e, 0x2b, 0xa9], name: "a member of a Linux software RAID (md)" },
    Magic { offset: 0, bytes: &[0xfc, 0x4e, 0x2b, 0xa9], name: "a member of a Linux software RAID (md)" },
    Magic {
        offset: 4096 + 24,
        bytes: &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
        name: "a bcache device",
    },
    Magic { offset: 0, bytes: b"bluestore block device", name: "a Ceph OSD (BlueStore)" },
    Magic { offset: 3, bytes: b"NTFS    ", name: "an NTFS filesystem" },
    Magic { offset: 82, bytes: b"FAT32", name: "a FAT filesystem" },
    Magic { offset: 54, bytes: b"FAT1", name: "a FAT filesystem" },
    Magic { offset: 0x8001, bytes: b"CD001", name: "an ISO 9660 image" },
    // Last: several of the formats above have the signature of a boot sector as well.
    Magic { offset: 510, bytes: &[0x55, 0xaa], name: "an MBR partition table or boot sector" },
];

/// Names the content of the device at `path`; `None` when nothing known is found.
///
/// # Errors
/// I/O errors of the host.
pub fn holds(path: &Path) -> io::Result<Option<String>> {
    let file = File::open(path)?;
    let mut start = vec![0; PROBED];
    let mut filled = 0;
    while let Some(rest) = start.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    start.truncate(filled);
    if let Some(name) = name(&start) {
        return Ok(Some(name));
    }
    // The front may have been overwritten; the copy of the label at the end still names the pool.
    let second = labels::second_sector(path)?;
    Ok(second.and_then(|sector| of_label(&sector)))
}

/// Names a label, also one that is damaged or of another version; `None` for other content.
fn of_label(sector: &[u8]) -> Option<String> {
    match Label::decode(sector) {
        Ok(label) => Some(describe(&label)),
        Err(FormatError::Magic) => None,
        Err(error) => Some(format!("a damaged or newer pool label ({error})")),
    }
}

fn describe(label: &Label) -> String {
    format!("the pool '{}' (member {}, id {})", label.name, label.member, label.pool)
}

fn name(start: &[u8]) -> Option<String> {
    if let Some(label) = start.get(..millpond_format::SECTOR_BYTES).and_then(of_label) {
        return Some(label);
    }
    let found = MAGICS.iter().find(|magic| {
        let end = magic.offset + magic.bytes.len();
        start.get(magic.offset..end) == Some(magic.bytes)
    });
    let zfs = || is_zfs(start).then_some("a member of a ZFS pool");
    // a whole disk of ZFS has a partition table, its partitions do not
    found.map(|magic| magic.name).or_else(zfs).map(str::to_owned)
}

fn is_zfs(start: &[u8]) -> bool {
    let array = start.get(ZFS_UBERBLOCKS.0..).unwrap_or_default();
    array.chunks(ZFS_UBERBLOCK).any(|block| block.first_chunk().is_some_and(|magic| ZFS_MAGICS.contains(magic)))
}
