//! Compressed blocks: their stored form, and [`CodecWork`], compression and decompression that the
//! caller of the engine does, on whatever thread.
//!
//! The stored form of a compressed block is two bytes with the compressed length, LZ4 or Zstandard
//! data, and zeroes up to a unit.

use std::ops::Range;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use millpond_block::{Buf, BufSlice};
use millpond_format::{BLOCK, Coding, crc32c};
use smallvec::SmallVec;
use zstd::bulk::{Compressor, Decompressor};

use crate::Compression;

/// Bytes of a unit.
const UNIT: usize = 512;
/// Bytes of the length field.
const HEAD: usize = 2;
/// Most bytes of a compressed block in its stored form; a longer one would save no unit, so the
/// block is stored raw.
const MOST: usize = BLOCK - UNIT;
/// Bytes of room that either library may need for a block that it cannot compress: Zstandard's bound
/// is 4,127 bytes, that of LZ4 4,525.
const ROOM: usize = 4608;
/// Bytes of memory that a request to a compressed volume holds for each byte that it moves, at most:
/// the payload, and the output of each work, which for a single block is two pages.
pub(crate) const MEMORY_TIMES: u64 = 3;
/// The level of Zstandard: the fastest above 0.
const LEVEL: i32 = 1;

/// Compression and decompression contexts of one thread. They are created once: for a block of
/// 4 KiB creating one takes longer than coding.
pub struct Codec {
    table: CompressTable,
    packer: Option<Compressor<'static>>,
    unpacker: Option<Decompressor<'static>>,
    /// The stored form of the block that was compressed last.
    stored: Vec<u8>,
}

impl Default for Codec {
    fn default() -> Codec {
        Codec { table: CompressTable::small(), packer: None, unpacker: None, stored: vec![0; ROOM] }
    }
}

impl Codec {
    /// Returns the stored form of a block and its coding; `None` if the block is to be stored raw,
    /// because compression is off or saves no unit.
    pub(crate) fn compress(&mut self, plain: &[u8], compression: Compression) -> Option<(&[u8], Coding)> {
        let mut stored = std::mem::take(&mut self.stored);
        let compressed = self.compress_into(plain, compression, &mut stored);
        self.stored = stored;
        let (length, coding) = compressed?;
        Some((self.stored.get(..length)?, coding))
    }

    /// Writes the stored form of a block to the start of `out`, which has room for [`ROOM`] bytes;
    /// returns its length and coding, or `None` as [`compress`](Codec::compress).
    fn compress_into(&mut self, plain: &[u8], compression: Compression, out: &mut [u8]) -> Option<(usize, Coding)> {
        let (head, body) = out.split_at_mut_checked(HEAD)?;
        let (packed, coding) = match compression {
            Compression::Off => return None,
            Compression::Lz4 => (compress_into_with_table(plain, body, &mut self.table).ok()?, Coding::Lz4),
            Compression::Zstd => {
                if self.packer.is_none() {
                    self.packer = Compressor::new(LEVEL).ok();
                }
                (self.packer.as_mut()?.compress_to_buffer(plain, body).ok()?, Coding::Zstd)
            }
        };
        let length = HEAD + packed;
        if length > MOST {
            return None;
        }
        head.copy_from_slice(&u16::try_from(packed).ok()?.to_le_bytes());
        let stored = length.next_multiple_of(UNIT);
        body.get_mut(packed..stored - HEAD)?.fill(0);
        Some((stored, coding))
    }

