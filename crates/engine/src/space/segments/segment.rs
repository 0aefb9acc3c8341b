//! One segment: its state, and what the pool knows of its content.

use millpond_format::{ChunkId, Lsn};

use crate::space::AllocClass;

/// Batch that the log does not have yet: after every other one.
pub(super) const NOT_LOGGED: Lsn = Lsn(u64::MAX);

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Can be allocated.
    Free,
    /// Allocated for a stream as its next segment.
    Reserved,
    /// Being filled by a stream.
    Open,
    /// Full, or no longer filled by its stream.
    Sealed,
    /// Empty, but checkpoints up to this generation need its bytes; free after a later one.
    Retained(u64),
    /// Empty; its space is being discarded on the device.
    Discarding,
    /// Empty; zeros are being written, so that the host allocates its space ahead of the log.
    Preparing,
    /// Cannot be allocated: a gap in the shape, or removed.
    Absent,
}

/// One segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    /// Units of live blocks and nodes in it.
    pub(crate) live: u32,
    /// Units of checkpoint objects in it.
    pub(crate) objects: u32,
    /// Chunks that were placed here; some may have moved away since.
    pub(crate) chunks: Vec<ChunkId>,
    /// Number of chunks that are here now.
    pub(crate) placed: u32,
    /// Reads in flight.
    pub(crate) pins: u32,
    /// Latest birth, on the write clock, of its chunks.
    pub(crate) youngest: u64,
    /// Time in milliseconds at which its stream went on to the next one; 0 when that is not known.
    pub(crate) filled: u64,
    /// Stream that filled it.
    pub(crate) class: u8,
    /// Number of the last batch in it.
    pub(crate) last: Lsn,
    /// True when it held nodes or objects, which replay reads where the last checkpoint put them.
    pub(crate) metadata: bool,
    /// Last fixed checkpoint when slots here were last freed without a log record; 0: never.
    pub(crate) unlogged: u64,
    /// While in retention: last batch with records of what emptied it; [`NOT_LOGGED`] until it is
    /// known.
    pub(crate) emptied: Lsn,
    /// True when the host has space for it: used or prepared since its last discard.
    pub(crate) backed: bool,
    /// True when the host keeps its space anyway, so discarding it frees nothing.
    pub(crate) kept: bool,
    /// True when one of its devices is being removed: once free it cannot be allocated any more.
    pub(crate) leaving: bool,
    /// True when it is to be wiped: once free it is wiped before it is written again.
    pub(super) emptying: bool,
    /// True when it may hold bytes that nothing refers to: data in it died or was moved away since
    /// the last wipe. Also true when unknown: after an import, and where a removal has freed space.
    pub(crate) unclean: bool,
    /// How often it became free: state noted at another count is not about its present content.
    pub(crate) uses: u32,
    /// Its allocation class.
    pub(crate) alloc_class: AllocClass,
    /// Index of its group; `None` for a group that was lost.
    pub(super) allocator: Option<usize>,
    /// The cleaner skips it until this time, in milliseconds; `left_for` says why.
    pub(crate) left_until: u64,
    pub(super) left_for: Pause,
}

/// Reason why the cleaner skips a segment for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Some data in it is wrong in all copies, although all of its devices were in service.
    Unreadable,
    /// Some data in it is wrong in all readable copies, but some devices were not complete.
    Away,
    /// The next checkpoint had no space for the records of its move.
    Room,
}

impl Segment {
    /// Returns why the cleaner skips it at time `now`.
    pub(crate) fn pause(&self, now: u64) -> Option<Pause> {
        (self.left_until > now).then_some(self.left_for)
    }

    /// Makes the cleaner skip it until a time.
    pub(crate) fn leave_until(&mut self, until: u64, why: Pause) {
        (self.left_until, self.left_for) = (until, why);
    }

    /// True when there is something to wipe on devices.
    pub(crate) fn is_unclean(&self) -> bool {
        self.unclean && self.is_on_devices() && self.allocator.is_some() && self.state != SegmentState::Absent
    }

    /// False for an object of a bucket, which takes no space on devices and their hosts.
    pub(super) fn is_on_devices(&self) -> bool {
        self.alloc_class != AllocClass::Bucket
    }

    /// True when it must become empty soon, because it is removed or wiped.
    pub(crate) fn is_given_up(&self) -> bool {
        self.leaving || self.emptying
    }

    /// Order in which free segments are allocated.
    pub(super) fn rank(&self) -> Rank {
        match (self.backed, self.kept) {
            (true, true) => Rank::Kept,
            (true, false) => Rank::Ready,
            (false, _) => Rank::Hole,
        }
    }
}

/// Space that the host has for a free segment. Segments are allocated in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Space that discarding would not free.
    Kept,
    /// Space that could be discarded.
    Ready,
    /// No space.
    Hole,
}
