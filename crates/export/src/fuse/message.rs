//! A request of the kernel, as it is read: its fixed start apart from what may be the payload of a write.

use std::borrow::Cow;

use millpond_block::Buf;
use zerocopy::FromBytes;

use super::wire::{InHeader, WRITE_HEAD};

/// Most bytes of a read or write.
pub const MAX_TRANSFER: u32 = 1 << 20;

/// Room for one request. The device is read into both parts of [`Message::space`] at once, so that the payload of a write begins at the start of
/// an aligned buffer, and can be handed on without a copy.
pub struct Message {
    head: [u8; WRITE_HEAD],
    body: Buf,
}

impl Message {
    /// A message whose payload goes to `body`, which needs [`MAX_TRANSFER`] bytes.
    pub fn new(body: Buf) -> Message {
        Message { head: [0; WRITE_HEAD], body }
    }

    /// Where the next request goes, first part first.
    pub fn space(&mut self) -> (&mut [u8], &mut [u8]) {
        let body = self.body.bytes_mut();
        let most = body.len().min(MAX_TRANSFER as usize);
        (&mut self.head, body.get_mut(..most).unwrap_or_default())
    }

    /// Gives the buffer back.
    pub fn into_buf(self) -> Buf {
        self.body
    }

    /// The start of a request of `length` bytes.
    pub(super) fn header(&self, length: usize) -> Option<InHeader> {
        let head = self.head.get(..length.min(WRITE_HEAD))?;
        InHeader::read_from_prefix(head).ok().map(|(header, _)| header)
    }

    /// What follows the header of a request of `length` bytes, in one piece.
    pub(super) fn arguments(&self, length: usize) -> Cow<'_, [u8]> {
        let head = self.head.get(size_of::<InHeader>()..length.min(WRITE_HEAD)).unwrap_or_default();
        match length.checked_sub(WRITE_HEAD) {
            None | Some(0) => Cow::Borrowed(head),
            Some(more) => Cow::Owned([head, self.body.bytes().get(..more).unwrap_or_default()].concat()),
        }
    }

    /// What follows the fixed part of a write.
    pub(super) fn payload(&self, length: usize) -> &[u8] {
        self.body.bytes().get(..length.saturating_sub(WRITE_HEAD)).unwrap_or_default()
    }

    /// Takes the payload's buffer out and puts another in.
    pub(super) fn exchange(&mut self, body: Buf) -> Buf {
        std::mem::replace(&mut self.body, body)
    }
}
