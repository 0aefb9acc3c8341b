//! [`Pool`]: the state of a pool in service.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Answer, Completion, DeviceSlot, DiskError, Tag};
use millpond_format::{BlockNo, Lsn, VolumeId};
use rustc_hash::FxHashMap;

use super::codec::Codec;
use super::destroy::Reclaimer;
use super::full::FullDevices;
use super::op::Op;
use crate::cache::CacheDevices;
use crate::read_cache::ReadCache;
use crate::slab::Slab;
use crate::store::Store;
use crate::task::{Checkpointer, Cleaner, Filler, Keeper, Preparer, Rebalancer, Rejoiner, Relabeler, Scrubber, Spares, Wiper};
use crate::{CommandError, DiffExtent, Fault, Planted, PoolState, Time};

/// State of writes that wait for free segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starved {
    pub(super) since: Time,
    /// Checkpoints written when the cleaner last moved something, and the bytes that it had moved
    /// by then.
    pub(super) checkpoints: u64,
    pub(super) moved: u64,
}

/// A pool in service.
pub(crate) struct Pool {
    pub(crate) store: Store,
    pub(crate) ops: Slab<Op>,
    /// Operations to continue in this turn.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) node_waiters: FxHashMap<u64, Vec<u32>>,
    /// Writes that wait for room in the log.
    pub(crate) space_waiters: VecDeque<u32>,
    pub(super) reclaimer: Reclaimer,
    /// Writes beyond the usable capacity that wait while space is being released, and the units
    /// freed when they were last tried.
    pub(super) full_waiters: VecDeque<u32>,
    pub(super) full_waiters_tried: u64,
    /// Clears that wait for room in the log.
    pub(crate) record_waiters: VecDeque<u32>,
    /// Blocks whose old content is being read, and the operations that wait for them.
    pub(crate) locks: BTreeMap<(VolumeId, BlockNo), VecDeque<u32>>,
    /// Reads that wait for a batch to complete: the batch and the operation.
    pub(crate) read_waiters: Vec<(Lsn, u32)>,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) relabeler: Relabeler,
    pub(crate) filler: Filler,
    pub(crate) spares: Spares,
    /// Why the import that opened the pool went back further than the newest checkpoint.
    pub(crate) fell_back: Option<String>,
    pub(crate) rejoiner: Rejoiner,
    pub(crate) rebalancer: Rebalancer,
    pub(crate) scrubber: Scrubber,
    pub(crate) wiper: Wiper,
    pub(crate) preparer: Preparer,
    pub(crate) keeper: Keeper,
    pub(crate) cleaner: Cleaner,
    pub(crate) cache: CacheDevices,
    pub(crate) read_cache: ReadCache,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) diffs: VecDeque<(Tag, Result<Vec<DiffExtent>, CommandError>)>,
    /// Replies to queries.
    pub(crate) answers: VecDeque<Answer>,
    /// Steps of comparisons left in this turn.
    pub(crate) comparisons: usize,
    /// Set while writes wait for free segments.
    pub(crate) starved: Option<Starved>,
    pub(super) full_devices: FullDevices,
    /// Positions of devices that did not answer while the pool was opened: the pool works without
    /// them, or was refused.
    pub(crate) unanswered: Vec<DeviceSlot>,
    pub(super) codec: Codec,
    /// Volumes whose end is being discarded after a shrink, and the operation that does it.
    pub(crate) trimming: BTreeMap<VolumeId, u32>,
    /// Volumes for which that discard failed, and why: they may not grow, or the old data beyond
    /// the end would be visible again.
    pub(crate) untrimmed: BTreeMap<VolumeId, DiskError>,
    /// Commands that wait for room in the log, and for how many turns they have.
    pub(crate) parked_commands: Vec<(Tag, crate::Command)>,
    pub(crate) starved_commands: u32,
    /// Commands that destroy snapshots, the one in progress first.
    pub(crate) destroying: VecDeque<super::destroy::Destroying>,
    /// Resizes that wait for that discard.
    pub(crate) resizes: Vec<(Tag, VolumeId, u64)>,
}

