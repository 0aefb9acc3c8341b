//! Layout of a cache device: a head, then segments with copies of blocks. The first page of each
//! segment lists the addresses of its blocks.
//!
//! The pool never needs a cache device and does not trust its content: a copy is used only when it
//! matches the checksum that the map has for its address (I5), and an address never means other
//! bytes (I11).

use crate::codec::{Encoder, FormatError};
use crate::label::{SECTOR_BYTES, open, seal};
use crate::{Addr, BLOCK_UNITS, Coding, DeviceId, PoolId};

/// Maximum number of blocks in a segment: as many addresses as fit into its first page.
pub const MAX_CACHED: usize = (SECTOR_BYTES - 4 - 62) / 8;

const HEAD_MAGIC: &[u8; 8] = b"MPONDCAH";
const SEGMENT_MAGIC: &[u8; 8] = b"MPONDCAS";
const HEAD_VERSION: u16 = 1;
const SEGMENT_VERSION: u16 = 1;

/// Time when a cache device was last emptied. Segments from another filling are ignored.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | incarnation | 4 | import that began to fill the cache |
/// | time | 8 | time of that import: milliseconds since the Unix epoch |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Import that began to fill the cache.
    pub incarnation: u32,
    /// Time of that import: milliseconds since the Unix epoch.
    pub time: u64,
}

/// The first page of a cache device: the pool that it belongs to.
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
    /// When the cache was last emptied.
    pub filling: Filling,
    /// The last import that used it.
    pub incarnation: u32,
}

impl CacheHead {
    /// Returns the page to write.
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

    /// Decodes a page.
    ///
    /// # Errors
    /// [`FormatError`] when the page is not a head, is damaged, or has a newer version.
    pub fn decode(page: &[u8]) -> Result<CacheHead, FormatError> {
        let mut d = open(page, HEAD_MAGIC, HEAD_VERSION)?;
        let (pool, device) = (PoolId(d.bytes()?), DeviceId(d.u64()?));
        let filling = Filling { incarnation: d.u32()?, time: d.u64()? };
        Ok(CacheHead { pool, device, filling, incarnation: d.u32()? })
    }
}

/// The first page of a segment: a list of the blocks in it. The blocks are stored from the second
/// page on, in order, in the same form as in the pool; a block that does not fit into the rest of
/// a page begins at the next page.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MPONDCAS` |
/// | version | 2 | 1 |
/// | pool id | 16 | |
/// | device id | 8 | |
/// | filling | 12 | [`Filling`] |
/// | sequence | 8 | one more for each segment that is written |
/// | blocks | 4 + n x 8 | [`Addr`] of each |
/// | checksum | 4 | CRC-32C of the page before it; the last 4 bytes of the 4096 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSegment {
    /// The pool.
    pub pool: PoolId,
    /// The device.
    pub device: DeviceId,
    /// When the cache was last emptied.
    pub filling: Filling,
    /// One more for each segment that is written.
    pub sequence: u64,
    /// Addresses of the blocks.
    pub blocks: Vec<Addr>,
}

impl CacheSegment {
    /// Returns the page to write.
    ///
    /// # Panics
    /// With more than [`MAX_CACHED`] blocks, which is an error of the caller.
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

    /// Decodes a page.
    ///
    /// # Errors
    /// [`FormatError`] when the page is not the first of a segment, is damaged, has a newer
    /// version, or lists an address that is not of a block.
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

    /// True when `addr` is of a block of at most one page, plain or compressed.
    pub fn takes(addr: Addr) -> bool {
        let whole = addr.units() == BLOCK_UNITS;
        addr.is_some() && (whole || addr.units() < BLOCK_UNITS && addr.coding() != Coding::Raw)
    }

    /// Returns the unit, counted from the end of the segment's first page, at which a block of
    /// `units` units begins when the blocks before it end at unit `end`.
    pub fn place(end: u32, units: u32) -> u32 {
        if end % BLOCK_UNITS + units > BLOCK_UNITS { end.next_multiple_of(BLOCK_UNITS) } else { end }
    }
}
