//! [`Drive`]: one device of the cache: a ring of segments, written whole one after the other, the oldest first.

use millpond_block::ByteRange;
use millpond_format::{AREA_BYTES, Addr, BLOCK_UNITS, CacheSegment, DeviceId, Filling, MAX_CACHED};

use super::index::Index;
use crate::space::PAGE;

/// Pages of a segment, its own one included: a 64th of the device, between these.
const SEGMENT_PAGES: (u32, u32) = (4, 256);
/// Bits of an entry that say which block of its segment it is.
const BLOCK_BITS: u32 = 9;
/// Segments at most: entries are numbers of 32 bits, and one is no entry.
const MOST_SEGMENTS: u64 = (1 << (32 - BLOCK_BITS)) - 1;

const _: () = assert!(MAX_CACHED <= 1 << BLOCK_BITS);

/// Where a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The drive.
    pub(crate) drive: u32,
    /// Its segment.
    pub(crate) segment: u32,
    /// The unit behind the segment's first page.
    pub(crate) unit: u32,
}

/// How far a drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its head is to be read, or is being read.
    Head {
        asked: bool,
    },
    /// What is on it is found out: the next segment to look at, and how many are being looked at.
    Scan {
        next: u32,
        reading: u32,
    },
    Ready,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Empty,
    Writing,
    Ready,
}

/// A segment.
#[derive(Debug, Default)]
struct Segment {
    state: State,
    /// Found by the scan: a crash may have torn it.
    found: bool,
    /// Reads under way.
    reads: u32,
    /// The blocks, and the unit at which each begins.
    blocks: Box<[Addr]>,
    at: Box<[u16]>,
}

/// A device of the cache.
#[derive(Debug)]
pub(super) struct Drive {
    /// What its operations are known by: no two drives have the same.
    pub(super) id: u32,
    pub(super) member: u16,
    pub(super) device: DeviceId,
    pub(super) step: Step,
    pub(super) filling: Filling,
    pub(super) pages: u32,
    /// The number of the segment that is written next.
    pub(super) sequence: u64,
    /// Segments being written.
    pub(super) writing: u32,
    /// Segments written since it is in use.
    pub(super) written: u64,
    /// Nothing is written before this time: there was no room below it.
    pub(super) rests_until: u64,
    /// Reads that failed.
    pub(super) troubles: u32,
    segments: Vec<Segment>,
    index: Index,
    /// Blocks of a segment at most.
    pub(super) each: usize,
    /// Blocks at most, and how many there are.
    pub(super) most: usize,
    blocks: usize,
    next: u32,
}

impl Drive {
    /// A device of so many bytes between its labels, for which so many blocks can be remembered.
    pub(super) fn new(id: u32, member: u16, device: DeviceId, bytes: u64, room: usize) -> Drive {
        let all = u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
        let pages = (all / 64).clamp(SEGMENT_PAGES.0, SEGMENT_PAGES.1);
        // the first page is the head
        let segments = u64::from(all.saturating_sub(1) / pages).min(MOST_SEGMENTS);
        // plain blocks fill their segment; of packed ones there are more, and then the oldest segments go before their turn
        let plain = pages as usize - 1;
        let each = MAX_CACHED.min(2 * plain);
        let most = room.min((segments as usize + 1) * plain).max(2 * each);
        Drive {
            id,
            member,
            device,
            step: Step::Head { asked: false },
            filling: Filling { incarnation: 0, time: 0 },
            pages,
            sequence: 0,
            writing: 0,
            written: 0,
            rests_until: 0,
            troubles: 0,
            segments: (0..segments).map(|_| Segment::default()).collect(),
            index: Index::new(most),
            each,
            most,
            blocks: 0,
            next: 0,
        }
    }

    /// Segments of it.
    pub(super) fn count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Bytes of segments in use.
    pub(super) fn used(&self) -> u64 {
        let used = self.segments.iter().filter(|segment| segment.state != State::Empty).count();
        used as u64 * u64::from(self.pages) * PAGE
    }

    /// Its head.
    pub(super) fn head() -> ByteRange {
        ByteRange { offset: AREA_BYTES, length: PAGE }
    }

    /// Pages of a segment, of which the first is number 0.
    pub(super) fn range(&self, segment: u32, page: u32, pages: u32) -> ByteRange {
        let offset = AREA_BYTES + PAGE + (u64::from(segment) * u64::from(self.pages) + u64::from(page)) * PAGE;
        ByteRange { offset, length: u64::from(pages) * PAGE }
    }

