//! Gathering: writes blocks again next to each other that guests read together and that lie apart,
//! as after random overwrites.
//!
//! Each leaf of the map in memory counts the device reads that long reads needed beyond one each,
//! and loses the count when it is written. When the reads that gathering would have spared have
//! cost as much as gathering does (512 for a leaf of 512 blocks), the leaf is gathered: whatever
//! guests do later, the work is at most twice that of the best choice. A scan of a volume counts
//! at most 480 and moves nothing; a leaf that is written more than it is read never qualifies.
//!
//! Only blocks of uncompressed volumes are gathered. Those that belong to the head alone, whose chunk is
//! younger than the last snapshot, get new addresses: no snapshot grows, and no comparison with one
//! shows more than before. Those that snapshots of the volume share are gathered if the feature `forwards`
//! is in force: their addresses stay (INV-FORWARD-3). Blocks are read as guests read them, checked and repaired; then,
//! in one turn, those whose map entry is still the same address (INV-GATHER-1) are appended
//! ([`append_gathered`](Store::append_gathered)).
//! An address always means the same bytes (I11), so whatever happened in between, the content that
//! is mapped is the content that was: a guest's write, a discard, a rollback, or a resize changes
//! the entry, and a snapshot makes the chunk older than the last snapshot. A crash at any point
//! leaves the old entry or the new one.
//!
//! Guests first: gathering pauses while space is short or redundancy is missing, keeps to the rate of
//! jobs, and writes at most a fiftieth of the bytes that guests write while the cleaner runs, and in a
//! pool that is more than four fifths full.

use std::collections::VecDeque;

use millpond_block::{BufSlice, DiskError, IoSlices};
use millpond_format::{Addr, BLOCK_UNITS, BlockNo, Coding, Epoch, FANOUT, LineageId, MemberState, SegmentId, VolumeId, crc32c};
use smallvec::SmallVec;

use crate::log::Stream;
use crate::space::PAGE;
use crate::store::{GAP_PAGES, GatherRead, GatheredBlock, Scattered, Store};
use crate::{Compression, Planted, PoolState, Time};

/// Most leaves that wait: 2 GiB of volumes.
const MOST_WAITING: usize = 1024;
/// Most blocks of a read: guests' reads wait behind it.
const READ_BLOCKS: usize = 16;
/// Reads in flight: while guests are active, and otherwise.
const READS: (usize, usize) = (1, 4);
/// Most blocks appended in a turn: as many as a batch of guests has.
const APPENDS: usize = 256;
/// Blocks of a leaf are gathered when they are at more than so many times the places that they will
/// be at.
const WORTH: usize = 2;
/// While guests write and the cleaner runs, one byte is gathered for so many bytes of theirs: with a
/// write amplification of 2.5, as much as 0.05 more.
const PART: u64 = 50;
/// Most bytes of that allowance that can be saved: two leaves.
const MOST_SAVED: i64 = 4 << 20;
/// Milliseconds for which a write of guests, or a move by the cleaner, counts as recent.
const RECENT_MILLIS: u64 = 1_000;
/// Percent of the space for guests beyond which gathering always keeps to that part.
const FULL_PERCENT: u64 = 80;
/// Most leaves that are looked at in a turn.
const PLANS: usize = 8;

/// A block as the map had it when it was read.
#[derive(Clone, Copy, Debug)]
struct Source {
    block: BlockNo,
    addr: Addr,
    crc: u32,
}

/// A read in flight.
#[derive(Debug)]
struct Reading {
    nth: u64,
    first: BlockNo,
    sources: Vec<Source>,
}

/// A leaf that is being gathered.
#[derive(Debug)]
struct Work {
    volume: VolumeId,
    lineage: LineageId,
    first: BlockNo,
    /// Ranges that are still to be read, the next one last.
    todo: Vec<(BlockNo, usize)>,
    reading: SmallVec<[Reading; 4]>,
    /// Blocks that were read and are still to be appended, the first one last.
    blocks: Vec<(Source, BufSlice)>,
}

/// The gathering task.
#[derive(Debug, Default)]
pub(crate) struct Gatherer {
    waiting: VecDeque<Scattered>,
    work: Option<Work>,
    /// Number of the last read.
    nth: u64,
    /// Bytes that guests and the cleaner had written when that last changed, and the times of the
    /// changes.
    written: (u64, Option<Time>),
    cleaned: (u64, Option<Time>),
    /// Bytes that may be gathered while guests write and the cleaner runs; negative when a leaf was
    /// larger than the rest.
    allowance: i64,
}

