//! Status of the daemon.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Condition, Export, IncompleteReceive, Pool};

/// Memory for payloads and replies in flight, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestMemory {
    /// Upper limit; 256 KiB for each client come on top.
    pub limit: u64,
    /// Bytes in use now.
    pub used: u64,
}

/// Status of the daemon, its pools and its exports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Time when the daemon started.
    #[schema(value_type = String, format = DateTime)]
    pub started: Timestamp,
    /// True if the import of every remembered pool has ended: the pool is in service, or waits for
    /// something that its entry in `pools` names.
    #[serde(default)]
    pub ready: bool,
    /// Path of the control socket.
    pub socket: String,
    /// Path of the state directory.
    pub state_dir: String,
    /// Memory for requests, shared by all clients.
    pub request_memory: RequestMemory,
    /// All pools, including those that could not be imported.
    pub pools: Vec<Pool>,
    /// All exports.
    pub exports: Vec<Export>,
    /// Incomplete receives, at most ten seconds old.
    #[serde(default)]
    pub receives: Vec<IncompleteReceive>,
    /// Conditions that last, most severe first.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
