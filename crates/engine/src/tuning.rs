//! [`Tuning`]: settings that the caller chooses at each start; none of them is on disk.

use millpond_format::{DeviceId, FEATURES, Feature, Holder};

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Upper bound in bytes for map nodes kept in memory.
    pub map_memory: u64,
    /// Upper bound in bytes for the index, in memory, of cache devices: about 200 times as much of
    /// these devices is used.
    pub cache_memory: u64,
    /// Size of the read cache, for blocks that guests read more than once.
    pub read_cache: ReadCacheSize,
    /// Upper bound in bytes for what is read ahead of a guest that reads in order, into part of
    /// `read_cache`; 0: nothing is read ahead.
    pub read_ahead: u64,
    /// Bytes of log after which a checkpoint is started, at most. A pool below 32 times as many
    /// bytes starts one after a 32nd of its size, or 256 MiB if that is more.
    pub checkpoint_log_bytes: u64,
    /// Checkpoints that can be rewound to: freed space is reused only after this many more.
    pub rewind_checkpoints: u32,
    /// Milliseconds for which checkpoints can be rewound to beyond that, while the space retained
    /// for it is a small part of the pool and space is not short.
    pub rewind_millis: u64,
    /// When free segments are discarded, so that the host gets their space back.
    pub discard: Discard,
    /// How many free segments are kept allocated on the host.
    pub ready: ReadySpace,
    /// When blocks that guests read together and that lie apart are written next to each other.
    pub gather: Gather,
    /// Blocks that the engine decompresses itself in a turn; a block to be compressed counts as four.
    /// The caller does the others, and all that are read ahead
    /// ([`Engine::pop_codec_work`](crate::Engine::pop_codec_work)); with `usize::MAX` there are none.
    pub codec_at_once: usize,
    /// Bytes of each copy that a scrub reads at a time, approximately.
    pub scrub_strip: u32,
    /// Percent of the log's segments that may be in use before some of its data is moved to the
    /// data class, or to the bucket; data that is overwritten soon need not move.
    pub log_percent: u8,
    /// How the data of a pool with a bucket gets there.
    pub uploads: UploadLimits,
    /// Most bytes of a piece of a deadlist, unless segments are small: what one write of a
    /// checkpoint takes.
    pub piece_bytes: u32,
    /// Upper bound in bytes for cached pieces of deadlists. Part of `map_memory`, and at most an
    /// eighth of it.
    pub piece_memory: u64,
    /// Milliseconds that an import waits for a missing device before a spare replaces it. A device
    /// that fails in service is replaced without waiting.
    pub spare_millis: u64,
    /// Milliseconds without any completion after which a device with operations in flight is given
    /// up, where the pool can do without it. If four times the device's longest pause in the last
    /// ten minutes is longer, that applies, up to six times this value. More than a disk needs to
    /// spin up, less than guests wait.
    pub silence_millis: u64,
    /// Milliseconds without any completion after which data is also read from other devices that
    /// have it.
    pub reread_millis: u64,
    /// Import a pool although devices are missing that it can do without. They are out of date from
    /// then on.
    pub degraded: bool,
    /// An import refuses labels that are older than this, or on other devices: the labels that the
    /// caller has read may differ from those that the engine reads. `None`: any labels.
    pub newest_label: Option<NewestLabel>,
    /// The state that an import shall reach.
    pub aim: Aim,
    /// Holder in the claims of this import, for other hosts to see. `None`: no claim is read or
    /// written; also where no other host can have the devices.
    pub holder: Option<Holder>,
    /// Take the pool from another host that has claimed it and not closed it.
    pub force: bool,
    /// Write nothing to any device: the log is replayed in memory, guests may only read, changes
    /// are refused.
    pub read_only: bool,
    /// Features that the program knows: [`FEATURES`]. Tests of upgrades have programs with more.
    pub features: &'static [Feature],
    /// Planted bug, for tests of the tests; always `None` in production.
    pub planted: Option<Planted>,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            map_memory: 1 << 30,
            cache_memory: 1 << 29,
            read_cache: ReadCacheSize::default(),
            read_ahead: 0,
            checkpoint_log_bytes: 1 << 30,
            rewind_checkpoints: 2,
            rewind_millis: 600_000,
            discard: Discard::default(),
            ready: ReadySpace::default(),
            gather: Gather::default(),
            codec_at_once: usize::MAX,
            scrub_strip: 128 << 10,
            log_percent: 50,
            uploads: UploadLimits::default(),
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
            features: FEATURES,
            planted: None,
        }
    }
}

impl Tuning {
    /// Returns whether a bug is planted and this build allows it.
    pub(crate) fn plants(&self, bug: Planted) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}

