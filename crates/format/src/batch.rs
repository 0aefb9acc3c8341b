//! Batches: the unit in which the log is written. A header of whole 4 KiB pages, then the payload.
//!
//! The header alone is enough to replay the batch: it has the blocks with their checksums, changes
//! of the catalog, and moves. It includes its own place, so that a stale or misplaced header is
//! never accepted.

use crate::chunk::get_plain;
use crate::codec::{Decoder, Encoder, FormatError};
use crate::mark::Mark;
use crate::record::Record;
use crate::{
    Addr, BLOCK_UNITS, BlockNo, ChunkId, Coding, Epoch, Lsn, MAX_DEVICES, MAX_SLOT_WORDS, Placed, PoolId, STREAMS, SegmentId, VolumeId,
    crc32c,
};

/// Bytes of the fixed part of a header.
pub const BATCH_FIXED: usize = 96;
/// Bytes of a page of a header.
pub const HEADER_PAGE: usize = 4096;
/// Maximum pages of a header: room for the identities of a full chunk or a snapshot of many
/// volumes.
pub const MAX_HEADER_PAGES: usize = 32;

/// Maximum pages of payload: a segment of the largest extents over the most devices.
const MAX_PAYLOAD: u32 = (64 << 20) / 4096 * MAX_DEVICES as u32;
/// Maximum pages of a chunk, headers in line included: a slot number has 13 bits.
const MAX_CHUNK_PAGES: u64 = 8192 / 8;

const MAGIC: u32 = 0x4842_504d; // "MPBH"
const VERSION: u16 = 1;
const CRC_AT: usize = BATCH_FIXED - 4;

/// The fixed part of a batch header.
///
/// | offset | size | field | meaning |
/// |---|---|---|---|
/// | 0 | 4 | magic | `MPBH` |
/// | 4 | 2 | version | 1 |
/// | 6 | 1 | stream | which stream of the log |
/// | 7 | 1 | pages | pages of the header |
/// | 8 | 16 | pool | |
/// | 24 | 4 | incarnation | |
/// | 28 | 4 | next | segment that follows in this stream |
/// | 32 | 8 | lsn | position in the log |
/// | 40 | 8 | durable | every batch up to this one was durable when this was written |
/// | 48 | 8 | epoch | epoch of the chunk |
/// | 56 | 8 | chunk | chunk id; 0 in a batch of moves |
/// | 64 | 8 | birth | write clock when the chunk was begun |
/// | 72 | 4 | segment | segment that holds this header |
/// | 76 | 4 | offset | in that segment, in 4 KiB steps |
/// | 80 | 4 | base | where the chunk begins in that segment, in 4 KiB steps |
/// | 84 | 4 | payload | pages of payload |
/// | 88 | 4 | grain, items | grain of the chunk in units (8 bits), bytes of items (24 bits) |
/// | 92 | 4 | checksum | CRC-32C of the header's pages with this field zero |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Number of the stream.
    pub stream: u8,
    /// Pages of the header.
    pub pages: u8,
    /// The pool.
    pub pool: PoolId,
    /// Incarnation that wrote the batch.
    pub incarnation: u32,
    /// Segment that follows in this stream.
    pub next: SegmentId,
    /// Position in the log.
    pub lsn: Lsn,
    /// Every batch up to this one was durable when this was written.
    pub durable: Lsn,
    /// Epoch of the chunk.
    pub epoch: Epoch,
    /// The chunk that the payload belongs to; 0 for a batch with moves or records only.
    pub chunk: ChunkId,
    /// Write clock, in blocks, when the chunk was begun.
    pub birth: u64,
    /// Place of this header: segment.
    pub segment: SegmentId,
    /// Place of this header: 4 KiB steps into the segment.
    pub offset: u32,
    /// Start of the chunk: 4 KiB steps into the segment.
    pub base: u32,
    /// Pages of payload.
    pub payload: u32,
    /// Grain of the chunk in units.
    pub grain: u8,
}

