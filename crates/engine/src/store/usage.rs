//! [`Spans`]: reconstructs from addresses which blocks were written by one request.
//!
//! Blocks of a write follow each other in the log, and an address never changes (I7). So whatever
//! was cleaned or moved since, block and slot numbers grow together, also across batch headers and
//! across blocks that were overwritten later; a small write into the middle of a large one does not
//! split it. Writes that followed each other both in the log and on the disk look like one.

use millpond_format::{Addr, BLOCK_UNITS, ChunkId, STREAMS};

use crate::WRITE_SIZES;
use crate::space::Chunk;

/// Most blocks in a row of a write that may have been overwritten; the blocks after a longer gap
/// count as another write.
const HOLE: u64 = 64;
/// Number of open spans at which those that have ended are closed.
const MANY: usize = 2 * HOLE as usize;
/// Most units of the header of a batch of blocks.
const HEADER_UNITS: u32 = 3 * 8;
/// Most chunks that other streams may have begun before a stream continued in its next one.
const BESIDE: u64 = STREAMS as u64;
/// Most overwritten blocks where a write continued in the next chunk. In small chunks small writes
/// line up by chance, the more often the longer the gap may be.
const HOLE_BETWEEN: u32 = 8;

/// Number of blocks by the size of the write that wrote them: up to each of [`WRITE_SIZES`], and
/// larger.
pub(super) type Sizes = [u64; WRITE_SIZES.len() + 1];

/// The remaining blocks of a write.
#[derive(Debug)]
struct Span {
    chunk: ChunkId,
    first: u64,
    last: u64,
    /// Units of the chunk up to the end of the last block of the span.
    end: u32,
    /// Units of the chunk after that.
    left: u32,
    grain: u8,
    /// Number of blocks that count.
    counted: u64,
    /// Upper bound of the number of blocks of the write, if one is known.
    most: Option<u64>,
}

/// Groups the blocks of one version, which are added in order.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    open: Vec<Span>,
    latest: usize,
    sizes: Sizes,
}

impl Spans {
    /// Adds a block at `addr` of `chunk`. `counts`: the block is counted itself, and does not only
    /// extend its write. `most`: upper bound of the number of blocks of its write, if one is known.
    pub(super) fn add(&mut self, block: u64, addr: Addr, chunk: &Chunk, counts: bool, most: Option<u64>) {
        let grain = u32::from(chunk.grain);
        let (unit, end) = (addr.slot() * grain, addr.slot() * grain + addr.units());
        let goes_on = |span: &Span| span.goes_on(block, addr.chunk(), unit, chunk);
        let found = match self.open.get(self.latest) {
            Some(span) if goes_on(span) => Some(self.latest),
            _ => self.open.iter().position(goes_on),
        };
        let at = found.unwrap_or_else(|| {
            if self.open.len() >= MANY {
                self.close(Some(block));
            }
            self.open.push(Span { chunk: addr.chunk(), first: block, last: block, end, left: 0, grain: chunk.grain, counted: 0, most });
            self.open.len() - 1
        });
        let Some(span) = self.open.get_mut(at) else { return };
        (span.chunk, span.last, span.end) = (addr.chunk(), block, end);
        span.left = (chunk.slots * grain).saturating_sub(end);
        span.counted += u64::from(counts);
        self.latest = at;
    }

    /// Counts the spans that cannot contain `block` any more; all of them at the end of the
    /// version.
    fn close(&mut self, block: Option<u64>) {
        let sizes = &mut self.sizes;
        self.open.retain(|span| {
            let over = block.is_none_or(|block| span.last + HOLE < block);
            if over {
                let blocks = span.last - span.first + 1;
                let bytes = span.most.map_or(blocks, |most| blocks.min(most)) * 4096;
                let class = WRITE_SIZES.iter().position(|size| bytes <= *size).unwrap_or(WRITE_SIZES.len());
                sizes[class] += span.counted;
            }
            !over
        });
        self.latest = 0;
    }

    /// Returns the counts; the next block belongs to another version.
    pub(crate) fn take(&mut self) -> Sizes {
        self.close(None);
        std::mem::take(&mut self.sizes)
    }
}

impl Span {
    /// Returns whether the block at `unit` of a chunk was written together with this span.
    fn goes_on(&self, block: u64, id: ChunkId, unit: u32, chunk: &Chunk) -> bool {
        let Some(ahead) = block.checked_sub(self.last + 1).filter(|ahead| *ahead < HOLE) else { return false };
        let (ahead, grain) = (ahead as u32, u32::from(chunk.grain));
        let packed = grain < BLOCK_UNITS;
        if id != self.chunk {
            // the chunk was full: the next one of the stream begins with a header
            let next =
                id.0.checked_sub(self.chunk.0).is_some_and(|ids| ids <= BESIDE) && self.grain == chunk.grain && ahead <= HOLE_BETWEEN;
            let header = |units: u32| unit >= units && self.left + unit == units + ahead * BLOCK_UNITS;
            return next && (!packed || ahead == 0) && (BLOCK_UNITS..=HEADER_UNITS).step_by(BLOCK_UNITS as usize).any(header);
        }
        let Some(between) = unit.checked_sub(self.end) else { return false };
        // the lengths of compressed blocks that are gone are unknown
        let shortest = if packed { ahead } else { ahead * BLOCK_UNITS };
        if (shortest..=ahead * BLOCK_UNITS).contains(&between) {
            return true;
        }
        let padding = if packed { BLOCK_UNITS - 1 } else { 0 };
        let header = ahead == 0 && unit.is_multiple_of(BLOCK_UNITS) && (BLOCK_UNITS..=HEADER_UNITS + padding).contains(&between);
        header && (self.end / grain..unit / grain).all(|slot| !chunk.uses(slot))
    }
}

