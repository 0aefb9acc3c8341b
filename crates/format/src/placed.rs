//! The item of a batch with which chunks get their place in an object of a bucket.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::segment_name::is_object_length;
use crate::{ChunkId, MAX_SLOT_WORDS, NO_SEGMENT, SegmentId, SegmentName};

#[cfg(test)]
mod tests;

/// Lifetime classes of chunks in a bucket: the streams of moved blocks.
const CLASSES: std::ops::RangeInclusive<u8> = 4..=7;

/// Chunks that were copied to an object of a bucket, which exists. An object has one item for each of
/// the headers in it. The item has all that the chunk table needs, so replay reads nothing of the
/// bucket.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | segment | 4 | bucket segment |
/// | name | 12 | term 4, import 2, count 6 |
/// | pages | 2 | pages of the object, with its head |
/// | class | 1 | lifetime class of the chunks, 4 to 7 |
/// | chunks | 4 + n (8 + 4 + 4 + 4 + 8 w) | [`PlacedChunk`]s: chunk, page, page of the header, bitmap |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The bucket segment.
    pub segment: SegmentId,
    /// Name of its object.
    pub name: SegmentName,
    /// Pages of the object, with its head.
    pub pages: u16,
    /// Lifetime class of the chunks: the number of their stream.
    pub class: u8,
    /// The chunks; one at least.
    pub chunks: Vec<PlacedChunk>,
}

/// A chunk in an object of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedChunk {
    /// Chunk id.
    pub chunk: ChunkId,
    /// Page of the object where its first slot is.
    pub page: u32,
    /// Page of the object with the header that has the identities of its blocks.
    pub header: u32,
    /// Bitmap of the slots that were copied.
    pub present: Vec<u64>,
}

impl PlacedChunk {
    /// Bytes without the words of the bitmap.
    const FIXED: usize = 20;
}

impl Placed {
    /// Appends the item, without its tag.
    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.u32(self.segment.0);
        self.name.encode(e);
        e.u16(self.pages);
        e.u8(self.class);
        e.count(self.chunks.len());
        for placed in &self.chunks {
            e.u64(placed.chunk.0);
            e.u32(placed.page);
            e.u32(placed.header);
            e.count(placed.present.len());
            e.u64s(placed.present.iter().copied());
        }
    }

    /// Reads an item, without its tag.
    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Placed, FormatError> {
        let (segment, name, pages, class) = (SegmentId(d.u32()?), SegmentName::decode(d)?, d.u16()?, d.u8()?);
        if segment == NO_SEGMENT || !is_object_length(pages) || !CLASSES.contains(&class) {
            return Err(FormatError::Field("placed"));
        }
        let count = d.count(PlacedChunk::FIXED)?;
        let chunks = (0..count).map(|_| placed_chunk(d, u32::from(pages))).collect::<Result<Vec<_>, _>>()?;
        if chunks.is_empty() { Err(FormatError::Field("placed")) } else { Ok(Placed { segment, name, pages, class, chunks }) }
    }
}

/// Reads a chunk in an object of so many pages, of which the first is the head.
fn placed_chunk(d: &mut Decoder<'_>, pages: u32) -> Result<PlacedChunk, FormatError> {
    let (chunk, page, header) = (d.chunk()?, d.u32()?, d.u32()?);
    let words = d.count(8)?;
    let is_inside = (1..pages).contains(&header) && header < page && page < pages;
    if chunk.0 == 0 || !is_inside || words > MAX_SLOT_WORDS {
        return Err(FormatError::Field("placed"));
    }
    let present = (0..words).map(|_| d.u64()).collect::<Result<Vec<_>, _>>()?;
    Ok(PlacedChunk { chunk, page, header, present })
}