/// Size of a pool's read cache, and which volumes use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCacheSize {
    /// Bytes; 0: none.
    pub bytes: u64,
    /// False if only volumes with a size of their own use it, and nothing is read ahead: for devices
    /// that are as fast as memory, where copies of their blocks gain nothing.
    pub shared: bool,
}

impl ReadCacheSize {
    /// Returns the size of a cache that all volumes share, in bytes.
    pub fn shared(bytes: u64) -> ReadCacheSize {
        ReadCacheSize { bytes, shared: true }
    }

    /// Returns the bytes that volumes share, with those that have a size of their own.
    pub(crate) fn shared_bytes(self) -> u64 {
        if self.shared { self.bytes } else { 0 }
    }
}

/// When the host gets the space of free segments back (hole punch, TRIM).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// Never: the pool keeps space that it once used.
    Never,
    /// Surplus beyond [`ReadySpace`] that lasted for long, a little at a time.
    #[default]
    Lazy,
    /// As soon as the pool is idle; in a busy pool, space beyond the log between two checkpoints.
    Now,
}

/// How many free segments are kept allocated on the host. The log uses those first: for the others
/// the host has to find space, and a flush waits for the host's journal.
///
/// Twice the log of a minute is kept, between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadySpace {
    /// Write zeroes to free segments ahead of the log, if fewer than the target are allocated.
    pub prepare: bool,
    /// Lower bound in bytes.
    pub least: u64,
    /// Upper bound in bytes; half of the pool if that is less.
    pub most: u64,
    /// Bytes prepared at once in a new pool; a sixteenth of the pool if that is less.
    pub at_first: u64,
    /// Milliseconds that surplus must last before it is released. A pool at rest (without requests
    /// for a tenth of that) releases all above `least` after a
    /// quarter of it, and at once after half of it without requests.
    pub surplus_millis: u64,
    /// Bytes that may be retained for the time of a rewind alone, or an eighth of the space in use
    /// if that is more; but at most an eighth of the pool.
    pub retained: u64,
}

impl ReadySpace {
    /// Returns the settings for hosts whose devices may be thinly provisioned.
    pub fn ahead() -> ReadySpace {
        ReadySpace { prepare: true, at_first: 1 << 30, ..ReadySpace::default() }
    }
}

impl Default for ReadySpace {
    fn default() -> Self {
        ReadySpace { prepare: false, least: 256 << 20, most: 8 << 30, at_first: 0, surplus_millis: 600_000, retained: 4 << 30 }
    }
}

/// When blocks that guests read together and that lie apart are written next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// Device reads beyond one each that long reads of a leaf of the map need before its 512 blocks
    /// are gathered: as many as its blocks, so that gathering costs no more than these reads did. 0:
    /// never.
    pub after_reads: u32,
    /// Least bytes of a read that counts.
    pub from_bytes: u64,
}

impl Default for Gather {
    fn default() -> Self {
        Gather { after_reads: 512, from_bytes: 32 << 10 }
    }
}

/// How data of a pool with a bucket gets there. Each upload takes the memory of an object, 16 MiB at
/// most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadLimits {
    /// Objects that are being filled, at most; four, one for each lifetime class, are enough.
    pub open: usize,
    /// Full objects that are being created, at most.
    pub under_way: usize,
    /// Milliseconds after which data moves to the bucket although the log has space, and objects are
    /// created that are not full.
    pub after_millis: u64,
}

impl Default for UploadLimits {
    fn default() -> Self {
        UploadLimits { open: 4, under_way: 8, after_millis: 600_000 }
    }
}

/// The newest label that an import must find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewestLabel {
    /// Lowest acceptable generation.
    pub generation: u64,
    /// Devices that may have it: it must be on one of them.
    pub devices: Vec<DeviceId>,
}

/// The state that an import shall reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The newest state; refused when part of it is damaged.
    #[default]
    Newest,
    /// The newest whole checkpoint, and the log after it as far as it is sound. Later state is
    /// given up for good.
    Rewind,
    /// As [`Aim::Rewind`], with checkpoints found by reading every segment's first page and all
    /// checkpoint objects: for pools without readable roots.
    Rebuild,
    /// The checkpoint of this generation, without the log after it. Later state is given up for
    /// good.
    To(u64),
}

