//! Snapshots, clones, rollbacks and differences.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// `pool/volume@snapshot`.
    pub name: String,
    /// Identity within the pool, never reused.
    pub id: u64,
    /// When it was taken.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The pool's epoch that it closed; equal for the members of a group.
    pub epoch: u64,
    /// Size of the volume when it was taken, in bytes.
    pub size: u64,
    /// Bytes reachable from it.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if only it went.
    pub unique_bytes: u64,
    /// Number of holds.
    pub holds: u32,
    /// Tags of those that have one.
    #[serde(default)]
    pub hold_tags: Vec<String>,
    /// The holds, those without a tag first.
    #[serde(default)]
    pub hold_list: Vec<SnapshotHold>,
    /// Number of clones.
    pub clones: u32,
    /// Free text.
    pub description: String,
    /// When it is removed by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotHold {
    /// Its tag, where it has one.
    pub tag: Option<String>,
    /// When it was made; not known of those without a tag.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// When it ends by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// Nobody can release it before that.
    pub locked: bool,
}

/// Takes snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshots {
    /// `pool/volume@snapshot`, each.
    pub names: Vec<String>,
    /// All at one instant; they must lie in one pool.
    #[serde(default)]
    pub group: bool,
    /// Free text.
    #[serde(default)]
    pub description: String,
    /// When they are removed by themselves.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
    /// Until then nobody can destroy them: a hold with the tag `lock` that cannot be released.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub lock: Option<Timestamp>,
}

/// Names of what was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    /// Complete names.
    pub names: Vec<String>,
}

/// Goes back to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rollback {
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
    /// Also while clients are connected, whose disk changes under them.
    #[serde(default)]
    pub force: bool,
}

/// What a rollback did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// The snapshot that keeps the old head.
    pub kept_as: String,
    /// Clients that were connected to the volume.
    #[serde(default)]
    pub connected: Vec<String>,
}

/// Makes a writable volume on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloneSnapshot {
    /// The new volume, `pool/volume`, in the same pool.
    pub name: String,
}

/// Copies a snapshot into a volume that depends on nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopySnapshot {
    /// The new volume, `pool/volume`, in any pool.
    pub name: String,
    /// Only say what it takes.
    #[serde(default)]
    pub dry_run: bool,
}

/// A full copy, under way or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FullCopy {
    /// Its number, by which it is asked for and stopped; 0 of one that was only planned.
    pub id: u64,
    /// The new volume.
    pub name: String,
    /// Bytes to copy.
    pub total_bytes: u64,
    /// Bytes that are copied.
    pub done_bytes: u64,
    /// `planned`, `running`, `done` or `failed`.
    pub state: String,
    /// Why it failed. What it had made is taken back.
    pub error: Option<String>,
}

/// Forbids removal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// Its name: a snapshot has at most one hold of each tag. Those without one are counted.
    #[serde(default)]
    pub tag: Option<String>,
    /// Ends by itself then.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
}

/// A range in which two states of a volume differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffExtent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `data`, or `zero` when the newer state reads as zeroes there.
    pub kind: String,
}
