//! Detects the content of a partition by magic bytes, and whether it depends on the sector size.
//!
//! Sources: Linux, fs/{fat,ext4,xfs,btrfs}; libblkid's list of superblocks.

use std::io;

use super::finding::Read;

#[cfg(test)]
mod tests;

/// Bytes at the start of a partition that contain all magic bytes.
const HEAD: u64 = 68 << 10;

/// NTFS has file and index records of 1 or 4 KiB, each on sectors of its own. The usual records of
/// 1 KiB are smaller than a sector of 4096 bytes. Windows mounts NTFS only with the sector size in
/// its boot sector, and no tool converts it.
const NTFS_TO_4096: &str = "its file records are for smaller sectors, and Windows mounts no other; in the guest, copy its \
files ('robocopy' or a Windows backup) to an NTFS that is formatted on a second volume, made with 'millpond create POOL/NEW -L SIZE --sector 4kn'";
const NTFS_TO_512: &str = "Windows mounts it with the sectors it was formatted for alone; in the guest, copy its files \
('robocopy' or a Windows backup) to an NTFS that is formatted on a second volume, made with 'millpond create POOL/NEW -L SIZE --sector 512e'";

/// Content of a partition or disk; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes where magic bytes would be.
    Empty,
    /// FAT.
    Fat {
        /// Sector size.
        sector: u64,
    },
    /// ext2, ext3 or ext4.
    Ext {
        /// Block size.
        block: u64,
    },
    /// XFS.
    Xfs {
        /// Sector size.
        sector: u64,
    },
    /// btrfs. Its sectors are at least 4 KiB unless it was made on an unusual machine.
    Btrfs {
        /// Sector size.
        sector: u64,
    },
    /// NTFS.
    Ntfs {
        /// Sector size.
        sector: u64,
    },
    /// exFAT.
    ExFat {
        /// Sector size.
        sector: u64,
    },
    /// Linux swap, which is addressed in pages.
    Swap,
    /// LUKS.
    Luks,
    /// An LVM physical volume.
    Lvm,
    /// A member of a Linux software RAID.
    Raid,
    /// Unknown content.
    Unknown,
}

/// Effect of another sector size on a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No effect.
    Fine,
    /// The file system must be made anew with the same files.
    Rebuild,
    /// Unknown, because the content inside a container may depend on the sector size; with a hint.
    Unclear(&'static str),
    /// The content would become unusable; with a hint how to avoid that.
    Refuse(&'static str),
}

/// Detects the content of `length` bytes from offset `start` on.
///
/// # Errors
/// The host's I/O error.
pub fn look(start: u64, length: u64, read: Read<'_>) -> io::Result<Content> {
    let mut head = vec![0; usize::try_from(length.min(HEAD)).unwrap_or(0)];
    read(start, &mut head)?;
    Ok(of(&head))
}

fn of(head: &[u8]) -> Content {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    let le16 = |offset: usize| head.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from(u16::from_le_bytes(*raw)));
    let le32 = |offset: usize| head.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from(u32::from_le_bytes(*raw)));
    let be16 = |offset: usize| head.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from(u16::from_be_bytes(*raw)));
    if at(0, b"LUKS\xba\xbe") {
        return Content::Luks;
    }
    if at(0, b"XFSB") {
        return Content::Xfs { sector: be16(102) };
    }
    if at(3, b"NTFS    ") {
        return Content::Ntfs { sector: le16(11) };
    }
    if at(3, b"EXFAT   ") {
        return Content::ExFat { sector: 1 << head.get(108).copied().unwrap_or(9).min(12) };
    }
    if at(0x10040, b"_BHRfS_M") {
        return Content::Btrfs { sector: le32(0x10090) };
    }
    if at(1080, &[0x53, 0xef]) {
        return Content::Ext { block: 1024 << le32(1048).min(6) };
    }
    if (0..4).any(|sector| at(sector * 512, b"LABELONE") && at(sector * 512 + 24, b"LVM2 001")) {
        return Content::Lvm;
    }
    if at(4096, &[0xfc, 0x4e, 0x2b, 0xa9]) || at(0, &[0xfc, 0x4e, 0x2b, 0xa9]) {
        return Content::Raid;
    }
    if at(4086, b"SWAPSPACE2") {
        return Content::Swap;
    }
    // a FAT boot sector has a jump, power-of-two sector and cluster sizes, and one or two tables;
    // other boot sectors lack some of these
    let (sector, cluster, tables) = (le16(11), head.get(13).copied().unwrap_or(0), head.get(16).copied().unwrap_or(0));
    let jump = matches!(head.first(), Some(0xeb | 0xe9));
    if jump && at(510, &[0x55, 0xaa]) && matches!(sector, 512 | 1024 | 2048 | 4096) && cluster.is_power_of_two() && matches!(tables, 1 | 2)
    {
        return Content::Fat { sector };
    }
    if head.iter().all(|byte| *byte == 0) { Content::Empty } else { Content::Unknown }
}

impl Content {
    /// Name of the content for the user.
    pub fn name(self) -> String {
        match self {
            Content::Empty => "empty".to_owned(),
            Content::Fat { sector } => format!("FAT with {sector}-byte sectors"),
            Content::Ext { block } => format!("ext2/3/4 with {block}-byte blocks"),
            Content::Xfs { sector } => format!("XFS with {sector}-byte sectors"),
            Content::Btrfs { sector } => format!("btrfs with {sector}-byte sectors"),
            Content::Ntfs { sector } => format!("NTFS with {sector}-byte sectors"),
            Content::ExFat { sector } => format!("exFAT with {sector}-byte sectors"),
            Content::Swap => "swap".to_owned(),
            Content::Luks => "LUKS".to_owned(),
            Content::Lvm => "LVM".to_owned(),
            Content::Raid => "software RAID".to_owned(),
            Content::Unknown => "something unknown".to_owned(),
        }
    }

    /// Judges the effect of sectors of `to` bytes.
    pub fn verdict(self, to: u64) -> Verdict {
        match self {
            Content::Fat { sector } if sector != to => Verdict::Rebuild,
            Content::Ntfs { sector } if sector != to && to > 512 => Verdict::Refuse(NTFS_TO_4096),
            Content::Ntfs { sector } if sector != to => Verdict::Refuse(NTFS_TO_512),
            Content::ExFat { sector } if sector != to => Verdict::Refuse(
                "its clusters are counted in sectors, and no tool converts that; copy its files in the guest to one on a volume with the new sectors",
            ),
            // Linux accepts file systems with larger units than the disk's sectors.
            Content::Ext { block } if block < to => Verdict::Refuse("copy its files to a filesystem made with 'mke2fs -b 4096'"),
            Content::Xfs { sector } if sector < to => Verdict::Refuse("copy its files to a filesystem made with 'mkfs.xfs -s size=4096'"),
            Content::Btrfs { sector } if sector < to => Verdict::Refuse("copy its files to a filesystem with 4096-byte sectors"),
            Content::Luks | Content::Lvm | Content::Raid if to > 512 => {
                Verdict::Unclear("its content may depend on 512-byte sectors; give --force if it does not")
            }
            _ => Verdict::Fine,
        }
    }
}
