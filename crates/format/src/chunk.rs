//! Pages of the chunk table, and deadlists: objects that a checkpoint refers to.

use std::borrow::Cow;

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{Addr, BLOCK_UNITS, ChunkId, Coding, Epoch, Mark, NO_SEGMENT, SegmentId};

/// Chunk ids of one page of the table.
pub const CHUNKS_PER_PAGE: u64 = 64;
/// Maximum number of words in a bitmap of a chunk: 8,192 slots.
pub const MAX_SLOT_WORDS: usize = 128;
/// In the byte of the grain: forwards follow.
const FORWARDED: u8 = 0x80;

/// A chunk in a page of the table.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | chunk | 8 | |
/// | epoch | 8 | when it was begun |
/// | birth | 8 | write clock in blocks when it was begun |
/// | segment, base | 8 | place of the chunk; base in 4 KiB steps. Segment 2^32 - 1: no place, all live slots are forwarded |
/// | identities | 4 | place of the header with block identities, 4 KiB steps; 2^32 - 1: in line |
/// | grain, class | 2 | units per slot, bit 7: forwards follow; lifetime class |
/// | slots | 4 | slots handed out |
/// | live | 4 + 8 n | bitmap |
/// | present | 4 + 8 n | bitmap of the slots that the last move copied; n = 0: all |
/// | forwarded | 4 + 8 n | only with bit 7: bitmap of the slots whose blocks are elsewhere |
/// | targets | 8 each | only with bit 7: addresses of these blocks, in the order of slots |
///
/// Blocks that snapshots share keep their address when they are gathered: the slot gets a forward to a
/// slot of another chunk. Forwarded slots are not in `live`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord<'a> {
    /// Chunk id.
    pub chunk: ChunkId,
    /// Epoch when the chunk was begun.
    pub epoch: Epoch,
    /// Write clock, in blocks, when the chunk was begun.
    pub birth: u64,
    /// Segment that holds the chunk.
    pub segment: SegmentId,
    /// Start of the chunk within the segment, in 4 KiB steps.
    pub base: u32,
    /// Place of the header with the block identities, in 4 KiB steps; [`ChunkRecord::IN_LINE`]: each
    /// batch in the chunk has its own header.
    pub identities: u32,
    /// Units per slot.
    pub grain: u8,
    /// Lifetime class.
    pub class: u8,
    /// Slots handed out.
    pub slots: u32,
    /// Live slots.
    pub live: Cow<'a, [u64]>,
    /// Slots that are stored at this place; empty: all.
    pub present: Cow<'a, [u64]>,
    /// Slots whose blocks are in another chunk.
    pub forwarded: Cow<'a, [u64]>,
    /// Addresses of these blocks, in the order of slots.
    pub targets: Cow<'a, [Addr]>,
}

/// Returns whether an address is one that a forward can have: of a plain block.
pub(crate) fn is_plain(addr: Addr) -> bool {
    addr.is_some() && addr.units() == BLOCK_UNITS && addr.coding() == Coding::Raw
}

/// Reads the address of a plain block.
pub(crate) fn get_plain(d: &mut Decoder<'_>) -> Result<Addr, FormatError> {
    Addr::from_bits(d.u64()?).ok().filter(|addr| is_plain(*addr)).ok_or(FormatError::Field("forward"))
}

fn put_words(e: &mut Encoder, words: &[u64]) {
    e.count(words.len());
    e.u64s(words.iter().copied());
}

fn get_words(d: &mut Decoder<'_>) -> Result<Vec<u64>, FormatError> {
    let n = d.count(8)?;
    if n > MAX_SLOT_WORDS {
        return Err(FormatError::Field("bitmap"));
    }
    (0..n).map(|_| d.u64()).collect()
}

