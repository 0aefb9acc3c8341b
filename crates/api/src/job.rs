//! Background jobs of pools, and the requests that start and stop them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::words;

/// Request to read everything in a pool and compare it with its checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubPool {
    /// If true, stops the running scrub instead.
    #[serde(default)]
    pub stop: bool,
}

/// Request to even out how full the groups of a pool are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebalancePool {
    /// If true, stops the running rebalance instead.
    #[serde(default)]
    pub stop: bool,
    /// If true, only reports the amount of data to move.
    #[serde(default)]
    pub dry_run: bool,
}

/// Amount of data that a rebalance moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebalance {
    /// Bytes that groups hold above their shares; 0 if there is nothing to do.
    pub surplus_bytes: u64,
    /// Groups of class data.
    pub groups: Vec<GroupFill>,
}

/// Fill level of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupFill {
    /// Paths of its devices.
    pub devices: Vec<String>,
    /// Bytes of all its segments.
    pub size: u64,
    /// Bytes of its segments in use.
    pub allocated: u64,
    /// Bytes in use above the group's share of the data of all groups, if they are worth moving;
    /// else 0.
    pub surplus: u64,
}

words! {
    /// State of a scrub.
    pub enum ScrubState {
        /// It runs.
        Running = "running",
        /// It has read everything.
        Done = "done",
        /// It was stopped before its end.
        Stopped = "stopped",
    }
}

/// State and results of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// State of the scrub.
    pub state: ScrubState,
    /// Time when it began.
    #[schema(value_type = String, format = DateTime)]
    pub begun: Timestamp,
    /// Time when it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended: Option<Timestamp>,
    /// Number of bad copies of blocks, map nodes, checkpoint objects, labels and roots.
    pub errors: u64,
    /// Number of pieces that were repaired. A piece may contain many blocks.
    pub repaired: u64,
    /// Number of blocks without a good copy.
    pub lost_blocks: u64,
    /// Number of map nodes without a good copy.
    pub lost_nodes: u64,
    /// Ranges of the lost blocks: the first thousand.
    pub lost: Vec<LostData>,
}

impl Scrub {
    /// Returns the number of blocks and map nodes without a good copy.
    pub fn lost(&self) -> u64 {
        self.lost_blocks + self.lost_nodes
    }

    /// Returns the result as a sentence, the same for every output. Errors count copies of blocks;
    /// repairs count pieces, each of which may contain many blocks.
    pub fn found(&self, pool: &str) -> String {
        match (self.errors, self.lost()) {
            (0, 0) => "0 errors".to_owned(),
            (errors, 0) => format!("{errors} errors, all repaired ({} pieces written again)", self.repaired),
            (errors, lost) => format!(
                "{errors} errors, {} pieces written again; {lost} blocks and map nodes are lost, for no copy of them is right: 'millpond pool status -v {pool}' says of which volumes",
                self.repaired
            ),
        }
    }
}

/// Range of data without a good copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostData {
    /// The volume that wrote the data; null if it was destroyed since. The data may be in the
    /// volume's head, in its snapshots, and in clones of these.
    pub volume: Option<String>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

words! {
    /// Kind of a background job.
    pub enum JobKind {
        /// Frees the space of destroyed volumes and snapshots.
        Reclaim = "reclaim",
        /// Fills a device with the data that it lacks.
        Resilver = "resilver",
        /// Fills the replacement of a device.
        Replace = "replace",
        /// Moves the data of a device to other devices.
        Remove = "remove",
        /// Makes space usable again that a stopped removal has taken out of segments.
        Rejoin = "rejoin",
        /// Evens out how full groups are.
        Rebalance = "rebalance",
        /// Makes destroyed data unreadable.
        Wipe = "wipe",
        /// Reads everything and compares it with its checksums.
        Scrub = "scrub",
        /// Copies a snapshot into a new volume.
        Copy = "copy",
    }
}

words! {
    /// State of a background job.
    pub enum JobState {
        /// It runs.
        Running = "running",
        /// Its pool has stopped.
        Stopped = "stopped",
    }
}

/// Background job of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Id: `KIND:POOL`; `KIND:POOL:DEVICE` for a job of a device; `copy:POOL/VOL`.
    pub id: String,
    /// Name of the pool.
    pub pool: String,
    /// Kind: the first word of the id.
    pub kind: JobKind,
    /// State of the job.
    pub state: JobState,
    /// Bytes that remain.
    pub remaining_bytes: u64,
    /// Bytes done, if the total is known.
    #[serde(default)]
    pub done_bytes: u64,
    /// Recent rate in bytes per second, if known.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Seconds until the job ends at this rate.
    #[serde(default)]
    pub eta_seconds: Option<u64>,
    /// Number of pieces that cannot be read from any copy.
    #[serde(default)]
    pub errors: u64,
}
