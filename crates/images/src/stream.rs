//! Streams of snapshots: what `send` writes and `receive` reads ([docs/send.md](../../../docs/send.md)).
//!
//! A stream is a magic, a version, and frames. A frame is a head of 32 bytes and a payload; its
//! checksum covers the checksum of the frame before it, so frames that are lost, swapped or of
//! another stream are found as damage is. Numbers are little-endian.
//!
//! A receive is a client of the API: [`receive`] decides its steps for anything that is a
//! [`Target`], and takes nothing for complete that it did not read back.

mod frame;
mod head;
mod receive;
mod send;
mod target;

#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use frame::put_checksums_right;
pub use frame::{Frame, FrameReader, FrameWriter, StreamError};
pub use head::{StreamHead, StreamSnapshot};
pub use receive::{Checks, Received, Receiver, Reception, abandon, incomplete, resumable, settle};
pub use send::{SendError, send_snapshot};
pub use target::{Check, Content, Target};
