//! [`Store`]: the state of a pool on its devices, and the log through which it changes.
//!
//! Requests and tasks use it; it knows none of them. What it does for one of them that takes device
//! operations carries a [`Context`], by which the pool passes the result to the request or task.

mod append;
mod change;
mod checkpoint;
mod compare;
mod context;
mod flush;
mod gather;
mod hold;
mod host;
mod identities;
mod info;
mod jobs;
mod keys;
mod labels;
mod memory;
mod moves;
mod names;
mod pace;
mod read;
mod release;
mod removal;
mod room;
mod scrub;
mod service_time;
mod shape;
mod slices;
mod sparse;
mod stock;
mod streams;
mod usage;
mod watermarks;
mod write_sizes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use millpond_block::{Buf, BufPool, DeviceSlot, DeviceSpace, Tag};
use millpond_format::{LogTail, Lsn, ObjectRef};

pub(crate) use self::append::NoRoom;
pub(crate) use self::checkpoint::{At, CheckpointState, META_HEAD_PAGES, OBJECT_WRITE, ObjectsIn, Stage};
pub(crate) use self::compare::{Comparison, Found, STEPS_PER_QUERY, state_of};
pub(crate) use self::context::{AreaPart, ClaimIo, Config, Context, FillPiece, JobIo, NodeRead, PieceRead, ScrubArea, ScrubRead};
pub(crate) use self::flush::{Flusher, Repairs};
pub(crate) use self::gather::{GAP_PAGES, GatherRead, GatheredBlock, Scattered};
pub use self::hold::LOCK_TAG;
pub(crate) use self::identities::{Moves, original_identities};
pub(crate) use self::keys::{KeyWork, Keys, TABLE_BYTES, empty_pages};
pub(crate) use self::labels::{LabelState, LabelStep};
pub(crate) use self::memory::STUCK_MILLIS;
pub(crate) use self::names::MAX_VOLUME_BYTES;
pub use self::names::check_name;
pub(crate) use self::pace::Pace;
pub(crate) use self::release::{AT_A_TIME, CALL_BYTES, IDLE_MILLIS};
pub(crate) use self::removal::{Evacuation, ROOM_MILLIS, Removal, Removals, STEP_PART, count_rows, joinable, runs};
pub(crate) use self::scrub::{Check, Copy, InMemory, Item, PAGE, Place, StripScan, WriteStamp, copy_of};
pub(crate) use self::service_time::ServiceTime;
pub(crate) use self::shape::{add_groups, check_layouts, device_id, extent_space, invalid, new_members, take_groups};
pub(crate) use self::stock::Stock;
pub(crate) use self::usage::Spans;
pub(crate) use self::watermarks::{Estimate, LEAST_LOG, Waiting, Watermark};
pub(crate) use self::write_sizes::{CensusWork, STEPS_PER_LEAF};
use crate::core::Core;
use crate::io::{BucketIo, IoTable};
use crate::log::Log;
use crate::{CommandError, Fault, Metrics, Planted, PoolState, Reply, Time, Tuning};

/// Bytes of the shared buffer of zeroes that reads of holes are answered from.
pub(crate) const ZEROES: usize = 64 << 10;

