//! Compares the index with a list of single blocks.

use millpond_format::{BATCH_FIXED, BatchHeader, Epoch, HEADER_PAGE, PoolId};

use super::*;
use millpond_testing::Random;

/// A block of a small-write batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plain {
    /// The batch, once it is sealed.
    lsn: Lsn,
    volume: VolumeId,
    block: u64,
    segment: SegmentId,
    chunk: ChunkId,
    slot: u32,
    crc: u32,
}

/// Decodes the items of a batch that begins with the index.
fn decode(items: &[u8]) -> Vec<Item> {
    let header = BatchHeader {
        stream: 0,
        pages: 1,
        pool: PoolId::default(),
        incarnation: 0,
        next: SegmentId(0),
        lsn: Lsn(1),
        durable: Lsn(0),
        epoch: Epoch(1),
        chunk: ChunkId(0),
        birth: 0,
        segment: SegmentId(0),
        offset: 0,
        base: 0,
        payload: 0,
        grain: 8,
    };
    let mut page = vec![0; HEADER_PAGE];
    header.encode(items, &mut page);
    BatchHeader::decode(&page).expect("its own").1
}

/// Takes apart the runs of an index.
fn blocks_of(runs: &[SmallRun]) -> Vec<Plain> {
    let blocks = |run: &SmallRun| {
        let run = run.clone();
        (0..run.crcs.len()).map(move |at| Plain {
            lsn: run.lsn,
            volume: run.volume,
            block: run.block.0 + at as u64,
            segment: run.segment,
            chunk: run.chunk,
            slot: u32::from(run.slot) + at as u32,
            crc: run.crcs[at],
        })
    };
    runs.iter().flat_map(blocks).collect()
}

/// Number of runs of consecutive blocks of one batch.
fn runs_in(blocks: &[Plain]) -> usize {
    let follows =
        |a: &Plain, b: &Plain| (a.lsn, a.volume, a.chunk) == (b.lsn, b.volume, b.chunk) && (a.block + 1, a.slot + 1) == (b.block, b.slot);
    blocks.chunk_by(follows).count()
}

/// Blocks of batches, and the index of them.
#[derive(Default)]
struct Twin {
    small_write_index: SmallWriteIndex,
    batches: u32,
    sealed: Vec<Plain>,
    open: Vec<Plain>,
}

impl Twin {
    fn bytes(&self) -> usize {
        [&self.sealed, &self.open].iter().map(|blocks| runs_in(blocks) * SmallRun::BYTES + blocks.len() * 4).sum()
    }

    /// Takes the index and compares it.
    fn take(&mut self) {
        let most = self.small_write_index.bytes();
        let items = self.small_write_index.take();
        assert!(items.len() <= most, "{} bytes where {most} were promised", items.len());
        if self.batches == 0 {
            assert!(items.bytes().is_empty());
            return;
        }
        let decoded = decode(items.bytes());
        let [Item::Small { batches, runs }] = decoded.as_slice() else { panic!("{decoded:?}") };
        assert_eq!((*batches, blocks_of(runs)), (self.batches, std::mem::take(&mut self.sealed)));
        assert_eq!(runs.len(), runs_in(&blocks_of(runs)), "neighbours are one run");
        self.batches = 0;
    }

    /// Adds blocks that follow the last ones, if `follows`.
    fn add(&mut self, random: &mut Random, follows: bool) {
        let room = self.small_write_index.room().min(400);
        let last = self.open.last().or(self.sealed.last()).copied();
        let (volume, chunk) = (VolumeId(random.small(3)), ChunkId(1 + random.below(3)));
        let fresh = (volume, random.below(1 << 40), chunk, random.small(600));
        let (volume, block, chunk, slot) = match last {
            Some(last) if follows => (last.volume, last.block + 1, last.chunk, last.slot + 1),
            // one of the four differs
            Some(last) => match random.below(5) {
                0 => (VolumeId(last.volume.0 + 1), last.block + 1, last.chunk, last.slot + 1),
                1 => (last.volume, last.block + 2, last.chunk, last.slot + 1),
                2 => (last.volume, last.block + 1, ChunkId(last.chunk.0 + 1), last.slot + 1),
                3 => (last.volume, last.block + 1, last.chunk, last.slot + 2),
                _ => fresh,
            },
            None => fresh,
        };
        let most = if random.once_in(9) { room } else { room.min(9) };
        let count = most.min(1 + random.below(most as u64) as usize).min(1023usize.saturating_sub(slot as usize));
        if count == 0 {
            return;
        }
        let (segment, crcs) = (SegmentId(chunk.0 as u32 * 7), (0..count).map(|_| random.small(u32::MAX)).collect::<Vec<_>>());
        self.small_write_index.add(volume, BlockNo(block), segment, chunk, slot, &crcs);
        let each = |(at, crc): (u32, &u32)| Plain {
            lsn: Lsn(0),
            volume,
            block: block + u64::from(at),
            segment,
            chunk,
            slot: slot + at,
            crc: *crc,
        };
        self.open.extend((0..).zip(&crcs).map(each));
    }
}

/// The index of any batches has their blocks, in order and in as few runs as possible, and fits into
/// its bytes.
#[test]
fn an_index_is_a_list_of_blocks() {
    let (mut twin, mut full) = (Twin::default(), 0);
    let random = &mut Random::new(1);
    for lsn in 1..6000 {
        match random.below(30) {
            0..12 => twin.add(random, true),
            12..19 => twin.add(random, false),
            19..28 => {
                twin.small_write_index.seal(Lsn(lsn));
                twin.batches += 1;
                twin.sealed.extend(twin.open.drain(..).map(|block| Plain { lsn: Lsn(lsn), ..block }));
            }
            _ if random.once_in(4) => twin.take(),
            _ => {}
        }
        let bytes = twin.bytes();
        assert_eq!(twin.small_write_index.bytes(), if twin.batches == 0 { 0 } else { bytes + 16 });
        assert_eq!(twin.small_write_index.room(), MOST_BYTES.saturating_sub(bytes + SmallRun::BYTES) / 4);
        assert!(bytes <= MOST_BYTES && MOST_BYTES + 16 < HEADER_PAGE - BATCH_FIXED);
        full += u32::from(twin.small_write_index.room() == 0);
    }
    assert!(full > 100, "the index was full {full} times");
}
