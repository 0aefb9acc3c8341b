//! Constants and byte layouts of the NBD protocol. All numbers are big-endian.

use std::ops::Deref;

use millpond_block::{DiskError, Op};

use crate::ExportInfo;

/// First eight bytes of the server's greeting: `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Next eight bytes of the greeting, and the start of every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of every answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of every request with 64-bit lengths.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of every chunk of a reply to an extended request.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;
/// Start of every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option before its data.
pub const OPTION_HEADER: usize = 16;
/// Bytes of a request before its payload.
pub const REQUEST_HEADER: usize = 28;
/// Bytes of a simple reply before its data.
pub const SIMPLE_REPLY: usize = 16;
/// Bytes of a chunk of a structured reply before its payload.
pub const STRUCTURED_REPLY: usize = 20;
/// Bytes of an extended request, and of a chunk of an extended reply, before the payload.
pub const EXTENDED_HEADER: usize = 32;
/// Maximum length of a string in bytes.
pub const MAX_STRING: usize = 4096;

/// Handshake flag of server and client: options are answered.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of server and client: no padding after EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Maximum payload in bytes that is announced to clients. Twice as much is accepted.
pub const ANNOUNCED_MAX_PAYLOAD: u32 = 32 << 20;
/// Preferred block size in bytes that is announced to clients: the block of the map.
pub const ANNOUNCED_PREFERRED_BLOCK: u32 = 4096;

/// Option numbers.
pub mod option {
    /// Choose an export; the older option, whose answer has no header.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Query an export.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Enable structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Enable 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of answers to options.
pub mod reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// One entry of the list of exports.
    pub const SERVER: u32 = 2;
    /// One item of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context: number and name.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not supported.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// The option's data is malformed.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// STARTTLS must come first.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = 0x8000_0007;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
    /// Extended headers were agreed on and cannot be disabled.
    pub const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;
    /// Bit of the types that refuse the option.
    pub const IS_ERROR: u32 = 1 << 31;
}

/// Items of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum block, preferred block, and maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is honoured.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// DF is honoured.
    pub const SEND_DF: u16 = 1 << 7;
    /// All connections see the same data.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is honoured.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// BLOCK_STATUS may name contexts in a payload.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Request types.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Make earlier writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard the content of a range.
    pub const TRIM: u16 = 4;
    /// Announce that a range will be read soon.
    pub const CACHE: u16 = 5;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report the extents of the selected metadata contexts in a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Reply when the data is durable. Legal, and without effect, on commands that do not write.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must not free the space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ is answered with one chunk of data.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS reports one extent of each context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES fails with ENOTSUP unless it is faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length field is that of a payload that follows the header.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of chunks of structured replies.
pub mod chunk {
    /// End of the reply, without content.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context: the context's number, then length and flags of each extent.
    pub const BLOCK_STATUS: u16 = 5;
    /// Like `BLOCK_STATUS`, with 64-bit lengths and flags, and with the number of extents.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The request failed.
    pub const ERROR: u16 = IS_ERROR | 1;
    /// Bit of the types that report an error.
    pub const IS_ERROR: u16 = 1 << 15;
}

/// Flags of extents.
pub mod extent_flag {
    /// `base:allocation`: takes no space.
    pub const HOLE: u32 = 1 << 0;
    /// `base:allocation`: reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
    /// `qemu:dirty-bitmap`: may have changed.
    pub const DIRTY: u32 = 1 << 0;
}

/// Flag of the last chunk of a reply.
pub const CHUNK_DONE: u16 = 1 << 0;

