//! Checkpoints: the state at one point of the log, written so that replay can begin there.
//!
//! One turn fixes a checkpoint (`seal`): nodes get their places, and all changes since the last one
//! are set aside. From then on nodes, deadlists and pages of the chunk table are copied or encoded
//! before they change, so the rest is done in slices, few per turn while guests are active: objects
//! are encoded, checksums computed bottom-up (`settle`), nodes written. Order: nodes and objects
//! written -> all devices flushed -> roots written to the first areas -> flushed -> roots to the
//! second areas -> flushed. Only then may space that died before it be reused (I1), and the next
//! root be written (INV-RING-1).

mod objects;
mod seal;
mod settle;
mod sparse;

use std::rc::{Rc, Weak};

use millpond_block::{DeviceError, MemberId, Piece, Tag};
pub(crate) use millpond_format::second_area;
use millpond_format::{Lsn, NODE_BYTES, ObjectRef, Root, SegmentId};

pub(crate) use self::objects::pieces;
use self::seal::Sealed;
use crate::log::is_special;
use crate::pool::Pool;
use crate::space::Shelf;
use crate::space::{PAGE, Piece as DeadPiece, Place};
use crate::store::Context;
use crate::store::Purse;
use crate::store::Stage;
use crate::store::Store;
use crate::{Fault, Planted, PoolState, Reply, Time};

/// Nodes whose checksums are computed in a slice: some 2 microseconds each.
const SUMS_PER_SLICE: usize = 12;
/// Bytes of objects encoded in a slice.
const BYTES_PER_SLICE: usize = 16 << 10;
/// Nodes of one write; a slice submits one write. A multiple of 8 ends at a page.
const NODES_PER_WRITE: usize = 8;
/// Most writes of nodes in flight, to bound the load of a slow device and the memory used.
const WRITES_IN_FLIGHT: u32 = 16;
/// Most chunk ids assigned between checkpoints: recovery skips as many to be sure that none is used
/// twice (I11).
pub(crate) const CHUNKS_PER_CHECKPOINT: u64 = 1 << 20;
/// Share (1/N) of a pool of less than 32 GiB that the log takes between two checkpoints, and the
/// least of it.
const CHECKPOINT_PART: u64 = 32;
const LEAST_LOG_BYTES: u64 = 256 << 20;
/// Segments that a checkpoint must release for each that it takes, to be worthwhile while the
/// cleaner still frees others.
const WORTH: usize = 4;
/// Milliseconds between exact counts of a checkpoint that seems not to fit.
const COUNT_MILLIS: u64 = 500;
/// Milliseconds after which an idle pool with segments that wait for a checkpoint writes one, so
/// that their space is released.
const IDLE_MILLIS: u64 = 3_000;

/// The checkpoint task.
#[derive(Debug, Default)]
pub(crate) struct Checkpointer {
    /// The fixed state that is not written yet.
    sealed: Option<Box<Sealed>>,
    /// Segments reserved for it.
    reserved: Vec<SegmentId>,
    /// Writes of the running stage in flight.
    pending: u32,
    root: Option<Root>,
    /// Objects of the previous checkpoint that this one replaces.
    replaced: Vec<ObjectRef>,
    /// Pieces of deadlists that it wrote.
    written: Vec<Weak<DeadPiece>>,
    /// Commands that the running checkpoint answers.
    answering: Vec<Tag>,
    /// Time of the last exact count of its size.
    counted: Time,
}

impl Checkpointer {
    /// Returns whether part of it is still to be encoded or written.
    pub(crate) fn is_writing(&self) -> bool {
        self.sealed.is_some()
    }

    /// Takes the commands that wait for a checkpoint, because none will be written.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.answering)
    }
}

impl Pool {
    /// Starts a checkpoint when one is due, and continues the running one; slow work only when
    /// `turn` is true. Returns true when it wants another turn of the pool soon.
    pub(crate) fn step_checkpoint(&mut self, turn: bool) -> bool {
        if matches!(self.store.state, PoolState::Faulted(_)) {
            return false;
        }
        match self.store.checkpoint.stage {
            Stage::Idle => {
                if !self.filler.holds_roots()
                    && !self.scrubber.holds_roots()
                    && self.store.labels.switching.is_empty()
                    && self.checkpoint_due()
                {
                    self.store.estimate_again();
                    if self.store.checkpoint_fits_with(0) || self.checkpointer.counts_again(&mut self.store) {
                        self.checkpointer.seal_checkpoint(&mut self.store);
                    }
                }
                self.store.checkpoint.running()
            }
            Stage::Writing => (!turn && self.checkpointer.is_writing()) || self.write_on(),
            _ => false,
        }
    }

