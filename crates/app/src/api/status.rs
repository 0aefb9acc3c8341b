//! The daemon as a whole.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Export, Pool};

/// Memory that payloads and replies in flight may take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestMemory {
    /// At most, beside 256 KiB for each client.
    pub limit: u64,
    /// Now.
    pub used: u64,
}

/// The daemon, its pools and exports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it started.
    #[schema(value_type = String, format = DateTime)]
    pub started: Timestamp,
    /// Every remembered pool is in service or waits for something that `pools` names. Until then some may still be being imported.
    #[serde(default)]
    pub ready: bool,
    /// Control socket.
    pub socket: String,
    /// State directory.
    pub state_dir: String,
    /// Memory for requests of all clients together.
    pub request_memory: RequestMemory,
    /// Pools, those that could not be imported included.
    pub pools: Vec<Pool>,
    /// Exports.
    pub exports: Vec<Export>,
}
