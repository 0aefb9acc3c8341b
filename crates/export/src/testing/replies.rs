//! Parser of reply streams, which rejects everything that a client could not accept.

use std::collections::HashMap;
use std::ops::Range;

use crate::nbd::wire::{self, CHUNK_DONE, EXTENDED_HEADER, SIMPLE_REPLY, STRUCTURED_REPLY, Style, chunk};

/// Reply in the transmission phase, assembled from its chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reply {
    /// Cookie of the request.
    pub cookie: u64,
    /// Error number; zero for success.
    pub error: u32,
    /// Data of a read.
    pub data: Vec<u8>,
    /// Extents of metadata contexts, by number of the context.
    pub status: Vec<(u32, Extents)>,
}

/// Length and flags of each extent.
pub type Extents = Vec<(u64, u64)>;

/// Ranges of a client's reads, by cookie.
pub type Reads = HashMap<u64, Range<u64>>;

/// Parses a stream of replies.
///
/// # Errors
/// Position and description of the first error in the stream.
pub fn parse_replies(bytes: &[u8], reads: &Reads, style: Style) -> Result<Vec<Reply>, String> {
    let mut parser = Parser { rest: bytes, reads, style, open: HashMap::new(), done: Vec::new() };
    while !parser.rest.is_empty() {
        let at = bytes.len() - parser.rest.len();
        parser.message().map_err(|why| format!("at {at}: {why}"))?;
    }
    match parser.open.keys().next() {
        Some(cookie) => Err(format!("no last chunk for {cookie}")),
        None => Ok(parser.done),
    }
}

/// Reply whose last chunk has not been read.
#[derive(Default)]
struct Open {
    error: u32,
    data: Vec<u8>,
    covered: Vec<Range<u64>>,
    status: Vec<(u32, Extents)>,
}

impl Open {
    fn add_status(&mut self, context: u32, extents: Extents) -> Result<(), String> {
        let same = extents.windows(2).any(|pair| pair[0].1 == pair[1].1);
        if same || extents.iter().any(|(length, _)| *length == 0) {
            return Err(format!("extents that are empty or not joined: {extents:?}"));
        }
        if self.status.iter().any(|(known, _)| *known == context) {
            return Err(format!("context {context} twice"));
        }
        self.status.push((context, extents));
        Ok(())
    }
}

struct Parser<'a> {
    rest: &'a [u8],
    reads: &'a Reads,
    style: Style,
    open: HashMap<u64, Open>,
    done: Vec<Reply>,
}