impl Gatherer {
    /// Adds a leaf to those that are to be gathered. Without room it is forgotten, and counts again.
    pub(crate) fn want(&mut self, leaf: Scattered) {
        let is_known =
            self.waiting.contains(&leaf) || self.work.as_ref().is_some_and(|work| (work.volume, work.first) == (leaf.volume, leaf.first));
        if !is_known && self.waiting.len() < MOST_WAITING {
            self.waiting.push_back(leaf);
        }
    }

    /// Returns whether there is nothing to do.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.work.is_none()
    }

    /// Checks whether gathering may go on, and appends what was read.
    pub(crate) fn step_gather(&mut self, store: &mut Store, wiping: bool) {
        self.count(store);
        if self.is_idle() {
            return;
        }
        if may_gather(store, wiping) {
            self.append(store);
        } else {
            self.work = None;
        }
    }

    /// Returns whether blocks were read and can be appended in the next turn.
    pub(crate) fn can_append(&self, store: &Store) -> bool {
        self.work.as_ref().is_some_and(Work::is_read) && may_append(store)
    }

    /// Returns the next blocks to read; `None` when there are none, or not now.
    pub(crate) fn next_read(&mut self, store: &mut Store, wiping: bool) -> Option<GatherRead> {
        if self.is_idle() || !may_gather(store, wiping) {
            return None;
        }
        if self.work.is_none() {
            self.work = self.begin(store);
        }
        loop {
            let work = self.work.as_mut()?;
            if work.todo.is_empty() || work.reading.len() >= store.job_depth(READS) || !store.jobs_may_go_on() {
                return None;
            }
            let (first, blocks) = work.todo.pop()?;
            let Some(sources) = work.sources(store, first, blocks) else {
                // the leaf is gone, or no longer in memory
                self.work = None;
                return None;
            };
            if sources.is_empty() {
                continue;
            }
            self.nth += 1;
            store.charge_jobs(blocks as u64 * PAGE);
            work.reading.push(Reading { nth: self.nth, first, sources });
            return Some(GatherRead { nth: self.nth, volume: work.volume, first, blocks });
        }
    }

    /// Takes in blocks that were read. Blocks that could not be read are left where they are.
    pub(crate) fn blocks_read(&mut self, nth: u64, result: Result<IoSlices, DiskError>) {
        let Some(work) = &mut self.work else { return };
        let Some(at) = work.reading.iter().position(|reading| reading.nth == nth) else { return };
        let reading = work.reading.swap_remove(at);
        let Ok(data) = result else {
            // its good blocks are read one by one, so that they do not stay apart for ever
            if reading.sources.len() > 1 {
                work.todo.extend(reading.sources.iter().rev().map(|source| (source.block, 1)));
            }
            return;
        };
        let blocks = data.iter().flat_map(|piece| (0..piece.len()).step_by(4096).map(|at| piece.slice(at..at + 4096)));
        let mut sources = reading.sources.into_iter().peekable();
        for (block, piece) in (reading.first.0..).zip(blocks) {
            if let Some(source) = sources.next_if(|source| source.block.0 == block) {
                work.blocks.push((source, piece));
            }
        }
    }
}

impl Gatherer {
    /// Notes writes of guests and of the cleaner.
    fn count(&mut self, store: &Store) {
        let (written, cleaned) = (store.metrics.user_bytes, store.metrics.cleaner_bytes);
        if written != self.written.0 {
            let earned = i64::try_from((written - self.written.0) / PART).unwrap_or(i64::MAX);
            self.allowance = self.allowance.saturating_add(earned).min(MOST_SAVED);
            self.written = (written, Some(store.now));
        }
        if cleaned != self.cleaned.0 {
            self.cleaned = (cleaned, Some(store.now));
        }
    }

    /// Returns whether gathering keeps to its part of guests' bytes: while they write and the cleaner
    /// runs, and in a pool that is nearly full, where each byte costs the cleaner several.
    fn is_bounded(&self, store: &Store) -> bool {
        let is_recent = |at: Option<Time>| at.is_some_and(|at| store.now.0 < at.0 + RECENT_MILLIS);
        let is_full = store.core.space.live_units() * 100 > store.usable_units() * FULL_PERCENT;
        is_full || (is_recent(self.written.1) && is_recent(self.cleaned.1))
    }

    /// Begins with the next leaf that is worth it.
    fn begin(&mut self, store: &mut Store) -> Option<Work> {
        if self.is_bounded(store) && self.allowance <= 0 {
            return None;
        }
        if store.may_forward() && !self.waiting.is_empty() {
            store.close_old_chunks();
        }
        std::iter::from_fn(|| self.waiting.pop_front()).take(PLANS).find_map(|leaf| Work::plan(store, leaf))
    }