    /// Where the copy of a block is.
    pub(super) fn find(&self, addr: Addr) -> Option<Spot> {
        let entry = self.index.find(addr.identity(), key_of(&self.segments))?;
        let segment = entry >> BLOCK_BITS;
        let unit = *self.segments.get(segment as usize)?.at.get(nth(entry))?;
        Some(Spot { drive: self.id, segment, unit: u32::from(unit) })
    }

    /// A segment is read from: it is not written to until that has ended.
    pub(super) fn pin(&mut self, segment: u32) {
        self.segments.get_mut(segment as usize).into_iter().for_each(|segment| segment.reads += 1);
    }

    /// A read of a segment has ended.
    pub(super) fn unpin(&mut self, segment: u32) {
        self.segments.get_mut(segment as usize).into_iter().for_each(|segment| segment.reads -= 1);
    }

    /// The scan found a segment. It counts when there is room for what it holds.
    pub(super) fn found(&mut self, at: u32, found: CacheSegment) {
        if found.sequence >= self.sequence {
            self.sequence = found.sequence + 1;
            self.next = (at + 1) % self.count().max(1);
        }
        let units = (self.pages - 1) * BLOCK_UNITS;
        let mut end = 0;
        let mut places = Vec::with_capacity(found.blocks.len());
        for addr in &found.blocks {
            let start = CacheSegment::place(end, addr.units());
            places.push(start as u16);
            end = start + addr.units();
        }
        if end > units || self.blocks + found.blocks.len() > self.most {
            return;
        }
        self.fill(at, found.blocks.into(), places.into());
        if let Some(segment) = self.segments.get_mut(at as usize) {
            segment.found = true;
        }
        self.show(at);
    }

    /// Makes room for a segment: which one. `None` when reads are in the way.
    pub(super) fn begin(&mut self) -> Option<u32> {
        let chosen = self.next;
        let mut at = chosen;
        loop {
            let segment = self.segments.get(at as usize)?;
            if segment.reads > 0 || segment.state == State::Writing {
                return None;
            }
            self.clear(at);
            if self.blocks + self.each <= self.most {
                break;
            }
            at = (at + 1) % self.count();
            if at == chosen {
                break;
            }
        }
        self.next = (chosen + 1) % self.count();
        Some(chosen)
    }

    /// A segment with these blocks is being written.
    pub(super) fn fill(&mut self, at: u32, blocks: Box<[Addr]>, places: Box<[u16]>) {
        if let Some(segment) = self.segments.get_mut(at as usize) {
            self.blocks += blocks.len();
            (segment.state, segment.found, segment.blocks, segment.at) = (State::Writing, false, blocks, places);
        }
    }

    /// It is there: its blocks can be read.
    pub(super) fn show(&mut self, at: u32) {
        let Drive { segments, index, .. } = self;
        let Some(segment) = segments.get_mut(at as usize) else { return };
        segment.state = State::Ready;
        for nth in 0..segments.get(at as usize).map_or(0, |segment| segment.blocks.len() as u32) {
            let entry = at << BLOCK_BITS | nth;
            let key_of = key_of(segments);
            index.insert(key_of(entry), entry, key_of);
        }
    }

    /// Nothing is in a segment any more. True when it had not been there before the import.
    pub(super) fn clear(&mut self, at: u32) -> bool {
        let Drive { segments, index, blocks, .. } = self;
        let Some(count) = segments.get(at as usize).map(|segment| segment.blocks.len() as u32) else { return false };
        for entry in (0..count).map(|nth| at << BLOCK_BITS | nth) {
            let key_of = key_of(segments);
            index.remove(key_of(entry), entry, key_of);
        }
        let Some(segment) = segments.get_mut(at as usize) else { return false };
        *blocks -= count as usize;
        let fresh = segment.state == State::Ready && !segment.found;
        *segment = Segment { reads: segment.reads, ..Segment::default() };
        fresh
    }
}

fn nth(entry: u32) -> usize {
    (entry & ((1 << BLOCK_BITS) - 1)) as usize
}

/// The key of an entry.
fn key_of(segments: &[Segment]) -> impl Fn(u32) -> u64 + Copy + '_ {
    |entry| {
        let block = segments.get((entry >> BLOCK_BITS) as usize).and_then(|segment| segment.blocks.get(nth(entry)));
        block.map_or(0, |addr| addr.identity())
    }
}
