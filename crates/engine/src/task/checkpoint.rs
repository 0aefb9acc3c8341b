//! Checkpoints: the state at one point of the log, written so that replay can begin there.
//!
//! A checkpoint is fixed in one turn (`seal`): checksums of changed nodes are computed bottom-up, nodes get their places, chunk table
//! pages and the catalog are encoded. From then on nodes are copied before they change, so writing takes its time in slices. Order:
//! nodes and objects written -> all devices flushed -> roots written to the first areas -> flushed -> roots to the second areas ->
//! flushed. Only then may what died before it be reused (I1), and the next root be written (INV-RING-1).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use millpond_block::{Piece, Tag};
use millpond_device::{DeviceError, DeviceIndex};
use millpond_format::{
    AREA_BYTES, Checkpoint, Encoder, LineageRecord, Lsn, NODE_BYTES, ObjectRef, Root, SnapshotRecord, VolumeRecord, WalkRecord, crc32c,
};
use millpond_format::{Leg, NODE_UNITS, SegmentId, TreeRoot};

use super::reserve::Estimate;
use crate::core::{MetaFlush, cache_code, compression_code, sector_code};
use crate::log::{Cursor, META_CLASS, OBJECT_CLASS};
use crate::pool::{Context, Pool};
use crate::space::{Place, SegmentState, Space};
use crate::{PoolState, Reply};

/// Nodes written per turn.
const NODES_PER_TURN: usize = 256;
/// Chunk ids handed out between checkpoints at most: recovery skips as many to be sure that none is used twice (I11).
pub(crate) const CHUNKS_PER_CHECKPOINT: u64 = 1 << 20;
/// Bytes of objects that go into one write.
const WRITE_BYTES: usize = 256 << 10;
/// An idle pool with resting segments writes a checkpoint after this long, in milliseconds, so that space returns.
const IDLE_MILLIS: u64 = 3_000;

/// How far the running checkpoint is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Nodes and objects are being written.
    Writing,
    /// What it refers to is being made durable.
    Barrier,
    /// The roots at the start of the devices are being written.
    FirstRoots,
    /// The first roots are being made durable.
    RootBarrier,
    /// The roots at the end of the devices are being written.
    SecondRoots,
    /// They are being made durable, so that a root that counts has two copies on every device.
    LastBarrier,
}

/// The checkpoint task.
#[derive(Debug, Default)]
pub(crate) struct Checkpointer {
    stage: Stage,
    flushes: VecDeque<MetaFlush>,
    /// Writes of the running stage not done yet.
    pending: u32,
    root: Option<Root>,
    /// Objects of the checkpoint before that this one replaces.
    replaced: Vec<ObjectRef>,
    /// Where nodes go.
    pub(crate) nodes_at: Option<Cursor>,
    /// Where objects go.
    pub(crate) objects_at: Option<Cursor>,
    /// Smallest unused chunk id when the last checkpoint was fixed.
    pub(crate) sealed_chunk: u64,
    /// Commands that asked for a checkpoint, and those that the running one answers.
    pub(crate) wanted: Vec<Tag>,
    answering: Vec<Tag>,
    pub(crate) estimate: Estimate,
    /// Parts of objects that are in parts, by where their index is.
    pub(crate) parts: BTreeMap<(SegmentId, u32), Vec<ObjectRef>>,
    pub(crate) first_done: bool,
}

impl Checkpointer {
    pub(crate) fn running(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Objects go on behind the last one of the checkpoint that an import found.
    pub(crate) fn continue_objects(&mut self, last: ObjectRef, space: &mut Space) {
        let end = u64::from(last.offset) * ObjectRef::STEP as u64 + u64::from(last.bytes());
        let (page, pages) = (u32::try_from(end.div_ceil(4096)).unwrap_or(u32::MAX), space.rows.pages(last.segment));
        if page < pages {
            space.segments.set_state(last.segment, SegmentState::Open);
            self.objects_at = Some(Cursor { segment: last.segment, page, pages });
        }
    }

    /// The commands that wait for a checkpoint, taken because none will come.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        let mut all = std::mem::take(&mut self.wanted);
        all.append(&mut self.answering);
        all
    }
}

