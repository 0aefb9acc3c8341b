//! Encodings of all bytes on a medium: identities, labels, roots, batches, map nodes,
//! checkpoint objects, and objects in a bucket.
//!
//! *Architecture Invariant:* pure values; no I/O, no `unsafe`, no policy.
#![forbid(unsafe_code)]

mod batch;
mod cache;
mod checksum;
mod chunk;
mod claim;
mod codec;
mod deadlist;
mod feature;
mod id;
mod key_table;
mod label;
mod label_note;
mod mark;
mod node;
mod object_head;
mod object_name;
mod placed;
mod record;
mod segment_name;
mod shape;
#[cfg(feature = "testing")]
pub mod testing;

pub use batch::{
    BATCH_FIXED, BatchHeader, BlockIdentity, BlockRun, HEADER_PAGE, Item, MAX_HEADER_PAGES, Move, RunForm, SmallRun, StoredBlock,
    encode_forwards, encode_run, run_bytes,
};
pub use cache::{CacheHead, CacheSegment, Filling, MAX_CACHED};
pub use checksum::{Running, crc32c};
pub use chunk::{CHUNKS_PER_PAGE, ChunkRecord, DeadRecord, MAX_SLOT_WORDS};
pub use claim::{CLAIM_OFFSET, Claim, Holder};
pub use codec::{Decoder, Encoder, FormatError};
pub use deadlist::{DEAD_GROUP, DeadDirectory, DeadGroup, MAX_DEAD_RECORD, PieceRef};
pub use feature::{BASES, BUCKET, ENCRYPTION, FEATURES, FORWARDS, Feature, FeatureKind, FeatureNames, FeatureSet, Unknown};
pub use id::{
    Addr, BLOCK, BLOCK_UNITS, BlockNo, ChunkId, Class, Coding, DeviceId, Epoch, KeyId, Layout, LineageId, Lsn, PoolId, SegmentId,
    SnapshotId, UNIT, VolumeId,
};
pub use key_table::{Derivation, KEY_PAGES, KEY_TABLE_OFFSET, KeyPage, KeyWrap, MAX_WRAPS, WRAPS_PER_PAGE, WrapKind};
pub use label::{
    AREA_BYTES, Label, LogTail, MAX_LOG_TAILS, NO_SEGMENT, ObjectRef, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES, STREAMS, StreamStart,
    second_area,
};
pub use label_note::DeviceNote;
pub use mark::Mark;
pub use node::{FANOUT, NODE_BYTES, NODE_UNITS, Node};
pub use object_head::{MAX_OBJECT_BYTES, OBJECT_HEAD_BYTES, ObjectFault, ObjectHead};
pub use object_name::{MAX_OBJECT_NAME, ObjectFolder, ObjectId, ObjectName, Term};
pub use placed::{Placed, PlacedChunk};
pub use record::{
    BaseRecord, BucketRecord, Checkpoint, HoldRecord, JobsRecord, LimitRecord, LineageRecord, Lock, OptionsRecord, Record,
    SNAPSHOTS_PER_PAGE, ScrubRecord, SnapshotRecord, Standing, TreeRoot, VolumeRecord, WalkRecord,
};
pub use segment_name::{Doomed, DoomedName, NAMES_PER_PAGE, NameRecord, SegmentName};
pub use shape::{
    Column, Group, MAX_BUCKET_SEGMENTS, MAX_COPIES, MAX_DEVICES, MAX_GROUPS, MAX_PARITY_WIDTH, MAX_SHAPE_BYTES, Member, MemberState, Shape,
};
