//! A request of the kernel as read from the device, with its fixed start apart from the payload of
//! a write.

use std::borrow::Cow;

use millpond_block::Buf;
use zerocopy::FromBytes;

use super::wire::{InHeader, WRITE_HEAD};

/// Maximum length of a read or write in bytes.
pub const MAX_TRANSFER: u32 = 1 << 20;

/// Buffer for one request. The device is read into both parts of [`Message::space`] at once, so
/// that the payload of a write begins at the start of an aligned buffer and can be handed on
/// without a copy.
pub struct Message {
    head: [u8; WRITE_HEAD],
    body: Buf,
}

impl Message {
    /// Makes a message whose payload goes to `body`, which must have at least [`MAX_TRANSFER`]
    /// bytes.
    pub fn new(body: Buf) -> Message {
        Message { head: [0; WRITE_HEAD], body }
    }

    /// Returns the space for the next request, in order.
    pub fn space(&mut self) -> (&mut [u8], &mut [u8]) {
        let body = self.body.bytes_mut();
        let most = body.len().min(MAX_TRANSFER as usize);
        (&mut self.head, body.get_mut(..most).unwrap_or_default())
    }

    /// Returns the buffer.
    pub fn into_buf(self) -> Buf {
        self.body
    }

    /// Returns the header of a request of `length` bytes; `None` if it is incomplete.
    pub(super) fn header(&self, length: usize) -> Option<InHeader> {
        let head = self.head.get(..length.min(WRITE_HEAD))?;
        InHeader::read_from_prefix(head).ok().map(|(header, _)| header)
    }

    /// Returns the bytes after the header of a request of `length` bytes, in one piece.
    pub(super) fn arguments(&self, length: usize) -> Cow<'_, [u8]> {
        let head = self.head.get(size_of::<InHeader>()..length.min(WRITE_HEAD)).unwrap_or_default();
        match length.checked_sub(WRITE_HEAD) {
            None | Some(0) => Cow::Borrowed(head),
            Some(more) => Cow::Owned([head, self.body.bytes().get(..more).unwrap_or_default()].concat()),
        }
    }

    /// Returns the bytes after the fixed part of a write.
    pub(super) fn payload(&self, length: usize) -> &[u8] {
        self.body.bytes().get(..length.saturating_sub(WRITE_HEAD)).unwrap_or_default()
    }

    /// Takes the payload's buffer out and replaces it by `body`.
    pub(super) fn exchange(&mut self, body: Buf) -> Buf {
        std::mem::replace(&mut self.body, body)
    }
}