/// Packs objects, several to a write.
#[derive(Default)]
struct Packer {
    bytes: Vec<u8>,
    /// Where they go: segment, page, and the bytes that have room there.
    at: Option<(SegmentId, u32, usize)>,
}

impl Pool {
    /// Starts a checkpoint when one is due, and goes on with the one that runs. True when it wants another turn soon.
    pub(crate) fn step_checkpoint(&mut self) -> bool {
        if matches!(self.state, PoolState::Faulted(_)) {
            return false;
        }
        match self.checkpointer.stage {
            Stage::Idle => {
                if self.checkpoint_due() && self.core.space.segments.free_count() >= self.checkpoint_segments() {
                    self.seal_checkpoint();
                }
                self.checkpointer.running()
            }
            Stage::Writing => {
                self.write_nodes();
                if self.checkpointer.flushes.is_empty() && self.checkpointer.pending == 0 && self.log.completed >= self.root_lsn() {
                    self.next_stage(Stage::Barrier);
                }
                !self.checkpointer.flushes.is_empty()
            }
            _ => false,
        }
    }

    fn root_lsn(&self) -> Lsn {
        self.checkpointer.root.as_ref().map_or(Lsn(0), |root| root.lsn)
    }

    fn checkpoint_due(&self) -> bool {
        if self.state == PoolState::Opening {
            // a new pool's first
            return !self.checkpointer.first_done && self.io.in_flight() == 0;
        }
        let fresh_log = self.log.since_checkpoint > 0 || self.core.nodes.dirty() > 0;
        let space = &self.core.space.segments;
        let idle = self.now.0.saturating_sub(self.last_activity.0) > IDLE_MILLIS
            && self.now.0.saturating_sub(self.last_checkpoint.0) > IDLE_MILLIS
            && space.resting_count() > 0;
        let closing =
            self.closing.is_some() && self.quiet() && (fresh_log || !self.checkpointer.first_done || !self.core.retired.is_empty());
        !self.checkpointer.wanted.is_empty()
            || closing
            || self.checkpoint_brings_space()
            || idle
            || self.log.since_checkpoint >= self.tuning.checkpoint_log_bytes
            || self.core.nodes.dirty() >= self.core.nodes.limit() / 2
            || self.core.next_chunk - self.checkpointer.sealed_chunk >= CHUNKS_PER_CHECKPOINT / 2
            || self.legs.len() > 1
    }

    /// Fixes the state at this point of the log.
    fn seal_checkpoint(&mut self) {
        self.seal_all();
        self.dirty_sparse_objects();
        let mut flushes = self.core.take_unplaced();
        if !self.place_nodes(&mut flushes) {
            return self.fault("no segment is left for a checkpoint");
        }
        self.settle_checksums(&flushes);
        self.core.generation += 1;
        self.core.space.sealed_generation = self.generation + 1;
        self.checkpointer.replaced = std::mem::take(&mut self.core.retired);
        self.checkpointer.replaced.push(self.checkpoint_at);
        self.log.since_checkpoint = 0;
        self.checkpointer.sealed_chunk = self.core.next_chunk;
        self.checkpointer.answering = std::mem::take(&mut self.checkpointer.wanted);
        self.checkpointer.flushes = flushes.into();
        self.checkpointer.stage = Stage::Writing;
        self.last_checkpoint = self.now;
        let mut packer = Packer::default();
        let checkpoint = self.encode_state(&mut packer);
        let object = checkpoint.and_then(|checkpoint| self.put_object(&mut packer, &checkpoint.encode()));
        let Some(object) = object else { return self.fault("no segment is left for a checkpoint") };
        self.flush_packer(&mut packer);
        let streams = std::array::from_fn(|i| self.log.streams[i].start());
        self.checkpointer.root = Some(Root {
            pool: self.config.id,
            generation: self.generation + 1,
            incarnation: self.incarnation,
            time: self.now.0,
            checkpoint: object,
            lsn: Lsn(self.log.next.0 - 1),
            legs: vec![Leg { incarnation: self.incarnation, end: Lsn(u64::MAX), streams }],
        });
    }

