//! Replay: applies the batches after a checkpoint, in order, with the code that applied them first.

use std::collections::BTreeSet;
use std::ops::Range;

use millpond_block::{Buf, BufPool, DeviceError};
use millpond_format::{Addr, BLOCK_UNITS, BlockNo, ChunkId, Coding, Item, Lsn, Record, SegmentId, SmallRun, StoredBlock};

use super::import::ImportIo;
use super::scan::Found;
use crate::core::Core;
use crate::io::IoTable;
use crate::log::{SmallWriteIndex, Stream};
use crate::space::{AllocClass, Chunk, NODE_GRAIN, Place, SegmentState};
use crate::task::CHUNKS_PER_CHECKPOINT;
use crate::tree::Miss;
use crate::{Damage, OpenErrorKind};

/// Batches applied per turn.
const BATCHES_PER_TURN: usize = 4096;
/// Items examined ahead for nodes to read when one is missing.
const LOOK_AHEAD: usize = 1024;

/// A running replay.
pub(crate) struct Replay {
    found: Vec<Found>,
    batch: usize,
    item: usize,
    block: usize,
    /// Unit of the next block of the current batch, from the chunk's base.
    unit: u32,
    entered: bool,
    /// The checkpoint contains everything up to this batch.
    after: Lsn,
    pub(crate) end: Lsn,
    /// Index of the batches of small writes at its end.
    pub(crate) small_write_index: SmallWriteIndex,
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
    opened: BTreeSet<ChunkId>,
    visited: BTreeSet<SegmentId>,
    loading: usize,
}

impl Replay {
    /// Creates a replay of `found`, the batches after `after`, up to `end`; `visited`: the segments
    /// that the log was read from. `core` is as the checkpoint says, and the root of this import will
    /// be `age` generations younger.
    pub(super) fn new(
        core: &mut Core,
        found: Vec<Found>,
        visited: BTreeSet<SegmentId>,
        Range { start: after, end }: Range<Lsn>,
        age: u64,
    ) -> Replay {
        for segment in &visited {
            // open until all is replayed: a chunk that dies meanwhile must not free a segment that
            // holds later batches
            core.space.segments.set_state(*segment, SegmentState::Open);
        }
        // nodes that replay creates must not take ids of chunks in the log, nor of chunks that a
        // lost checkpoint knew, nor of those in batches of another import that the log lost, or that a
        // rewind gave up, but the devices may have (I11): fewer ids are given out in a generation
        let lost = |item: &Item| if let Item::Small { runs, .. } = item { runs.iter().map(|run| run.chunk.0 + 1).max() } else { None };
        let newest = found.iter().flat_map(|f| f.items.iter().filter_map(lost).chain([f.header.chunk.0 + 1])).max().unwrap_or(0);
        core.next_chunk = (newest + CHUNKS_PER_CHECKPOINT).max(core.next_chunk + 2 * CHUNKS_PER_CHECKPOINT * age);
        let batches = found.len() as u64;
        let bytes = found.iter().map(|f| (u64::from(f.header.pages) + u64::from(f.header.payload)) * 4096).sum();
        Replay {
            found,
            batch: 0,
            item: 0,
            block: 0,
            unit: 0,
            entered: false,
            after,
            end,
            small_write_index: SmallWriteIndex::default(),
            batches,
            bytes,
            opened: BTreeSet::new(),
            visited,
            loading: 0,
        }
    }