/// Known bugs that a test can plant, to prove that the simulator finds them. They have no effect
/// without the feature `planted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Acknowledge a flush without flushing the devices.
    SkipBarrier,
    /// Reuse freed segments before the checkpoint that freed them is durable.
    FreeTooEarly,
    /// Update the map when a batch completes instead of when it is appended.
    ApplyAtCompletion,
    /// Find blocks in the read cache by place instead of address.
    ReadCacheByPlace,
    /// Leave one entry out of a deadlist.
    ForgetDeadlistEntry,
    /// Do not log a discard.
    LoseDiscardRecord,
    /// Give blocks that the cleaner moves a new sequence number.
    CleanerNewSequence,
    /// Reuse segments that the log emptied before the log is durable.
    ReuseBeforeFlush,
    /// Let an import continue from a log whose end is on some copies only.
    SkipLeveling,
    /// Do not verify checksums of blocks read from the cache.
    TrustCache,
    /// Let a scrub compute parity from data on the devices, whatever the checksums say.
    ParityFromRot,
    /// Let a scrub accept other copies, and parity, when the data of one copy is right.
    SkimOneCopy,
    /// Count late answers of a device that was replaced for its replacement.
    LateAnswersCount,
    /// Do not wait for writes to a device that was filled, even when it counts as whole.
    LagForEver,
    /// Let a device count as whole without the newest key table.
    OldTableCounts,
    /// Release a piece of a deadlist when the first list no longer refers to it.
    FreePieceInUse,
    /// Read a piece of a deadlist at its old place after it moved, and trust the content.
    StalePiece,
    /// Leave the last span of a view whole in both lists when it is cut after a split.
    CutShort,
    /// Let a removal leave no room in the log for the checkpoint records of its moves.
    CrowdTheLog,
    /// Retain freed space for no older checkpoint.
    NothingRests,
    /// Let guests fill less than half of the pool.
    DenyCapacity,
    /// Ignore reservations of other volumes.
    ForgetReservations,
    /// Report that no snapshot holds any space alone.
    NothingUnique,
    /// Leave holds with tags out of checkpoints.
    ForgetTags,
    /// Leave the deadlists of heads in their places at a promotion.
    PromoteKeepsDeadlists,
    /// Let bandwidth caps of devices delay urgent operations.
    HoldClaims,
    /// Lose the oldest operation that a cap delays when the cap is lifted.
    ForgetHeld,
    /// Hand operations to devices after the lease has expired.
    LeaveLate,
    /// Allow bursts of twice the length.
    BurstTwice,
    /// Treat a wiped segment as clean although something has died in it since.
    WipeOnce,
    /// Put a pool that was imported without some devices in service before that is remembered.
    ServeUnremembered,
    /// Trust any device with a label as new as the remembered one.
    TrustAnyDevice,
    /// Ignore that devices were left behind here when another host may have used them.
    ForgetLeftBehind,
    /// Import devices together that were written to separately.
    JoinApart,
    /// Do not update the remembered labels of a pool in service.
    ForgetNewLabels,
    /// Do not wait for missing devices.
    WaitForNobody,
    /// Allow allocation of a segment while it is being prepared.
    PrepareInUse,
    /// Leave extents unused that a stopped removal took out of segments.
    LeaveGivenUp,
    /// Answer requests in progress as before when a volume's cache mode becomes stricter.
    LoosenUnderWay,
    /// Use content of the page cache that devices may not have when they are opened.
    TrustPageCache,
    /// Leave out a device that does not answer although the import may not degrade.
    LeaveOutUnasked,
    /// Take compressed parts of a write as its first, second and so on in the order in which they
    /// are done.
    CodecInOrder,
    /// Map gathered blocks although their entries changed since they were read.
    GatherStale,
    /// Free an address without the slot that its forward leads to.
    ForwardKeepsTarget,
    /// Leave out of checkpoints the chunks whose blocks are all elsewhere.
    ForwardForgotten,
    /// Find blocks that were read ahead, or are being, by the addresses that they had then.
    ReadAheadStale,
    /// Read a chunk of a base that cannot be fetched as zeroes.
    BaseReadsZero,
    /// Do not log a discard where the map reads as a base.
    BaseClearNotLogged,
    /// Clear a subtree that reads as a base whole where part of it is to be cleared.
    BaseClearWhole,
    /// Take the result of a fetch as that of the oldest one.
    BaseFetchByOrder,
    /// Take blocks that read as a base for holes in comparisons.
    BaseCompareHides,
    /// Leave bases out of checkpoints.
    BaseForgotten,
    /// Let a pool that closes wait for fetches.
    BaseCloseWaits,
    /// Make the neighbours of a write holes where they read as a base.
    BaseEntryAsHole,
    /// Fail the reads that wait for a chunk when a fetch of it ahead of guests is given up.
    BaseAheadFails,
    /// Give chunks their places in an object that is not confirmed yet.
    PlacedEarly,
    /// Take the result of a create as that of the oldest one.
    BucketByOrder,
    /// Do not log the places of chunks in objects.
    PlacedNotLogged,
    /// Move map nodes to objects, too.
    MetaInBucket,
    /// Begin uploads without a record of their term.
    TermNotLogged,
    /// Choose segments again whose chunks are in uploads.
    GatheredTwice,
}
