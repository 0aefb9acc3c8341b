//! The end of a pool's service.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Outcome of `pool export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolExport {
    /// The pool.
    pub name: String,
    /// It was closed: its last checkpoint is written, and any host may import it. Otherwise the next import replays the log, and a host other than
    /// this one needs `--force`.
    pub clean: bool,
    /// Why it was not closed.
    pub reason: Option<String>,
    /// Clients that were disconnected.
    pub disconnected: Vec<String>,
    /// The kernel has not finished operations of its devices: they stay in use by this daemon until it has.
    pub in_use: bool,
}
