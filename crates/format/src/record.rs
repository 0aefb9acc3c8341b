//! Changes to the catalog, as the log carries them, and the catalog itself, as a checkpoint carries it.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{Addr, BlockNo, Epoch, LineageId, ObjectRef, SnapshotId, VolumeId};

/// A value with one encoding.
trait Field: Sized {
    /// Bytes that any encoding has at least.
    const LEAST: usize;
    fn put(&self, e: &mut Encoder);
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError>;
}

macro_rules! field_int {
    ($($ty:ty, $bytes:expr, $put:ident);*) => {$(
        impl Field for $ty {
            const LEAST: usize = $bytes;
            fn put(&self, e: &mut Encoder) { e.$put(*self) }
            fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> { d.$put() }
        }
    )*};
}
field_int!(u8, 1, u8; u16, 2, u16; u32, 4, u32; u64, 8, u64);

macro_rules! field_id {
    ($($ty:ident, $int:ty);*) => {$(
        impl Field for $ty {
            const LEAST: usize = <$int>::LEAST;
            fn put(&self, e: &mut Encoder) { self.0.put(e) }
            fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> { <$int>::get(d).map($ty) }
        }
    )*};
}
field_id!(VolumeId, u32; SnapshotId, u64; LineageId, u64; Epoch, u64; BlockNo, u64);

impl Field for bool {
    const LEAST: usize = 1;
    fn put(&self, e: &mut Encoder) {
        e.u8(u8::from(*self));
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        match d.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FormatError::Field("flag")),
        }
    }
}

impl Field for String {
    const LEAST: usize = 2;
    fn put(&self, e: &mut Encoder) {
        e.string(self);
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        d.string()
    }
}

impl<T: Field> Field for Option<T> {
    const LEAST: usize = 1;
    fn put(&self, e: &mut Encoder) {
        self.is_some().put(e);
        if let Some(value) = self {
            value.put(e);
        }
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        if bool::get(d)? { T::get(d).map(Some) } else { Ok(None) }
    }
}

impl<T: Field> Field for Vec<T> {
    const LEAST: usize = 4;
    fn put(&self, e: &mut Encoder) {
        e.count(self.len());
        self.iter().for_each(|item| item.put(e));
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let n = d.count(T::LEAST)?;
        (0..n).map(|_| T::get(d)).collect()
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const LEAST: usize = A::LEAST + B::LEAST;
    fn put(&self, e: &mut Encoder) {
        self.0.put(e);
        self.1.put(e);
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        Ok((A::get(d)?, B::get(d)?))
    }
}

impl<A: Field, B: Field, C: Field> Field for (A, B, C) {
    const LEAST: usize = A::LEAST + B::LEAST + C::LEAST;
    fn put(&self, e: &mut Encoder) {
        self.0.put(e);
        self.1.put(e);
        self.2.put(e);
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        Ok((A::get(d)?, B::get(d)?, C::get(d)?))
    }
}

impl Field for ObjectRef {
    const LEAST: usize = ObjectRef::BYTES;
    fn put(&self, e: &mut Encoder) {
        self.encode(e);
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        ObjectRef::decode(d)
    }
}

/// The root of a map: a hole when nothing was written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TreeRoot {
    /// Where the top node is.
    pub addr: Addr,
    /// Its checksum.
    pub crc: u32,
    /// Levels: 1 = the top node is a leaf.
    pub height: u8,
}

impl Field for TreeRoot {
    const LEAST: usize = 13;
    fn put(&self, e: &mut Encoder) {
        e.u64(self.addr.settled().to_bits());
        e.u32(self.crc);
        e.u8(self.height);
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let root = TreeRoot { addr: Addr::from_bits(d.u64()?)?, crc: d.u32()?, height: d.u8()? };
        if root.height > 6 { Err(FormatError::Field("height")) } else { Ok(root) }
    }
}

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }
        impl Field for $name {
            const LEAST: usize = 0 $(+ <$ty as Field>::LEAST)*;
            fn put(&self, e: &mut Encoder) { $(self.$field.put(e);)* }
            fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> { Ok($name { $($field: <$ty as Field>::get(d)?,)* }) }
        }
    };
}

mod snapshot;

pub use snapshot::{HoldRecord, SNAPSHOTS_PER_PAGE, SnapshotRecord, Standing};

