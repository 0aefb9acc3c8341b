//! [`CacheDevice`]: one cache device: a ring of segments, each written as a whole, the oldest
//! overwritten first.

use millpond_block::{ByteRange, MemberId};
use millpond_format::{AREA_BYTES, Addr, BLOCK_UNITS, CacheSegment, DeviceId, Filling, MAX_CACHED};

use super::index::Index;
use crate::space::PAGE;

/// Pages of a segment, its first page included: a 64th of the device, within these bounds.
const SEGMENT_PAGES: (u32, u32) = (4, 256);
/// Bits of an entry for the number of the block in its segment.
const BLOCK_BITS: u32 = 9;
/// Maximum segments: entries are numbers of 32 bits, of which one means no entry.
const MOST_SEGMENTS: u64 = (1 << (32 - BLOCK_BITS)) - 1;

const _: () = assert!(MAX_CACHED <= 1 << BLOCK_BITS);

/// Place of a copy on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheSlot {
    /// The drive.
    pub(crate) drive: u32,
    /// Its segment.
    pub(crate) segment: u32,
    /// Unit, counted from the end of the segment's first page.
    pub(crate) unit: u32,
}

/// Stage of taking a drive into use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its head is to be read, or is being read.
    Head {
        asked: bool,
    },
    /// Its segments are read: the next segment to read, and the number that are being read.
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
    /// True when the scan found it, so that a crash may have torn it.
    found: bool,
    /// Reads in flight.
    reads: u32,
    /// Addresses of its blocks, and the unit at which each begins.
    blocks: Box<[Addr]>,
    at: Box<[u16]>,
}

/// A cache device.
#[derive(Debug)]
pub(super) struct CacheDevice {
    /// Identity in operations; no two drives ever have the same.
    pub(super) id: u32,
    pub(super) member: MemberId,
    pub(super) device: DeviceId,
    pub(super) step: Step,
    pub(super) filling: Filling,
    pub(super) pages: u32,
    /// Number of the next segment that is written.
    pub(super) sequence: u64,
    /// Number of segments being written.
    pub(super) writing: u32,
    /// Segments written since it was taken into use.
    pub(super) written: u64,
    /// No writes before this time, in milliseconds, because the filesystem below was full.
    pub(super) rests_until: u64,
    /// Number of failed reads.
    pub(super) troubles: u32,
    segments: Vec<Segment>,
    index: Index,
    /// Maximum blocks of a segment.
    pub(super) each: usize,
    /// Maximum blocks, and their present number.
    pub(super) most: usize,
    blocks: usize,
    next: u32,
}

impl CacheDevice {
    /// Creates a drive for a device with `bytes` bytes between its labels, and memory for `room`
    /// blocks.
    pub(super) fn new(id: u32, member: MemberId, device: DeviceId, bytes: u64, room: usize) -> CacheDevice {
        let all = u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
        let pages = (all / 64).clamp(SEGMENT_PAGES.0, SEGMENT_PAGES.1);
        // the first page is the head
        let segments = u64::from(all.saturating_sub(1) / pages).min(MOST_SEGMENTS);
        // plain blocks fill their segment; compressed blocks are more, so the oldest segments are
        // dropped before their turn
        let plain = pages as usize - 1;
        let each = MAX_CACHED.min(2 * plain);
        let most = room.min((segments as usize + 1) * plain).max(2 * each);
        CacheDevice {
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

    /// Number of segments.
    pub(super) fn count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Bytes of segments in use.
    pub(super) fn used(&self) -> u64 {
        let used = self.segments.iter().filter(|segment| segment.state != State::Empty).count();
        used as u64 * u64::from(self.pages) * PAGE
    }

    /// Place of its head.
    pub(super) fn head() -> ByteRange {
        ByteRange { offset: AREA_BYTES, length: PAGE }
    }

    /// Place of pages of a segment, counted from its first page.
    pub(super) fn range(&self, segment: u32, page: u32, pages: u32) -> ByteRange {
        let offset = AREA_BYTES + PAGE + (u64::from(segment) * u64::from(self.pages) + u64::from(page)) * PAGE;
        ByteRange { offset, length: u64::from(pages) * PAGE }
    }

    /// Returns the place of the copy of a block.
    pub(super) fn find(&self, addr: Addr) -> Option<CacheSlot> {
        let entry = self.index.find(addr.identity(), key_of(&self.segments))?;
        let segment = entry >> BLOCK_BITS;
        let unit = *self.segments.get(segment as usize)?.at.get(nth(entry))?;
        Some(CacheSlot { drive: self.id, segment, unit: u32::from(unit) })
    }

    /// Marks a segment as being read: it is not overwritten until the read has ended.
    pub(super) fn pin(&mut self, segment: u32) {
        self.segments.get_mut(segment as usize).into_iter().for_each(|segment| segment.reads += 1);
    }

    /// Records that a read of a segment has ended.
    pub(super) fn unpin(&mut self, segment: u32) {
        self.segments.get_mut(segment as usize).into_iter().for_each(|segment| segment.reads -= 1);
    }

    /// Takes a segment that the scan found, if there is memory for its blocks.
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

    /// Frees the next segment, and returns it. `None` while reads or a write use it.
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

    /// Marks a segment as being written with these blocks.
    pub(super) fn fill(&mut self, at: u32, blocks: Box<[Addr]>, places: Box<[u16]>) {
        if let Some(segment) = self.segments.get_mut(at as usize) {
            self.blocks += blocks.len();
            (segment.state, segment.found, segment.blocks, segment.at) = (State::Writing, false, blocks, places);
        }
    }

    /// Makes the blocks of a written segment available.
    pub(super) fn show(&mut self, at: u32) {
        let CacheDevice { segments, index, .. } = self;
        let Some(segment) = segments.get_mut(at as usize) else { return };
        segment.state = State::Ready;
        for nth in 0..segments.get(at as usize).map_or(0, |segment| segment.blocks.len() as u32) {
            let entry = at << BLOCK_BITS | nth;
            let key_of = key_of(segments);
            index.insert(key_of(entry), entry, key_of);
        }
    }

    /// Removes all blocks of a segment. True when this import had written it.
    pub(super) fn clear(&mut self, at: u32) -> bool {
        let CacheDevice { segments, index, blocks, .. } = self;
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

/// Returns a function from an entry to its key.
fn key_of(segments: &[Segment]) -> impl Fn(u32) -> u64 + Copy + '_ {
    |entry| {
        let block = segments.get((entry >> BLOCK_BITS) as usize).and_then(|segment| segment.blocks.get(nth(entry)));
        block.map_or(0, |addr| addr.identity())
    }
}
