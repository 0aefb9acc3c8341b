//! Detects the sector size for which a disk was made, from its partition table and the contents of
//! its partitions.

use std::io;

use millpond_api::size::Size;

use super::contents::{self, Content};
use super::gpt::Gpt;
use super::mbr::Mbr;

#[cfg(test)]
mod tests;

/// Reads bytes of a disk at an offset.
pub type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

/// Sector sizes of disks, in bytes.
pub const SIZES: [u64; 2] = [512, 4096];

/// Partition table of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// No table.
    #[default]
    Nothing,
    /// GPT; whether the first copy is valid.
    Gpt(Gpt, bool),
    /// A master boot record with partitions of its own.
    Mbr(Mbr),
}

/// Findings about a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Sector size in bytes that the disk was made for, if it can be determined.
    pub sector: Option<u64>,
    /// Partition table.
    pub table: Table,
}

/// Inspects a disk of `size` bytes.
///
/// # Errors
/// The host's I/O error.
pub fn look(size: u64, read: Read<'_>) -> io::Result<Finding> {
    let mut finding = Finding { size, ..Finding::default() };
    let mut gpts = Vec::new();
    for first in [true, false] {
        for sector in SIZES {
            if let Some(gpt) = Gpt::read(size, sector, first, read)? {
                gpts.push((gpt, first));
            }
        }
        if !gpts.is_empty() {
            break;
        }
    }
    let mbr = Mbr::read(size, read)?;
    if gpts.len() > 1 {
        // A stale GPT of another sector size does not match the protective entry of the MBR.
        let covered = mbr.as_ref().map_or(0, Mbr::protected);
        gpts.retain(|(gpt, _)| covered.abs_diff(size / gpt.sector - 1) <= 1);
    }
    if let Some((gpt, first)) = gpts.into_iter().next() {
        finding.sector = Some(gpt.sector);
        finding.table = Table::Gpt(gpt, first);
        return Ok(finding);
    }
    if let Some(mbr) = mbr.filter(|mbr| !mbr.partitions.is_empty()) {
        let mut fits = Vec::new();
        for sector in SIZES {
            let mut known = 0;
            for partition in &mbr.partitions {
                let Some(start) = partition.first.checked_mul(sector).filter(|start| *start < size) else { continue };
                known += usize::from(!matches!(contents::look(start, size - start, read)?, Content::Empty | Content::Unknown));
            }
            fits.push((known, sector));
        }
        fits.sort_by_key(|(known, _)| std::cmp::Reverse(*known));
        if let [(most, sector), (less, _)] = fits.as_slice() {
            finding.sector = (most > less).then_some(*sector);
        }
        finding.table = Table::Mbr(mbr);
        return Ok(finding);
    }
    if let Content::Fat { sector, .. } | Content::Ntfs { sector } | Content::ExFat { sector } = contents::look(0, size, read)? {
        finding.sector = Some(sector);
    }
    Ok(finding)
}

impl Finding {
    /// Returns the size in bytes that the partitions require, if the disk is smaller.
    pub fn lacks(&self) -> Option<u64> {
        let sector = self.sector?;
        let end = match &self.table {
            Table::Gpt(gpt, _) => gpt.partitions().iter().map(|p| p.last.saturating_add(1)).max()?,
            Table::Mbr(mbr) => mbr.partitions.iter().map(|p| p.first + p.count).max()?,
            Table::Nothing => return None,
        };
        Some(end.saturating_mul(sector)).filter(|end| *end > self.size)
    }
}

/// Describes the mismatch with the other sector size, and how to resolve it.
pub fn describe(finding: &Finding, made_for: u64) -> String {
    let (size, other) = (finding.size, if made_for == 4096 { 512 } else { 4096 });
    let looks = Size(if made_for == 4096 { size / 8 } else { size.saturating_mul(8) });
    let what = match &finding.table {
        Table::Gpt(_, true) => format!("its GPT is at byte {made_for}"),
        Table::Gpt(_, false) => "its second GPT says so".to_owned(),
        Table::Mbr(_) => "its partitions begin there".to_owned(),
        Table::Nothing => "its filesystem says so".to_owned(),
    };
    let lost = match &finding.table {
        Table::Gpt(..) => ", and no GPT is found",
        Table::Mbr(_) => ", and no partition is where the table says",
        Table::Nothing => "",
    };
    let (own, to) = if made_for == 4096 { ("4kn", "512e") } else { ("512e", "4kn") };
    format!(
        "the disk is made for {made_for}-byte sectors ({what}); at {other} its {} look like {looks}{lost}; import it with --sector {own}, \
         then 'millpond convert-sectors POOL/VOL {to}' makes it one for {other}",
        Size(size)
    )
}