fields!(
    /// A volume in the catalog. Encoded field after field.
    VolumeRecord {
        /// Identity.
        id: VolumeId,
        /// Name without the pool's.
        name: String,
        /// Bytes.
        size: u64,
        /// 0 = 512n, 1 = 512e, 2 = 4kn.
        sector: u8,
        /// 0 none, 1 directsync, 2 writethrough, 3 writeback, 4 unsafe.
        cache: u8,
        /// 0 off, 1 lz4, 2 zstd.
        compression: u8,
        /// Writes are refused.
        read_only: bool,
        /// The lineage whose head it is.
        lineage: LineageId,
        /// Milliseconds since the Unix epoch.
        created: u64,
    }
);

fields!(
    /// What guests of a volume are held to.
    LimitRecord {
        /// 0 requests, 1 reads, 2 writes, 3 bytes, 4 bytes read, 5 bytes written; 6 is no rate: bytes of memory that the volume has for what is
        /// read. Who does not know one passes it over.
        what: u8,
        /// Per second; 0: none.
        sustained: u64,
        /// Per second in a burst; 0: none.
        burst: u64,
        /// Seconds that a burst lasts; 0: one.
        seconds: u32,
    }
);

fields!(
    /// What a volume may take and what is kept for it.
    OptionsRecord {
        /// Bytes kept for the volume and its snapshots; 0: none.
        reservation: u64,
        /// Writes of at most so many bytes go to special devices; 0: none.
        special_small_blocks: u32,
        /// Rates, each at most once.
        limits: Vec<LimitRecord>,
    }
);

fields!(
    /// A line of versions in the catalog.
    LineageRecord {
        /// Identity.
        id: LineageId,
        /// Whose snapshots these are.
        volume: VolumeId,
        /// The snapshot it starts from.
        origin: Option<SnapshotId>,
        /// Epoch of that snapshot, 0 without one.
        origin_epoch: Epoch,
        /// The writable end, if there is one: root and blocks mapped.
        head: Option<(TreeRoot, u64)>,
        /// What died since the last snapshot.
        deadlist: Option<ObjectRef>,
        /// Units of live blocks that were written in this lineage.
        owned_units: u64,
    }
);

fields!(
    /// The end of a lineage that is being freed.
    WalkRecord {
        /// Identity: consecutive.
        id: u64,
        /// The lineage that owned it.
        lineage: LineageId,
        /// Root of the tree.
        root: TreeRoot,
        /// Only what was born after this is freed.
        bound: Epoch,
        /// Everything before this block is done.
        cursor: BlockNo,
    }
);

fields!(
    /// How far a scrub is, or how it ended.
    ScrubRecord {
        /// Milliseconds since the Unix epoch.
        begun: u64,
        /// When it came to its end.
        ended: Option<u64>,
        /// It was not stopped.
        complete: bool,
        /// Segments before this one are read.
        next: u32,
        /// Bytes of what was read.
        done: u64,
        /// Copies that were wrong.
        errors: u64,
        /// Pieces that were written again.
        repaired: u64,
        /// Pieces of which no copy is right: all, of these map nodes, and blocks that nobody knows any more.
        lost: u64,
        /// See `lost`.
        lost_nodes: u64,
        /// See `lost`.
        lost_unknown: u64,
        /// Some of the blocks of which no copy is right.
        blocks: Vec<(VolumeId, BlockNo)>,
    }
);

fields!(
    /// Jobs that go on after an import, and how fast all of them together may be.
    #[derive(Default)]
    JobsRecord {
        /// Bytes per second; 0: as fast as guests leave room for.
        rate: u64,
        /// Groups are being filled evenly.
        rebalance: bool,
        /// The scrub that runs, or the last one.
        scrub: Option<ScrubRecord>,
    }
);

/// Version of checkpoint objects; 2 moved the snapshots into pages of their own, 3 made deadlists shorter, 4 has options at the end, 5 jobs, 6 the
/// wipe, 7 deadlists in pieces, 8 lineages in another order than that of their ids.
const VERSION: u16 = 8;
/// The oldest that can be read: it has no options. The one after it has no jobs, and the next no wipe; then deadlists are whole, which their objects say.
const WITHOUT_OPTIONS: u16 = 3;
const WITHOUT_JOBS: u16 = 4;
const WITHOUT_WIPE: u16 = 5;
const WITHOUT_PIECES: u16 = 6;
/// Lineages start from snapshots of lineages with lower ids. Written as long as they do: a pool without promoted clones can go back.
const IN_ORDER: u16 = 7;

