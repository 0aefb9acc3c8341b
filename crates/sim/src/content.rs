//! Content that guests write: each cell (a 512-byte sector or a part of one) names the operation
//! and the place that wrote it, verifiably to the last byte.

use crate::rng::mix;

/// The smallest guest sector in bytes.
pub const SECTOR: usize = 512;
/// Minimum bytes of a cell: its header must fit.
pub const LEAST: usize = HEAD * 8;

const ZEROS: [u8; SECTOR] = [0; SECTOR];
const MAGIC: u64 = 0x4D50_5349_4D53_4543;
const WORDS: usize = SECTOR / 8;
const HEAD: usize = 5;

/// Content found in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Zero,
    /// Written by operation `op` to cell `cell` of the volume with serial `volume`, every byte as
    /// written.
    Stamp {
        /// Number of the operation, unique in a world.
        op: u64,
        /// Serial of the volume, given by the oracle.
        volume: u32,
        /// Number of the cell.
        cell: u64,
    },
    /// Anything else.
    Garbage,
}

/// Fills one cell with the stamp of an operation.
///
/// # Panics
/// If `out` has no legal size of a cell, which is a bug of the caller.
pub fn stamp(op: u64, volume: u32, cell: u64, out: &mut [u8]) {
    assert!((LEAST..=SECTOR).contains(&out.len()));
    let key = mix(op ^ mix(cell ^ mix(u64::from(volume))));
    let pattern = mix(op) % 3;
    let word = |i: usize| match i {
        0 => MAGIC,
        1 => op,
        2 => cell,
        3 => u64::from(volume),
        4 => key,
        // A third of the operations write noise, a third repeat one word (compressible), a third do
        // half of each.
        _ => match pattern {
            0 => key.rotate_left(i as u32).wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ (i as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93),
            1 => key,
            _ if i < HEAD + (WORDS - HEAD) / 2 => mix(key ^ i as u64),
            _ => op,
        },
    };
    for (i, bytes) in out.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(i).to_le_bytes()[..bytes.len()]);
    }
}

/// Identifies the content of one cell.
pub fn identify(bytes: &[u8]) -> Content {
    // Compared as a whole: comparing byte by byte took a sixth of a world's time.
    if ZEROS.get(..bytes.len()).is_some_and(|zeros| zeros == bytes) {
        return Content::Zero;
    }
    let at = |i: usize| bytes.chunks_exact(8).nth(i).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (Some(MAGIC), Some(op), Some(cell), Some(volume)) = (at(0), at(1), at(2), at(3)) else { return Content::Garbage };
    let Ok(volume) = u32::try_from(volume) else { return Content::Garbage };
    let mut space = [0u8; SECTOR];
    let Some(expected) = space.get_mut(..bytes.len()) else { return Content::Garbage };
    stamp(op, volume, cell, expected);
    if expected == bytes { Content::Stamp { op, volume, cell } } else { Content::Garbage }
}

#[cfg(test)]
mod tests;