/// Error numbers in replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only.
    Perm = 1,
    /// The data cannot be read or written.
    Io = 5,
    /// The request is malformed, unaligned, too long, or reads beyond the end.
    Inval = 22,
    /// No space left, or a write beyond the end.
    Nospc = 28,
    /// READ with DF of more bytes than fit in one chunk.
    Overflow = 75,
    /// Not supported.
    Notsup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// Returns the error number for a disk's error in an operation `op`.
    pub fn of(error: DiskError, op: Op) -> Errno {
        match error {
            DiskError::Io => Errno::Io,
            DiskError::NoSpace => Errno::Nospc,
            DiskError::Invalid => Errno::Inval,
            DiskError::OutOfBounds => match op {
                Op::Write | Op::WriteZeroes { .. } => Errno::Nospc,
                Op::Read | Op::Flush | Op::Discard | Op::Cache => Errno::Inval,
            },
            DiskError::ReadOnly => Errno::Perm,
            DiskError::NotSupported => Errno::Notsup,
            DiskError::Shutdown => Errno::Shutdown,
        }
    }
}

/// Returns the text for a disk's error, for the client's user.
pub fn words(error: DiskError) -> &'static str {
    match error {
        DiskError::Io => "the data cannot be had",
        DiskError::NoSpace => "no space left in the pool",
        DiskError::Invalid => "not aligned to the sector, or too long",
        DiskError::OutOfBounds => "beyond the end of the disk",
        DiskError::ReadOnly => "the disk is read-only",
        DiskError::NotSupported => "not supported",
        DiskError::Shutdown => "the server is shutting down",
    }
}

/// Format of replies, as negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// One header, then the data of a read.
    #[default]
    Simple,
    /// Chunks: data, holes, or an error with text. Replies without content are simple replies,
    /// which the protocol allows.
    Structured,
    /// Chunks with larger headers that repeat the request's offset; requests have 64-bit lengths.
    Extended,
}

impl Style {
    /// Returns the bytes of a request before its payload.
    #[inline]
    pub fn request_header(self) -> usize {
        if self == Style::Extended { EXTENDED_HEADER } else { REQUEST_HEADER }
    }

    /// Returns the magic number of requests.
    #[inline]
    pub fn request_magic(self) -> u32 {
        if self == Style::Extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC }
    }
}

/// A request without its payload.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic |
/// | 4 | 2 | flags |
/// | 6 | 2 | command |
/// | 8 | 8 | cookie |
/// | 16 | 8 | offset |
/// | 24 | 4, extended 8 | length |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Must be [`Style::request_magic`]; otherwise the stream is out of step.
    pub magic: u32,
    /// See [`command_flag`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// Chosen by the client and repeated in the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl RequestHeader {
    /// Decodes a header at the start of `bytes`; returns `None` if it is incomplete.
    #[inline]
    pub fn read(bytes: &[u8], style: Style) -> Option<RequestHeader> {
        if style == Style::Extended {
            return Some(RequestHeader::decode_extended(bytes.first_chunk()?));
        }
        Some(RequestHeader::decode(bytes.first_chunk()?))
    }

    #[inline]
    fn decode(bytes: &[u8; REQUEST_HEADER]) -> RequestHeader {
        let (head, length) = bytes.split_last_chunk::<4>().unwrap_or((&[], &[0; 4]));
        RequestHeader::of(head, u64::from(u32::from_be_bytes(*length)))
    }

    #[inline]
    fn decode_extended(bytes: &[u8; EXTENDED_HEADER]) -> RequestHeader {
        let (head, length) = bytes.split_last_chunk::<8>().unwrap_or((&[], &[0; 8]));
        RequestHeader::of(head, u64::from_be_bytes(*length))
    }

    /// Decodes the 24 bytes that both header formats have in common.
    #[inline]
    fn of(head: &[u8], length: u64) -> RequestHeader {
        let (first, offset) = head.split_last_chunk::<8>().unwrap_or((&[], &[0; 8]));
        let word = first.first_chunk::<16>().map_or(0, |first| u128::from_be_bytes(*first));
        RequestHeader {
            magic: (word >> 96) as u32,
            flags: (word >> 80) as u16,
            command: (word >> 64) as u16,
            cookie: word as u64,
            offset: u64::from_be_bytes(*offset),
            length,
        }
    }

    /// Encodes a header, for clients. Without extended headers, only the lower half of the length
    /// is sent.
    #[inline]
    pub fn encode(&self, style: Style) -> EncodedRequest {
        let word = u128::from(self.magic) << 96 | u128::from(self.flags) << 80 | u128::from(self.command) << 64 | u128::from(self.cookie);
        let length = if style == Style::Extended { self.length } else { self.length << 32 };
        let mut bytes = [0; EXTENDED_HEADER];
        let (head, tail) = bytes.split_at_mut(16);
        head.copy_from_slice(&word.to_be_bytes());
        tail.copy_from_slice(&(u128::from(self.offset) << 64 | u128::from(length)).to_be_bytes());
        EncodedRequest { bytes, length: style.request_header() }
    }

    /// Returns the bytes of payload that follow the header. With extended headers a flag announces
    /// the payload, and a write must have it. But QEMU's client, at least in versions 8.2 to 10.0,
    /// sends its payload without the flag, and such a write can have no other meaning.
    pub fn payload(&self, style: Style) -> u64 {
        let follows = match style {
            Style::Extended => self.command == command::WRITE || self.flags & command_flag::PAYLOAD_LEN != 0,
            Style::Simple | Style::Structured => self.command == command::WRITE,
        };
        if follows { self.length } else { 0 }
    }
}