fields!(
    /// What a checkpoint object holds.
    Checkpoint {
        /// Pool name.
        name: String,
        /// Last batch contained.
        lsn: u64,
        /// Current epoch.
        epoch: Epoch,
        /// Write clock in blocks.
        clock: u64,
        /// Smallest chunk id never used.
        next_chunk: u64,
        /// Smallest volume id never used.
        next_volume: u32,
        /// Smallest snapshot id never used.
        next_snapshot: u64,
        /// Smallest lineage id never used.
        next_lineage: u64,
        /// Smallest walk id never used.
        next_walk: u64,
        /// Average life of short-lived segments, in blocks written (SepBIT's threshold).
        lifespan: u64,
        /// Chunk table pages: page number and place.
        chunk_pages: Vec<(u64, ObjectRef)>,
        /// Volumes.
        volumes: Vec<VolumeRecord>,
        /// Lineages.
        lineages: Vec<LineageRecord>,
        /// Pages of snapshots, [`SNAPSHOTS_PER_PAGE`] ids each: page number and place.
        snapshot_pages: Vec<(u64, ObjectRef)>,
        /// Ends of lineages being freed.
        walks: Vec<WalkRecord>,
        /// Dead blocks waiting to be freed: lineage and list.
        frees: Vec<(LineageId, ObjectRef)>,
        /// Segments that are free but stay untouched for older checkpoints: segment and generation.
        resting: Vec<(u32, u64)>,
        /// Options of volumes that have others than the defaults.
        options: Vec<(VolumeId, OptionsRecord)>,
        /// Jobs.
        jobs: JobsRecord,
        /// The wipe that is on its way: 0: none; 1: devices are asked to discard; 2: zeroes are written.
        wipe: u8,
        /// 1: a lineage starts from a snapshot of one with a greater id, since a clone was promoted; else 0, which is not stored.
        reordered: u8,
    }
);

impl Checkpoint {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u32(0x5043_504d); // "MPCP"
        e.u16(if self.reordered == 0 { IN_ORDER } else { VERSION });
        self.put(&mut e);
        let mut bytes = e.into_bytes();
        if self.reordered == 0 {
            bytes.pop();
        }
        bytes
    }

    /// Reads the object.
    ///
    /// # Errors
    /// [`FormatError`] when it makes no sense. The checksum is the caller's, from the root.
    pub fn decode(bytes: &[u8]) -> Result<Checkpoint, FormatError> {
        let mut d = Decoder::new(bytes);
        if d.u32()? != 0x5043_504d {
            return Err(FormatError::Magic);
        }
        let version = d.u16()?;
        // the same with nothing of what came later at the end
        let (next, added): (u16, &[u8]) = match version {
            WITHOUT_OPTIONS => (WITHOUT_JOBS, &[0; <Vec<OptionsRecord>>::LEAST]),
            WITHOUT_JOBS => (WITHOUT_WIPE, &[0; JobsRecord::LEAST]),
            WITHOUT_WIPE => (WITHOUT_PIECES, &[0]),
            WITHOUT_PIECES => (IN_ORDER, &[]),
            IN_ORDER => (VERSION, &[0]),
            VERSION => (VERSION, &[]),
            _ => return Err(FormatError::Version(version)),
        };
        if next != version {
            let mut newer = bytes.to_vec();
            newer.splice(4..6, next.to_le_bytes());
            newer.extend(added);
            return Checkpoint::decode(&newer);
        }
        let checkpoint = Checkpoint::get(&mut d)?;
        d.end()?;
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Bounds: whatever is added to from here on can be added to.
    fn check(&self) -> Result<(), FormatError> {
        let counters = [self.lsn, self.epoch.0, self.clock, self.next_snapshot, self.next_lineage, self.next_walk];
        let sound = counters.iter().all(|n| *n < 1 << 62) && self.next_chunk < 1 << 40 && self.next_volume < u32::MAX;
        let sound = sound && self.reordered <= 1;
        if sound { Ok(()) } else { Err(FormatError::Field("counter")) }
    }
}

