//! Compares the payload of a batch with plain bytes.

use super::*;
use millpond_testing::Random;

/// A batch, its payload as plain bytes, and the ranges that one piece must hold each.
struct Twin {
    batch: OpenBatch,
    payload: Vec<u8>,
    whole: Vec<std::ops::Range<usize>>,
}

impl Twin {
    fn new(header_pages: u32) -> Twin {
        let batch = OpenBatch::new(BatchKind::Blocks, 7, header_pages, 0, Encoder::default());
        Twin { batch, payload: Vec::new(), whole: Vec::new() }
    }

    /// Adds bytes in one of three ways.
    fn add(&mut self, random: &mut Random) {
        let seed = random.below(1 << 30) as usize;
        let bytes = |count: usize| -> Vec<u8> { (0..count).map(|at| (seed + at / 7) as u8).collect() };
        let at = self.payload.len();
        match random.below(4) {
            0 | 1 => {
                // compressed blocks, and the longest that fits
                let count = if random.once_in(30) { GATHER } else { 512 * (1 + random.below(8) as usize) };
                let bytes = bytes(count);
                self.batch.room(count, Buf::zeroed).copy_from_slice(&bytes);
                self.whole.push(at..at + count);
                self.payload.extend(bytes);
            }
            2 => {
                let most = if random.once_in(20) { 70 } else { 4 };
                let blocks = random.below(most) as usize;
                let bytes = bytes(blocks * 4096);
                self.batch.copy(&bytes, Buf::zeroed);
                self.whole.extend((0..blocks).map(|block| at + block * 4096..at + (block + 1) * 4096));
                self.payload.extend(bytes);
            }
            _ => {
                let bytes = bytes(512 * (1 + random.below(40) as usize));
                let mut buf = Buf::zeroed(bytes.len() + 512);
                buf.bytes_mut()[512..bytes.len() + 512].copy_from_slice(&bytes);
                self.batch.attach(BufSlice::new(buf, 512..bytes.len() + 512));
                self.whole.push(at..at + bytes.len());
                self.payload.extend(bytes);
            }
        }
    }

    fn compare(&self, header_pages: u32) {
        assert_eq!(self.batch.payload, self.payload.len());
        assert_eq!(self.batch.pages() as usize, header_pages as usize + self.payload.len().div_ceil(4096));
    }

    /// Ends the batch; afterwards it can be found where it is in flight.
    fn finish(mut self) {
        let pieces = self.batch.finish(Buf::zeroed);
        self.payload.resize(self.payload.len().next_multiple_of(4096), 0);
        let all: Vec<&[u8]> = pieces.iter().map(BufSlice::bytes).collect();
        assert!(all.concat() == self.payload, "the pieces are not the payload");
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        let (lsn, segment, unit) = (Lsn(1), SegmentId(1), 24);
        let flight = InFlight { lsn, segment, unit, pieces, waiters: Vec::new(), written: false, deferred: Vec::new() };
        for range in self.whole {
            let found = flight.bytes(unit + (range.start / 512) as u32, (range.len() / 512) as u32);
            assert_eq!(found.expect("one piece holds it").bytes(), &self.payload[range.clone()], "{range:?}");
        }
    }
}

/// Bytes added in any way come out in order, each block in one piece, and padded to whole pages.
#[test]
fn a_payload_is_its_bytes() {
    let random = &mut Random::new(1);
    for size in [0, 1, 2, 3, 8, 40, 150] {
        for _ in 0..4 {
            let header_pages = 1 + random.small(3);
            let mut twin = Twin::new(header_pages);
            for _ in 0..size {
                twin.add(random);
                twin.compare(header_pages);
            }
            twin.finish();
        }
    }
}
