//! [`Requests`]: guests' requests and commands in progress, and everything that they wait for.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Answer, Completion, DiskError, IoSlices, Tag};
use millpond_format::{BlockNo, Lsn, VolumeId};
use rustc_hash::FxHashMap;

use super::codec::CodecQueue;
use super::fetch::Fetches;
use super::full::FullDevices;
use super::op::Op;
use super::reclaimer::Reclaimer;
use crate::cache::CacheDevices;
use crate::read_ahead::ReadAhead;
use crate::read_cache::ReadCache;
use crate::slab::Slab;
use crate::store::{Scattered, Store};
use crate::{CommandError, DiffExtent, Time};

/// State of writes that wait for free segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceWait {
    pub(super) since: Time,
    /// Checkpoints written when the cleaner last moved something, and the bytes that it had moved
    /// by then.
    pub(super) checkpoints: u64,
    pub(super) moved: u64,
}

/// Requests and commands in progress. They use the store, and know no task.
pub(crate) struct Requests {
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
    pub(crate) cache: CacheDevices,
    pub(crate) read_cache: ReadCache,
    pub(crate) ahead: ReadAhead,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) diffs: VecDeque<(Tag, Result<Vec<DiffExtent>, CommandError>)>,
    /// Replies to queries.
    pub(crate) answers: VecDeque<Answer>,
    /// Steps of comparisons left in this turn.
    pub(crate) comparisons: usize,
    /// Set while writes wait for free segments.
    pub(crate) space_wait: Option<SpaceWait>,
    /// Leaves whose blocks guests read together and that lie apart, for the gatherer to take.
    pub(super) scattered: Vec<Scattered>,
    /// Results of reads of blocks to be gathered, by the number of the read.
    pub(super) gather_reads: Vec<(u64, Result<IoSlices, DiskError>)>,
    pub(super) full_devices: FullDevices,
    pub(crate) codec: CodecQueue,
    pub(crate) fetches: Fetches,
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

impl Requests {
    /// Creates the state of a pool without requests.
    pub(super) fn new(store: &Store) -> Requests {
        let cache = CacheDevices::new(store.config.id, store.tuning.cache_memory);
        let read_cache = ReadCache::new(store.tuning.read_cache);
        let now = store.now;
        let mut requests = Requests {
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
            cache,
            read_cache,
            ahead: ReadAhead::default(),
            completions: VecDeque::new(),
            diffs: VecDeque::new(),
            answers: VecDeque::new(),
            comparisons: 0,
            space_wait: None,
            scattered: Vec::new(),
            gather_reads: Vec::new(),
            full_devices: FullDevices::new(now),
            codec: CodecQueue::new(store.tuning.codec_at_once),
            fetches: Fetches::default(),
            trimming: BTreeMap::new(),
            untrimmed: BTreeMap::new(),
            parked_commands: Vec::new(),
            starved_commands: 0,
            destroying: VecDeque::new(),
            resizes: Vec::new(),
        };
        requests.arrange_read_cache(store, requests.read_cache.size());
        requests
    }
}
