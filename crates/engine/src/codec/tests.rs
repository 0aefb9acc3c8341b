use millpond_format::Coding;

use super::*;
use crate::Compression;
use millpond_testing::Random;

/// Returns a block whose first bytes are noise.
fn block(noise: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed | 1);
    (0..BLOCK).map(|i| if i < noise { random.byte() } else { seed as u8 }).collect()
}

/// Blocks of every compressed size, coded one after another with the same contexts, decode to their
/// content.
#[test]
fn blocks_come_back() {
    let mut codec = Codec::default();
    for (compression, expected) in [(Compression::Lz4, Coding::Lz4), (Compression::Zstd, Coding::Zstd)] {
        let mut compressed = 0;
        for noise in (0..=BLOCK).step_by(97) {
            let plain = block(noise, noise as u64);
            let Some((stored, coding)) = codec.compress(&plain, compression) else {
                assert!(noise > 3000, "{noise} bytes of noise leave units to save");
                continue;
            };
            assert_eq!((coding, stored.len() % 512), (expected, 0));
            assert!(stored.len() < BLOCK);
            let stored = stored.to_vec();
            let mut out = vec![1; BLOCK];
            codec.decompress(&stored, coding, &mut out).unwrap();
            assert_eq!(out, plain);
            compressed += 1;
        }
        assert!(compressed > 20);
    }
}

#[test]
fn either_library_has_the_room_that_it_may_need() {
    assert!(HEAD + lz4_flex::block::get_maximum_output_size(BLOCK) <= ROOM);
    assert!(HEAD + zstd::zstd_safe::compress_bound(BLOCK) <= ROOM);
}

#[test]
fn work_stores_what_the_engine_would() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        for blocks in [1, 3, 8] {
            let plain: Vec<u8> =
                (0..blocks).flat_map(|nth| block(nth * 4096 / blocks.max(2), nth as u64 + 3)).chain(block(BLOCK, 9)).collect();
            let mut buf = Buf::zeroed(plain.len());
            buf.bytes_mut().copy_from_slice(&plain);
            let work = Compress {
                plain: BufSlice::new(buf, 0..plain.len()),
                compression,
                out: Buf::zeroed(Compress::room(blocks + 1)),
                blocks: Vec::new(),
            };
            let mut work = CodecWork { id: 1, kind: CodecKind::Compress(work) };
            work.run(&mut Codec::default());
            let CodecKind::Compress(done) = work.kind else { panic!("another kind") };
            let mut codec = Codec::default();
            for (at, plain) in plain.chunks_exact(BLOCK).enumerate() {
                let (stored, coding) = codec.compress(plain, compression).unwrap_or((plain, Coding::Raw));
                assert!(done.stored(at) == Some((stored, coding, crc32c(stored))), "block {at} of {blocks}, {compression:?}");
            }
        }
    }
}

#[test]
fn noise_and_what_is_not_to_be_compressed_are_stored_as_they_are() {
    let mut codec = Codec::default();
    assert!(codec.compress(&block(BLOCK, 7), Compression::Lz4).is_none());
    assert!(codec.compress(&block(BLOCK, 7), Compression::Zstd).is_none());
    assert!(codec.compress(&block(0, 7), Compression::Off).is_none());
}

/// Damaged input is rejected, and the contexts decode the next block.
#[test]
fn damage_is_no_block() {
    let mut codec = Codec::default();
    for compression in [Compression::Lz4, Compression::Zstd] {
        let plain = block(1000, 3);
        let (stored, coding) = codec.compress(&plain, compression).map(|(stored, coding)| (stored.to_vec(), coding)).unwrap();
        let mut out = vec![0; BLOCK];
        for length in [0, 1, 2, 17, 600] {
            assert!(codec.decompress(&stored[..length], coding, &mut out).is_none());
        }
        let mut longer = stored.clone();
        longer[..2].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(codec.decompress(&longer, coding, &mut out).is_none());
        codec.decompress(&stored, coding, &mut out).unwrap();
        assert_eq!(out, plain);
    }
}
