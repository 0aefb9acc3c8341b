//! Result of exporting a pool.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Result of `pool export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolExport {
    /// Name of the pool.
    pub name: String,
    /// True if the pool was closed: its last checkpoint is written, and any host may import it. If
    /// false, the next import replays the log, and other hosts need `--force` to import the pool.
    pub clean: bool,
    /// Reason why the pool was not closed.
    pub reason: Option<String>,
    /// Clients that were disconnected.
    pub disconnected: Vec<String>,
    /// True if the kernel still has operations of the pool's devices in flight. The daemon uses
    /// these devices until the operations have ended.
    pub in_use: bool,
}
