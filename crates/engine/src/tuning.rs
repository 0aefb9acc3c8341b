//! [`Tuning`]: what the caller decides at each start; nothing of it is on disk.

use millpond_format::{DeviceId, Holder};

/// Knobs of an engine that are not on disk.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Upper bound in bytes for map nodes kept in memory.
    pub map_memory: u64,
    /// Upper bound in bytes for what is kept in memory of what is on devices of class cache: some 200 times as much of them is used.
    pub cache_memory: u64,
    /// Upper bound in bytes for blocks that guests read more than once and that are kept in memory; 0: none.
    pub read_cache: u64,
    /// Bytes of log after which a checkpoint is started.
    pub checkpoint_log_bytes: u64,
    /// Checkpoints that stay rewindable: space freed is reused only after this many more.
    pub rewind_checkpoints: u32,
    /// Milliseconds that checkpoints stay rewindable beyond that, while what rests for it is a small part of the pool and space is not
    /// short.
    pub rewind_millis: u64,
    /// When the host gets the bytes of free segments back.
    pub discard: Discard,
    /// How many free segments the host has bytes for.
    pub ready: ReadySpace,
    /// Bytes of each copy that a scrub reads at a time, about.
    pub scrub_strip: u32,
    /// Percent of the log's segments that may be in use before some of it is moved to where data stays: what is overwritten soon is not
    /// moved.
    pub log_percent: u8,
    /// Bytes of a piece of a deadlist at most, where segments are not small: what one write of a checkpoint takes.
    pub piece_bytes: u32,
    /// Upper bound in bytes for what is kept in memory of pieces of deadlists though it could be read again. It is a part of
    /// `map_memory`, an eighth of
    /// that at most.
    pub piece_memory: u64,
    /// Milliseconds that an import waits for a missing device before a spare takes its place. For one that fails while it is used nobody
    /// waits.
    pub spare_millis: u64,
    /// Milliseconds in which a device ends nothing of what it was asked for after which it is given up, where the pool can do without it,
    /// and four
    /// times as long as its longest pause in the last ten minutes, up to six times this. More than a disk needs to spin up, less than
    /// guests wait.
    pub silence_millis: u64,
    /// Milliseconds of that after which is read from other devices what they have, too.
    pub reread_millis: u64,
    /// Import a pool although devices are missing that it can do without. They are out of date from then on.
    pub degraded: bool,
    /// An import refuses labels that are older than these, or on other devices: what the caller has read of the labels may not be what
    /// the engine
    /// reads of them. `None`: whatever is there.
    pub newest_label: Option<NewestLabel>,
    /// What an import comes to.
    pub aim: Aim,
    /// Who has the pool from then on, for other hosts to see. Without it no claim is written and nobody's is looked at: where the devices
    /// cannot
    /// be another host's, too.
    pub holder: Option<Holder>,
    /// Import a pool that another host has claimed and not closed: it is taken from it.
    pub force: bool,
    /// Nothing is written to any device: the log is replayed in memory, guests read, changes are refused.
    pub read_only: bool,
    /// Faults planted on purpose, for tests of the tests; `None` always in production.
    pub planted: Option<Planted>,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            map_memory: 1 << 30,
            cache_memory: 1 << 29,
            read_cache: 0,
            checkpoint_log_bytes: 1 << 30,
            rewind_checkpoints: 2,
            rewind_millis: 600_000,
            discard: Discard::default(),
            ready: ReadySpace::default(),
            scrub_strip: 128 << 10,
            log_percent: 50,
            piece_bytes: 64 << 10,
            piece_memory: 1 << 27,
            spare_millis: 300_000,
            silence_millis: 15_000,
            reread_millis: 2_000,
            degraded: false,
            newest_label: None,
            aim: Aim::Newest,
            holder: None,
            force: false,
            read_only: false,
            planted: None,
        }
    }
}

/// When the host gets the bytes of free segments back (hole punch, TRIM).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// Never: the pool keeps what it once took.
    Never,
    /// What was more than [`ReadySpace`] keeps for long, a little at a time.
    #[default]
    Lazy,
    /// As soon as the pool is idle, and before that what is more than the log between two checkpoints needs.
    Now,
}

/// How many free segments the host has bytes for. The log goes to those first: where the host has none it has to find some, and a flush
/// waits for
/// its journal.
///
/// Twice the bytes of log of a minute are kept, between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadySpace {
    /// Write zeros to free segments ahead of the log, where the host has no bytes for as many as are kept.
    pub prepare: bool,
    /// Bytes that are kept at least.
    pub least: u64,
    /// Bytes that are kept at most; an eighth of the pool when that is less.
    pub most: u64,
    /// Bytes that are prepared at once in a new pool; a sixteenth of it when that is less.
    pub at_first: u64,
    /// Milliseconds that there are more before the host gets them back. A pool at rest (for a tenth of that) gives back after half of it
    /// what is above `least`.
    pub surplus_millis: u64,
    /// Bytes that may rest for the time of a rewind alone, or an eighth of what is in use when that is more; an eighth of the pool when
    /// both are.
    pub resting: u64,
}