/// Identity and checksum of one stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIdentity {
    /// The volume that wrote it.
    pub volume: VolumeId,
    /// The block.
    pub block: BlockNo,
    /// The batch that wrote it first.
    pub lsn: Lsn,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
    /// Stored units.
    pub units: u8,
    /// Encoding of the stored bytes.
    pub coding: Coding,
    /// Encryption of the stored bytes.
    pub mark: Mark,
}

/// Checksum and form of a block in the payload of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// CRC-32C of the stored bytes.
    pub crc: u32,
    /// Stored units.
    pub units: u8,
    /// Encoding of the stored bytes.
    pub coding: Coding,
    /// Encryption of the stored bytes.
    pub mark: Mark,
}

impl StoredBlock {
    /// An uncompressed block, of 8 units.
    pub fn raw(crc: u32, mark: Mark) -> StoredBlock {
        StoredBlock { crc, units: BLOCK_UNITS as u8, coding: Coding::Raw, mark }
    }
}

/// Form of a run of blocks in a header, in the order of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunForm {
    /// Checksums alone: uncompressed blocks of 8 units that are not encrypted.
    Raw,
    /// With units, coding and mark of each block.
    Packed,
    /// Checksums alone: uncompressed blocks of 8 units, all encrypted.
    RawEncrypted,
}

impl RunForm {
    /// Returns the shortest form for these blocks.
    fn of(stored: &[StoredBlock]) -> RunForm {
        let all = |mark| stored.iter().all(|block| *block == StoredBlock::raw(block.crc, mark));
        match (all(Mark::Clear), all(Mark::Encrypted)) {
            (true, _) => RunForm::Raw,
            (_, true) => RunForm::RawEncrypted,
            _ => RunForm::Packed,
        }
    }

    /// Mark of all blocks of a run without marks of its own.
    fn mark(self) -> Mark {
        if self == RunForm::RawEncrypted { Mark::Encrypted } else { Mark::Clear }
    }
}

/// A chunk that was copied to a new place. Only the slots in `present` were copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Chunk id.
    pub chunk: ChunkId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Write clock, in blocks, when it was begun.
    pub birth: u64,
    /// Grain in units.
    pub grain: u8,
    /// Start of this chunk's bytes in the batch's payload, in 4 KiB steps.
    pub at: u32,
    /// Bitmap of the slots that were copied.
    pub present: Vec<u64>,
    /// Identities of the present blocks, in slot order; empty for chunks of nodes.
    pub identities: Vec<BlockIdentity>,
}

/// One entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Consecutive blocks. Their stored bytes follow one another in the payload.
    Blocks {
        /// The volume.
        volume: VolumeId,
        /// First block.
        block: BlockNo,
        /// Checksum and form of each block.
        stored: Vec<StoredBlock>,
    },
    /// Blocks that were discarded or zeroed: they read as zeroes.
    Clear {
        /// The volume.
        volume: VolumeId,
        /// First block.
        block: BlockNo,
        /// Number of blocks.
        count: u64,
    },
    /// A change to the catalog.
    Record(Record),
    /// A chunk that was copied to a new place.
    Move(Move),
    /// Index of the batches of small writes that come directly before this batch. They exist on
    /// special devices only.
    Small {
        /// Number of these batches.
        batches: u32,
        /// Their blocks, as far as no earlier batch listed them.
        runs: Vec<SmallRun>,
    },
    /// Consecutive plain blocks of a head, whose addresses stay: each address gets a forward to its
    /// slot in this batch. Their stored bytes follow one another in the payload.
    Forward {
        /// The volume whose head was read.
        volume: VolumeId,
        /// First block.
        block: BlockNo,
        /// Address and checksum of each block.
        sources: Vec<(Addr, u32)>,
    },
    /// Chunks that were copied to an object of a bucket, which exists.
    Placed(Placed),
}

