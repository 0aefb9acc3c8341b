//! The NBD words that the generator speaks (protocol: NetworkBlockDevice/nbd, doc/proto.md).

use std::io::{self, Read, Write};

/// What a request does.
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
    /// Writes zeroes without sending them.
    WriteZeroes,
}

pub(crate) const REQUEST_BYTES: usize = 28;
pub(crate) const REPLY_BYTES: usize = 16;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const REPLY_MAGIC: u32 = 0x6744_6698;
const FLAG_FUA: u16 = 1;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const CMD_DISCONNECT: u16 = 2;
const MAX_OPTION_REPLY: u32 = 1 << 20; // replies to GO are tiny; a larger one is not worth allocating for

/// What the server tells of an export.
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

pub(crate) fn request(op: Op, fua: bool, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let command = match op {
        Op::Read => 0u16,
        Op::Write => 1,
        Op::Flush => 3,
        Op::Trim => 4,
        Op::WriteZeroes => 6,
    };
    encode(command, if fua && op != Op::Read && op != Op::Flush { FLAG_FUA } else { 0 }, cookie, offset, length)
}

pub(crate) fn disconnect() -> [u8; REQUEST_BYTES] {
    encode(CMD_DISCONNECT, 0, 0, 0, 0)
}

fn encode(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..28].copy_from_slice(&length.to_be_bytes());
    header
}

/// Error number and cookie of a simple reply.
pub(crate) fn reply(header: &[u8]) -> io::Result<(u32, u64)> {
    if be32(header) != REPLY_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the server sent something that is no simple NBD reply"));
    }
    Ok((be32(&header[4..]), be64(&header[8..])))
}

/// Fixed newstyle handshake up to the start of transmission.
pub(crate) fn handshake(stream: &mut (impl Read + Write), export: &str) -> io::Result<ExportInfo> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no newstyle NBD server answers there"));
    }
    let name = export.as_bytes();
    let name_len = u32::try_from(name.len()).map_err(io::Error::other)?;
    let mut go = 3u32.to_be_bytes().to_vec(); // client flags: fixed newstyle, no zeroes
    go.extend_from_slice(b"IHAVEOPT");
    go.extend_from_slice(&OPT_GO.to_be_bytes());
    go.extend_from_slice(&(name_len + 6).to_be_bytes());
    go.extend_from_slice(&name_len.to_be_bytes());
    go.extend_from_slice(name);
    go.extend_from_slice(&0u16.to_be_bytes());
    stream.write_all(&go)?;
    let mut info = ExportInfo::default();
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
            REP_ACK => return Ok(info),
            REP_INFO if data.len() >= 12 && data[..2] == [0, 0] => {
                info = ExportInfo { size: be64(&data[2..]), flags: u16::from_be_bytes([data[10], data[11]]) };
            }
            REP_INFO => {}
            refused => {
                return Err(io::Error::other(format!("export '{export}' refused ({refused:#x}): {}", String::from_utf8_lossy(&data))));
            }
        }
    }
}
