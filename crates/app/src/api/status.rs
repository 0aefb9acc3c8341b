//! The daemon as a whole.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Export, Pool};

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
    /// Control socket.
    pub socket: String,
    /// State directory.
    pub state_dir: String,
    /// Pools, those that could not be imported included.
    pub pools: Vec<Pool>,
    /// Exports.
    pub exports: Vec<Export>,
}