    /// Gives every chunk of unwritten nodes a place in the meta stream.
    fn place_nodes(&mut self, flushes: &mut [MetaFlush]) -> bool {
        for flush in flushes {
            if flush.nodes.is_empty() {
                continue;
            }
            let pages = (flush.nodes.len() as u32 * NODE_UNITS).div_ceil(8);
            let Some((segment, page, _)) = self.meta_space(META_CLASS, pages) else { return false };
            let live = self.core.space.chunks.get(flush.chunk).map(|c| c.live.clone());
            let place = Place { segment, page };
            self.core.space.place_chunk(flush.chunk, place, META_CLASS, u32::MAX, live);
            flush.place = Some(place);
        }
        true
    }

    /// Room for pages among nodes or objects: segment, page, and the pages that are left there.
    fn meta_space(&mut self, class: u8, pages: u32) -> Option<(SegmentId, u32, u32)> {
        let fits = |cursor: &Cursor| cursor.pages - cursor.page >= pages;
        let mut cursor = if class == OBJECT_CLASS { self.checkpointer.objects_at } else { self.checkpointer.nodes_at };
        if !cursor.as_ref().is_some_and(fits) {
            if let Some(old) = cursor.take() {
                self.core.space.segments.set_state(old.segment, SegmentState::Sealed);
                self.core.space.settle(old.segment);
            }
            let segment = self.core.space.segments.reserve()?;
            self.core.space.segments.set_state(segment, SegmentState::Open);
            if let Some(s) = self.core.space.segments.get_mut(segment) {
                s.class = class;
            }
            cursor = Some(Cursor { segment, page: 0, pages: self.core.space.rows.pages(segment) });
        }
        let (mut cursor, place) =
            (cursor?, if class == OBJECT_CLASS { &mut self.checkpointer.objects_at } else { &mut self.checkpointer.nodes_at });
        let (at, left) = (cursor.page, cursor.pages - cursor.page);
        cursor.page += pages;
        *place = Some(cursor);
        (left >= pages).then_some((cursor.segment, at, left))
    }

    /// Objects in segments that are less than half in use are written again, the sparsest first, as far as there is room: so the segments
    /// of objects are at most about twice what lives in them. A segment gets there only when as much of it was replaced.
    fn dirty_sparse_objects(&mut self) {
        let space = &self.core.space;
        let mut sparse: Vec<(u32, SegmentId)> = space
            .segments
            .ids()
            .filter_map(|id| space.segments.get(id).map(|s| (id, s)))
            .filter(|(id, s)| s.state == SegmentState::Sealed && s.objects > 0 && s.objects * 2 < space.rows.pages(*id) * 8)
            .map(|(id, s)| (s.objects, id))
            .collect();
        sparse.sort_unstable();
        let spare = space.segments.free_count().saturating_sub(self.checkpoint_segments() + 1) as u64;
        let mut room = spare * u64::from(self.smallest_segment()) * 8;
        let mut chosen = BTreeSet::new();
        for (units, id) in sparse {
            let Some(left) = room.checked_sub(u64::from(units) * 2) else { break };
            room = left;
            chosen.insert(id);
        }
        if chosen.is_empty() {
            return;
        }
        let parts = &self.checkpointer.parts;
        let here = |at: ObjectRef| {
            let mut its = parts.get(&(at.segment, at.offset)).into_iter().flatten();
            chosen.contains(&at.segment) || its.any(|part| chosen.contains(&part.segment))
        };
        let pages: Vec<u64> = self.core.space.chunks.stored().filter(|(_, at)| here(*at)).map(|(page, _)| page).collect();
        pages.into_iter().for_each(|page| self.core.space.chunks.dirty_page(page));
        let catalog = &mut self.core.catalog;
        let lists = catalog
            .lineages
            .values_mut()
            .map(|line| &mut line.deadlist)
            .chain(catalog.snapshots.values_mut().map(|s| &mut s.deadlist))
            .chain(catalog.frees.iter_mut().map(|(_, list)| list));
        lists.filter(|list| list.stored().is_some_and(here)).for_each(|list| list.touch());
    }

