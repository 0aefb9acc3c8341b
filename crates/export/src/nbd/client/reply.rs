//! Parser for the headers of replies in all styles.

use super::violation::Violation;
use crate::nbd::wire::{
    CHUNK_DONE, EXTENDED_HEADER, EXTENDED_REPLY_MAGIC, MAX_STRING, SIMPLE_REPLY, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY,
    STRUCTURED_REPLY_MAGIC, chunk,
};

/// Longest payload of an error in bytes: its text, and its fields.
const LONGEST_ERROR: u64 = MAX_STRING as u64 + 32;

/// Maximum bytes of a reply's header, with the payload of an error.
pub const MOST_BYTES: usize = EXTENDED_HEADER + LONGEST_ERROR as usize;

/// Data that follows a header, or that the header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No data.
    None,
    /// All data of the read follows. Replies without data to other requests have this content too.
    Whole,
    /// Data follows: offset in the export, and length in bytes.
    Data(u64, usize),
    /// A hole that reads as zeroes: offset and length; no data follows.
    Hole(u64, usize),
    /// Extents follow: number of the metadata context, and length in bytes. An extent is its length
    /// and its flags, of 32 bits each.
    Extents(u32, usize),
}

/// Header of a reply, or of a chunk of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Bytes of the header in the stream.
    pub bytes: usize,
    /// Cookie of the request.
    pub cookie: u64,
    /// NBD error number; 0 is success.
    pub error: u32,
    /// True if this is the last chunk of the reply.
    pub done: bool,
    /// Data of the reply.
    pub content: Content,
}

/// Parses the header at the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// The bytes violate the protocol.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Option<Reply>, Violation> {
    let Some(start) = bytes.first_chunk::<SIMPLE_REPLY>() else { return Ok(None) };
    let word = u128::from_be_bytes(*start);
    let (magic, cookie) = ((word >> 96) as u32, word as u64);
    if magic == SIMPLE_REPLY_MAGIC {
        let error = (word >> 64) as u32;
        let content = if error == 0 { Content::Whole } else { Content::None };
        return Ok(Some(Reply { bytes: SIMPLE_REPLY, cookie, error, done: true, content }));
    }
    parse_chunk(bytes, magic, (word >> 80) as u16, (word >> 64) as u16, cookie)
}

fn parse_chunk(bytes: &[u8], magic: u32, flags: u16, kind: u16, cookie: u64) -> Result<Option<Reply>, Violation> {
    let (head, length) = match magic {
        STRUCTURED_REPLY_MAGIC => (STRUCTURED_REPLY, be32(bytes, 16).map(u64::from)),
        EXTENDED_REPLY_MAGIC => (EXTENDED_HEADER, be64(bytes, 24)),
        _ => return Err(Violation::Reply),
    };
    let Some(length) = length else { return Ok(None) };
    let wrong = Violation::Chunk { kind, length };
    let own = match kind {
        chunk::NONE if length == 0 => 0,
        chunk::OFFSET_DATA if length > 8 => 8,
        chunk::OFFSET_HOLE if length == 12 => 12,
        chunk::BLOCK_STATUS if length > 4 && length % 8 == 4 && magic == STRUCTURED_REPLY_MAGIC => 4,
        kind if kind & chunk::IS_ERROR != 0 && (6..=LONGEST_ERROR).contains(&length) => length as usize,
        _ => return Err(wrong),
    };
    let Some(body) = bytes.get(head..head + own) else { return Ok(None) };
    let first = be32(body, 0).unwrap_or(0);
    let (at, rest) = (be64(body, 0).unwrap_or(0), usize::try_from(length - own as u64).map_err(|_| wrong)?);
    let (error, content) = match kind {
        chunk::NONE => (0, Content::None),
        chunk::OFFSET_DATA => (0, Content::Data(at, rest)),
        chunk::OFFSET_HOLE => (0, Content::Hole(at, be32(body, 8).unwrap_or(0) as usize)),
        chunk::BLOCK_STATUS => (0, Content::Extents(first, rest)),
        _ => (first, Content::None),
    };
    Ok(Some(Reply { bytes: head + own, cookie, error, done: flags & CHUNK_DONE != 0, content }))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|number| u32::from_be_bytes(*number))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|number| u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests;
