//! Contradictions in the state of a pool as an import reads it.

use millpond_format::{ChunkId, FormatError, LineageId, Lsn};

/// A flaw of a root, a checkpoint or the log: its bytes were written by this pool and are not what
/// was written, or do not fit together. A copy on another device was tried before. The user goes
/// back to an older checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The root names a place for the log that no device has.
    #[error("the log points outside the pool: the root is damaged")]
    LogOutside,
    /// A batch writes to a volume that the catalog does not have.
    #[error("batch {0} writes to a volume that does not exist: the log is damaged")]
    BatchVolume(Lsn),
    /// A batch has encrypted blocks, or makes an encrypted volume.
    #[error("batch {0} is of a pool with encryption, which its labels do not name: the log is damaged")]
    BatchEncrypted(Lsn),
    /// A batch is not where its chunk is.
    #[error("batch {0} does not fit its chunk: the log is damaged")]
    BatchChunk(Lsn),
    /// A batch has chunks at a place that no object of the bucket has, or a term that is not new.
    #[error("batch {0} does not fit the bucket: the log is damaged")]
    BatchBucket(Lsn),
    /// The checkpoint cannot be decoded.
    #[error("the checkpoint is damaged ({0})")]
    Checkpoint(FormatError),
    /// An object of the checkpoint does not match the checksum in the object that names it.
    #[error("a checkpoint object does not match its checksum: the checkpoint is damaged")]
    ObjectChecksum,
    /// An object of the checkpoint is at a place that no device has.
    #[error("a checkpoint object lies outside the pool: the checkpoint is damaged")]
    ObjectOutside,
    /// An object is named that was not read with the others.
    #[error("a checkpoint object is missing: the checkpoint is damaged")]
    ObjectMissing,
    /// The index of an object's parts cannot be decoded.
    #[error("a checkpoint object is damaged ({0})")]
    ObjectParts(FormatError),
    /// A page of the chunk table cannot be decoded.
    #[error("a chunk table page is damaged ({0})")]
    ChunkPage(FormatError),
    /// A chunk is at a place that no device has.
    #[error("chunk {0} lies outside the pool: the chunk table is damaged")]
    ChunkOutside(ChunkId),
    /// A page of names of bucket segments, or the list of doomed names, cannot be decoded.
    #[error("a page of names of objects is damaged ({0})")]
    NamePage(FormatError),
    /// A segment has two objects, or an object is that of two segments or doomed.
    #[error("an object of the bucket is named twice: the table of names is damaged")]
    NameTwice,
    /// The labels have a bucket and the checkpoint has none, or the reverse.
    #[error("the checkpoint does not fit the bucket in the labels: the checkpoint is damaged")]
    Bucket,
    /// A map node is in a chunk that the chunk table does not have.
    #[error("a map node is nowhere: the chunk table is damaged")]
    NodeNowhere,
    /// A map node is at a place that no device has.
    #[error("a map node lies outside the pool: the chunk table is damaged")]
    NodeOutside,
    /// A page of snapshots cannot be decoded.
    #[error("a page of snapshots is damaged ({0})")]
    SnapshotPage(FormatError),
    /// A deadlist, or the directory of one, cannot be decoded.
    #[error("a deadlist is damaged ({0})")]
    Deadlist(FormatError),
    /// A deadlist uses more entries of a piece than the piece has.
    #[error("a deadlist is damaged (it names more than a piece has)")]
    DeadlistWindow,
    /// A piece of a deadlist cannot be decoded.
    #[error("a piece of a deadlist is damaged ({0})")]
    DeadlistPiece(FormatError),
    /// A snapshot is of a lineage that the catalog does not have.
    #[error("a snapshot has no lineage: the catalog is damaged")]
    SnapshotLineage,
    /// The snapshot from which a clone was made is not in the catalog.
    #[error("a clone's origin is missing: the catalog is damaged")]
    OriginMissing,
    /// A clone was made from a snapshot that does not fit its line of versions.
    #[error("lineage {0} starts from a snapshot that is older than its own line: the catalog is damaged")]
    OriginOlder(LineageId),
    /// A volume has no current version.
    #[error("volume '{0}' has no head: the catalog is damaged")]
    VolumeHead(String),
}
