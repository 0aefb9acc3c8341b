//! The stored form of a compressed block: two bytes with the compressed length, LZ4 or Zstandard
//! data, and zeroes up to a unit.
//!
//! Contexts of both libraries are created once: for a block of 4 KiB creating one takes longer than
//! coding.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use millpond_block::BufSlice;
use millpond_format::{BLOCK, Coding};
use zstd::bulk::{Compressor, Decompressor};

use super::requests::Requests;
use crate::Compression;
use crate::store::Store;

/// Bytes of a unit.
const UNIT: usize = 512;
/// Bytes of the length field.
const HEAD: usize = 2;
/// Most bytes of a compressed block in its stored form; a longer one would save no unit, so the
/// block is stored raw.
const MOST: usize = BLOCK - UNIT;
/// The level of Zstandard: the fastest above 0.
const LEVEL: i32 = 1;

/// Compression and decompression contexts.
pub(crate) struct Codec {
    table: CompressTable,
    packer: Option<Compressor<'static>>,
    unpacker: Option<Decompressor<'static>>,
    /// The stored form of the block that was compressed last.
    stored: Vec<u8>,
}

impl Codec {
    pub(super) fn new() -> Codec {
        let most = get_maximum_output_size(BLOCK).max(zstd::zstd_safe::compress_bound(BLOCK));
        Codec { table: CompressTable::small(), packer: None, unpacker: None, stored: vec![0; HEAD + most] }
    }

    /// Returns the stored form of a block and its coding; `None` if the block is to be stored raw,
    /// because compression is off or saves no unit.
    pub(super) fn compress(&mut self, plain: &[u8], compression: Compression) -> Option<(&[u8], Coding)> {
        let out = self.stored.get_mut(HEAD..)?;
        let (packed, coding) = match compression {
            Compression::Off => return None,
            Compression::Lz4 => (compress_into_with_table(plain, out, &mut self.table).ok()?, Coding::Lz4),
            Compression::Zstd => {
                if self.packer.is_none() {
                    self.packer = Compressor::new(LEVEL).ok();
                }
                (self.packer.as_mut()?.compress_to_buffer(plain, out).ok()?, Coding::Zstd)
            }
        };
        let length = HEAD + packed;
        if length > MOST {
            return None;
        }
        let stored = self.stored.get_mut(..length.next_multiple_of(UNIT))?;
        stored.get_mut(..HEAD)?.copy_from_slice(&u16::try_from(packed).ok()?.to_le_bytes());
        stored.get_mut(length..)?.fill(0);
        Some((stored, coding))
    }

    /// Decodes the stored form of a compressed block into `out`; `None` when it is damaged or
    /// `coding` is raw.
    fn decompress(&mut self, stored: &[u8], coding: Coding, out: &mut [u8]) -> Option<()> {
        let length = usize::from(u16::from_le_bytes(*stored.first_chunk::<HEAD>()?));
        let packed = stored.get(HEAD..HEAD + length)?;
        let written = match coding {
            Coding::Raw => return None,
            Coding::Lz4 => decompress_into(packed, out).ok()?,
            Coding::Zstd => {
                if self.unpacker.is_none() {
                    self.unpacker = Decompressor::new().ok();
                }
                self.unpacker.as_mut()?.decompress_to_buffer(packed, out).ok()?
            }
        };
        (written == BLOCK).then_some(())
    }
}

impl Requests {
    pub(super) fn unpack(&mut self, store: &mut Store, stored: &[u8], coding: Coding) -> Option<BufSlice> {
        let mut buf = store.bufs.take(4096);
        self.codec.decompress(stored, coding, buf.bytes_mut().get_mut(..4096)?)?;
        Some(BufSlice::new(buf, 0..4096))
    }
}

#[cfg(test)]
mod tests;
