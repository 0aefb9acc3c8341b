//! The fixed newstyle handshake, from the greeting to the chosen export.

use std::io::{self, Read, Write};

use super::message;
use super::violation::Violation;
use crate::nbd::wire::{FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, Style, info, option, reply};

/// Longest option reply accepted in bytes; a longer one is rejected without memory for it.
const MAX_OPTION_REPLY: u32 = 1 << 20;
/// Replies to one option accepted.
const MAX_REPLIES: usize = 64;

/// An export as the server describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// See [`transmission_flag`](crate::nbd::wire::transmission_flag).
    pub flags: u16,
    /// Number of the metadata context, if one was requested and the server has it.
    pub context: Option<u32>,
}

/// Negotiates up to the start of the transmission phase. `context` is the metadata context to
/// select, which needs another style than [`Style::Simple`].
///
/// # Errors
/// The stream's error, or a [`Violation`]: the server does not have the export or the style.
pub fn negotiate(stream: &mut (impl Read + Write), export: &str, style: Style, context: Option<&str>) -> io::Result<Export> {
    let flags = greeting(&array::<18>(stream)?)?;
    stream.write_all(&u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)).to_be_bytes())?;
    match style {
        Style::Simple => {}
        Style::Structured => drop(ask(stream, option::STRUCTURED_REPLY, &message::option(option::STRUCTURED_REPLY, &[]))?),
        Style::Extended => drop(ask(stream, option::EXTENDED_HEADERS, &message::option(option::EXTENDED_HEADERS, &[]))?),
    }
    let context = match context {
        Some(context) => {
            let selected = ask(stream, option::SET_META_CONTEXT, &message::meta_context(option::SET_META_CONTEXT, export, &[context]))?;
            let id = selected.iter().find(|(kind, _)| *kind == reply::META_CONTEXT).and_then(|(_, data)| data.first_chunk());
            id.map(|id| u32::from_be_bytes(*id))
        }
        None => None,
    };
    let described = ask(stream, option::GO, &message::go(export))?;
    let (size, flags) = described.iter().rev().find_map(size_and_flags).ok_or(Violation::NoSize)?;
    Ok(Export { size, flags, context })
}

/// Returns the handshake flags of a server.
fn greeting(bytes: &[u8; 18]) -> Result<u16, Violation> {
    let (magic, flags) = bytes.split_last_chunk::<2>().ok_or(Violation::Greeting)?;
    let flags = u16::from_be_bytes(*flags);
    let known = magic == [GREETING_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    if known && flags & FLAG_FIXED_NEWSTYLE != 0 { Ok(flags) } else { Err(Violation::Greeting) }
}

fn size_and_flags((kind, data): &(u32, Vec<u8>)) -> Option<(u64, u16)> {
    let (item, rest) = data.split_first_chunk().filter(|_| *kind == reply::INFO)?;
    let (size, rest) = rest.split_first_chunk().filter(|_| u16::from_be_bytes(*item) == info::EXPORT)?;
    Some((u64::from_be_bytes(*size), rest.first_chunk().map_or(0, |flags| u16::from_be_bytes(*flags))))
}

/// Sends an option; returns type and data of the replies before the acknowledgement.
fn ask(stream: &mut (impl Read + Write), option: u32, message: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
    stream.write_all(message)?;
    let mut replies = Vec::new();
    loop {
        let magic = u64::from_be_bytes(array(stream)?);
        let (of, kind, length) = (word(stream)?, word(stream)?, word(stream)?);
        if magic != OPTION_REPLY_MAGIC || of != option || length > MAX_OPTION_REPLY || replies.len() > MAX_REPLIES {
            return Err(Violation::OptionReply.into());
        }
        let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
        stream.read_exact(&mut data)?;
        match kind {
            reply::ACK => return Ok(replies),
            kind if kind & reply::IS_ERROR != 0 => {
                let words = String::from_utf8_lossy(&data).into_owned();
                return Err(Violation::Refused { option, kind, words }.into());
            }
            kind => replies.push((kind, data)),
        }
    }
}

fn word(stream: &mut impl Read) -> io::Result<u32> {
    array(stream).map(u32::from_be_bytes)
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
