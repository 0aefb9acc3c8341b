//! What is on a device of the cache: a head, then segments of copies of blocks, each behind a page that says which they are.
//!
//! Nothing here is ever needed, and nothing is believed: a copy counts when it matches the checksum that the map has for its address (I5), and
//! an address never means other bytes (I11).

use crate::codec::{Encoder, FormatError};
use crate::label::{SECTOR_BYTES, open, seal};
use crate::{Addr, BLOCK_UNITS, Coding, DeviceId, PoolId};

/// Blocks of a segment at most: as many addresses as fit into its page.
pub const MAX_CACHED: usize = (SECTOR_BYTES - 4 - 62) / 8;

const HEAD_MAGIC: &[u8; 8] = b"MPONDCAH";
const SEGMENT_MAGIC: &[u8; 8] = b"MPONDCAS";
const HEAD_VERSION: u16 = 1;
const SEGMENT_VERSION: u16 = 1;

/// When a cache began empty. What is left of another time does not count.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | incarnation | 4 | the import that began it |
/// | time | 8 | its time: milliseconds since the Unix epoch |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// The import that began it.
    pub incarnation: u32,
    /// Its time: milliseconds since the Unix epoch.
    pub time: u64,
}

/// The first page: whose cache it is.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MPONDCAH` |
/// | version | 2 | 1 |
/// | pool id | 16 | |
/// | device id | 8 | |
/// | filling | 12 | [`Filling`] |
/// | incarnation | 4 | the last import that used it |
/// | checksum | 4 | CRC-32C of the page before it; the last 4 bytes of the 4096 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHead {
    /// The pool.
    pub pool: PoolId,
    /// The device.
    pub device: DeviceId,
    /// Since when there is something in it.
    pub filling: Filling,
    /// The last import that used it.
    pub incarnation: u32,
}

impl CacheHead {
    /// The page to write.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        e.raw(HEAD_MAGIC);
        e.u16(HEAD_VERSION);
        e.raw(&self.pool.0);
        e.u64(self.device.0);
        e.u32(self.filling.incarnation);
        e.u64(self.filling.time);
        e.u32(self.incarnation);
        seal(e)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`FormatError`] when it is not a head, damaged or newer.
    pub fn decode(page: &[u8]) -> Result<CacheHead, FormatError> {
        let mut d = open(page, HEAD_MAGIC, HEAD_VERSION)?;
        let (pool, device) = (PoolId(d.bytes()?), DeviceId(d.u64()?));
        let filling = Filling { incarnation: d.u32()?, time: d.u64()? };
        Ok(CacheHead { pool, device, filling, incarnation: d.u32()? })
    }
}

/// The first page of a segment: which blocks follow. They lie in pages from the second on, in order, as they are stored in the pool; one that
/// would not fit into the rest of its page begins with the next.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MPONDCAS` |
/// | version | 2 | 1 |
/// | pool id | 16 | |
/// | device id | 8 | |
/// | filling | 12 | [`Filling`] |
/// | sequence | 8 | one more for every segment written |
/// | blocks | 4 + n x 8 | [`Addr`] of each |
/// | checksum | 4 | CRC-32C of the page before it; the last 4 bytes of the 4096 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSegment {
    /// The pool.
    pub pool: PoolId,
    /// The device.
    pub device: DeviceId,
    /// Since when there is something in the cache.
    pub filling: Filling,
    /// One more for every segment written.
    pub sequence: u64,
    /// The blocks.
    pub blocks: Vec<Addr>,
}

impl CacheSegment {
    /// The page to write.
    ///
    /// # Panics
    /// With more than [`MAX_CACHED`] blocks: a broken caller.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        assert!(self.blocks.len() <= MAX_CACHED, "too many blocks in a segment of a cache");
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        e.raw(SEGMENT_MAGIC);
        e.u16(SEGMENT_VERSION);
        e.raw(&self.pool.0);
        e.u64(self.device.0);
        e.u32(self.filling.incarnation);
        e.u64(self.filling.time);
        e.u64(self.sequence);
        e.count(self.blocks.len());
        e.u64s(self.blocks.iter().map(|addr| addr.to_bits()));
        seal(e)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`FormatError`] when it is not that of a segment, damaged or newer, or names what is no block.
    pub fn decode(page: &[u8]) -> Result<CacheSegment, FormatError> {
        let mut d = open(page, SEGMENT_MAGIC, SEGMENT_VERSION)?;
        let (pool, device) = (PoolId(d.bytes()?), DeviceId(d.u64()?));
        let filling = Filling { incarnation: d.u32()?, time: d.u64()? };
        let sequence = d.counter("sequence")?;
        let count = d.count(8)?;
        if count > MAX_CACHED {
            return Err(FormatError::Field("blocks"));
        }
        let block = |bits: u64| Addr::from_bits(bits).ok().filter(|addr| CacheSegment::takes(*addr)).ok_or(FormatError::Field("block"));
        let blocks = (0..count).map(|_| block(d.u64()?)).collect::<Result<Vec<_>, _>>()?;
        Ok(CacheSegment { pool, device, filling, sequence, blocks })
    }

    /// Is it a block of one page at most, plain or packed?
    pub fn takes(addr: Addr) -> bool {
        let whole = addr.units() == BLOCK_UNITS;
        addr.is_some() && (whole || addr.units() < BLOCK_UNITS && addr.coding() != Coding::Raw)
    }

    /// The unit behind a segment's first page at which a block of so many units begins when those before it end at `end`.
    pub fn place(end: u32, units: u32) -> u32 {
        if end % BLOCK_UNITS + units > BLOCK_UNITS { end.next_multiple_of(BLOCK_UNITS) } else { end }
    }
}
