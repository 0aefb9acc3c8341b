//! A reply to the kernel: a header, and a small body or the data of a read.

use millpond_block::IoSlices;
use smallvec::SmallVec;
use zerocopy::{Immutable, IntoBytes};

use super::wire::{OpenOut, OutHeader};

/// Bytes of a reply that are stored inline: the header and the body of the answer to a read, write,
/// seek or open.
const INLINE: usize = 32;
const _: () = assert!(size_of::<OutHeader>() + size_of::<OpenOut>() <= INLINE);

/// Reply to be written to the device with one call.
pub struct Reply {
    head: SmallVec<[u8; INLINE]>,
    data: IoSlices,
}

impl Reply {
    /// Makes an error reply.
    pub(super) fn error(unique: u64, errno: i32) -> Reply {
        Reply::bytes(unique, -errno, &[])
    }

    /// Makes a reply with a structure as its body.
    pub(super) fn body<T: IntoBytes + Immutable>(unique: u64, body: &T) -> Reply {
        Reply::bytes(unique, 0, body.as_bytes())
    }

    /// Makes a reply that reports success and has no body.
    pub(super) fn done(unique: u64) -> Reply {
        Reply::bytes(unique, 0, &[])
    }

    /// Makes a reply with these bytes as its body. `error` is 0 or a negated errno.
    pub(super) fn bytes(unique: u64, error: i32, body: &[u8]) -> Reply {
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let mut head = SmallVec::from_slice(OutHeader { len, error, unique }.as_bytes());
        head.extend_from_slice(body);
        Reply { head, data: IoSlices::new() }
    }

    /// Makes the reply to a read.
    pub(super) fn data(unique: u64, data: IoSlices) -> Reply {
        let length: usize = data.iter().map(|piece| piece.len()).sum();
        let len = (size_of::<OutHeader>() + length) as u32;
        Reply { head: SmallVec::from_slice(OutHeader { len, error: 0, unique }.as_bytes()), data }
    }

    /// Returns the bytes of the reply, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head.as_slice()).chain(self.data.iter().map(|piece| piece.bytes()))
    }

    /// Returns the data of a read, so that its buffers can be used again.
    pub fn into_data(self) -> IoSlices {
        self.data
    }
}