    fn checkpoint_due(&self) -> bool {
        if self.store.state == PoolState::Opening {
            // the first checkpoint of a new pool
            return !self.store.checkpoint.first_done && self.store.io.in_flight() == 0;
        }
        let fresh_log = self.store.log.since_checkpoint > 0 || self.store.core.nodes.dirty() > 0;
        let idle = self.store.now.0.saturating_sub(self.store.last_activity.0) > IDLE_MILLIS
            && self.store.now.0.saturating_sub(self.store.checkpoint.begun.0) > IDLE_MILLIS
            && self.store.rests_for_checkpoints();
        let closing = self.store.closing.is_some()
            && self.quiet()
            && (fresh_log || !self.store.checkpoint.first_done || self.store.core.has_retired());
        !self.store.checkpoint.wanted.is_empty()
            || self.store.checkpoint.forced
            || closing
            || self.checkpoint_brings_space()
            || idle
            || self.store.log.since_checkpoint >= self.store.checkpoint_log_bytes()
            || self.store.core.nodes.dirty() >= self.store.core.nodes.limit() / 2
            || self.store.core.pieces.wants_checkpoint()
            || self.store.core.next_chunk - self.store.checkpoint.sealed_chunk >= CHUNKS_PER_CHECKPOINT / 2
            || self.store.legs.len() > 1
    }

    /// Encodes and writes a slice. Returns true when there is more to do at once.
    fn write_on(&mut self) -> bool {
        let slices = self.store.slices();
        if let Some(mut sealed) = self.checkpointer.sealed.take() {
            if !self.checkpointer.encode_some(&mut self.store, &mut sealed, slices) {
                self.store.fault(Fault::NoCheckpointSegment);
                return false;
            }
            let waits = sealed.waits;
            let written = sealed.settling.done && sealed.is_encoded() && sealed.flushes.is_empty();
            if !written {
                self.checkpointer.sealed = Some(sealed);
                return !waits && self.checkpointer.pending < WRITES_IN_FLIGHT;
            }
        }
        if self.checkpointer.pending == 0 && self.store.log.completed >= self.checkpointer.root_lsn() {
            // INV-DEAD-4: pieces that were written can be read from here on
            std::mem::take(&mut self.checkpointer.written).iter().filter_map(Weak::upgrade).for_each(|piece| piece.settle());
            self.next_stage(Stage::Barrier);
        }
        false
    }

    /// Writes a root that names the current checkpoint and this import's part of the log; when it
    /// is durable the pool is in service.
    pub(crate) fn publish(&mut self, root: Root) {
        self.checkpointer.root = Some(root);
        self.next_stage(Stage::Barrier);
    }

    fn next_stage(&mut self, stage: Stage) {
        self.store.checkpoint.stage = stage;
        match stage {
            Stage::Barrier | Stage::RootBarrier | Stage::LastBarrier => {
                self.checkpointer.pending = 1;
                self.store.flusher.wants.checkpoint = true;
                self.start_flush();
            }
            Stage::FirstRoots => self.checkpointer.write_roots(&mut self.store, false),
            Stage::SecondRoots => self.checkpointer.write_roots(&mut self.store, true),
            Stage::Idle | Stage::Writing => {}
        }
    }

    /// Handles the end of a write of nodes.
    pub(crate) fn nodes_written(&mut self, nodes: &[u32], result: Result<(), DeviceError>) {
        if result.is_ok() {
            nodes.iter().for_each(|at| self.store.core.nodes.written(*at));
        }
        self.store.checkpoint.unwritten -= nodes.len();
        self.checkpoint_io_done(result);
    }

