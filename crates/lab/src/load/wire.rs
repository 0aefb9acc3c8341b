//! NBD messages of the load generator (protocol: NetworkBlockDevice/nbd, doc/proto.md).

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes completed writes durable.
    Flush,
    /// Discards.
    Trim,
    /// Writes zeroes without a payload.
    WriteZeroes,
}

/// In which words requests and replies are exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Dialect {
    /// Simple replies: what every server speaks.
    #[default]
    Simple,
    /// Structured replies.
    Structured,
    /// Extended headers, and the metadata context `base:allocation` beside them: everything that there is.
    Extended,
}

/// Bytes of a request's header, and of a simple reply's header.
pub(crate) const REQUEST_BYTES: usize = 28;
pub(crate) const REPLY_BYTES: usize = 16;
/// Bytes of the longest request header.
pub(crate) const MOST_REQUEST: usize = 32;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const REPLY_MAGIC: u32 = 0x6744_6698;
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const FLAG_FUA: u16 = 1;
const FLAG_PAYLOAD_LEN: u16 = 1 << 5;
pub(crate) const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_SET_META_CONTEXT: u32 = 10;
const OPT_EXTENDED_HEADERS: u32 = 11;
const CONTEXT: &[u8] = b"base:allocation";
pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
const REP_REFUSED: u32 = 1 << 31;
pub(crate) const CMD_DISCONNECT: u16 = 2;
// replies to GO are tiny; a larger one is rejected without allocating memory for it
const MAX_OPTION_REPLY: u32 = 1 << 20;

/// Size and flags of an export, as the server reports them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExportInfo {
    pub size: u64,
    pub flags: u16,
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |value, byte| value << 8 | u32::from(*byte))
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Encoded header of a request in a dialect.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    bytes: [u8; MOST_REQUEST],
    length: usize,
}

impl Header {
    /// An empty header.
    pub fn none() -> Header {
        Header { bytes: [0; MOST_REQUEST], length: 0 }
    }

    /// Bytes of the header in the stream.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

pub(crate) fn request(dialect: Dialect, op: Op, fua: bool, cookie: u64, offset: u64, length: u32) -> Header {
    let command = match op {
        Op::Read => 0u16,
        Op::Write => 1,
        Op::Flush => 3,
        Op::Trim => 4,
        Op::WriteZeroes => 6,
    };
    let mut flags = if fua && op != Op::Read && op != Op::Flush { FLAG_FUA } else { 0 };
    if dialect == Dialect::Extended && op == Op::Write {
        flags |= FLAG_PAYLOAD_LEN;
    }
    encode(dialect, command, flags, cookie, offset, length)
}

pub(crate) fn disconnect(dialect: Dialect) -> Header {
    encode(dialect, CMD_DISCONNECT, 0, 0, 0, 0)
}

fn encode(dialect: Dialect, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Header {
    let mut bytes = [0; MOST_REQUEST];
    let extended = dialect == Dialect::Extended;
    bytes[0..4].copy_from_slice(&if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC }.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    if extended {
        bytes[24..32].copy_from_slice(&u64::from(length).to_be_bytes());
    } else {
        bytes[24..28].copy_from_slice(&length.to_be_bytes());
    }
    Header { bytes, length: if extended { MOST_REQUEST } else { REQUEST_BYTES } }
}

/// Performs the fixed newstyle handshake up to the start of the transmission phase.
pub(crate) fn handshake(stream: &mut (impl Read + Write), export: &str, dialect: Dialect) -> io::Result<ExportInfo> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no newstyle NBD server answers there"));
    }
    let name = export.as_bytes();
    let name_len = u32::try_from(name.len()).map_err(io::Error::other)?.to_be_bytes();
    stream.write_all(&3u32.to_be_bytes())?; // client flags: fixed newstyle, no zeroes
    match dialect {
        Dialect::Simple => {}
        Dialect::Structured => drop(option(stream, OPT_STRUCTURED_REPLY, &[])?),
        Dialect::Extended => {
            option(stream, OPT_EXTENDED_HEADERS, &[])?;
            let length = (CONTEXT.len() as u32).to_be_bytes();
            option(stream, OPT_SET_META_CONTEXT, &[&name_len, name, &1u32.to_be_bytes(), &length, CONTEXT].concat())?;
        }
    }
    let told =
        option(stream, OPT_GO, &[&name_len, name, &[0, 0]].concat()).map_err(|e| io::Error::other(format!("export '{export}': {e}")))?;
    let info = told.iter().rfind(|(kind, data)| *kind == REP_INFO && data.len() >= 12 && data[..2] == [0, 0]);
    Ok(info.map_or_else(ExportInfo::default, |(_, data)| ExportInfo {
        size: be64(&data[2..]),
        flags: u16::from_be_bytes([data[10], data[11]]),
    }))
}

/// Negotiates an option; returns the replies before the acknowledgement.
fn option(stream: &mut (impl Read + Write), option: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
    let length = u32::try_from(data.len()).map_err(io::Error::other)?;
    stream.write_all(&[b"IHAVEOPT", &option.to_be_bytes()[..], &length.to_be_bytes(), data].concat())?;
    let mut told = Vec::new();
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let (kind, length) = (be32(&head[12..]), be32(&head[16..]));
        if length > MAX_OPTION_REPLY {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an absurd option reply"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            REP_ACK => return Ok(told),
            refused if refused & REP_REFUSED != 0 => {
                let words = String::from_utf8_lossy(&data).into_owned();
                return Err(io::Error::other(format!("option {option} is refused ({refused:#x}): {words}")));
            }
            kind => told.push((kind, data)),
        }
    }
}
