//! Parser for the headers of NBD replies in all dialects.

use super::wire::{REPLY_BYTES, REPLY_MAGIC, be32, be64};
use std::io;

const STRUCTURED: u32 = 0x668e_33ef;
const EXTENDED: u32 = 0x6e8a_278c;
const DONE: u16 = 1;
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const OFFSET_HOLE: u16 = 2;
const ERROR: u16 = 1 << 15;
// length of an error's message: the protocol's limit of strings, and its fields
const LONGEST_WORDS: usize = 4096 + 32;

/// Maximum bytes of a reply's header, with the payload of an error.
pub(crate) const MOST_BYTES: usize = 32 + LONGEST_WORDS;

/// Data that follows a header, or that the header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// No data.
    None,
    /// All data of the read follows.
    Whole,
    /// Data follows: offset in the export, and length in bytes.
    Data(u64, usize),
    /// A hole that reads as zeroes: offset and length; no data follows.
    Hole(u64, usize),
}

/// Header of a reply, or of a chunk of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Bytes of the header in the stream.
    pub bytes: usize,
    pub cookie: u64,
    /// NBD error number; 0 is success.
    pub error: u32,
    /// Whether this is the last chunk of the reply.
    pub done: bool,
    pub content: Content,
}

/// Parses the header at the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// The bytes violate the protocol.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<Option<Reply>> {
    if bytes.len() < REPLY_BYTES {
        return Ok(None);
    }
    let (magic, cookie) = (be32(bytes), be64(&bytes[8..]));
    let head = match magic {
        REPLY_MAGIC => {
            let (error, bytes) = (be32(&bytes[4..]), REPLY_BYTES);
            let content = if error == 0 { Content::Whole } else { Content::None };
            return Ok(Some(Reply { bytes, cookie, error, done: true, content }));
        }
        STRUCTURED => 20,
        EXTENDED => 32,
        _ => return Err(nonsense("the server sent something that is no NBD reply")),
    };
    if bytes.len() < head {
        return Ok(None);
    }
    let (flags, kind) = (u16::from_be_bytes([bytes[4], bytes[5]]), u16::from_be_bytes([bytes[6], bytes[7]]));
    let length = if magic == STRUCTURED { u64::from(be32(&bytes[16..])) } else { be64(&bytes[24..]) };
    let length = usize::try_from(length).map_err(|_| nonsense("the server announces an absurd reply"))?;
    let own = match kind {
        NONE if length == 0 => 0,
        OFFSET_DATA if length > 8 => 8,
        OFFSET_HOLE if length == 12 => 12,
        kind if kind & ERROR != 0 && (6..=LONGEST_WORDS).contains(&length) => length,
        _ => return Err(nonsense("the server sent a piece of a reply that nobody asked for")),
    };
    let Some(body) = bytes.get(head..head + own) else { return Ok(None) };
    let (error, content) = match kind {
        OFFSET_DATA => (0, Content::Data(be64(body), length - 8)),
        OFFSET_HOLE => (0, Content::Hole(be64(body), be32(&body[8..]) as usize)),
        NONE => (0, Content::None),
        _ => (be32(body), Content::None),
    };
    Ok(Some(Reply { bytes: head + own, cookie, error, done: flags & DONE != 0, content }))
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(magic: u32, kind: u16, length: u64) -> Vec<u8> {
        let mut bytes = [&magic.to_be_bytes()[..], &DONE.to_be_bytes(), &kind.to_be_bytes(), &7u64.to_be_bytes()].concat();
        if magic == EXTENDED {
            bytes.extend([0u64.to_be_bytes(), length.to_be_bytes()].concat());
        } else {
            bytes.extend((length as u32).to_be_bytes());
        }
        bytes
    }

    /// A complete header is parsed and all of its bytes are consumed; a part of it is incomplete.
    #[test]
    fn every_beginning_is_awaited_and_understood() {
        for magic in [STRUCTURED, EXTENDED] {
            let hole = [4096u64.to_be_bytes().to_vec(), 512u32.to_be_bytes().to_vec()].concat();
            let error = [&22u32.to_be_bytes()[..], &2u16.to_be_bytes(), b"no"].concat();
            let cases = [
                ([head(magic, NONE, 0), vec![]].concat(), 0, Content::None),
                ([head(magic, OFFSET_DATA, 8 + 4096), 512u64.to_be_bytes().to_vec()].concat(), 0, Content::Data(512, 4096)),
                ([head(magic, OFFSET_HOLE, 12), hole].concat(), 0, Content::Hole(4096, 512)),
                ([head(magic, ERROR | 1, 8), error].concat(), 22, Content::None),
            ];
            for (bytes, error, content) in cases {
                let expected = Reply { bytes: bytes.len(), cookie: 7, error, done: true, content };
                assert_eq!(parse(&bytes).unwrap(), Some(expected));
                (0..bytes.len()).for_each(|end| assert_eq!(parse(&bytes[..end]).unwrap(), None, "{end}"));
            }
            for (kind, length) in [(NONE, 1), (OFFSET_DATA, 8), (OFFSET_HOLE, 11), (5, 8), (ERROR, 5), (ERROR, 1 << 20)] {
                assert!(parse(&head(magic, kind, length)).is_err(), "{kind} of {length}");
            }
        }
        let simple = [&REPLY_MAGIC.to_be_bytes()[..], &5u32.to_be_bytes(), &9u64.to_be_bytes()].concat();
        let expected = Reply { bytes: REPLY_BYTES, cookie: 9, error: 5, done: true, content: Content::None };
        assert_eq!(parse(&simple).unwrap(), Some(expected));
        assert!(parse(&[0; 16]).is_err());
    }
}
