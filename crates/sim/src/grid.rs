//! The grain of the oracle: how the bytes of a volume fall into cells that are written wholly or not at all.
//!
//! Guests with a disk write sectors, so a cell is one. Guests with a file write any bytes; what the judge then knows of a sector is what it knows of
//! its two parts, which are divided at the same byte in every sector of a world.

use std::ops::Range;

use millpond_block::ByteRange;

use crate::content::{LEAST, SECTOR};
use crate::rng::Rng;

/// Bytes of the map's unit: requests are atomic within it.
pub const BLOCK: u64 = 4096;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// Bytes of the first of two cells of a sector; 0: the sector is one.
    split: u64,
}

impl Grid {
    /// Two cells in each sector, divided anywhere: at odd bytes as a rule.
    pub fn of_bytes(rng: &mut Rng) -> Grid {
        Grid { split: rng.between(LEAST as u64, (SECTOR - LEAST) as u64) }
    }

    fn per_sector(self) -> u64 {
        if self.split == 0 { 1 } else { 2 }
    }

    /// Cells in a block.
    pub fn per_block(self) -> u64 {
        BLOCK / SECTOR as u64 * self.per_sector()
    }

    /// Cells of so many bytes, a number of sectors, from the start of a sector on.
    pub fn cells(self, bytes: u64) -> u64 {
        bytes / SECTOR as u64 * self.per_sector()
    }

    /// Bytes of so many cells from the start of a volume on.
    pub fn start(self, cell: u64) -> u64 {
        let sector = cell / self.per_sector() * SECTOR as u64;
        if cell.is_multiple_of(self.per_sector()) { sector } else { sector + self.split }
    }

    /// The cell that holds this byte.
    pub fn at(self, offset: u64) -> u64 {
        let within = offset % SECTOR as u64;
        self.cells(offset) + u64::from(self.split > 0 && within >= self.split)
    }

    /// The cells of a range that begins and ends with cells.
    pub fn range(self, range: ByteRange) -> Range<u64> {
        self.at(range.offset)..self.at(range.offset.saturating_add(range.length))
    }

    /// Does the range begin and end with cells?
    pub fn covers(self, range: ByteRange) -> bool {
        let whole = |byte: u64| self.start(self.at(byte)) == byte;
        range.end().is_some_and(|end| whole(range.offset) && whole(end))
    }

    /// The cells of a range, with the place of each in its bytes.
    pub fn places(self, range: ByteRange) -> impl Iterator<Item = (u64, Range<usize>)> {
        let place = move |cell: u64| (self.start(cell) - range.offset) as usize;
        self.range(range).map(move |cell| (cell, place(cell)..place(cell + 1)))
    }
}

#[cfg(test)]
mod tests;
