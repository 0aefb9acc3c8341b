//! Specification of an export over vhost-user.

use std::path::PathBuf;

use millpond_engine::Target;

use crate::shard::error::ShardError;
use crate::shard::handle::ShardHandle;
use crate::shard::listen::SocketAccess;
use crate::shard::message::Message;
use crate::shard::report::ExportId;

/// An export over vhost-user: its target and its socket.
#[derive(Clone, Debug)]
pub struct VhostUserExport {
    /// Identity; refused when in use in this shard.
    pub id: ExportId,
    /// Name for messages and lists.
    pub name: String,
    /// Volume or snapshot that is served.
    pub target: Target,
    /// Path of the unix socket to make. A stale socket file is replaced; a path on which another
    /// process listens is refused.
    pub unix: PathBuf,
    /// Access rights of that socket.
    pub access: SocketAccess,
    /// Most queues of a front end.
    pub queues: u16,
    /// Refuse writes. Snapshots are read-only anyway.
    pub read_only: bool,
    /// Guests may have been promised that there is no write cache, when the volume's mode was
    /// stricter: until a front end reads the configuration anew, their writes are durable before
    /// they are answered.
    pub promised: bool,
}

impl ShardHandle {
    /// Makes every write of a target's vhost-user guests durable before it is answered, as they may
    /// have been promised, until their front ends read the configuration anew. Call it before the
    /// cache mode becomes a laxer one.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn keep_promises(&self, target: Target) -> Result<(), ShardError> {
        self.ask(|answer| Message::KeepPromises(target, answer)).await
    }
}