/// Consecutive uncompressed blocks, in consecutive slots of 8 units of a chunk on special devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallRun {
    /// The batch that holds them.
    pub lsn: Lsn,
    /// The volume.
    pub volume: VolumeId,
    /// First block.
    pub block: BlockNo,
    /// Segment that holds the batch.
    pub segment: SegmentId,
    /// Chunk that the blocks belong to.
    pub chunk: ChunkId,
    /// Slot of the first block.
    pub slot: u16,
    /// True when the blocks are encrypted: bit 15 of the encoded slot, which has 13 bits.
    pub encrypted: bool,
    /// Checksum of each block.
    pub crcs: Vec<u32>,
}

impl SmallRun {
    /// Encoded bytes without the checksums.
    pub const BYTES: usize = 38;
    const ENCRYPTED: u16 = 1 << 15;
}

/// Units in bits 0 to 3, coding in bits 4 and 5, mark in bits 6 and 7.
fn coding_byte(units: u8, coding: Coding, mark: Mark) -> u8 {
    let code = match coding {
        Coding::Raw => 0,
        Coding::Lz4 => 1,
        Coding::Zstd => 2,
    };
    units | code << 4 | mark.bits() << 6
}

fn split_coding(byte: u8) -> Result<(u8, Coding, Mark), FormatError> {
    let coding = match byte >> 4 & 3 {
        0 => Coding::Raw,
        1 => Coding::Lz4,
        2 => Coding::Zstd,
        _ => return Err(FormatError::Field("coding")),
    };
    let mark = Mark::from_bits(byte >> 6).ok_or(FormatError::Field("mark"))?;
    match byte & 15 {
        units @ 1..=15 if mark.allows(u32::from(units), coding) => Ok((units, coding, mark)),
        _ => Err(FormatError::Field("units")),
    }
}

/// Bytes of an encoded run of blocks. `packed`: with units, coding and mark of each block.
pub fn run_bytes(blocks: usize, packed: bool) -> usize {
    16 + blocks * if packed { 5 } else { 4 }
}

/// Appends a run of blocks: the hot path of [`Item::encode`]. All blocks must have what the form
/// leaves out.
pub fn encode_run(e: &mut Encoder, volume: VolumeId, block: BlockNo, count: usize, form: RunForm, each: impl Iterator<Item = StoredBlock>) {
    e.u8(1);
    e.u8(match form {
        RunForm::Raw => 0,
        RunForm::Packed => 1,
        RunForm::RawEncrypted => 2,
    });
    e.u16(u16::try_from(count).unwrap_or(u16::MAX));
    e.u32(volume.0);
    e.u64(block.0);
    for block in each {
        e.u32(block.crc);
        if form == RunForm::Packed {
            e.u8(coding_byte(block.units, block.coding, block.mark));
        }
    }
}

/// Appends a run of blocks whose addresses stay, as [`Item::encode`] does.
pub fn encode_forwards(e: &mut Encoder, volume: VolumeId, block: BlockNo, sources: impl ExactSizeIterator<Item = (Addr, u32)>) {
    e.u8(6);
    e.u8(0);
    e.u16(u16::try_from(sources.len()).unwrap_or(u16::MAX));
    e.u32(volume.0);
    e.u64(block.0);
    for (source, crc) in sources {
        e.u64(source.to_bits());
        e.u32(crc);
    }
}

/// Consecutive blocks of a volume in the payload of a batch: the first one, and checksum and form of
/// each.
pub type BlockRun = (VolumeId, BlockNo, Vec<StoredBlock>);

impl Item {
    /// Returns the blocks that the item has in the payload, whether their addresses are new or stay;
    /// `None` for items without any, and for moves.
    pub fn into_blocks(self) -> Option<BlockRun> {
        match self {
            Item::Blocks { volume, block, stored } => Some((volume, block, stored)),
            Item::Forward { volume, block, sources } => {
                let stored = sources.iter().map(|(source, crc)| StoredBlock::raw(*crc, source.mark())).collect();
                Some((volume, block, stored))
            }
            _ => None,
        }
    }

