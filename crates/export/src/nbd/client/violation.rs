//! Reasons why a client gives up a server.

use std::io;

/// Reason why a server is given up. Display is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The greeting is not that of the fixed newstyle handshake.
    #[error("NBD: not a fixed newstyle server")]
    Greeting,
    /// A reply to another option, or one that is too long, or too many of them.
    #[error("NBD: a strange option reply")]
    OptionReply,
    /// The server refuses an option.
    #[error("NBD: option {option} is refused ({kind:#x}): {words}")]
    Refused {
        /// Number of the option.
        option: u32,
        /// Type of the reply.
        kind: u32,
        /// Words of the server.
        words: String,
    },
    /// The chosen export has no size.
    #[error("NBD: the export is not described")]
    NoSize,
    /// The server does not have the metadata context.
    #[error("NBD: the server has no {0}")]
    NoContext(String),
    /// Extents are requested on a connection without a metadata context.
    #[error("NBD: extents were not agreed on")]
    NotAgreed,
    /// Extents of a metadata context that was not requested.
    #[error("NBD: a context that was not asked for")]
    OtherContext(u32),
    /// A reply to a request for extents that has none.
    #[error("NBD: no extents")]
    NoExtents,
    /// Bytes that are no reply.
    #[error("NBD: a strange reply")]
    Reply,
    /// A chunk of a reply with an impossible length, or of a type that is not requested.
    #[error("NBD: a strange chunk of type {kind} with {length} bytes")]
    Chunk {
        /// Type of the chunk.
        kind: u16,
        /// Length of its payload in bytes.
        length: u64,
    },
    /// Data outside of the range that was requested, or for a request that reads nothing.
    #[error("NBD: a reply with data that was not asked for")]
    Unasked,
    /// A reply to a request that is not in flight.
    #[error("NBD: a reply to a request that is not in flight")]
    Cookie(u64),
    /// An error number of a kind that no protocol has.
    #[error("NBD: a strange error")]
    ErrorNumber(u32),
    /// The caller's buffer is too long for one request.
    #[error("NBD: too long")]
    TooLong,
}

impl From<Violation> for io::Error {
    fn from(violation: Violation) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }
}
