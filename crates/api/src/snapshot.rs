//! Snapshots, clones, full copies, rollbacks and differences.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::identity::{Receiving, SnapshotIdentity, SnapshotOrigin};
use super::words::words;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// `pool/volume@snapshot`.
    pub name: String,
    /// Id, unique within the pool and never reused.
    pub id: u64,
    /// Time when it was taken.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// Epoch of the pool that the snapshot closed; equal for all snapshots of a group.
    pub epoch: u64,
    /// Size of the volume when it was taken, in bytes.
    pub size: u64,
    /// Bytes reachable from the snapshot.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if only this snapshot were destroyed.
    pub unique_bytes: u64,
    /// Number of holds.
    pub holds: u32,
    /// Tags of the holds that have one.
    #[serde(default)]
    pub hold_tags: Vec<String>,
    /// The holds; those without a tag first.
    #[serde(default)]
    pub hold_list: Vec<SnapshotHold>,
    /// Number of clones.
    pub clones: u32,
    /// Description, any text.
    pub description: String,
    /// Time when the snapshot is destroyed automatically.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
    /// Identity, equal for a snapshot and for copies of it that other pools received.
    #[serde(default)]
    #[schema(value_type = String)]
    pub identity: Option<SnapshotIdentity>,
    /// True if it was received from another pool, or from a stream of this one.
    #[serde(default)]
    pub received: bool,
    /// Content of a snapshot of an incomplete receive.
    #[serde(default)]
    pub receiving: Option<Receiving>,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotHold {
    /// Tag of the hold, if any.
    pub tag: Option<String>,
    /// Time when the hold was added; not known for holds without a tag.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// Time when the hold ends automatically.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// True if the hold cannot be released before it ends.
    pub locked: bool,
}

/// Request to take snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshots {
    /// Names of the snapshots, `pool/volume@snapshot` each.
    pub names: Vec<String>,
    /// If true, takes all snapshots at the same instant. They must be in one pool.
    #[serde(default)]
    pub group: bool,
    /// Description, any text.
    #[serde(default)]
    pub description: String,
    /// Time when the snapshots are destroyed automatically.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
    /// Time until which the snapshots cannot be destroyed. They get a hold with the tag `lock` that
    /// cannot be released. It ends when the pool has been in service for as long as it is from now
    /// to that time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub lock: Option<Timestamp>,
    /// Unix socket of the QEMU guest agent: the guest's file systems are frozen while the snapshots
    /// are taken. `{pool}`, `{volume}` and `{vmid}` are replaced, for each volume.
    #[serde(default)]
    pub freeze: Option<String>,
    /// If true, no snapshot is taken when a guest cannot be frozen.
    #[serde(default)]
    pub freeze_required: bool,
    /// The snapshot that was received, for the only name. Needs `export`.
    #[serde(default)]
    pub origin: Option<SnapshotOrigin>,
    /// Export of the receive that makes the request, which is refused once that export has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<u64>,
}

/// Names of created objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    /// Full names.
    pub names: Vec<String>,
    /// Reasons why guests were not frozen; empty if all were, or if none was to be.
    #[serde(default)]
    pub not_frozen: Vec<String>,
}

/// Request to roll a volume back to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rollback {
    /// If true, only reports the result of the request.
    #[serde(default)]
    pub dry_run: bool,
    /// If true, rolls back while clients are connected. Their disk changes under them.
    #[serde(default)]
    pub force: bool,
    /// If true, a receive goes back to its progress or gives up. The kept state is named
    /// `interrupted-receive-TIME`. Needs `export`.
    #[serde(default)]
    pub receive: bool,
    /// Export of the receive that makes the request, which is refused once that export has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<u64>,
}

/// Result of a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// Name of the snapshot that keeps the old head.
    pub kept_as: String,
    /// Clients that were connected to the volume.
    #[serde(default)]
    pub connected: Vec<String>,
}

/// Request to create a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloneSnapshot {
    /// Name of the clone, `pool/volume`, in the same pool.
    pub name: String,
}

/// Request for a full copy: an independent volume with the snapshot's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopySnapshot {
    /// Name of the new volume, `pool/volume`, in any pool.
    pub name: String,
    /// If true, only reports the amount of data to copy.
    #[serde(default)]
    pub dry_run: bool,
}

words! {
    /// State of a full copy.
    pub enum FullCopyState {
        /// A dry run.
        Planned = "planned",
        /// It runs.
        Running = "running",
        /// The new volume is complete.
        Done = "done",
        /// It has failed or was stopped, and the unfinished volume was destroyed.
        Failed = "failed",
    }
}

/// A full copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FullCopy {
    /// Number of the copy, used to query and to stop it; 0 for a dry run.
    pub id: u64,
    /// Name of the new volume.
    pub name: String,
    /// Bytes to copy.
    pub total_bytes: u64,
    /// Bytes copied.
    pub done_bytes: u64,
    /// State of the copy.
    pub state: FullCopyState,
    /// Reason of a failure. The unfinished volume has been destroyed.
    pub error: Option<String>,
}

/// Request to add a hold to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// Tag of the hold. A snapshot has at most one hold with a given tag, and any number without a
    /// tag.
    #[serde(default)]
    pub tag: Option<String>,
    /// Time when the hold ends automatically.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
}

words! {
    /// Content of a range.
    pub enum ExtentKind {
        /// Stored data.
        Data = "data",
        /// The range reads as zeroes.
        Zero = "zero",
    }
}

/// Range in which two states of a volume differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffExtent {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Content of the range in the newer state.
    pub kind: ExtentKind,
}