impl ReadySpace {
    /// What a host wants whose devices may be thin.
    pub fn ahead() -> ReadySpace {
        ReadySpace { prepare: true, at_first: 1 << 30, ..ReadySpace::default() }
    }
}

impl Default for ReadySpace {
    fn default() -> Self {
        ReadySpace { prepare: false, least: 256 << 20, most: 8 << 30, at_first: 0, surplus_millis: 600_000, resting: 4 << 30 }
    }
}

/// The newest label that an import is to find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewestLabel {
    /// Its generation at least.
    pub generation: u64,
    /// Devices that may have it: one of them has to.
    pub devices: Vec<DeviceId>,
}

/// What an import comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The newest state; refused when a part of it is damaged.
    #[default]
    Newest,
    /// The newest checkpoint that is whole, and the log after it as far as it is sound. What came later is given up for good.
    Rewind,
    /// The same, of checkpoints that are found by reading every segment's first page and all checkpoint objects: when the roots are gone.
    Rebuild,
    /// The checkpoint of this generation, without the log after it. What came later is given up for good.
    To(u64),
}

/// Known bugs that a test can plant, to prove that the simulator finds them. Without the feature `planted` they do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Acknowledge a flush without flushing the devices.
    SkipBarrier,
    /// Reuse freed segments before the checkpoint that freed them is durable.
    FreeTooEarly,
    /// Update the map when a batch completes instead of when it is appended.
    ApplyAtCompletion,
    /// Find blocks in the read cache by where they are instead of by their address.
    ReadCacheByPlace,
    /// Leave one entry out of a deadlist.
    ForgetDeadlistEntry,
    /// Do not log a discard.
    LoseDiscardRecord,
    /// Give blocks that the cleaner moves a new sequence number.
    CleanerNewSequence,
    /// Segments that the log emptied are used again before the log is durable.
    ReuseBeforeFlush,
    /// An import goes on from a log whose end is on some copies alone.
    SkipLeveling,
    /// What is read from the cache is not compared with its checksum.
    TrustCache,
    /// A scrub makes parity of data as it lies, whatever checksums say.
    ParityFromRot,
    /// A scrub takes other copies, and parity, for right where the data of one copy is.
    SkimOneCopy,
    /// What a device that was replaced answers late counts for the one in its place.
    LateAnswersCount,
    /// A piece of a deadlist is given back by the first list that does without it.
    FreePieceInUse,
    /// A piece of a deadlist is read where it was before it moved, and believed.
    StalePiece,
    /// The last span of a view stays whole in both lists when it is cut after a split.
    CutShort,
    /// A removal leaves no room in the log to what checkpoints have to say of what it moves.
    CrowdTheLog,
    /// What was freed rests for no older checkpoint.
    NothingRests,
    /// Guests may fill less than half of the pool.
    DenyCapacity,
    /// Nothing is kept for volumes with a reservation.
    ForgetReservations,
    /// No snapshot is said to hold anything alone.
    NothingUnique,
    /// Checkpoints leave out holds with tags.
    ForgetTags,
    /// A promotion leaves the deadlists of heads where they were.
    PromoteKeepsDeadlists,
    /// Caps of devices hold back operations that are urgent.
    HoldClaims,
    /// The oldest operation that is held by a cap is gone when the cap is lifted.
    ForgetHeld,
    /// Operations leave for devices after the lease.
    LeaveLate,
    /// A burst may be twice as long.
    BurstTwice,
    /// A segment that was wiped counts as clean although something died in it since.
    WipeOnce,
    /// A pool that is imported without some of its devices serves before that is remembered.
    ServeUnremembered,
    /// Any device with a label as new as the remembered one is trusted.
    TrustAnyDevice,
    /// That devices were left behind here is no reason to refuse what another host made of them.
    ForgetLeftBehind,
    /// Devices that were written to apart are imported together.
    JoinApart,
    /// What is remembered does not follow the labels of a pool in service.
    ForgetNewLabels,
    /// Missing devices are not waited for.
    WaitForNobody,
    /// A segment can be had while it is prepared.
    PrepareInUse,
    /// What a removal took out of its rows before it was stopped stays unused.
    LeaveGivenUp,
    /// Requests under way when a volume's cache mode becomes stricter are answered as before.
    LoosenUnderWay,
    /// Devices are opened with what the page cache has of them and they may not have.
    TrustPageCache,
    /// A device that does not answer is left out although the import was not allowed to degrade.
    LeaveOutUnasked,
}
