//! Clients of exports: the guests and programs whose disk must not change under them.

use std::time::Duration;

use millpond_api::ApiError;
use millpond_engine::Target;
use tokio::time::{Instant, sleep};

use super::shard::{ExportId, ExportInfo, ShardHandle};

/// Number of clients that a refusal names; of the rest it gives the count.
const NAMED: usize = 8;
/// How long closed connections may take to leave the list of clients; `LOOK` is the time between
/// two looks.
const LEAVING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Returns the clients of an export, as messages name them.
pub(super) fn clients(export: &ExportInfo) -> impl Iterator<Item = String> + '_ {
    export.clients.iter().map(move |client| format!("export {} ({}): {}", export.id, export.name, client.peer))
}

/// `clients are connected: export 1 (tank/vm1): …`, for a refusal.
pub(super) fn connected_clients(connected: &[String]) -> String {
    let more = connected.len().saturating_sub(NAMED);
    let mut named = connected.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        named += &format!(", and {more} more");
    }
    format!("clients are connected: {named}")
}

/// Exports whose clients are searched for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clients {
    /// All exports of a volume or snapshot, and its file in a mount.
    Target(Target),
    /// Exports of a volume or snapshot that let clients write, and its file in such a mount.
    Writers(Target),
    /// One export.
    Export(u64),
}

/// Returns the clients of exports, and the processes that have a file of a mount open. A client
/// that has just closed its connection, as a guest that was shut down, is listed until the shard
/// has noticed; this waits up to [`LEAVING`] for that.
///
/// # Errors
/// When the pool does not answer.
pub(super) async fn to(shard: &ShardHandle, of: Clients) -> Result<Vec<String>, ApiError> {
    let end = Instant::now() + LEAVING;
    loop {
        let found = look(shard, of).await?;
        if found.is_empty() || Instant::now() >= end {
            return Ok(found);
        }
        sleep(LOOK).await;
    }
}

async fn look(shard: &ShardHandle, of: Clients) -> Result<Vec<String>, ApiError> {
    let exports = shard.exports().await?;
    let is_meant = |export: &&ExportInfo| match of {
        Clients::Target(target) => export.target == Some(target),
        Clients::Writers(target) => export.target == Some(target) && !export.read_only,
        Clients::Export(id) => export.id.0 == id,
    };
    let mut found: Vec<String> = exports.iter().filter(is_meant).flat_map(clients).collect();
    if let Clients::Target(target) | Clients::Writers(target) = of {
        let open = shard.open_files().await?;
        let read_only = |id: ExportId| exports.iter().any(|export| export.id == id && export.read_only);
        let spared = |id: ExportId| matches!(of, Clients::Writers(_)) && read_only(id);
        let files = open.iter().filter(|file| file.target == target && !spared(file.export));
        found.extend(files.map(|file| format!("export {} (mount): process {} has it open", file.export, file.pid)));
    }
    Ok(found)
}

/// Refuses to change a disk that clients use. `instead` names what to do with the clients first.
///
/// # Errors
/// When clients are connected.
pub(super) fn refuse(connected: &[String], instead: &str) -> Result<(), ApiError> {
    if connected.is_empty() {
        return Ok(());
    }
    Err(ApiError::busy(format!("{}; {instead} first, or give --force", connected_clients(connected))))
}
