//! What guests write: every 512-byte sector says which operation wrote it and where, and proves it to the last byte.

use crate::rng::mix;

/// The grain of the oracle in bytes: the smallest guest sector.
pub const SECTOR: usize = 512;

const MAGIC: u64 = 0x4D50_5349_4D53_4543;
const WORDS: usize = SECTOR / 8;
const HEAD: usize = 5;

/// What a sector held when somebody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// What operation `op` wrote to sector `sector` of the volume with this serial, to the last byte.
    Stamp {
        /// Number of the operation, unique in a world.
        op: u64,
        /// Serial of the volume, given by the oracle.
        volume: u32,
        /// Sector number.
        sector: u64,
    },
    /// Anything else.
    Garbage,
}

/// Fills one sector.
///
/// # Panics
/// When `out` is not one sector: a broken caller.
pub fn stamp(op: u64, volume: u32, sector: u64, out: &mut [u8]) {
    assert_eq!(out.len(), SECTOR);
    for (i, bytes) in out.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(op, volume, sector, i).to_le_bytes());
    }
}

/// Word `i` of a sector. A third of the operations writes noise, a third repeats itself (compressible), a third is half and half.
fn word(op: u64, volume: u32, sector: u64, i: usize) -> u64 {
    let key = mix(op ^ mix(sector ^ mix(u64::from(volume))));
    match i {
        0 => MAGIC,
        1 => op,
        2 => sector,
        3 => u64::from(volume),
        4 => key,
        _ => match mix(op) % 3 {
            0 => key.rotate_left(i as u32).wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ (i as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93),
            1 => key,
            _ if i < HEAD + (WORDS - HEAD) / 2 => mix(key ^ i as u64),
            _ => op,
        },
    }
}

/// Looks at one sector.
pub fn identify(bytes: &[u8]) -> Content {
    if bytes.iter().all(|b| *b == 0) {
        return Content::Zero;
    }
    let at = |i: usize| bytes.chunks_exact(8).nth(i).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (Some(MAGIC), Some(op), Some(sector), Some(volume)) = (at(0), at(1), at(2), at(3)) else { return Content::Garbage };
    let Ok(volume) = u32::try_from(volume) else { return Content::Garbage };
    let mut expected = [0u8; SECTOR];
    stamp(op, volume, sector, &mut expected);
    if expected == bytes { Content::Stamp { op, volume, sector } } else { Content::Garbage }
}

#[cfg(test)]
mod tests;