    /// Computes the checksums of the nodes to be written, children first, and puts them into their parents.
    fn settle_checksums(&mut self, flushes: &[MetaFlush]) {
        let mut nodes: Vec<u32> = flushes.iter().flat_map(|flush| flush.nodes.iter().copied()).collect();
        nodes.sort_by_key(|at| {
            let cached = self.core.nodes.get(*at);
            (cached.node.level, cached.addr.identity())
        });
        let mut sums = rustc_hash::FxHashMap::default();
        let mut buf = vec![0u8; NODE_BYTES];
        for at in nodes {
            let cached = self.core.nodes.get_mut(at);
            if cached.node.level > 0 {
                for slot in 0..cached.node.entries.len() {
                    let entry = cached.node.entries[slot];
                    if entry.is_pending() {
                        // a child without one was freed already: so will this node be, nobody follows it any more
                        let sum: Option<&u32> = sums.get(&entry.identity());
                        cached.node.crcs[slot] = sum.copied().unwrap_or(0);
                        cached.node.entries[slot] = entry.settled();
                    }
                }
            }
            cached.node.encode(&mut buf);
            sums.insert(cached.addr.identity(), crc32c(&buf));
        }
        let settle = |root: &mut TreeRoot| {
            if root.addr.is_pending() {
                root.crc = *sums.get(&root.addr.identity()).expect("INV-MAP-7: a pending root is written by the same checkpoint");
                root.addr = root.addr.settled();
            }
        };
        let catalog = &mut self.core.catalog;
        catalog.lineages.values_mut().filter_map(|line| line.head.as_mut()).for_each(|head| settle(&mut head.root));
        catalog.snapshots.values_mut().for_each(|snapshot| settle(&mut snapshot.root));
        for walk in catalog.walks.values_mut() {
            // a walk at its end has freed its top node
            walk.root.crc = sums.get(&walk.root.addr.identity()).copied().unwrap_or(walk.root.crc);
            walk.root.addr = walk.root.addr.settled();
        }
    }

    /// Writes some of the nodes.
    fn write_nodes(&mut self) {
        let mut budget = NODES_PER_TURN;
        while budget > 0 {
            let Some(flush) = self.checkpointer.flushes.pop_front() else { return };
            let Some(place) = flush.place else { continue };
            budget = budget.saturating_sub(flush.nodes.len());
            let bytes = (flush.nodes.len() * NODE_BYTES).next_multiple_of(4096);
            let mut buf = self.bufs.take(bytes);
            for (slot, at) in flush.nodes.iter().enumerate() {
                let node = &self.core.nodes.get(*at).node;
                if let Some(out) = buf.bytes_mut().get_mut(slot * NODE_BYTES..(slot + 1) * NODE_BYTES) {
                    node.encode(out);
                }
            }
            if let Some(rest) = buf.bytes_mut().get_mut(flush.nodes.len() * NODE_BYTES..bytes) {
                rest.fill(0);
            }
            self.metrics.node_writes += flush.nodes.len() as u64;
            self.metrics.metadata_bytes += bytes as u64;
            let piece = Piece::new(Rc::new(buf), 0..bytes);
            self.checkpointer.pending += 1;
            self.io.write(Context::Nodes(flush.nodes), &self.core.space.rows, place.segment, place.page, vec![piece]);
        }
    }

    /// Adds an object to the running checkpoint: whole, or in parts behind an index when it is longer than a part may be.
    fn put_object(&mut self, packer: &mut Packer, bytes: &[u8]) -> Option<ObjectRef> {
        let most = self.part_bytes();
        if bytes.len() <= most {
            return self.put_part(packer, bytes, false);
        }
        let mut index = Encoder::default();
        let mut parts = Vec::new();
        for part in bytes.chunks(most) {
            let at = self.put_part(packer, part, false)?;
            at.encode(&mut index);
            parts.push(at);
        }
        let at = self.put_part(packer, index.bytes(), true)?;
        self.checkpointer.parts.insert((at.segment, at.offset), parts);
        Some(at)
    }

