//! Who uses what an export serves: the guests and programs whose disk must not change under them.

use std::time::Duration;

use millpond_engine::Target;
use tokio::time::{Instant, sleep};

use super::shard::{ExportId, ExportInfo, ShardHandle};
use crate::api::ApiError;

/// Clients named in a refusal; of others, how many there are.
const NAMED: usize = 8;
/// How long clients may take to be gone whose connections are closed, and how often they are looked for.
const LEAVING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// The clients of an export, as people know them.
pub(super) fn clients(export: &ExportInfo) -> impl Iterator<Item = String> + '_ {
    export.clients.iter().map(move |client| format!("export {} ({}): {}", export.id, export.name, client.peer))
}

/// `clients are connected: export 1 (tank/vm1): …`, for a refusal.
pub(super) fn told(connected: &[String]) -> String {
    let more = connected.len().saturating_sub(NAMED);
    let mut named = connected.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        named += &format!(", and {more} more");
    }
    format!("clients are connected: {named}")
}

/// What clients are looked for of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    /// All exports of a volume or snapshot, and its file in a mount.
    Target(Target),
    /// The same, of exports that let clients write.
    Writers(Target),
    /// One export.
    Export(u64),
}

/// The clients of exports, and the processes that have a file in a mount open. A client that has just closed its connection, as a guest that was
/// shut down, is listed until the shard has seen it: it is given a moment for that.
///
/// # Errors
/// When the pool does not answer.
pub(super) async fn to(shard: &ShardHandle, of: Of) -> Result<Vec<String>, ApiError> {
    let end = Instant::now() + LEAVING;
    loop {
        let found = look(shard, of).await?;
        if found.is_empty() || Instant::now() >= end {
            return Ok(found);
        }
        sleep(LOOK).await;
    }
}

async fn look(shard: &ShardHandle, of: Of) -> Result<Vec<String>, ApiError> {
    let exports = shard.exports().await?;
    let is_meant = |export: &&ExportInfo| match of {
        Of::Target(target) => export.target == Some(target),
        Of::Writers(target) => export.target == Some(target) && !export.read_only,
        Of::Export(id) => export.id.0 == id,
    };
    let mut found: Vec<String> = exports.iter().filter(is_meant).flat_map(clients).collect();
    if let Of::Target(target) | Of::Writers(target) = of {
        let open = shard.open_files().await?;
        let read_only = |id: ExportId| exports.iter().any(|export| export.id == id && export.read_only);
        let spared = |id: ExportId| matches!(of, Of::Writers(_)) && read_only(id);
        let files = open.iter().filter(|file| file.target == target && !spared(file.export));
        found.extend(files.map(|file| format!("export {} (mount): process {} has it open", file.export, file.pid)));
    }
    Ok(found)
}

/// Refuses to change a disk under those who use it. `instead` is what to do with them first.
///
/// # Errors
/// When there are some.
pub(super) fn refuse(connected: &[String], instead: &str) -> Result<(), ApiError> {
    if connected.is_empty() {
        return Ok(());
    }
    Err(ApiError::busy(format!("{}; {instead} first, or give --force", told(connected))))
}