    /// Appends blocks that were read, once all of the leaf are.
    fn append(&mut self, store: &mut Store) {
        let is_bounded = self.is_bounded(store);
        let Some(work) = self.work.as_mut().filter(|work| work.is_read() && may_append(store)) else { return };
        work.blocks.sort_unstable_by_key(|(source, _)| std::cmp::Reverse(source.block));
        let next = work.blocks.split_off(work.blocks.len().saturating_sub(APPENDS));
        let appended = work.append(store, next);
        if is_bounded {
            self.allowance = self.allowance.saturating_sub_unsigned(appended as u64 * PAGE).max(-MOST_SAVED);
        }
        if appended == 0 || work.blocks.is_empty() {
            self.work = None;
        }
    }
}

impl Work {
    /// Plans to gather a leaf; `None` when nothing can be gained, or it is not in memory.
    fn plan(store: &mut Store, leaf: Scattered) -> Option<Work> {
        let volume = store.core.catalog.volumes.get(&leaf.volume)?;
        let (lineage, end) = (volume.lineage, volume.size / PAGE);
        if volume.compression != Compression::Off {
            return None;
        }
        let ages = Ages::of(store, leaf.volume, lineage)?;
        let at = store.core.head_leaf(lineage, leaf.first.0).ok()??;
        let (mut todo, mut blocks, mut places): (Vec<(BlockNo, usize)>, usize, usize) = (Vec::new(), 0, 0);
        let mut last: Option<(SegmentId, u32)> = None;
        let entries = &store.core.nodes.get(at).node.entries;
        for (addr, block) in entries.iter().zip(leaf.first.0..end) {
            let Some((segment, page)) = place_of(store, ages, *addr) else { continue };
            let follows = last.is_some_and(|(s, p)| s == segment && (p + 1..=p + 1 + GAP_PAGES).contains(&page));
            (last, blocks, places) = (Some((segment, page)), blocks + 1, places + usize::from(!follows));
            match todo.last_mut() {
                Some((first, count)) if first.0 + *count as u64 == block && *count < READ_BLOCKS => *count += 1,
                _ => todo.push((BlockNo(block), 1)),
            }
        }
        if places <= WORTH * store.gathered_places(blocks) {
            return None;
        }
        todo.reverse();
        Some(Work { volume: leaf.volume, lineage, first: leaf.first, todo, reading: SmallVec::new(), blocks: Vec::new() })
    }

    /// Returns whether all blocks of the leaf were read.
    fn is_read(&self) -> bool {
        self.todo.is_empty() && self.reading.is_empty()
    }

    /// Returns the ages of its blocks, the volume's end in blocks, and the leaf's handle;
    /// `None` when the volume is gone or was rolled back, or the leaf is not in memory.
    fn leaf(&self, store: &mut Store) -> Option<(Ages, u64, u32)> {
        let volume = store.core.catalog.volumes.get(&self.volume).filter(|volume| volume.lineage == self.lineage)?;
        let end = volume.size / PAGE;
        let ages = Ages::of(store, self.volume, self.lineage)?;
        let leaf = store.core.head_leaf(self.lineage, self.first.0).ok()??;
        Some((ages, end, leaf))
    }

    /// Returns those of `count` blocks from `first` on that can be gathered.
    fn sources(&self, store: &mut Store, first: BlockNo, count: usize) -> Option<Vec<Source>> {
        let (ages, end, leaf) = self.leaf(store)?;
        let node = &store.core.nodes.get(leaf).node;
        let blocks = (first.0..end).take(count).map(|block| {
            let slot = (block % FANOUT as u64) as usize;
            Source { block: BlockNo(block), addr: node.entries[slot], crc: node.crcs[slot] }
        });
        Some(blocks.filter(|source| place_of(store, ages, source.addr).is_some()).collect())
    }

