//! What is asked for by an export over vhost-user.

use std::path::PathBuf;

use millpond_engine::Target;

use crate::daemon::shard::handle::{ExportId, Message, ShardError, ShardHandle};
use crate::daemon::shard::listen::SocketAccess;

/// What to serve over vhost-user, and where.
#[derive(Clone, Debug)]
pub struct VhostUserExport {
    /// Identity; refused when in use in this shard.
    pub id: ExportId,
    /// Its name, for people.
    pub name: String,
    /// What is served.
    pub target: Target,
    /// Path of the unix socket to make. A stale socket file is replaced; one that somebody listens on is refused.
    pub unix: PathBuf,
    /// Who may connect to it.
    pub access: SocketAccess,
    /// Queues that a front end may have.
    pub queues: u16,
    /// Refuse writes. Snapshots are read-only anyway.
    pub read_only: bool,
    /// Guests may have been told that there is no write cache, when the volume's mode was stricter: until a front end reads the configuration anew,
    /// their writes are durable before they are answered.
    pub promised: bool,
}

impl ShardHandle {
    /// Has every write that guests of a target over vhost-user make stay durable before its answer, as they may have been told, until their
    /// front ends read the configuration anew. Asked for before the cache mode becomes a laxer one.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn keep_promises(&self, target: Target) -> Result<(), ShardError> {
        self.ask(|answer| Message::KeepPromises(target, answer)).await
    }
}
