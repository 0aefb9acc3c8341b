//! The granularity of the oracle: divides the bytes of a volume into cells, each of which is
//! written wholly or not at all.
//!
//! Guests with disks write sectors, so a cell is a sector. Guests with files write any bytes; then
//! a sector is two cells, divided at the same byte in every sector of a world.

use std::ops::Range;

use millpond_block::ByteRange;

use crate::content::{LEAST, SECTOR};
use crate::rng::Rng;

/// Bytes of a block, the unit of the map. A request is atomic within a block.
pub const BLOCK: u64 = 4096;

/// How sectors are divided into cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// Bytes of the first of two cells of a sector; 0 if the sector is one cell.
    split: u64,
}

impl Grid {
    /// Divides each sector into two cells, at a random byte that is usually odd.
    pub fn of_bytes(rng: &mut Rng) -> Grid {
        Grid { split: rng.between(LEAST as u64, (SECTOR - LEAST) as u64) }
    }

    fn per_sector(self) -> u64 {
        if self.split == 0 { 1 } else { 2 }
    }

    /// Returns the number of cells in a block.
    pub fn per_block(self) -> u64 {
        BLOCK / SECTOR as u64 * self.per_sector()
    }

    /// Returns the number of cells in `bytes`, which must be whole sectors and begin at a sector.
    pub fn cells(self, bytes: u64) -> u64 {
        bytes / SECTOR as u64 * self.per_sector()
    }

    /// Returns the byte offset of a cell.
    pub fn start(self, cell: u64) -> u64 {
        let sector = cell / self.per_sector() * SECTOR as u64;
        if cell.is_multiple_of(self.per_sector()) { sector } else { sector + self.split }
    }

    /// Returns the cell that holds the byte at `offset`.
    pub fn at(self, offset: u64) -> u64 {
        let within = offset % SECTOR as u64;
        self.cells(offset) + u64::from(self.split > 0 && within >= self.split)
    }

    /// Returns the cells of a range that begins and ends at cell boundaries.
    pub fn range(self, range: ByteRange) -> Range<u64> {
        self.at(range.offset)..self.at(range.offset.saturating_add(range.length))
    }

    /// Returns whether the range begins and ends at cell boundaries.
    pub fn covers(self, range: ByteRange) -> bool {
        let whole = |byte: u64| self.start(self.at(byte)) == byte;
        range.end().is_some_and(|end| whole(range.offset) && whole(end))
    }

    /// Returns the cells of a range, each with the place of its bytes within the range.
    pub fn places(self, range: ByteRange) -> impl Iterator<Item = (u64, Range<usize>)> {
        let place = move |cell: u64| (self.start(cell) - range.offset) as usize;
        self.range(range).map(move |cell| (cell, place(cell)..place(cell + 1)))
    }
}

#[cfg(test)]
mod tests;