    /// Decodes the stored form of a compressed block into `out`; `None` when it is damaged or
    /// `coding` is raw.
    pub(crate) fn decompress(&mut self, stored: &[u8], coding: Coding, out: &mut [u8]) -> Option<()> {
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

/// Blocks of a write to be compressed, or of a read to be decompressed. It has all that it needs:
/// any thread may [`run`](CodecWork::run) it, in any order with others.
#[derive(Debug)]
pub struct CodecWork {
    /// Number, unique within an engine.
    pub(crate) id: u64,
    pub(crate) kind: CodecKind,
}

/// The direction of a [`CodecWork`].
#[derive(Debug)]
pub(crate) enum CodecKind {
    Compress(Compress),
    Decompress(Decompress),
}

impl CodecWork {
    /// Returns its number of blocks, of 4 KiB each before compression.
    pub fn blocks(&self) -> usize {
        match &self.kind {
            CodecKind::Compress(work) => work.plain.len() / BLOCK,
            CodecKind::Decompress(work) => work.stored.len(),
        }
    }

    /// Returns whether a read waits for it, rather than a write.
    pub fn is_for_read(&self) -> bool {
        matches!(self.kind, CodecKind::Decompress(_))
    }

    /// Does the work, with the contexts of this thread. Never fails: a block that cannot be
    /// decompressed is found by the engine when it takes the work back.
    pub fn run(&mut self, codec: &mut Codec) {
        match &mut self.kind {
            CodecKind::Compress(work) => work.run(codec),
            CodecKind::Decompress(work) => work.run(codec),
        }
    }
}

/// Blocks to be compressed.
#[derive(Debug)]
pub(crate) struct Compress {
    pub(crate) plain: BufSlice,
    pub(crate) compression: Compression,
    /// The stored forms; of [`Compress::room`] bytes.
    pub(crate) out: Buf,
    /// The result, by block.
    pub(crate) blocks: Vec<CompressedBlock>,
}

/// A block that was compressed, or was not because that saves nothing.
#[derive(Clone, Debug)]
pub(crate) struct CompressedBlock {
    /// Place of the stored form in the output; `None` for a block to be stored raw.
    stored: Option<Range<usize>>,
    pub(crate) coding: Coding,
    /// Checksum of the stored form.
    pub(crate) crc: u32,
}

impl Compress {
    /// Returns the bytes of the output of `blocks` blocks: stored forms take at most [`MOST`] each,
    /// and while the last one is written it may take [`ROOM`].
    pub(crate) fn room(blocks: usize) -> usize {
        blocks.saturating_sub(1) * MOST + ROOM
    }

    fn run(&mut self, codec: &mut Codec) {
        let mut used = 0;
        self.blocks = Vec::with_capacity(self.plain.len() / BLOCK);
        for plain in self.plain.bytes().chunks_exact(BLOCK) {
            let out = self.out.bytes_mut().get_mut(used..).unwrap_or_default();
            let block = match codec.compress_into(plain, self.compression, out) {
                Some((length, coding)) => {
                    let crc = crc32c(out.get(..length).unwrap_or_default());
                    used += length;
                    CompressedBlock { stored: Some(used - length..used), coding, crc }
                }
                None => CompressedBlock { stored: None, coding: Coding::Raw, crc: crc32c(plain) },
            };
            self.blocks.push(block);
        }
    }

    /// Returns the stored form of a block, with its coding and checksum.
    pub(crate) fn stored(&self, at: usize) -> Option<(&[u8], Coding, u32)> {
        let block = self.blocks.get(at)?;
        let bytes = match &block.stored {
            Some(range) => self.out.bytes().get(range.clone())?,
            None => self.plain.bytes().get(at * BLOCK..(at + 1) * BLOCK)?,
        };
        Some((bytes, block.coding, block.crc))
    }
}

/// Blocks to be decompressed, whose stored forms have the right checksums.
#[derive(Debug)]
pub(crate) struct Decompress {
    pub(crate) stored: SmallVec<[(BufSlice, Coding); 1]>,
    /// The blocks, in the same order.
    pub(crate) out: Buf,
    /// The result: whether each block could be decompressed.
    pub(crate) good: SmallVec<[bool; 16]>,
}

impl Decompress {
    fn run(&mut self, codec: &mut Codec) {
        let Decompress { stored, out, good } = self;
        let blocks = stored.iter().zip(out.bytes_mut().chunks_exact_mut(BLOCK));
        *good = blocks.map(|((stored, coding), block)| codec.decompress(stored.bytes(), *coding, block).is_some()).collect();
    }
}

#[cfg(test)]
mod tests;
