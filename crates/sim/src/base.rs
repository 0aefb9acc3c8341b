//! Content of bases: a function of the base and the place, shared by the simulated store and the
//! oracle.

use millpond_block::{Buf, ByteRange};
use millpond_engine::BaseInfo;

use crate::content::{SECTOR, stamp};
use crate::grid::{BLOCK, Grid};
use crate::rng::mix;

/// Bit of every value that is content of a base; operations of guests are numbered from 1.
const MARK: u64 = 1 << 63;
/// Low bits of a value: stamps of different values differ in how far they can be compressed.
const PATTERN: u64 = 3;
/// Serial of the volume in the stamps of bases.
const SERIAL: u32 = u32::MAX;
/// One of so many chunks, blocks and sectors is zero.
const ZEROES: [u64; 3] = [6, 5, 16];

/// A publication, from which a base is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its name, which distinguishes its content from all other, `@` and its place if it has moved; and
    /// the bytes of a chunk.
    pub info: BaseInfo,
    /// Bytes of the base.
    pub size: u64,
}

impl Publication {
    /// Returns its name, which it keeps when it moves.
    pub fn name(&self) -> &str {
        self.info.source.split('@').next().unwrap_or_default()
    }

    /// Returns the bytes of a chunk.
    pub fn unit(&self) -> u64 {
        u64::from(self.info.unit)
    }

    /// Returns the content of a cell as the number in its stamp, or 0 if the cell is zero.
    pub fn value(&self, grid: Grid, cell: u64) -> u64 {
        let offset = grid.start(cell);
        let key = u64::from_str_radix(self.name(), 16).unwrap_or(0);
        let drawn = |kind: u64, place: u64| mix(key ^ mix(place << 2 | kind));
        let places = [offset / self.unit(), offset / BLOCK, offset / SECTOR as u64];
        let is_zero = (0..).zip(places.iter().zip(ZEROES)).any(|(kind, (place, one_of))| drawn(kind, *place).is_multiple_of(one_of));
        if is_zero || offset >= self.size { 0 } else { MARK | (key & !PATTERN) | (drawn(3, places[1]) & PATTERN) }
    }

    /// Returns the content of a chunk, and whether all of them are zero. `spare` bytes after them are
    /// no content.
    pub fn chunk(&self, grid: Grid, chunk: u64, spare: usize) -> (Buf, bool) {
        let offset = chunk * self.unit();
        let length = self.size.saturating_sub(offset).min(self.unit());
        let mut buf = Buf::zeroed(length as usize + spare);
        buf.bytes_mut()[length as usize..].fill(0xbe);
        let mut zero = true;
        for (cell, place) in grid.places(ByteRange { offset, length }) {
            let value = self.value(grid, cell);
            if value != 0 {
                stamp(value, SERIAL, cell, &mut buf.bytes_mut()[place]);
                zero = false;
            }
        }
        (buf, zero)
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.size.div_ceil(self.unit())
    }
}

/// Returns whether a value is content of a base.
pub fn is_content(value: u64) -> bool {
    value & MARK != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Content, identify};

    #[test]
    fn chunks_have_the_content_of_their_cells() {
        let publication = Publication { info: BaseInfo { unit: 16384, source: "00c0ffee00c0ffee".to_owned() }, size: 25 * 4096 };
        let grid = Grid::default();
        let (mut zeroes, mut data) = (0, 0);
        for chunk in 0..publication.chunks() {
            let (buf, zero) = publication.chunk(grid, chunk, 512);
            let offset = chunk * 16384;
            let length = (publication.size - offset).min(16384);
            for (cell, place) in grid.places(ByteRange { offset, length }) {
                match (identify(&buf.bytes()[place]), publication.value(grid, cell)) {
                    (Content::Zero, 0) => zeroes += 1,
                    (Content::Stamp { op, cell: own, .. }, value) => {
                        assert!(op == value && own == cell && is_content(value) && !zero);
                        data += 1;
                    }
                    other => panic!("cell {cell} has {other:?}"),
                }
            }
        }
        assert!(zeroes > 0 && data > 0);
    }
}
