//! NBD block status: which ranges of an export hold data.

use std::io;

use super::client::{Nbd, broken};

const COMMAND_BLOCK_STATUS: u16 = 7;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const CHUNK_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_BLOCK_STATUS: u16 = 5;
const CHUNK_IS_ERROR: u16 = 1 << 15;
/// Longest chunk accepted in bytes: 128 Ki extents.
const MAX_CHUNK: u32 = 1 << 20;
/// Maximum bytes of one query: servers may refuse lengths near 32 bits, and require whole sectors.
const MAX_RANGE: u64 = 1 << 31;

/// A contiguous range with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Status flags of the metadata context.
    pub flags: u32,
}

impl Nbd {
    /// Returns extents from `offset` on: at least one, not necessarily `length` bytes. Needs a
    /// connection of [`Nbd::connect_for_extents`].
    ///
    /// # Errors
    /// The host's I/O error, or the error that the server returned.
    pub fn extents(&mut self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let context = self.context.ok_or_else(|| broken("extents were not agreed on"))?;
        let asked = u32::try_from(length.min(MAX_RANGE)).map_err(|_| broken("too long"))?;
        self.request(COMMAND_BLOCK_STATUS, 0, offset, asked, &[])?;
        let (mut extents, mut at) = (Vec::new(), offset);
        loop {
            let (magic, flags, kind, _cookie, size) = (self.u32()?, self.u16()?, self.u16()?, self.u64()?, self.u32()?);
            if magic != CHUNK_MAGIC || size > MAX_CHUNK {
                return Err(broken("a strange reply"));
            }
            let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
            self.read_payload(&mut data)?;
            match kind {
                CHUNK_NONE => {}
                CHUNK_BLOCK_STATUS => {
                    let (id, pairs) = data.split_first_chunk().ok_or_else(|| broken("a short reply"))?;
                    if u32::from_be_bytes(*id) != context {
                        return Err(broken("a context that was not asked for"));
                    }
                    for pair in pairs.chunks_exact(8) {
                        let word = |at: usize| pair.get(at..at + 4).and_then(|w| w.first_chunk()).map_or(0, |w| u32::from_be_bytes(*w));
                        let length = u64::from(word(0)).min((offset + length).saturating_sub(at));
                        if length > 0 {
                            extents.push(Extent { offset: at, length, flags: word(4) });
                            at += length;
                        }
                    }
                }
                kind if kind & CHUNK_IS_ERROR != 0 => {
                    let errno = data.first_chunk().map_or(5, |w| i32::from_be_bytes(*w));
                    return Err(io::Error::from_raw_os_error(errno));
                }
                _ => return Err(broken("a strange reply")),
            }
            if flags & CHUNK_DONE != 0 {
                break;
            }
        }
        if extents.is_empty() { Err(broken("no extents")) } else { Ok(extents) }
    }
}
