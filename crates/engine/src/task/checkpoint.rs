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

use millpond_block::Tag;
use millpond_format::{ObjectRef, Root, SegmentId};

use self::seal::Sealed;
use super::cleaner::Cleaner;
use crate::space::{AllocClass, Piece as DeadPiece};
use crate::store::{Stage, Store, Watermark};
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

/// State of a checkpoint after a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// There is more to write at once.
    More,
    /// It waits for writes, for the log, or has failed.
    Waits,
    /// All is written; a barrier is next.
    Written,
}

impl Checkpointer {
    /// Encodes and writes a slice.
    pub(crate) fn write_on(&mut self, store: &mut Store) -> Slice {
        let slices = store.slices();
        if let Some(mut sealed) = self.sealed.take() {
            if !self.encode_some(store, &mut sealed, slices) {
                store.fault(Fault::NoCheckpointSegment);
                return Slice::Waits;
            }
            let waits = sealed.waits;
            let written = sealed.settling.done && sealed.is_encoded() && sealed.flushes.is_empty();
            if !written {
                self.sealed = Some(sealed);
                return if !waits && self.pending < WRITES_IN_FLIGHT { Slice::More } else { Slice::Waits };
            }
        }
        if self.pending == 0 && store.log.completed >= self.root_lsn() {
            // INV-DEAD-4: pieces that were written can be read from here on
            std::mem::take(&mut self.written).iter().filter_map(Weak::upgrade).for_each(|piece| piece.settle());
            return Slice::Written;
        }
        Slice::Waits
    }
}

/// Returns whether a checkpoint should begin. `quiet`: no operation, move or batch is in progress.
pub(crate) fn checkpoint_due(store: &Store, cleaner: &Cleaner, quiet: bool) -> bool {
    if store.state == PoolState::Opening {
        // the first checkpoint of a new pool
        return !store.checkpoint.first_done && store.io.in_flight() == 0 && !store.keys.is_busy();
    }
    let fresh_log = store.log.since_checkpoint > 0 || store.core.nodes.dirty() > 0;
    let idle = store.now.0.saturating_sub(store.last_activity.0) > IDLE_MILLIS
        && store.now.0.saturating_sub(store.checkpoint.begun.0) > IDLE_MILLIS
        && store.rests_for_checkpoints();
    let closing = store.closing.is_some() && quiet && (fresh_log || !store.checkpoint.first_done || store.core.has_retired());
    !store.checkpoint.wanted.is_empty()
        || store.checkpoint.forced
        || closing
        || checkpoint_brings_space(store, cleaner)
        || idle
        || store.log.since_checkpoint >= store.checkpoint_log_bytes()
        || store.core.nodes.dirty() >= store.core.nodes.limit() / 2
        || store.core.pieces.wants_checkpoint()
        || store.core.next_chunk - store.checkpoint.sealed_chunk >= CHUNKS_PER_CHECKPOINT / 2
        || store.log_tails.len() > 1
}

/// Returns whether space is short and a checkpoint would free enough of it.
pub(crate) fn checkpoint_brings_space(store: &Store, cleaner: &Cleaner) -> bool {
    store.cleaned_classes().any(|alloc_class| checkpoint_brings(store, cleaner, alloc_class))
}

fn checkpoint_brings(store: &Store, cleaner: &Cleaner, alloc_class: AllocClass) -> bool {
    let segments = &store.core.space.segments;
    let (free, wanted, total) = (segments.free_in(alloc_class), store.wanted_free(alloc_class), segments.count_in(alloc_class));
    if free >= wanted {
        return false;
    }
    let (landing, meta) = (alloc_class == store.core.space.targets.landing, alloc_class == store.core.space.targets.meta);
    let (need, least) = if meta { (store.checkpoint_segments(), store.least_segments()) } else { (0, 0) };
    let waiting = store.waiting_for_flush.in_alloc_class(alloc_class);
    if store.records_lack_room() {
        return need > least || segments.retained_in(alloc_class) > waiting;
    }
    let gain = segments.retained_in(alloc_class).saturating_sub(waiting);
    let watermark = if landing { Watermark::Guest } else { Watermark::Cleaner };
    if free <= store.floor_on(alloc_class, watermark) && cleaner.idle() && waiting == 0 {
        return gain > 0 || need > 2 * least + 2;
    }
    // a checkpoint takes segments itself: it is worthwhile when it frees several times as many
    gain >= (WORTH * need).min(total / 32).max(wanted / 2)
}
