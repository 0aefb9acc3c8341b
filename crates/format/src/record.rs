//! Changes of the catalog, as the log has them, and its parts, as a checkpoint has them.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{Addr, BlockNo, Epoch, LineageId, ObjectRef, SnapshotId, Term, VolumeId};

/// A value with one encoding.
trait Field: Sized {
    /// Minimum number of encoded bytes.
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
field_id!(VolumeId, u32; SnapshotId, u64; LineageId, u64; Epoch, u64; BlockNo, u64; Term, u32);

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

impl Field for crate::KeyId {
    const LEAST: usize = u64::LEAST;
    fn put(&self, e: &mut Encoder) {
        self.0.put(e);
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        match u64::get(d)? {
            0 => Err(FormatError::Field("key")), // no key has this number: it marks a free place of the key table
            id => Ok(crate::KeyId(id)),
        }
    }
}

/// The root of a map. Its address is a hole when nothing was written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TreeRoot {
    /// Address of the top node.
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

mod base;
mod bucket;
mod checkpoint;
mod snapshot;

pub use base::BaseRecord;
pub use bucket::BucketRecord;
pub use checkpoint::Checkpoint;
pub use snapshot::{HoldRecord, Lock, SNAPSHOTS_PER_PAGE, SnapshotRecord, Standing};

fields!(
    /// A volume in the catalog. Its fields are encoded in order.
    VolumeRecord {
        /// Identity.
        id: VolumeId,
        /// Name without that of the pool.
        name: String,
        /// Size in bytes.
        size: u64,
        /// 0 = 512n, 1 = 512e, 2 = 4kn.
        sector: u8,
        /// 0 none, 1 directsync, 2 writethrough, 3 writeback, 4 unsafe.
        cache: u8,
        /// 0 off, 1 lz4, 2 zstd.
        compression: u8,
        /// True when writes are refused.
        read_only: bool,
        /// The lineage whose head the volume is.
        lineage: LineageId,
        /// When it was created: milliseconds since the Unix epoch.
        created: u64,
    }
);

fields!(
    /// A limit of a volume.
    LimitRecord {
        /// 0 requests, 1 reads, 2 writes, 3 bytes, 4 bytes read, 5 bytes written; 6 is not a rate
        /// but the bytes of the read cache that the volume may have. Programs skip kinds that they
        /// do not know.
        what: u8,
        /// Rate per second; 0: none.
        sustained: u64,
        /// Rate per second in a burst; 0: none.
        burst: u64,
        /// Seconds that a burst lasts; 0: one.
        seconds: u32,
    }
);

fields!(
    /// Options of a volume: reservation, limits, and use of special devices.
    OptionsRecord {
        /// Bytes reserved for the volume and its snapshots; 0: none.
        reservation: u64,
        /// Maximum bytes of a write that goes to special devices; 0: none does.
        special_small_blocks: u32,
        /// Limits, at most one of each kind.
        limits: Vec<LimitRecord>,
    }
);

fields!(
    /// A line of versions in the catalog.
    LineageRecord {
        /// Identity.
        id: LineageId,
        /// Volume that the versions belong to.
        volume: VolumeId,
        /// Snapshot that the lineage starts from.
        origin: Option<SnapshotId>,
        /// Epoch of that snapshot, 0 without one.
        origin_epoch: Epoch,
        /// The head, if there is one: root, and number of mapped blocks.
        head: Option<(TreeRoot, u64)>,
        /// Blocks that died since the last snapshot.
        deadlist: Option<ObjectRef>,
        /// Units of live blocks that were written in this lineage.
        owned_units: u64,
    }
);

fields!(
    /// The newest version of a lineage, which is being freed by a walk of its map.
    WalkRecord {
        /// Identity; ids are consecutive.
        id: u64,
        /// The lineage that owned the version.
        lineage: LineageId,
        /// Root of its map.
        root: TreeRoot,
        /// Only blocks and nodes that were born after this epoch are freed.
        bound: Epoch,
        /// Blocks before this one are freed already.
        cursor: BlockNo,
    }
);

fields!(
    /// Progress of a scrub, or its result.
    ScrubRecord {
        /// When it began: milliseconds since the Unix epoch.
        begun: u64,
        /// When it ended: milliseconds since the Unix epoch.
        ended: Option<u64>,
        /// False when it was stopped.
        complete: bool,
        /// Segments before this one were read.
        next: u32,
        /// Bytes that were read.
        done: u64,
        /// Number of wrong copies.
        errors: u64,
        /// Number of pieces that were written again.
        repaired: u64,
        /// Pieces without any correct copy. Two fields count parts of them: map nodes, and blocks
        /// whose volume is not known.
        lost: u64,
        /// Map nodes among `lost`.
        lost_nodes: u64,
        /// Blocks among `lost` whose volume is not known.
        lost_unknown: u64,
        /// Some of the blocks without a correct copy.
        blocks: Vec<(VolumeId, BlockNo)>,
    }
);

fields!(
    /// Jobs that continue after an import, and the limit on their common rate.
    #[derive(Default)]
    JobsRecord {
        /// Bytes per second; 0: as fast as guests leave room for.
        rate: u64,
        /// True while groups are rebalanced.
        rebalance: bool,
        /// The scrub that is running, or the last one.
        scrub: Option<ScrubRecord>,
    }
);

macro_rules! records {
    ($($tag:literal $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        /// A change of the catalog. It includes the ids and times that were assigned, so that
        /// replay makes the same change.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Record {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $ty,)* },)*
        }
        impl Record {
            /// Appends the record.
            pub fn encode(&self, e: &mut Encoder) {
                match self {
                    $(Record::$name { $($field,)* } => { e.u8($tag); $(Field::put($field, e);)* })*
                }
            }

            /// Decodes a record.
            ///
            /// # Errors
            /// [`FormatError`] when it is invalid.
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
    1 /// A volume is created.
    CreateVolume {
        /// The volume.
        volume: VolumeRecord,
    }
    2 /// A volume and all its snapshots are destroyed at once; only earlier versions write this.
    DestroyVolume {
        /// The volume.
        volume: VolumeId,
    }
    3 /// A volume gets another name.
    RenameVolume {
        /// The volume.
        volume: VolumeId,
        /// New name.
        name: String,
    }
    4 /// A volume gets another size.
    Resize {
        /// The volume.
        volume: VolumeId,
        /// New size in bytes.
        size: u64,
    }
    5 /// A volume gets other properties.
    Properties {
        /// The volume.
        volume: VolumeId,
        /// As in [`VolumeRecord`].
        cache: u8,
        /// As in [`VolumeRecord`].
        compression: u8,
        /// True when writes are refused.
        read_only: bool,
    }
    6 /// Snapshots of several volumes, taken at one instant.
    Snapshot {
        /// Volume, new snapshot, and its name.
        targets: Vec<(VolumeId, SnapshotId, String)>,
        /// Time of the change: milliseconds since the Unix epoch.
        created: u64,
        /// Free text.
        description: String,
        /// When they may be destroyed automatically: milliseconds since the Unix epoch.
        expires: Option<u64>,
    }
    7 /// Snapshots are destroyed.
    DestroySnapshots {
        /// The snapshots.
        snapshots: Vec<SnapshotId>,
    }
    8 /// A snapshot gets another name.
    RenameSnapshot {
        /// The snapshot.
        snapshot: SnapshotId,
        /// New name.
        name: String,
    }
    9 /// The head becomes the state of a snapshot; the old head is kept as a snapshot.
    Rollback {
        /// The snapshot whose state becomes the head.
        snapshot: SnapshotId,
        /// Identity of the snapshot that keeps the old head.
        keep: SnapshotId,
        /// Name of that snapshot.
        name: String,
        /// Identity of the new lineage.
        lineage: LineageId,
        /// Time of the change: milliseconds since the Unix epoch.
        created: u64,
    }
    10 /// A volume is created that starts from a snapshot.
    Clone {
        /// The snapshot that it starts from.
        snapshot: SnapshotId,
        /// Identity of the new volume.
        volume: VolumeId,
        /// Identity of its lineage.
        lineage: LineageId,
        /// Name of the new volume.
        name: String,
        /// Time of the change: milliseconds since the Unix epoch.
        created: u64,
    }
    11 /// A hold without a tag is set.
    Hold {
        /// The snapshot.
        snapshot: SnapshotId,
        /// When it ends by itself: milliseconds since the Unix epoch.
        until: Option<u64>,
    }
    12 /// A hold without a tag is released.
    Release {
        /// The snapshot.
        snapshot: SnapshotId,
    }
    13 /// A walk has freed everything before `cursor`.
    Walked {
        /// The walk.
        walk: u64,
        /// First block that is not freed yet.
        cursor: BlockNo,
        /// True when the walk has freed everything.
        done: bool,
    }
    14 /// A volume gets other options.
    Options {
        /// The volume.
        volume: VolumeId,
        /// All options of the volume.
        options: OptionsRecord,
    }
    15 /// A volume gets another sector profile.
    Sector {
        /// The volume.
        volume: VolumeId,
        /// As in [`VolumeRecord`].
        sector: u8,
    }
    16 /// Jobs have changed or progressed.
    Jobs {
        /// All jobs.
        jobs: JobsRecord,
    }
    17 /// A wipe has begun or ended.
    Wipe {
        /// As in [`Checkpoint`].
        wipe: u8,
    }
    18 /// A volume is destroyed. Its snapshots are no longer listed; later records destroy them.
    RemoveVolume {
        /// The volume.
        volume: VolumeId,
    }
    20 /// A hold with a tag is set. It replaces one with the same tag that has ended.
    HoldTagged {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The hold.
        hold: HoldRecord,
    }
    21 /// A hold with a tag is released.
    ReleaseTagged {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Its tag.
        tag: String,
    }
    22 /// A clone takes over the snapshots that it starts from; their volume becomes its clone.
    Promote {
        /// The clone.
        volume: VolumeId,
    }
    23 /// A base is created, with the snapshot that clones start from. All of its map reads as the base
    /// itself.
    CreateBase {
        /// The volume; read-only.
        volume: VolumeRecord,
        /// As in [`BaseRecord`].
        unit: u32,
        /// As in [`BaseRecord`].
        source: String,
        /// Identity of its snapshot.
        snapshot: SnapshotId,
        /// Name of that snapshot.
        name: String,
    }
    24 /// An import has taken a term of the bucket. Objects of a term are written once this is durable.
    Term {
        /// The term.
        term: Term,
    }
    25 /// A volume is created whose blocks are encrypted.
    CreateEncrypted {
        /// The volume.
        volume: VolumeRecord,
        /// Its data key, which is in the key table.
        key: crate::KeyId,
    }
    26 /// The publication of a base is at another place. Only pools with the feature
    /// [`BASES`](crate::BASES) have bases, and every program that knows it knows this record.
    MoveBase {
        /// The base.
        volume: VolumeId,
        /// As in [`BaseRecord`].
        source: String,
    }
}