    /// Applies as many batches as possible. Returns true when all are applied.
    pub(super) fn run(&mut self, core: &mut Core, io: &mut IoTable<ImportIo>, bufs: &mut BufPool) -> Result<bool, OpenErrorKind> {
        if self.loading > 0 {
            return Ok(false);
        }
        for _ in 0..BATCHES_PER_TURN {
            if self.batch >= self.found.len() {
                self.finish(core);
                return Ok(true);
            }
            if let Err(miss) = self.apply_batch(core)? {
                self.load(core, miss, io, bufs)?;
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn apply_batch(&mut self, core: &mut Core) -> Result<Result<(), Miss>, OpenErrorKind> {
        let Some(f) = self.found.get(self.batch) else { return Ok(Ok(())) };
        let header = f.header.clone();
        let small = Stream::from_number(header.stream) == Some(Stream::Small) && core.space.targets.nodes == Some(AllocClass::Nodes);
        if !self.entered {
            // labels of a pool with encryption refuse it before its log is read
            if f.items.iter().any(Item::needs_encryption) {
                return Err(Damage::BatchEncrypted(header.lsn).into());
            }
            self.enter(core, &header)?;
            self.entered = true;
        }
        // blocks in a stream of the cleaner were gathered
        let of_guests = Stream::from_number(header.stream).is_some_and(Stream::is_guests);
        while let Some(item) = self.found.get(self.batch).and_then(|f| f.items.get(self.item)) {
            let applied = match item {
                Item::Blocks { volume, block, stored } => {
                    let (volume, first) = (*volume, *block);
                    let lineage = core.lineage_of(volume).ok_or(Damage::BatchVolume(header.lsn))?;
                    let grain = u32::from(header.grain);
                    let mut result = Ok(());
                    while let Some(StoredBlock { crc, units, coding, .. }) = stored.get(self.block).copied() {
                        let block = BlockNo(first.0 + self.block as u64);
                        let leaf = match core.leaf_mut(lineage, block.0) {
                            Ok(leaf) => leaf,
                            Err(miss) => {
                                result = Err(miss);
                                break;
                            }
                        };
                        let (slot, slots) = (self.unit / grain, u32::from(units) / grain);
                        if let Some(chunk) = core.space.chunks.get_mut(header.chunk) {
                            chunk.slots = slot + slots;
                        }
                        core.space.make_live(header.chunk, slot, slots);
                        core.set_in_leaf(lineage, leaf, block, Addr::new(header.chunk, slot, u32::from(units), coding), crc);
                        if small {
                            self.small_write_index.add(volume, block, header.segment, header.chunk, slot, &[crc]);
                        }
                        core.clock += u64::from(of_guests);
                        self.unit += u32::from(units);
                        self.block += 1;
                    }
                    result
                }
                Item::Small { runs, .. } => lose(core, runs, self.after, &mut self.block),
                Item::Clear { volume, block, count } => match core.lineage_of(*volume) {
                    Some(lineage) => core.clear(lineage, block.0, block.0 + count),
                    None => Ok(()),
                },
                Item::Forward { sources, .. } => {
                    let has_plain = |id| core.space.chunks.get(id).is_none_or(|chunk| u32::from(chunk.grain) == BLOCK_UNITS);
                    let is_plain = |source: &Addr| source.chunk() != header.chunk && has_plain(source.chunk());
                    if u32::from(header.grain) != BLOCK_UNITS || header.chunk.0 == 0 || !sources.iter().all(|(source, _)| is_plain(source))
                    {
                        return Err(Damage::BatchChunk(header.lsn).into());
                    }
                    for (source, _) in sources {
                        let slot = self.unit / BLOCK_UNITS;
                        if let Some(chunk) = core.space.chunks.get_mut(header.chunk) {
                            chunk.slots = slot + 1;
                        }
                        core.space.forward(*source, Addr::new(header.chunk, slot, BLOCK_UNITS, Coding::Raw));
                        self.unit += BLOCK_UNITS;
                    }
                    Ok(())
                }
                Item::Record(Record::Walked { walk, cursor, done }) => core.walk_to(*walk, *cursor, *done),
                Item::Record(Record::Term { term }) => {
                    if !core.space.names.raise_term(*term) {
                        return Err(Damage::BatchBucket(header.lsn).into());
                    }
                    Ok(())
                }
                Item::Record(record) => {
                    core.apply_record(record);
                    Ok(())
                }
                Item::Placed(placed) => {
                    if !core.space.place_in_bucket(placed) {
                        return Err(Damage::BatchBucket(header.lsn).into());
                    }
                    Ok(())
                }
                Item::Move(moved) => {
                    if core.space.chunks.get(moved.chunk).is_some() {
                        let place = Place { segment: header.segment, page: header.offset + u32::from(header.pages) + moved.at };
                        let identities = (moved.grain != NODE_GRAIN).then_some(header.offset);
                        let present = crate::space::Slots::from_words(moved.present.clone());
                        core.space.place_chunk(moved.chunk, place, header.stream, identities, Some(present));
                    }
                    Ok(())
                }
            };
            if applied.is_err() {
                return Ok(applied);
            }
            self.item += 1;
            self.block = 0;
        }
        if let Some(chunk) = core.space.chunks.get_mut(header.chunk) {
            let grain = u32::from(chunk.grain);
            chunk.slots = (chunk.slots * grain).next_multiple_of(8) / grain;
        }
        if small {
            self.small_write_index.seal(header.lsn);
        } else {
            self.small_write_index = SmallWriteIndex::default();
        }
        self.batch += 1;
        (self.item, self.entered) = (0, false);
        Ok(Ok(()))
    }

    /// Begins a batch; creates its chunk if this is the chunk's first batch.
    fn enter(&mut self, core: &mut Core, header: &millpond_format::BatchHeader) -> Result<(), OpenErrorKind> {
        if let Some(segment) = core.space.segments.get_mut(header.segment) {
            segment.last = header.lsn;
        }
        if header.chunk.0 == 0 {
            return Ok(());
        }
        if header.offset < header.base || !matches!(header.grain, 1 | 8) {
            return Err(Damage::BatchChunk(header.lsn).into());
        }
        self.unit = (header.offset - header.base + u32::from(header.pages)) * 8;
        if core.space.chunks.get(header.chunk).is_none() {
            let mut chunk = Chunk::new(header.epoch, header.birth, header.stream, header.grain);
            chunk.open = true;
            core.space.chunks.insert(header.chunk, chunk);
            let place = Place { segment: header.segment, page: header.base };
            core.space.place_chunk(header.chunk, place, header.stream, None, None);
        }
        if let Some(chunk) = core.space.chunks.get_mut(header.chunk) {
            chunk.open = true;
            chunk.slots = self.unit / u32::from(chunk.grain);
        }
        self.opened.insert(header.chunk);
        Ok(())
    }

    /// Reads the missing node, and the nodes that the next items need.
    fn load(&mut self, core: &mut Core, first: Miss, io: &mut IoTable<ImportIo>, bufs: &mut BufPool) -> Result<(), OpenErrorKind> {
        let mut misses = vec![first];
        let mut seen: BTreeSet<u64> = BTreeSet::from([first.addr.identity()]);
        let ahead: Vec<(millpond_format::VolumeId, u64)> = self
            .found
            .iter()
            .skip(self.batch)
            .flat_map(|f| &f.items)
            .filter_map(|item| match item {
                Item::Blocks { volume, block, .. } => Some((*volume, block.0)),
                _ => None,
            })
            .take(LOOK_AHEAD)
            .collect();
        for (volume, block) in ahead {
            let Some(lineage) = core.lineage_of(volume) else { continue };
            if let Err(miss) = core.head_leaf(lineage, block)
                && seen.insert(miss.addr.identity())
            {
                misses.push(miss);
            }
        }
        self.loading += misses.len();
        misses.into_iter().try_for_each(|miss| read_node(core, miss, 0, io, bufs))
    }

    /// Handles a read of a node. When the content is wrong, reads the next copy.
    #[expect(clippy::too_many_arguments, reason = "a completion, and what it needs to go on")]
    pub(super) fn node_read(
        &mut self,
        core: &mut Core,
        miss: Miss,
        attempt: u8,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
        io: &mut IoTable<ImportIo>,
        bufs: &mut BufPool,
    ) -> Result<(), OpenErrorKind> {
        let node = match (result, buf) {
            (Ok(()), Some(buf)) => core.space.locate(miss.addr).and_then(|(_, unit)| crate::pool::check_node(&miss, unit, buf.bytes())),
            _ => None,
        };
        let copies = core.space.locate(miss.addr).map_or(0, |(segment, _)| io.attempts(&core.space.layout, segment));
        if node.is_none() && attempt + 1 < copies {
            return read_node(core, miss, attempt + 1, io, bufs);
        }
        self.loading -= 1;
        let node = node.ok_or(OpenErrorKind::NodeUnreadable(miss.addr))?;
        if core.nodes.find(miss.addr).is_none() {
            core.nodes.insert(miss.addr, node, 0);
        }
        if self.loading == 0 {
            core.nodes.evict();
        }
        Ok(())
    }

    fn finish(&mut self, core: &mut Core) {
        self.opened.clear();
        // of chunks that were open when the checkpoint or the daemon ended, those without live
        // blocks are freed
        for chunk in core.space.chunks.ids() {
            if core.space.chunks.get(chunk).is_some_and(|c| c.open || c.live_count == 0)
                && core.space.chunks.get(chunk).is_some_and(|c| c.place.is_some())
            {
                core.space.close_chunk(chunk);
            }
        }
        for segment in std::mem::take(&mut self.visited) {
            core.space.segments.set_state(segment, SegmentState::Sealed);
            core.space.settle(segment);
        }
        core.space.seal_bucket_segments();
        core.nodes_touched = 0;
    }
}

/// Starts reading a node.
fn read_node(core: &Core, miss: Miss, attempt: u8, io: &mut IoTable<ImportIo>, bufs: &mut BufPool) -> Result<(), OpenErrorKind> {
    let (segment, unit) = core.space.locate(miss.addr).ok_or(Damage::NodeNowhere)?;
    let pages = (unit + miss.addr.units()).div_ceil(8) - unit / 8;
    if unit / 8 + pages > core.space.layout.pages(segment) {
        return Err(Damage::NodeOutside.into());
    }
    io.read(ImportIo::Node(miss, attempt), &core.space.layout, segment, unit / 8, pages, attempt, bufs);
    Ok(())
}

/// Maps blocks that were only on special devices to their places there. Batches that were read have
/// done so already; blocks of batches that are gone must not read as their older versions. `done`:
/// the number of blocks of all runs that are finished.
fn lose(core: &mut Core, runs: &[SmallRun], after: Lsn, done: &mut usize) -> Result<(), Miss> {
    let mut first = 0;
    for run in runs {
        let from = done.saturating_sub(first).min(run.crcs.len());
        first += run.crcs.len();
        let handed_out = core.space.chunks.get(run.chunk).map_or(0, |chunk| chunk.slots);
        let behind = run.lsn <= after || u32::from(run.slot) + (from as u32) < handed_out || !core.space.layout.is_gap(run.segment);
        let Some(lineage) = core.lineage_of(run.volume).filter(|_| !behind) else {
            // the blocks of skipped runs count as finished
            *done = first.max(*done);
            continue;
        };
        if core.space.chunks.get(run.chunk).is_none() {
            core.space.chunks.insert(run.chunk, Chunk::new(core.epoch, core.clock, Stream::Small.number(), BLOCK_UNITS as u8));
            core.space.seal(run.segment);
            core.space.place_chunk(run.chunk, Place { segment: run.segment, page: 0 }, Stream::Small.number(), None, None);
        }
        for (at, crc) in run.crcs.iter().enumerate().skip(from) {
            let (block, slot) = (BlockNo(run.block.0 + at as u64), u32::from(run.slot) + at as u32);
            let leaf = core.leaf_mut(lineage, block.0)?;
            if let Some(chunk) = core.space.chunks.get_mut(run.chunk) {
                (chunk.open, chunk.slots) = (true, slot + 1);
            }
            core.space.make_live(run.chunk, slot, 1);
            core.set_in_leaf(lineage, leaf, block, Addr::new(run.chunk, slot, BLOCK_UNITS, Coding::Raw), *crc);
            core.clock += 1;
            *done += 1;
        }
    }
    Ok(())
}
