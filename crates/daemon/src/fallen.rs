//! Takes pools whose shard has ended by itself out of service, and reports them.

use std::time::Duration;

use millpond_api::EventKind;
use tokio::time::sleep;

use super::events::Happened;
use super::service::{Daemon, PoolEntry};
use super::shard::ShardHandle;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

impl Daemon {
    /// Looks for such pools as long as the daemon lives.
    pub(super) async fn watch_falls(&self) {
        loop {
            sleep(LOOK).await;
            self.look_for_falls().await;
        }
    }

    /// Takes pools out of service whose shard has ended by itself: they can be imported again.
    pub(super) async fn look_for_falls(&self) {
        let fallen: Vec<(String, String)> = {
            let mut registry = self.registry();
            let reason = |entry: &PoolEntry| entry.shard.as_ref().ok().and_then(ShardHandle::fallen).map(str::to_owned);
            let fallen: Vec<_> = registry.pools.iter().filter_map(|(name, entry)| Some((name.clone(), reason(entry)?))).collect();
            for (name, reason) in &fallen {
                if let Some(entry) = registry.pools.get_mut(name) {
                    entry.shard = Err(reason.clone());
                }
                let trouble = format!("pool '{name}' is not in service: {reason}");
                let of_pool = registry.exports.values_mut().filter(|export| export.record.pool == *name);
                of_pool.for_each(|export| export.trouble = Some(trouble.clone()));
            }
            fallen
        };
        for (name, reason) in &fallen {
            self.report(Happened::to_pool(EventKind::PoolFaulted, name, format!("pool '{name}' is stopped: {reason}")));
            // their mounts are no longer served
            self.end_fuses(Some(name)).await;
        }
        if !fallen.is_empty() {
            self.share_read_cache();
        }
    }
}

#[cfg(test)]
mod tests;