    fn put_part(&mut self, packer: &mut Packer, bytes: &[u8], index: bool) -> Option<ObjectRef> {
        let length = bytes.len().next_multiple_of(ObjectRef::STEP);
        if packer.at.is_some_and(|(_, _, room)| packer.bytes.len() + length > room) {
            self.flush_packer(packer);
        }
        if packer.at.is_none() {
            // the cursor moves when it is known how much came together
            let (segment, page, left) = self.meta_space(OBJECT_CLASS, u32::try_from(length.div_ceil(4096)).ok()?)?;
            packer.at = Some((segment, page, (left as usize * 4096).min(WRITE_BYTES.max(length))));
        }
        let (segment, page, _) = packer.at?;
        let offset = page as usize * 4096 + packer.bytes.len();
        let object = ObjectRef {
            segment,
            offset: u32::try_from(offset / ObjectRef::STEP).ok()?,
            length: u32::try_from(bytes.len()).ok()? | if index { ObjectRef::INDEX } else { 0 },
            crc: crc32c(bytes),
        };
        packer.bytes.extend_from_slice(bytes);
        packer.bytes.resize(packer.bytes.len().next_multiple_of(ObjectRef::STEP), 0);
        self.core.space.add_object(segment, object.bytes());
        Some(object)
    }

    /// Pages of the narrowest segment.
    pub(crate) fn smallest_segment(&self) -> u32 {
        u32::try_from(self.config.extent_bytes / 4096).unwrap_or(u32::MAX)
    }

    /// Bytes of an object's part at most: so little that the end of a segment that is too short for it is no great loss.
    pub(crate) fn part_bytes(&self) -> usize {
        (usize::try_from(self.config.extent_bytes).unwrap_or(usize::MAX) / 8).clamp(4096, 256 << 10)
    }

    /// Counts an object and its parts out.
    fn drop_object(&mut self, object: ObjectRef) {
        let parts = self.checkpointer.parts.remove(&(object.segment, object.offset)).unwrap_or_default();
        for at in parts.into_iter().chain([object]) {
            self.core.space.drop_object(at.segment, at.bytes());
        }
    }

    fn flush_packer(&mut self, packer: &mut Packer) {
        let Some((segment, page, _)) = packer.at.take() else { return };
        let bytes = packer.bytes.len().next_multiple_of(4096);
        if let Some(cursor) = &mut self.checkpointer.objects_at {
            cursor.page = page + (bytes / 4096) as u32;
        }
        let mut buf = self.bufs.take(bytes);
        if let Some(to) = buf.bytes_mut().get_mut(..bytes) {
            let (content, rest) = to.split_at_mut(packer.bytes.len());
            content.copy_from_slice(&packer.bytes);
            rest.fill(0);
        }
        packer.bytes.clear();
        self.metrics.metadata_bytes += bytes as u64;
        self.checkpointer.pending += 1;
        let piece = Piece::new(Rc::new(buf), 0..bytes);
        self.io.write(Context::Objects, &self.core.space.rows, segment, page, vec![piece]);
    }

    /// A deadlist's place in this checkpoint: where it is already, or a new one.
    fn put_deadlist(&mut self, packer: &mut Packer, list: &mut crate::core::StoredDeadlist) -> Option<Option<ObjectRef>> {
        if list.needs_write() {
            let at = if list.list().is_empty() { None } else { Some(self.put_object(packer, &list.list().encode())?) };
            if let Some(old) = list.set_stored(at) {
                self.checkpointer.replaced.push(old);
            }
        }
        Some(list.stored())
    }