    /// Handles the end of a write or barrier of the running checkpoint.
    pub(crate) fn checkpoint_io_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.store.fault(Fault::Checkpoint(error));
        }
        self.checkpointer.pending -= 1;
        if self.checkpointer.pending > 0 || matches!(self.store.state, PoolState::Faulted(_)) {
            return;
        }
        match self.store.checkpoint.stage {
            Stage::Idle | Stage::Writing => {}
            Stage::Barrier => self.next_stage(Stage::FirstRoots),
            Stage::FirstRoots => self.next_stage(Stage::RootBarrier),
            Stage::RootBarrier => self.next_stage(Stage::SecondRoots),
            Stage::SecondRoots => self.next_stage(Stage::LastBarrier),
            Stage::LastBarrier => self.commit_checkpoint(),
        }
    }

    /// Completes a checkpoint that is durable: releases everything that it replaced.
    fn commit_checkpoint(&mut self) {
        self.store.checkpoint.stage = Stage::Idle;
        let Some(root) = self.checkpointer.root.take() else { return };
        self.store.generation = root.generation;
        self.store.past_roots.push_back((root.generation, root.time));
        // the root of an import names the checkpoint of the import before
        self.store.checkpoint_generation = if root.checkpoint == self.store.checkpoint_at { root.generation - 1 } else { root.generation };
        self.store.checkpoint_at = root.checkpoint;
        self.store.checkpoint_lsn = root.lsn;
        self.store.log.durable = self.store.log.durable.max(root.lsn);
        self.store.legs = root.legs;
        // replaced objects are needed by the previous checkpoint at most, whatever was fixed since
        let sealed = std::mem::replace(&mut self.store.core.space.sealed_generation, root.generation - 1);
        for old in std::mem::take(&mut self.checkpointer.replaced) {
            if old.length > 0 {
                self.store.drop_object(old);
            }
        }
        self.store.core.space.sealed_generation = sealed;
        self.checkpointer.release_reserved(&mut self.store);
        if self.store.evacuation.is_some() {
            self.store.count_moving();
        }
        self.store.metrics.checkpoints += 1;
        self.cleaner.unblock();
        if self.store.state == PoolState::Opening {
            self.opened();
        } else {
            self.store.begin_special_streams();
        }
        self.store.checkpoint.first_done = self.store.state != PoolState::Opening;
        for tag in std::mem::take(&mut self.checkpointer.answering) {
            self.store.replies.push_back((tag, Ok(Reply::Done)));
        }
    }

    /// Continues the import once its first root is durable: puts the pool in service, or opens the
    /// log first.
    fn opened(&mut self) {
        if (0..self.store.log.streams.len()).any(|stream| !is_special(stream) && self.store.log.streams[stream].next.is_none()) {
            // segments that waited for a checkpoint at the crash are free only now
            self.release_rested(true);
            self.store.core.space.segments.stamp_emptied(Lsn(self.store.log.next.0 - 1));
            self.store.release_logged();
            return self.open_log();
        }
        self.store.state = PoolState::Online;
        let volumes: Vec<_> = self.store.core.catalog.volumes.keys().copied().collect();
        volumes.into_iter().for_each(|volume| self.trim_beyond(volume));
        self.filler.fill_what_lacks(&mut self.store);
        self.resume_jobs();
        self.attach_caches();
    }

    /// Returns whether space is short and a checkpoint would free enough of it.
    pub(crate) fn checkpoint_brings_space(&self) -> bool {
        self.store.cleaned_shelves().any(|shelf| self.checkpoint_brings(shelf))
    }

    fn checkpoint_brings(&self, shelf: Shelf) -> bool {
        let segments = &self.store.core.space.segments;
        let (free, wanted, total) = (segments.free_in(shelf), self.store.wanted_free(shelf), segments.count_in(shelf));
        if free >= wanted {
            return false;
        }
        let (landing, meta) = (shelf == self.store.core.space.homes.landing, shelf == self.store.core.space.homes.meta);
        let (need, least) = if meta { (self.store.checkpoint_segments(), self.store.least_segments()) } else { (0, 0) };
        let waiting = self.store.waiting_for_flush.in_shelf(shelf);
        if self.store.short_of_space() {
            return need > least || segments.resting_in(shelf) > waiting;
        }
        let gain = segments.resting_in(shelf).saturating_sub(waiting);
        let purse = if landing { Purse::Guest } else { Purse::Cleaner };
        if free <= self.store.floor_on(shelf, purse) && self.cleaner.idle() && waiting == 0 {
            return gain > 0 || need > 2 * least + 2;
        }
        // a checkpoint takes segments itself: it is worthwhile when it frees several times as many
        gain >= (WORTH * need).min(total / 32).max(wanted / 2)
    }
}

impl Checkpointer {
    /// Counts exactly whether the next checkpoint fits. That takes time, so it is done only when
    /// everything dead is freed, and not often.
    fn counts_again(&mut self, store: &mut Store) -> bool {
        if store.core.catalog.has_frees() || store.tuning.plants(Planted::CrowdTheLog) || store.now.0 < self.counted.0 + COUNT_MILLIS {
            return false;
        }
        self.counted = store.now;
        store.checkpoint_fits_after_all()
    }