    /// Returns whether only a pool with the feature [`ENCRYPTION`](crate::ENCRYPTION) has such items.
    pub fn needs_encryption(&self) -> bool {
        match self {
            Item::Blocks { stored, .. } => stored.iter().any(|block| block.mark != Mark::Clear),
            Item::Forward { sources, .. } => sources.iter().any(|(source, _)| source.mark() != Mark::Clear),
            Item::Move(moved) => moved.identities.iter().any(|block| block.mark != Mark::Clear),
            Item::Small { runs, .. } => runs.iter().any(|run| run.encrypted),
            Item::Record(record) => matches!(record, Record::CreateEncrypted { .. }),
            Item::Clear { .. } | Item::Placed(_) => false,
        }
    }

    /// Appends the item.
    pub fn encode(&self, e: &mut Encoder) {
        match self {
            Item::Blocks { volume, block, stored } => {
                encode_run(e, *volume, *block, stored.len(), RunForm::of(stored), stored.iter().copied());
            }
            Item::Clear { volume, block, count } => {
                e.u8(2);
                e.u32(volume.0);
                e.u64(block.0);
                e.u64(*count);
            }
            Item::Record(record) => {
                e.u8(3);
                record.encode(e);
            }
            Item::Move(m) => {
                e.u8(4);
                e.u8(m.grain);
                e.u64(m.chunk.0);
                e.u64(m.epoch.0);
                e.u64(m.birth);
                e.u32(m.at);
                e.count(m.present.len());
                m.present.iter().for_each(|word| e.u64(*word));
                e.count(m.identities.len());
                for id in &m.identities {
                    e.u32(id.volume.0);
                    e.u64(id.block.0);
                    e.u64(id.lsn.0);
                    e.u32(id.crc);
                    e.u8(coding_byte(id.units, id.coding, id.mark));
                }
            }
            Item::Small { batches, runs } => {
                e.u8(5);
                e.u32(*batches);
                e.count(runs.len());
                for run in runs {
                    e.u64(run.lsn.0);
                    e.u32(run.volume.0);
                    e.u64(run.block.0);
                    e.u32(run.segment.0);
                    e.u64(run.chunk.0);
                    e.u16(run.slot | if run.encrypted { SmallRun::ENCRYPTED } else { 0 });
                    e.count(run.crcs.len());
                    run.crcs.iter().for_each(|crc| e.u32(*crc));
                }
            }
            Item::Forward { volume, block, sources } => encode_forwards(e, *volume, *block, sources.iter().copied()),
            Item::Placed(placed) => {
                e.u8(7);
                placed.encode(e);
            }
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Item, FormatError> {
        match d.u8()? {
            1 => {
                let form = match d.u8()? {
                    0 => RunForm::Raw,
                    1 => RunForm::Packed,
                    2 => RunForm::RawEncrypted,
                    // blocks of packed runs have marks of their own
                    _ => return Err(FormatError::Field("packed")),
                };
                let count = usize::from(d.u16()?);
                let (volume, block) = (VolumeId(d.u32()?), BlockNo(d.counter("block")?));
                let packed = form == RunForm::Packed;
                if count * if packed { 5 } else { 4 } > d.remaining() {
                    return Err(FormatError::Truncated);
                }
                let mut stored = Vec::with_capacity(count);
                for _ in 0..count {
                    let crc = d.u32()?;
                    let (units, coding, mark) = if packed { split_coding(d.u8()?)? } else { (8, Coding::Raw, form.mark()) };
                    stored.push(StoredBlock { crc, units, coding, mark });
                }
                Ok(Item::Blocks { volume, block, stored })
            }
            2 => Ok(Item::Clear { volume: VolumeId(d.u32()?), block: BlockNo(d.counter("block")?), count: d.counter("count")? }),
            3 => Record::decode(d).map(Item::Record),
            4 => {
                let grain = d.u8()?;
                let (chunk, epoch, birth, at) = (d.chunk()?, Epoch(d.counter("epoch")?), d.counter("birth")?, d.u32()?);
                let words = d.count(8)?;
                let present = (0..words).map(|_| d.u64()).collect::<Result<Vec<_>, _>>()?;
                let count = d.count(25)?;
                let mut identities = Vec::with_capacity(count);
                for _ in 0..count {
                    let (volume, block, lsn, crc) = (VolumeId(d.u32()?), BlockNo(d.counter("block")?), Lsn(d.counter("lsn")?), d.u32()?);
                    let (units, coding, mark) = split_coding(d.u8()?)?;
                    identities.push(BlockIdentity { volume, block, lsn, crc, units, coding, mark });
                }
                if !matches!(grain, 1 | 8 | 13) || present.len() > MAX_SLOT_WORDS || at >= MAX_PAYLOAD {
                    return Err(FormatError::Field("move"));
                }
                Ok(Item::Move(Move { chunk, epoch, birth, grain, at, present, identities }))
            }
            5 => {
                let batches = d.u32()?;
                let runs = (0..d.count(SmallRun::BYTES)?).map(|_| small_run(d)).collect::<Result<Vec<_>, _>>()?;
                Ok(Item::Small { batches, runs })
            }
            6 => {
                if d.u8()? != 0 {
                    return Err(FormatError::Field("forward"));
                }
                let count = usize::from(d.u16()?);
                let (volume, block) = (VolumeId(d.u32()?), BlockNo(d.counter("block")?));
                if count * 12 > d.remaining() {
                    return Err(FormatError::Truncated);
                }
                let sources = (0..count).map(|_| Ok((get_plain(d)?, d.u32()?))).collect::<Result<Vec<_>, _>>()?;
                Ok(Item::Forward { volume, block, sources })
            }
            7 => Placed::decode(d).map(Item::Placed),
            _ => Err(FormatError::Field("item")),
        }
    }
}

fn small_run(d: &mut Decoder<'_>) -> Result<SmallRun, FormatError> {
    let (lsn, volume, block) = (Lsn(d.counter("lsn")?), VolumeId(d.u32()?), BlockNo(d.counter("block")?));
    let (segment, chunk, place) = (SegmentId(d.u32()?), d.chunk()?, d.u16()?);
    let (slot, encrypted) = (place & !SmallRun::ENCRYPTED, place & SmallRun::ENCRYPTED != 0);
    let crcs = (0..d.count(4)?).map(|_| d.u32()).collect::<Result<Vec<_>, _>>()?;
    if usize::from(slot) + crcs.len() > MAX_CHUNK_PAGES as usize {
        return Err(FormatError::Field("slot"));
    }
    Ok(SmallRun { lsn, volume, block, segment, chunk, slot, encrypted, crcs })
}

impl BatchHeader {
    /// Encodes the header and the already encoded `items` into `pages`, which are `self.pages`
    /// pages.
    ///
    /// # Panics
    /// When the items do not fit: the caller has to count their bytes.
    pub fn encode(&self, items: &[u8], pages: &mut [u8]) {
        assert!(pages.len() == usize::from(self.pages) * HEADER_PAGE && BATCH_FIXED + items.len() <= pages.len(), "header overflow");
        let mut e = Encoder::with_capacity(BATCH_FIXED);
        e.u32(MAGIC);
        e.u16(VERSION);
        e.u8(self.stream);
        e.u8(self.pages);
        e.raw(&self.pool.0);
        e.u32(self.incarnation);
        e.u32(self.next.0);
        for wide in [self.lsn.0, self.durable.0, self.epoch.0, self.chunk.0, self.birth] {
            e.u64(wide);
        }
        for narrow in [self.segment.0, self.offset, self.base, self.payload] {
            e.u32(narrow);
        }
        let items_len = u32::try_from(items.len()).unwrap_or(u32::MAX);
        e.u32(u32::from(self.grain) << 24 | items_len);
        e.u32(0);
        pages[..BATCH_FIXED].copy_from_slice(e.bytes());
        pages[BATCH_FIXED..BATCH_FIXED + items.len()].copy_from_slice(items);
        pages[BATCH_FIXED + items.len()..].fill(0);
        let crc = crc32c(pages);
        pages[CRC_AT..BATCH_FIXED].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns the number of pages of the header at the start of `page`, if it looks like a header.
    /// [`decode`](Self::decode) needs that many pages.
    pub fn peek_pages(page: &[u8]) -> Option<usize> {
        let mut d = Decoder::new(page);
        let (magic, version) = (d.u32().ok()?, d.u16().ok()?);
        d.u8().ok()?;
        let pages = usize::from(d.u8().ok()?);
        (magic == MAGIC && version == VERSION && (1..=MAX_HEADER_PAGES).contains(&pages)).then_some(pages)
    }

    /// Decodes the header at the start of `bytes`, and its items.
    ///
    /// # Errors
    /// [`FormatError`] when it is not a header, is damaged, or has invalid items.
    pub fn decode(bytes: &[u8]) -> Result<(BatchHeader, Vec<Item>), FormatError> {
        let count = Self::peek_pages(bytes).ok_or(FormatError::Magic)?;
        let pages = bytes.get(..count * HEADER_PAGE).ok_or(FormatError::Truncated)?;
        let mut d = Decoder::new(pages);
        d.raw(6)?;
        let (stream, header_pages) = (d.u8()?, d.u8()?);
        let pool = PoolId(d.bytes()?);
        let (incarnation, next) = (d.u32()?, SegmentId(d.u32()?));
        let (lsn, durable, epoch) = (d.u64()?, d.u64()?, d.u64()?);
        let (chunk, birth) = (d.u64()?, d.u64()?);
        let (segment, offset, base, payload) = (SegmentId(d.u32()?), d.u32()?, d.u32()?, d.u32()?);
        let packed = d.u32()?;
        let stored_crc = d.u32()?;
        let mut check = crc32c_begin();
        check.update(&pages[..CRC_AT]);
        check.update(&[0; 4]);
        check.update(&pages[BATCH_FIXED..]);
        if check.finish() != stored_crc {
            return Err(FormatError::Checksum);
        }
        let items_len = (packed & 0x00ff_ffff) as usize;
        let mut items_decoder = Decoder::new(d.raw(items_len)?);
        let mut items = Vec::new();
        while items_decoder.remaining() > 0 {
            items.push(Item::decode(&mut items_decoder)?);
        }
        let grain = (packed >> 24) as u8;
        let header = BatchHeader {
            stream,
            pages: header_pages,
            pool,
            incarnation,
            next,
            lsn: Lsn(lsn),
            durable: Lsn(durable),
            epoch: Epoch(epoch),
            chunk: ChunkId(chunk),
            birth,
            segment,
            offset,
            base,
            payload,
            grain,
        };
        header.check()?;
        Ok((header, items))
    }

    /// Checks bounds: counters can be added to, the batch fits into a segment, and its blocks into
    /// the slots of its chunk.
    fn check(&self) -> Result<(), FormatError> {
        let counters = [self.lsn.0, self.durable.0, self.epoch.0, self.birth];
        let end = u64::from(self.offset) + u64::from(self.pages) + u64::from(self.payload);
        let in_chunk = self.offset >= self.base && end - u64::from(self.base) <= MAX_CHUNK_PAGES && matches!(self.grain, 1 | 8);
        let sound = [
            (usize::from(self.stream) < STREAMS, "stream"),
            (counters.iter().all(|n| *n < 1 << 62), "counter"),
            (self.chunk.0 < 1 << 40 && (self.chunk.0 == 0 || in_chunk), "chunk"),
            (self.payload <= MAX_PAYLOAD && self.offset <= MAX_PAYLOAD, "payload"),
        ];
        sound.iter().find(|(ok, _)| !ok).map_or(Ok(()), |(_, field)| Err(FormatError::Field(field)))
    }
}

fn crc32c_begin() -> crate::checksum::Running {
    crate::checksum::Running::default()
}

#[cfg(test)]
mod tests;