    fn encode_state(&mut self, packer: &mut Packer) -> Option<Checkpoint> {
        for (page, bytes) in self.core.space.chunks.take_dirty() {
            let at = if bytes.is_empty() { None } else { Some(self.put_object(packer, &bytes)?) };
            if let Some(old) = self.core.space.chunks.set_stored(page, at) {
                self.checkpointer.replaced.push(old);
            }
        }
        let mut catalog = std::mem::take(&mut self.core.catalog);
        let encoded = self.encode_catalog(packer, &mut catalog);
        self.core.catalog = catalog;
        encoded
    }

    fn encode_catalog(&mut self, packer: &mut Packer, catalog: &mut crate::core::Catalog) -> Option<Checkpoint> {
        let volumes = catalog.volumes.iter().map(|(id, v)| VolumeRecord {
            id: *id,
            name: v.name.clone(),
            size: v.size,
            sector: sector_code(v.sector),
            cache: cache_code(v.cache),
            compression: compression_code(v.compression),
            read_only: v.read_only,
            lineage: v.lineage,
            created: v.created,
        });
        let volumes = volumes.collect();
        let mut lineages = Vec::with_capacity(catalog.lineages.len());
        for (id, line) in &mut catalog.lineages {
            lineages.push(LineageRecord {
                id: *id,
                volume: line.volume,
                origin: line.origin,
                origin_epoch: line.origin_epoch,
                head: line.head.map(|head| (head.root, head.mapped)),
                deadlist: self.put_deadlist(packer, &mut line.deadlist)?,
                owned_units: line.owned_units,
            });
        }
        let mut snapshots = Vec::with_capacity(catalog.snapshots.len());
        for (id, s) in &mut catalog.snapshots {
            snapshots.push(SnapshotRecord {
                id: *id,
                lineage: s.lineage,
                name: s.name.clone(),
                epoch: s.epoch,
                root: s.root,
                mapped: s.mapped,
                size: s.size,
                created: s.created,
                expires: s.expires,
                description: s.description.clone(),
                holds: s.holds.clone(),
                hidden: s.hidden,
                deadlist: self.put_deadlist(packer, &mut s.deadlist)?,
            });
        }
        let walks = catalog.walks.iter().map(|(id, walk)| WalkRecord {
            id: *id,
            lineage: walk.lineage,
            root: walk.root,
            bound: walk.bound,
            cursor: walk.cursor,
        });
        let walks = walks.collect();
        let mut frees = Vec::new();
        for (lineage, list) in &mut catalog.frees {
            if let Some(at) = self.put_deadlist(packer, list)? {
                frees.push((*lineage, at));
            }
        }
        Some(Checkpoint {
            name: self.config.name.clone(),
            lsn: self.log.next.0 - 1,
            epoch: self.core.epoch,
            clock: self.core.clock,
            next_chunk: self.core.next_chunk,
            next_volume: catalog.next_volume,
            next_snapshot: catalog.next_snapshot,
            next_lineage: catalog.next_lineage,
            next_walk: catalog.next_walk,
            lifespan: self.cleaner.lifespan,
            chunk_pages: self.core.space.chunks.stored().collect(),
            volumes,
            lineages,
            snapshots,
            walks,
            frees,
            resting: self.core.space.segments.resting().map(|(id, generation)| (id.0, generation)).collect(),
        })
    }

    /// Writes a root that names the checkpoint there is, and this import's part of the log: with it the pool is in service.
    pub(crate) fn publish(&mut self, root: Root) {
        self.checkpointer.root = Some(root);
        self.next_stage(Stage::Barrier);
    }

    fn next_stage(&mut self, stage: Stage) {
        self.checkpointer.stage = stage;
        match stage {
            Stage::Barrier | Stage::RootBarrier | Stage::LastBarrier => {
                self.checkpointer.pending = 1;
                self.flusher.barrier = true;
                self.start_flush();
            }
            Stage::FirstRoots => self.write_roots(false),
            Stage::SecondRoots => self.write_roots(true),
            Stage::Idle | Stage::Writing => {}
        }
    }

