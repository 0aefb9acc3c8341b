//! Every byte on a medium: identities, codecs, labels, roots, batches, nodes, checkpoint objects.
//!
//! *Architecture Invariant:* pure values; no I/O, no `unsafe`, no policy.
#![forbid(unsafe_code)]

mod id;

pub use id::{BlockNo, ChunkId, Epoch, Layout, LineageId, Lsn, PoolId, SegmentId, SnapshotId, VolumeId};