    fn root_lsn(&self) -> Lsn {
        self.root.as_ref().map_or(Lsn(0), |root| root.lsn)
    }

    /// Does a slice of the work: deadlists and pages of the chunk table, then checksums, then the
    /// objects that contain them, then nodes. Returns false when no segment is left.
    fn encode_some(&mut self, store: &mut Store, sealed: &mut Sealed, slices: usize) -> bool {
        let mut room = BYTES_PER_SLICE * slices;
        while room > 0 && self.pending < WRITES_IN_FLIGHT {
            let late = sealed.settling.done;
            sealed.waits = !late && store.wait_for_pieces(sealed);
            if sealed.waits {
                return true;
            }
            let Some(bytes) = (if late { self.encode_late(store, sealed) } else { self.encode_early(store, sealed) }) else { return false };
            match bytes {
                0 if late => {
                    self.write_nodes(store, sealed, slices);
                    return true;
                }
                0 => {
                    store.settle_some(sealed, SUMS_PER_SLICE * slices);
                    return true;
                }
                bytes => room = room.saturating_sub(bytes),
            }
        }
        true
    }

    /// Writes some of the nodes.
    fn write_nodes(&mut self, store: &mut Store, sealed: &mut Sealed, slices: usize) {
        let mut writes = slices;
        while writes > 0 && self.pending < WRITES_IN_FLIGHT {
            let Some(flush) = sealed.flushes.front_mut() else { return };
            let (Some(place), false) = (flush.place, flush.nodes.is_empty()) else {
                sealed.flushes.pop_front();
                continue;
            };
            writes -= 1;
            let rest = flush.nodes.split_off(flush.nodes.len().min(NODES_PER_WRITE));
            let nodes = std::mem::replace(&mut flush.nodes, rest);
            let bytes = (nodes.len() * NODE_BYTES).next_multiple_of(4096);
            flush.place = Some(Place { page: place.page + (bytes / 4096) as u32, ..place });
            let mut buf = store.bufs.take(bytes);
            for (slot, at) in nodes.iter().enumerate() {
                let cached = store.core.nodes.get(*at);
                if let Some(out) = buf.bytes_mut().get_mut(slot * NODE_BYTES..(slot + 1) * NODE_BYTES) {
                    cached.node.encode(cached.addr, out);
                }
            }
            if let Some(rest) = buf.bytes_mut().get_mut(nodes.len() * NODE_BYTES..bytes) {
                rest.fill(0);
            }
            store.metrics.node_writes += nodes.len() as u64;
            store.metrics.metadata_bytes += bytes as u64;
            let piece = Piece::new(Rc::new(buf), 0..bytes);
            self.pending += 1;
            store.io.write(Context::Nodes(nodes), &store.core.space.rows, place.segment, place.page, vec![piece], &mut store.bufs);
        }
    }

    fn write_roots(&mut self, store: &mut Store, at_end: bool) {
        self.pending = 1;
        let Some(root) = &self.root else { return };
        let writes = store.root_writes(&root.clone(), at_end);
        store.io.write_raw(Context::Checkpoint, writes);
    }
}

impl Store {
    /// Returns the bytes of log after which a checkpoint is due. What the log empties is retained
    /// for a rewind until some checkpoints later, so a small pool has them more often: else its log
    /// would go on to space that the host has not allocated, although most of the pool is empty.
    pub(crate) fn checkpoint_log_bytes(&self) -> u64 {
        let part = self.core.space.segments.all_pages() * PAGE / CHECKPOINT_PART;
        self.tuning.checkpoint_log_bytes.min(part.max(LEAST_LOG_BYTES))
    }

    /// Returns the writes of one root to every device except cache devices and spares.
    pub(crate) fn root_writes(&mut self, root: &Root, at_end: bool) -> Vec<(MemberId, u64, Piece)> {
        let mut buf = self.bufs.take(4096);
        if let Some(to) = buf.bytes_mut().get_mut(..4096) {
            to.copy_from_slice(&root.encode());
        }
        let piece = Piece::new(Rc::new(buf), 0..4096);
        let slot = Root::slot_offset(root.generation);
        let area = |size: u64| if at_end { second_area(size) } else { 0 };
        let rings = (0u16..).zip(&self.config.sizes).filter(|(member, _)| !self.config.shape.is_aside(*member));
        rings.map(|(member, size)| (MemberId(member), area(*size) + slot, piece.clone())).collect()
    }
}
