//! Backups and publications of volumes in a directory or a bucket.
//!
//! A target keeps chunks under the hash of their content, so a chunk that several backups
//! share is stored once. Every backup is whole: it names all its chunks, so any other one can go.
//! Changes since the backup before are found by the map of the pool; only these are read.
//! `docs/decisions/0040-backups.md` has the reasons, `docs/backup.md` the use. Publications are kept in the
//! same form, in targets of their own (`docs/publish.md`); where this crate says backup, it means both.
//!
//! Everything here blocks; the caller gives it threads of its own.
#![forbid(unsafe_code)]

mod chunk;
mod create;
mod error;
mod fetch;
mod id;
mod page;
mod parallel;
mod pin;
mod prune;
mod publication;
mod purpose;
mod read;
mod record;
mod store;
mod target;
mod verify;

pub use create::{Created, create};
pub use error::{BackupError, StoreError};
pub use fetch::{Fetched, Fetcher};
pub use id::ChunkId;
pub use pin::Pin;
pub use prune::{Pruned, prune};
pub use publication::{Unpublished, unpublish};
pub use purpose::Purpose;
pub use read::BackupImage;
pub use record::{Record, Verified};
#[cfg(feature = "bucket")]
pub use store::bucket::BucketStore;
pub use store::directory::Directory;
pub use store::{Lock, Store};
pub use target::{Target, TargetHead};
pub use verify::{DamagedBackup, Verification, verify};

#[cfg(test)]
mod tests;
