//! Operations of a load, and the dialect of NBD in which they are requested.

use millpond_export::nbd::wire::{EncodedRequest, RequestHeader, Style, command, command_flag};
use serde::{Deserialize, Serialize};

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

impl Dialect {
    /// Style of requests and replies, and the metadata context to select.
    pub(super) fn agreement(self) -> (Style, Option<&'static str>) {
        match self {
            Dialect::Simple => (Style::Simple, None),
            Dialect::Structured => (Style::Structured, None),
            Dialect::Extended => (Style::Extended, Some("base:allocation")),
        }
    }
}

/// Encodes the header of a request.
pub(super) fn request(style: Style, op: Op, fua: bool, cookie: u64, offset: u64, length: u32) -> EncodedRequest {
    let command = match op {
        Op::Read => command::READ,
        Op::Write => command::WRITE,
        Op::Flush => command::FLUSH,
        Op::Trim => command::TRIM,
        Op::WriteZeroes => command::WRITE_ZEROES,
    };
    let mut flags = if fua && op != Op::Read && op != Op::Flush { command_flag::FUA } else { 0 };
    if style == Style::Extended && op == Op::Write {
        flags |= command_flag::PAYLOAD_LEN;
    }
    RequestHeader { magic: style.request_magic(), flags, command, cookie, offset, length: length.into() }.encode(style)
}

/// Encodes a disconnect request.
pub(super) fn disconnect(style: Style) -> EncodedRequest {
    RequestHeader { magic: style.request_magic(), flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 }.encode(style)
}