    /// Appends those of the blocks that are still as they were read. Returns how many.
    fn append(&self, store: &mut Store, blocks: Vec<(Source, BufSlice)>) -> usize {
        let Some((ages, end, leaf)) = self.leaf(store) else { return 0 };
        let node = &store.core.nodes.get(leaf).node;
        let is_same = |source: &Source| {
            let now = node.entries[(source.block.0 % FANOUT as u64) as usize];
            (now == source.addr || store.tuning.plants(Planted::GatherStale))
                && source.block.0 < end
                && place_of(store, ages, source.addr).is_some()
        };
        // the blocks were checked when they were read, which may be a minute ago: a batch with a block
        // that is wrong in memory would end the log at its replay, and lose what was written after it
        let is_sound = |source: &Source, piece: &BufSlice| crc32c(piece.bytes()) == source.crc;
        let mut still: Vec<(Source, BufSlice)> =
            blocks.into_iter().filter(|(source, piece)| is_same(source) && is_sound(source, piece)).collect();
        still.reverse();
        let chunks = still.iter().filter_map(|(source, _)| store.core.space.chunks.get(source.addr.chunk()));
        let birth = chunks.map(|chunk| chunk.birth).max().unwrap_or(0);
        let stays = |addr: Addr| ages.is_shared(store, addr).then_some(addr);
        let blocks: Vec<GatheredBlock> = still
            .into_iter()
            .map(|(source, piece)| GatheredBlock { block: source.block, crc: source.crc, piece, stays: stays(source.addr) })
            .collect();
        let appended = store.append_gathered(self.volume, self.lineage, birth, &blocks);
        store.charge_jobs(appended as u64 * PAGE);
        appended
    }
}

/// Returns whether blocks can be appended now. Forwards change up to a page of the chunk table for each
/// block. Pages that a checkpoint still has to encode would all be encoded in this turn.
fn may_append(store: &Store) -> bool {
    !(store.may_forward() && store.core.space.chunks.is_sealing())
}

/// Epochs that separate the blocks of a head: up to `inherited`, of the volume that it was cloned from;
/// up to `shared`, perhaps of a snapshot, too; and of the head alone.
#[derive(Clone, Copy, Debug)]
struct Ages {
    inherited: Option<Epoch>,
    shared: Epoch,
}

impl Ages {
    fn of(store: &Store, volume: VolumeId, lineage: LineageId) -> Option<Ages> {
        let catalog = &store.core.catalog;
        let origin = catalog.origin_of(volume).and_then(|origin| catalog.lineages.get(&origin.lineage));
        let inherited = origin.map(|lineage| lineage.origin_epoch);
        Some(Ages { inherited, shared: catalog.lineages.get(&lineage)?.last_snap })
    }

    /// Returns whether a snapshot may have an address of the head.
    fn is_shared(self, store: &Store, addr: Addr) -> bool {
        store.core.space.chunks.get(addr.chunk()).is_some_and(|chunk| chunk.epoch <= self.shared)
    }
}

/// Returns the place of a block that can be gathered: plain, on the devices for data, not in a bucket,
/// from where it would be downloaded, and of the head alone unless its address can stay. Blocks that the head inherited stay where they are: volumes that
/// share them would take them from each other for ever (INV-FORWARD-5).
fn place_of(store: &Store, ages: Ages, addr: Addr) -> Option<(SegmentId, u32)> {
    if !addr.is_some() || addr.coding() != Coding::Raw || addr.units() != BLOCK_UNITS {
        return None;
    }
    let chunk = store.core.space.chunks.get(addr.chunk())?;
    // a chunk that is written to needs its place
    let is_inherited = ages.inherited.is_some_and(|epoch| chunk.epoch <= epoch);
    let is_fixed = chunk.epoch <= ages.shared && (is_inherited || chunk.open || !store.may_forward());
    if u32::from(chunk.grain) != BLOCK_UNITS || is_fixed || Stream::from_number(chunk.class).is_some_and(Stream::is_special) {
        return None;
    }
    let (segment, unit) = store.core.space.locate(addr)?;
    (!store.core.space.layout.is_in_bucket(segment)).then_some((segment, unit / BLOCK_UNITS))
}

/// Returns whether gathering is allowed: in a pool in service that neither closes nor wipes nor
/// empties devices, with all devices whole, with as many free segments as the cleaner aims for, on a
/// host with space. Where the log has devices of its own, writes of guests would wait for the slower
/// ones behind a gathered batch, so it pauses while guests are active.
fn may_gather(store: &Store, wiping: bool) -> bool {
    store.state == PoolState::Online
        && store.closing.is_none()
        && store.evacuation.is_none()
        && !wiping
        && !store.host_is_short()
        && !store.io.is_stalled()
        && all_are_whole(store)
        && !(store.is_split() && store.guests_are_active())
        && !store.is_below_target()
        && !store.records_lack_room()
}

/// Returns whether no device is missing or incomplete. A block that is gathered while one is would
/// have fewer copies than before.
fn all_are_whole(store: &Store) -> bool {
    let is_whole = |state| matches!(state, MemberState::Present | MemberState::Gone);
    store.config.shape.members.iter().all(|member| is_whole(member.state) && member.replacement.is_none())
}