/// Encoded header of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodedRequest {
    bytes: [u8; EXTENDED_HEADER],
    length: usize,
}

impl Deref for EncodedRequest {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Encodes a simple reply without data; `None` is success.
#[inline]
pub fn simple_reply(error: Option<Errno>, cookie: u64) -> [u8; SIMPLE_REPLY] {
    let word = u128::from(SIMPLE_REPLY_MAGIC) << 96 | error.map_or(0, |e| u128::from(e as u32)) << 64 | u128::from(cookie);
    word.to_be_bytes()
}

/// Encodes the header of a chunk of a structured reply.
pub fn structured_reply(flags: u16, kind: u16, cookie: u64, length: u32) -> [u8; STRUCTURED_REPLY] {
    let mut bytes = [0; STRUCTURED_REPLY];
    let word = u128::from(STRUCTURED_REPLY_MAGIC) << 96 | u128::from(flags) << 80 | u128::from(kind) << 64 | u128::from(cookie);
    let (head, tail) = bytes.split_at_mut(16);
    head.copy_from_slice(&word.to_be_bytes());
    tail.copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Encodes the header of a chunk of an extended reply.
pub fn extended_reply(flags: u16, kind: u16, cookie: u64, offset: u64, length: u64) -> [u8; EXTENDED_HEADER] {
    let mut bytes = [0; EXTENDED_HEADER];
    let word = u128::from(EXTENDED_REPLY_MAGIC) << 96 | u128::from(flags) << 80 | u128::from(kind) << 64 | u128::from(cookie);
    let (head, tail) = bytes.split_at_mut(16);
    head.copy_from_slice(&word.to_be_bytes());
    tail.copy_from_slice(&(u128::from(offset) << 64 | u128::from(length)).to_be_bytes());
    bytes
}

/// Returns the transmission flags of an export, for a client with this reply style. `contexts` is
/// true if the client selected metadata contexts. FLUSH and FUA are announced even if every write
/// is durable when acknowledged: they cost nothing then, and clients that verify durability
/// (nbdcopy with --flush, fio) fail without them. The flag for rotational media is never set.
pub fn transmission_flags(info: &ExportInfo, style: Style, contexts: bool) -> u16 {
    use transmission_flag as flag;
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
    flags |= if info.features.read_only { flag::READ_ONLY } else { flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO };
    if style != Style::Simple {
        flags |= flag::SEND_DF;
    }
    if style == Style::Extended && contexts {
        flags |= flag::BLOCK_STATUS_PAYLOAD;
    }
    if info.multi_conn {
        flags |= flag::CAN_MULTI_CONN;
    }
    flags
}

#[cfg(test)]
mod tests;