impl Pool {
    /// Creates a pool in service.
    pub(crate) fn new(store: Store) -> Pool {
        let cache = CacheDevices::new(store.config.id, store.tuning.cache_memory);
        let read_cache = ReadCache::new(store.tuning.read_cache);
        let now = store.now;
        let mut pool = Pool {
            store,
            ops: Slab::default(),
            ready: VecDeque::new(),
            node_waiters: FxHashMap::default(),
            space_waiters: VecDeque::new(),
            reclaimer: Reclaimer::new(now),
            full_waiters: VecDeque::new(),
            full_waiters_tried: 0,
            record_waiters: VecDeque::new(),
            locks: BTreeMap::new(),
            read_waiters: Vec::new(),
            checkpointer: Checkpointer::default(),
            relabeler: Relabeler::default(),
            filler: Filler::default(),
            spares: Spares::default(),
            fell_back: None,
            rejoiner: Rejoiner::default(),
            rebalancer: Rebalancer::default(),
            scrubber: Scrubber::default(),
            wiper: Wiper::default(),
            preparer: Preparer::default(),
            keeper: Keeper::default(),
            cleaner: Cleaner::default(),
            cache,
            read_cache,
            completions: VecDeque::new(),
            diffs: VecDeque::new(),
            answers: VecDeque::new(),
            comparisons: 0,
            starved: None,
            full_devices: FullDevices::new(now),
            unanswered: Vec::new(),
            codec: Codec::new(),
            trimming: BTreeMap::new(),
            untrimmed: BTreeMap::new(),
            parked_commands: Vec::new(),
            starved_commands: 0,
            destroying: VecDeque::new(),
            resizes: Vec::new(),
        };
        pool.arrange_read_cache(pool.read_cache.limit());
        pool
    }

    /// Stops the pool: reads go on where they can, and nothing is written any more.
    pub(crate) fn fault(&mut self, why: Fault) {
        self.store.fault(why);
        self.end_what_waits();
    }

    /// Ends the requests and commands that wait in a pool that has just stopped. To be called after
    /// work of a task that may stop it.
    pub(super) fn end_what_waits(&mut self) {
        if !std::mem::take(&mut self.store.has_stopped) {
            return;
        }
        let PoolState::Faulted(why) = &self.store.state else { return };
        let why = why.clone();
        let mut held: Vec<u32> = self.store.log.abandon().into_iter().flat_map(|batch| batch.waiters).collect();
        for stream in &mut self.store.log.streams {
            if let Some(batch) = stream.batch.take() {
                held.extend(batch.waiters);
            }
        }
        held.extend(self.space_waiters.drain(..).chain(self.full_waiters.drain(..)).chain(self.record_waiters.drain(..)));
        held.extend(self.locks.values_mut().flat_map(|waiting| waiting.drain(..)));
        for op in held {
            self.fail_op(op, DiskError::Io);
        }
        self.abandon_destroys();
        let store = &mut self.store;
        let tags = std::mem::take(&mut store.checkpoint.wanted).into_iter().chain(self.checkpointer.take_commands());
        let tags = tags.chain(std::mem::take(&mut store.labels.waiting)).chain(self.relabeler.take_commands()).chain(store.closing.take());
        for tag in tags.collect::<Vec<_>>() {
            self.store.replies.push_back((tag, Err(CommandError::Faulted(why.clone()))));
        }
        for (tag, _) in std::mem::take(&mut self.parked_commands) {
            self.store.replies.push_back((tag, Err(CommandError::Faulted(why.clone()))));
        }
        for (tag, _, _) in std::mem::take(&mut self.resizes) {
            self.store.replies.push_back((tag, Err(CommandError::Faulted(why.clone()))));
        }
        let over: Vec<u32> = self.store.flusher.waiting.drain(..).map(|(op, _)| op).collect();
        let reads: Vec<u32> = self.read_waiters.drain(..).map(|(_, op)| op).collect();
        for op in over.into_iter().chain(reads) {
            if let Some(found) = self.ops.get_mut(op) {
                found.error = Some(DiskError::Io);
            }
            self.finish(op);
        }
    }
}

impl Store {
    /// Returns the units that guests can fill.
    pub(super) fn usable_units(&self) -> u64 {
        let units = self.core.space.usable_units();
        if self.tuning.plants(Planted::DenyCapacity) { units / 5 * 2 } else { units }
    }
}