impl ChunkRecord<'_> {
    /// In [`identities`](ChunkRecord::identities): the chunk was never moved, or has nodes.
    pub const IN_LINE: u32 = u32::MAX;

    /// Appends the record.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.chunk.0);
        e.u64(self.epoch.0);
        e.u64(self.birth);
        e.u32(self.segment.0);
        e.u32(self.base);
        e.u32(self.identities);
        let is_forwarded = !self.forwarded.is_empty();
        e.u8(self.grain | if is_forwarded { FORWARDED } else { 0 });
        e.u8(self.class);
        e.u32(self.slots);
        put_words(e, &self.live);
        put_words(e, &self.present);
        if is_forwarded {
            put_words(e, &self.forwarded);
            e.u64s(self.targets.iter().map(|target| target.to_bits()));
        }
    }

    /// Reads a page: chunks until the end of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] when a field is out of range.
    pub fn decode_page(bytes: &[u8]) -> Result<Vec<ChunkRecord<'static>>, FormatError> {
        let mut d = Decoder::new(bytes);
        let mut page = Vec::new();
        while d.remaining() > 0 {
            let mut record = ChunkRecord {
                chunk: d.chunk()?,
                epoch: Epoch(d.counter("epoch")?),
                birth: d.counter("birth")?,
                segment: SegmentId(d.u32()?),
                base: d.u32()?,
                identities: d.u32()?,
                grain: d.u8()?,
                class: d.u8()?,
                slots: d.u32()?,
                live: get_words(&mut d)?.into(),
                present: get_words(&mut d)?.into(),
                forwarded: Cow::default(),
                targets: Cow::default(),
            };
            if record.grain & FORWARDED != 0 {
                record.grain &= !FORWARDED;
                record.get_forwards(&mut d)?;
            }
            let beyond = |words: &[u64]| {
                let end = words.iter().rposition(|word| *word != 0).map_or(0, |at| at * 64 + 64 - words[at].leading_zeros() as usize);
                end > record.slots as usize
            };
            let has_place = record.segment != NO_SEGMENT;
            let is_sound = matches!(record.grain, 1 | 8 | 13)
                && record.slots <= 8192
                && ![&record.live, &record.present, &record.forwarded].into_iter().any(|words| beyond(words))
                && (has_place || (!record.forwarded.is_empty() && record.live.iter().all(|word| *word == 0)));
            if !is_sound {
                return Err(FormatError::Field("chunk"));
            }
            page.push(record);
        }
        Ok(page)
    }

    /// Reads the forwards behind a record: of plain blocks, and of slots that are not live here.
    fn get_forwards(&mut self, d: &mut Decoder<'_>) -> Result<(), FormatError> {
        let forwarded = get_words(d)?;
        let count: u32 = forwarded.iter().map(|word| word.count_ones()).sum();
        let is_here = forwarded.iter().zip(self.live.iter()).any(|(forwarded, live)| forwarded & live != 0);
        if count == 0 || is_here || u32::from(self.grain) != BLOCK_UNITS {
            return Err(FormatError::Field("forwards"));
        }
        if count as usize * 8 > d.remaining() {
            return Err(FormatError::Truncated);
        }
        self.targets = (0..count).map(|_| get_plain(d)).collect::<Result<Vec<_>, _>>()?.into();
        // the mark of a block is in the map, beside its own address
        if self.targets.iter().any(|target| target.mark() != Mark::Clear) {
            return Err(FormatError::Field("forward"));
        }
        self.forwarded = forwarded.into();
        Ok(())
    }
}

/// One chunk's part of a deadlist: epoch (8 bytes), chunk (8), units of data in it (4), first word
/// of the bitmap (2), its words (2 + 8 n). Records are in order of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRecord<'a> {
    /// Epoch when the chunk was begun.
    pub epoch: Epoch,
    /// Chunk id.
    pub chunk: ChunkId,
    /// Units of dead data blocks (map nodes are not counted).
    pub units: u32,
    /// Number of words that are left out at the start of the bitmap.
    pub first: u16,
    /// Bitmap of dead slots from there on.
    pub slots: Cow<'a, [u64]>,
}

impl DeadRecord<'_> {
    /// Bytes of a record without its words.
    pub const FIXED: usize = 24;

    /// Appends the record.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.epoch.0);
        e.u64(self.chunk.0);
        e.u32(self.units);
        e.u16(self.first);
        e.u16(u16::try_from(self.slots.len()).unwrap_or(u16::MAX));
        e.u64s(self.slots.iter().copied());
    }

    /// Reads a deadlist: records until the end of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] when it is cut off, a bitmap is too long, or records are out of order.
    pub fn decode_list(bytes: &[u8]) -> Result<Vec<DeadRecord<'static>>, FormatError> {
        let mut d = Decoder::new(bytes);
        let mut list: Vec<DeadRecord<'static>> = Vec::new();
        while d.remaining() > 0 {
            let (epoch, chunk, units) = (Epoch(d.counter("epoch")?), d.chunk()?, d.u32()?);
            let (first, count) = (d.u16()?, usize::from(d.u16()?));
            if usize::from(first) + count > MAX_SLOT_WORDS || list.last().is_some_and(|last| last.chunk >= chunk) {
                return Err(FormatError::Field("deadlist"));
            }
            let slots = (0..count).map(|_| d.u64()).collect::<Result<Vec<_>, _>>()?.into();
            list.push(DeadRecord { epoch, chunk, units, first, slots });
        }
        Ok(list)
    }
}