/// The state of a pool on its devices.
pub(crate) struct Store {
    /// The contents of the labels.
    pub(crate) config: Config,
    pub(crate) tuning: Tuning,
    /// Time of the current turn.
    pub(crate) now: Time,
    /// Time for which the pool has been in service.
    pub(crate) service: ServiceTime,
    pub(crate) core: Core,
    pub(crate) log: Log,
    pub(crate) io: IoTable<Context>,
    /// Reads of objects of the bucket.
    pub(crate) bucket: BucketIo<Context>,
    pub(crate) bufs: BufPool,
    pub(crate) zeroes: Arc<Buf>,
    /// Number of this import.
    pub(crate) incarnation: u32,
    /// Generation of the newest root on the devices.
    pub(crate) generation: u64,
    /// Place of the checkpoint that the roots name.
    pub(crate) checkpoint_at: ObjectRef,
    /// Generation of the root that published it; 0 while it is from before this import.
    pub(crate) checkpoint_generation: u64,
    /// Last batch that it contains.
    pub(crate) checkpoint_lsn: Lsn,
    /// Generations and times of the roots that a rewind may go back to, oldest first.
    pub(crate) past_roots: VecDeque<(u64, u64)>,
    /// The log after it, one range per import.
    pub(crate) log_tails: Vec<LogTail>,
    pub(crate) metrics: Metrics,
    /// LSN of the last batch with a clear or a catalog record.
    pub(crate) last_record: Lsn,
    pub(crate) flusher: Flusher,
    /// Segments that become free when the log is durable.
    pub(crate) waiting_for_flush: Waiting,
    pub(crate) repairs: Repairs,
    /// Replies to commands, for the caller to take.
    pub(crate) replies: VecDeque<(Tag, Result<Reply, CommandError>)>,
    pub(crate) checkpoint: CheckpointState,
    pub(crate) labels: LabelState,
    pub(crate) keys: Keys,
    /// Average life of segments of the short-lived class, in blocks that guests write.
    pub(crate) lifespan: u64,
    /// Pages that the cleaner wrote in this round, to move blocks out of the segments it emptied.
    pub(crate) spent: u64,
    /// The pool has stopped, and what waits has not been ended yet.
    pub(crate) has_stopped: bool,
    /// The plan of the running step of a removal.
    pub(crate) evacuation: Option<Evacuation>,
    pub(crate) removals: Removals,
    /// The command that closes the pool.
    pub(crate) closing: Option<Tag>,
    pub(crate) state: PoolState,
    pub(crate) stock: Stock,
    /// Allocated space on the hosts of devices, by slot.
    pub(crate) hosts: BTreeMap<DeviceSlot, DeviceSpace>,
    pub(crate) pace: Pace,
    /// Time of the last request.
    pub(crate) last_activity: Time,
}

impl Store {
    /// Creates a store over recovered state, or that of a new pool.
    pub(crate) fn new(config: Config, core: Core, log: Log, mut io: IoTable<Context>, bufs: BufPool, tuning: Tuning, now: Time) -> Store {
        io.lasting = true;
        io.late_answers_count = tuning.plants(Planted::LateAnswersCount);
        if tuning.plants(Planted::LagForEver) {
            io.let_lag_for_ever();
        }
        Store {
            config,
            tuning,
            now,
            service: ServiceTime::default(),
            core,
            log,
            io,
            bucket: BucketIo::default(),
            bufs,
            zeroes: Arc::new(Buf::zeroed(ZEROES)),
            incarnation: 0,
            generation: 0,
            checkpoint_at: ObjectRef::default(),
            checkpoint_generation: 0,
            checkpoint_lsn: Lsn(0),
            past_roots: VecDeque::new(),
            log_tails: Vec::new(),
            metrics: Metrics::default(),
            last_record: Lsn(0),
            repairs: Repairs::default(),
            waiting_for_flush: Waiting::default(),
            flusher: Flusher::default(),
            replies: VecDeque::new(),
            checkpoint: CheckpointState::new(now),
            labels: LabelState::default(),
            keys: Keys::default(),
            lifespan: 0,
            spent: 0,
            has_stopped: false,
            evacuation: None,
            removals: Removals::default(),
            closing: None,
            stock: Stock::new(now),
            hosts: BTreeMap::new(),
            state: PoolState::Opening,
            last_activity: now,
            pace: Pace::default(),
        }
    }

    /// Stops the pool: reads go on where they can, and nothing is written any more. The pool ends
    /// waiting requests and commands when the task that calls this returns.
    pub(crate) fn fault(&mut self, why: Fault) {
        if !matches!(self.state, PoolState::Faulted(_)) {
            self.state = PoolState::Faulted(why);
            self.has_stopped = true;
        }
    }
}