macro_rules! records {
    ($($tag:literal $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        /// A change to the catalog, with the ids and times it was given, so that replay makes the same one.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Record {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $ty,)* },)*
        }
        impl Record {
            /// Appends it.
            pub fn encode(&self, e: &mut Encoder) {
                match self {
                    $(Record::$name { $($field,)* } => { e.u8($tag); $(Field::put($field, e);)* })*
                }
            }

            /// Reads it.
            ///
            /// # Errors
            /// [`FormatError`] when it makes no sense.
            pub fn decode(d: &mut Decoder<'_>) -> Result<Record, FormatError> {
                match d.u8()? {
                    $($tag => Ok(Record::$name { $($field: <$ty as Field>::get(d)?,)* }),)*
                    _ => Err(FormatError::Field("record")),
                }
            }
        }
    };
}

records! {
    1 /// A new volume.
    CreateVolume {
        /// The volume.
        volume: VolumeRecord,
    }
    2 /// A volume and all its snapshots are gone at once, as earlier versions recorded it.
    DestroyVolume {
        /// Which.
        volume: VolumeId,
    }
    3 /// Another name.
    RenameVolume {
        /// Which.
        volume: VolumeId,
        /// New name.
        name: String,
    }
    4 /// Another size.
    Resize {
        /// Which.
        volume: VolumeId,
        /// Bytes.
        size: u64,
    }
    5 /// Other properties.
    Properties {
        /// Which.
        volume: VolumeId,
        /// As in [`VolumeRecord`].
        cache: u8,
        /// As in [`VolumeRecord`].
        compression: u8,
        /// Writes are refused.
        read_only: bool,
    }
    6 /// Snapshots of one instant.
    Snapshot {
        /// Volume, snapshot, name.
        targets: Vec<(VolumeId, SnapshotId, String)>,
        /// Milliseconds since the Unix epoch.
        created: u64,
        /// Free text.
        description: String,
        /// When they may go by themselves.
        expires: Option<u64>,
    }
    7 /// Snapshots are gone.
    DestroySnapshots {
        /// Which.
        snapshots: Vec<SnapshotId>,
    }
    8 /// Another name.
    RenameSnapshot {
        /// Which.
        snapshot: SnapshotId,
        /// New name.
        name: String,
    }
    9 /// The head starts anew from a snapshot; the old head is kept as another.
    Rollback {
        /// To what.
        snapshot: SnapshotId,
        /// Identity of the snapshot that keeps the old head.
        keep: SnapshotId,
        /// Its name.
        name: String,
        /// Identity of the new lineage.
        lineage: LineageId,
        /// Milliseconds since the Unix epoch.
        created: u64,
    }
    10 /// A new volume that starts from a snapshot.
    Clone {
        /// From what.
        snapshot: SnapshotId,
        /// Identity of the new volume.
        volume: VolumeId,
        /// Identity of its lineage.
        lineage: LineageId,
        /// Its name.
        name: String,
        /// Milliseconds since the Unix epoch.
        created: u64,
    }
    11 /// A hold without a tag.
    Hold {
        /// Which.
        snapshot: SnapshotId,
        /// When it ends by itself.
        until: Option<u64>,
    }
    12 /// One hold without a tag less.
    Release {
        /// Which.
        snapshot: SnapshotId,
    }
    13 /// A walk freed everything before `cursor`.
    Walked {
        /// Which.
        walk: u64,
        /// How far.
        cursor: BlockNo,
        /// Nothing is left.
        done: bool,
    }
    14 /// Other options.
    Options {
        /// Which.
        volume: VolumeId,
        /// All of them.
        options: OptionsRecord,
    }
    15 /// Other sectors.
    Sector {
        /// Which.
        volume: VolumeId,
        /// As in [`VolumeRecord`].
        sector: u8,
    }
    16 /// Other jobs, or farther ones.
    Jobs {
        /// All of them.
        jobs: JobsRecord,
    }
    17 /// A wipe has begun or ended.
    Wipe {
        /// As in [`Checkpoint`].
        wipe: u8,
    }
    18 /// A volume is gone; its snapshots are no longer listed, and go with records of their own.
    RemoveVolume {
        /// Which.
        volume: VolumeId,
    }
    20 /// A hold with a tag. One with the same tag that has ended by itself is replaced.
    HoldTagged {
        /// Which.
        snapshot: SnapshotId,
        /// The hold.
        hold: HoldRecord,
    }
    21 /// The hold with a tag is gone.
    ReleaseTagged {
        /// Which.
        snapshot: SnapshotId,
        /// Its tag.
        tag: String,
    }
    22 /// The snapshots that a clone starts from belong to it, and the volume they belonged to becomes its clone.
    Promote {
        /// The clone.
        volume: VolumeId,
    }
}
