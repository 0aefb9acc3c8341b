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
mod write;

use std::rc::Weak;

use millpond_block::{DeviceError, Tag};
use millpond_format::{ObjectRef, Root, SegmentId};

use self::seal::Sealed;
use crate::pool::Pool;
use crate::space::{Piece as DeadPiece, Shelf};
use crate::store::{Purse, Stage};
use crate::{Fault, PoolState, Time};

pub(crate) use self::objects::pieces;

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

    /// Handles the end of a write of nodes.
    pub(crate) fn nodes_written(&mut self, nodes: &[u32], result: Result<(), DeviceError>) {
        if result.is_ok() {
            nodes.iter().for_each(|at| self.store.core.nodes.written(*at));
        }
        self.store.checkpoint.unwritten -= nodes.len();
        self.checkpoint_io_done(result);
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