impl<'a> Parser<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    fn message(&mut self) -> Result<(), String> {
        let magic = self.rest.first_chunk().map(|magic| u32::from_be_bytes(*magic)).ok_or("a stub")?;
        match (self.style, magic) {
            (Style::Simple | Style::Structured, wire::SIMPLE_REPLY_MAGIC) => self.simple(),
            (Style::Structured, wire::STRUCTURED_REPLY_MAGIC) => {
                let head = self.take(STRUCTURED_REPLY)?;
                self.chunk(number(head, 4..6), number(head, 6..8), number(head, 8..16), number(head, 16..20))
            }
            (Style::Extended, wire::EXTENDED_REPLY_MAGIC) => {
                let head = self.take(EXTENDED_HEADER)?;
                let (cookie, offset) = (number(head, 8..16), number(head, 16..24));
                if self.reads.get(&cookie).is_some_and(|read| read.start != offset) {
                    return Err(format!("{offset} is not the offset of the read {cookie}"));
                }
                self.chunk(number(head, 4..6), number(head, 6..8), cookie, number(head, 24..32))
            }
            _ => Err(format!("magic {magic:#x}")),
        }
    }

    fn simple(&mut self) -> Result<(), String> {
        let head = self.take(SIMPLE_REPLY)?;
        let (error, cookie) = (number(head, 4..8) as u32, number(head, 8..16));
        let read = self.reads.get(&cookie);
        if read.is_some() && self.style != Style::Simple {
            return Err(format!("a simple reply to the read {cookie}"));
        }
        let length = read.filter(|_| error == 0).map_or(0, |range| range.end - range.start);
        let data = self.take(length as usize)?.to_vec();
        self.done.push(Reply { cookie, error, data, status: Vec::new() });
        Ok(())
    }

    fn chunk(&mut self, flags: u64, kind: u64, cookie: u64, length: u64) -> Result<(), String> {
        let payload = self.take(length as usize)?;
        if flags & !u64::from(CHUNK_DONE) != 0 {
            return Err(format!("chunk flags {flags:#x}"));
        }
        let last = flags != 0;
        let mut open = self.open.remove(&cookie).unwrap_or_default();
        match kind as u16 {
            chunk::NONE if payload.is_empty() && last => {}
            chunk::OFFSET_DATA if payload.len() > 8 => {
                let at = number(payload, 0..8);
                self.content(&mut open, cookie, at, &payload[8..])?;
            }
            chunk::OFFSET_HOLE if payload.len() == 12 => {
                let (at, length) = (number(payload, 0..8), number(payload, 8..12));
                if length == 0 {
                    return Err("an empty hole".to_owned());
                }
                self.content(&mut open, cookie, at, &vec![0; length as usize])?;
            }
            chunk::BLOCK_STATUS if payload.len() > 4 && payload.len() % 8 == 4 && self.style == Style::Structured => {
                let extents = payload[4..].chunks(8).map(|extent| (number(extent, 0..4), number(extent, 4..8))).collect();
                open.add_status(number(payload, 0..4) as u32, extents)?;
            }
            chunk::BLOCK_STATUS_EXT if payload.len() > 8 && payload.len() % 16 == 8 && self.style == Style::Extended => {
                let extents: Extents = payload[8..].chunks(16).map(|extent| (number(extent, 0..8), number(extent, 8..16))).collect();
                if number(payload, 4..8) != extents.len() as u64 {
                    return Err("the number of extents is wrong".to_owned());
                }
                open.add_status(number(payload, 0..4) as u32, extents)?;
            }
            chunk::ERROR if payload.len() >= 6 => {
                open.error = number(payload, 0..4) as u32;
                let words = payload.get(6..).unwrap_or_default();
                if open.error == 0 || words.len() as u64 != number(payload, 4..6) || str::from_utf8(words).is_err() || words.is_empty() {
                    return Err("a malformed error".to_owned());
                }
            }
            _ => return Err(format!("chunk {kind} with {length} bytes")),
        }
        if !last {
            self.open.insert(cookie, open);
            return Ok(());
        }
        let read = self.reads.get(&cookie).filter(|_| open.error == 0).map_or(0, |range| range.end - range.start);
        if open.covered.iter().map(|range| range.end - range.start).sum::<u64>() != read {
            return Err(format!("the reply to {cookie} has holes"));
        }
        let error = open.error;
        let (data, mut status) = if error == 0 { (open.data, open.status) } else { Default::default() };
        status.sort();
        self.done.push(Reply { cookie, error, data, status });
        Ok(())
    }

    fn content(&self, open: &mut Open, cookie: u64, at: u64, bytes: &[u8]) -> Result<(), String> {
        let read = self.reads.get(&cookie).ok_or(format!("content for {cookie}, which is no read"))?;
        let range = at..at + bytes.len() as u64;
        if range.start < read.start || range.end > read.end {
            return Err(format!("content {range:?} outside of the read {read:?}"));
        }
        if open.covered.iter().any(|other| other.start < range.end && range.start < other.end) {
            return Err(format!("content {range:?} twice"));
        }
        open.data.resize((read.end - read.start) as usize, 0);
        let from = (range.start - read.start) as usize;
        open.data[from..from + bytes.len()].copy_from_slice(bytes);
        open.covered.push(range);
        Ok(())
    }
}

/// Decodes a big-endian number.
fn number(bytes: &[u8], range: Range<usize>) -> u64 {
    bytes.get(range).unwrap_or_default().iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