#[cfg(test)]
mod tests {
    use millpond_format::{Coding, Epoch};

    use super::*;

    /// Returns a chunk of plain blocks, with batch headers in these slots.
    fn chunk(headers: &[u32]) -> Chunk {
        let mut chunk = Chunk::new(Epoch(1), 0, 0, 8);
        chunk.slots = 512;
        for slot in (0..512).filter(|slot| !headers.contains(slot)) {
            chunk.live.insert_range(slot, 1);
        }
        chunk
    }

    /// Returns the sizes of blocks, given with their slots of chunk 1.
    fn sizes(chunk: &Chunk, blocks: &[(u64, u32)]) -> Sizes {
        let mut spans = Spans::default();
        blocks.iter().for_each(|(block, slot)| spans.add(*block, Addr::new(ChunkId(1), *slot, 8, Coding::Raw), chunk, true, None));
        spans.take()
    }

    #[test]
    fn what_lies_together_was_written_together() {
        let all = chunk(&[0]);
        let run = |from: u64, slot: u32, count: u64| (0..count).map(move |at| (from + at, slot + at as u32));
        assert_eq!(sizes(&all, &run(7, 1, 4).collect::<Vec<_>>()), [0, 0, 4, 0, 0, 0, 0]);
        let scattered: Vec<_> = (0..9).map(|at| (at, 400 - 7 * at as u32)).collect();
        assert_eq!(sizes(&all, &scattered), [9, 0, 0, 0, 0, 0, 0]);
        // 40 blocks with three small ones in the middle, that were written later
        let mut large: Vec<_> = run(0, 1, 40).collect();
        (large[11].1, large[12].1, large[30].1) = (100, 101, 200);
        assert_eq!(sizes(&all, &large), [1, 2, 0, 0, 0, 0, 37]);
    }

    #[test]
    fn a_header_in_between_divides_no_write() {
        let blocks: Vec<_> = (0..10).map(|at| (at, if at < 4 { 10 + at as u32 } else { 11 + at as u32 })).collect();
        assert_eq!(sizes(&chunk(&[14]), &blocks), [0, 0, 0, 0, 10, 0, 0]);
        // another block is in the slot
        assert_eq!(sizes(&chunk(&[]), &blocks), [0, 0, 4, 6, 0, 0, 0]);
    }

    #[test]
    fn a_write_goes_on_in_the_next_chunk() {
        let full = chunk(&[0]);
        let mut spans = Spans::default();
        let addr = |chunk: u64, slot: u32| Addr::new(ChunkId(chunk), slot, 8, Coding::Raw);
        (0..3).for_each(|at| spans.add(at, addr(1, 509 + at as u32), &full, true, None));
        (3..8).for_each(|at| spans.add(at, addr(4, at as u32 - 2), &full, at != 7, None));
        assert_eq!(spans.take(), [0, 0, 0, 7, 0, 0, 0]);
        // the overwritten blocks were at the end of one chunk and at the start of the next
        (0..2).for_each(|at| spans.add(at, addr(1, 507 + at as u32), &full, true, None));
        (6..9).for_each(|at| spans.add(at, addr(2, at as u32 - 4), &full, true, None));
        (9..10).for_each(|at| spans.add(at, addr(3, at as u32), &full, true, None));
        assert_eq!(spans.take(), [1, 0, 0, 0, 5, 0, 0]);
        // the write is known to have no more than two blocks
        (0..8).for_each(|at| spans.add(at, addr(1, 1 + at as u32), &full, true, Some(2)));
        assert_eq!(spans.take(), [0, 8, 0, 0, 0, 0, 0]);
    }

    /// The chunks of a pool of 512 MiB are that small.
    #[test]
    fn small_writes_at_random_look_large_by_chance_alone() {
        let mut small = Chunk::new(Epoch(1), 0, 0, 8);
        small.slots = 32;
        small.live.insert_range(1, 31);
        let (mut spans, blocks) = (Spans::default(), 31 * 256);
        for block in 0..blocks {
            // a permutation without short strides
            let place = block * 4999 % blocks;
            let addr = Addr::new(ChunkId(1 + place / 31), 1 + (place % 31) as u32, 8, Coding::Raw);
            spans.add(block, addr, &small, true, None);
        }
        let found = spans.take();
        assert!(found[0] * 100 >= blocks * 95, "{found:?}");
    }

    #[test]
    fn many_writes_are_not_kept_in_memory() {
        let all = chunk(&[0]);
        let mut spans = Spans::default();
        for block in 0..10_000u64 {
            let slot = 1 + (block * 211 % 509) as u32;
            spans.add(block, Addr::new(ChunkId(1 + block), slot, 8, Coding::Raw), &all, true, None);
            assert!(spans.open.len() <= MANY);
        }
        assert_eq!(spans.take()[0], 10_000);
    }
}
