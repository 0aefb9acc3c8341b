//! Restore points of pools.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::words;

/// Request for the restore points of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListCheckpoints {
    /// Name of the pool, or its id if it is not in service.
    pub name: String,
    /// Directories and devices to search. Empty: the pool's current or last known places, or the
    /// block devices of the host.
    #[serde(default)]
    pub search: Vec<String>,
}

words! {
    /// Whether everything that a checkpoint refers to is still there.
    pub enum Verified {
        /// Its objects match their checksums, and no segment was reused since.
        Yes = "yes",
        /// Something is gone or damaged.
        No = "no",
        /// Not known: an older version has written it.
        Unknown = "unknown",
    }
}

/// Restore point of a pool: a checkpoint that its devices still hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Id: the generation of its root.
    pub id: u64,
    /// Time when it was written.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// LSN of the last batch that it contains.
    pub lsn: u64,
    /// Intact copies of its root on all devices. Each device has two.
    pub copies: u32,
    /// Whether everything that it refers to is still there.
    pub verified: Verified,
    /// Reason if `verified` is not `yes`.
    pub reason: Option<String>,
    /// Milliseconds from this checkpoint to now, or, for a pool that is not in service, to the time
    /// when it was last in use or closed. An import of this checkpoint loses the writes of this
    /// time. 0 if nothing was written.
    pub lost_millis: u64,
    /// Bytes that guests wrote after this checkpoint; null if not known.
    pub lost_bytes: Option<u64>,
    /// For the checkpoint that an import with `rewind` uses: bytes that this import loses. It
    /// replays the log after the checkpoint up to the first damage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_by_rewind: Option<u64>,
}