    fn write_roots(&mut self, at_end: bool) {
        self.checkpointer.pending = 1;
        let Some(root) = &self.checkpointer.root else { return };
        let writes = self.root_writes(&root.clone(), at_end);
        self.io.write_raw(Context::Checkpoint, writes);
    }

    /// Writes of one root to every device.
    pub(crate) fn root_writes(&mut self, root: &Root, at_end: bool) -> Vec<(DeviceIndex, u64, Piece)> {
        let mut buf = self.bufs.take(4096);
        if let Some(to) = buf.bytes_mut().get_mut(..4096) {
            to.copy_from_slice(&root.encode());
        }
        let piece = Piece::new(Rc::new(buf), 0..4096);
        let slot = Root::slot_offset(root.generation);
        let area = |size: u64| if at_end { second_area(size) } else { 0 };
        (0u16..).zip(&self.config.sizes).map(|(member, size)| (DeviceIndex(member), area(*size) + slot, piece.clone())).collect()
    }

    /// Nodes of the running checkpoint are written.
    pub(crate) fn nodes_written(&mut self, nodes: &[u32], result: Result<(), DeviceError>) {
        for at in nodes {
            self.core.nodes.written(*at);
        }
        self.checkpoint_io_done(result);
    }

    /// A write or barrier of the running checkpoint is done.
    pub(crate) fn checkpoint_io_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.fault(format!("writing a checkpoint failed ({error})"));
        }
        self.checkpointer.pending -= 1;
        if self.checkpointer.pending > 0 || matches!(self.state, PoolState::Faulted(_)) {
            return;
        }
        match self.checkpointer.stage {
            Stage::Idle | Stage::Writing => {}
            Stage::Barrier => self.next_stage(Stage::FirstRoots),
            Stage::FirstRoots => self.next_stage(Stage::RootBarrier),
            Stage::RootBarrier => self.next_stage(Stage::SecondRoots),
            Stage::SecondRoots => self.next_stage(Stage::LastBarrier),
            Stage::LastBarrier => self.commit_checkpoint(),
        }
    }

    /// The checkpoint holds: what it replaced may go.
    fn commit_checkpoint(&mut self) {
        self.checkpointer.stage = Stage::Idle;
        let Some(root) = self.checkpointer.root.take() else { return };
        self.generation = root.generation;
        // the root of an import names the checkpoint of the one before it
        self.checkpoint_generation = if root.checkpoint == self.checkpoint_at { root.generation - 1 } else { root.generation };
        self.checkpoint_at = root.checkpoint;
        self.checkpoint_lsn = root.lsn;
        self.log.durable = self.log.durable.max(root.lsn);
        self.legs = root.legs;
        // what it replaced is needed by the one before it at most, whatever was fixed since
        let sealed = std::mem::replace(&mut self.core.space.sealed_generation, root.generation - 1);
        for old in std::mem::take(&mut self.checkpointer.replaced) {
            if old.length > 0 {
                self.drop_object(old);
            }
        }
        self.core.space.sealed_generation = sealed;
        self.checkpointer.first_done = true;
        self.metrics.checkpoints += 1;
        self.cleaner.unblock();
        if self.state == PoolState::Opening {
            self.opened();
        }
        for tag in std::mem::take(&mut self.checkpointer.answering) {
            self.replies.push_back((tag, Ok(Reply::Done)));
        }
    }

    /// The pool's first root of this import is durable: it goes into service, or goes on to get there.
    fn opened(&mut self) {
        if self.log.streams.iter().any(|stream| stream.next.is_none()) {
            // what rested at the crash is free only now
            self.release_rested(true);
            return self.open_log();
        }
        self.state = PoolState::Online;
        let volumes: Vec<_> = self.core.catalog.volumes.keys().copied().collect();
        volumes.into_iter().for_each(|volume| self.trim_beyond(volume));
    }
}

/// Where the second area of a device of `size` bytes begins.
pub(crate) fn second_area(size: u64) -> u64 {
    (size / AREA_BYTES).saturating_sub(1) * AREA_BYTES
}
