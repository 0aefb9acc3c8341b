//! Ending transient exports whose clients are gone: a command that was killed leaves its export.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_api::GuestIo;

use super::super::attached::{self, Clients};
use super::super::look::PoolLook;
use super::super::service::Daemon;
use super::super::shard::ExportInfo;

/// A transient export without a client for this time ends. Commands connect at once and stay
/// connected; a receive is away for the length of a rollback.
pub(super) const UNUSED: Duration = Duration::from_secs(60);

/// Time since which an export has no client, as looks at it show.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unused(Option<(Instant, GuestIo)>);

impl Unused {
    /// Notes a look; returns true when the export was without a client for [`UNUSED`]. Requests
    /// since the last look show that a client was there between.
    fn look(&mut self, export: &ExportInfo, now: Instant) -> bool {
        let since = match self.0 {
            _ if !export.clients.is_empty() => {
                self.0 = None;
                return false;
            }
            Some((since, io)) if io == export.counters => since,
            _ => now,
        };
        let ends = now.saturating_duration_since(since) >= UNUSED;
        // when it cannot be ended, it is tried again after that time
        self.0 = Some((if ends { now } else { since }, export.counters));
        ends
    }
}

impl Daemon {
    /// Ends transient exports that have no client for [`UNUSED`]. Waits for nothing.
    pub(crate) fn end_unused_exports(self: &Arc<Daemon>, looks: &[PoolLook], now: Instant) {
        let infos = looks.iter().filter_map(PoolLook::answer).flat_map(|look| &look.exports);
        for info in infos {
            let ends = {
                let mut registry = self.registry();
                let entry = registry.exports.get_mut(&info.id.0).filter(|entry| !entry.kept);
                entry.is_some_and(|entry| entry.unused.look(info, now))
            };
            if ends {
                let (daemon, id) = (Arc::clone(self), info.id.0);
                tokio::spawn(async move { daemon.end_unused_export(id).await });
            }
        }
    }

    /// Ends a transient export, unless a client has connected meanwhile.
    pub(super) async fn end_unused_export(&self, id: u64) {
        let pool = self.registry().exports.get(&id).map(|entry| entry.record.pool.clone());
        let Some(pool) = pool else { return };
        let _pool = self.wait_for_pool(&pool).await;
        let record = self.registry().exports.get(&id).map(|entry| entry.record.clone());
        let (Some(record), Ok(shard)) = (record, self.shard(&pool)) else { return };
        match attached::to(&shard, Clients::Export(id)).await {
            Ok(connected) if connected.is_empty() => {}
            _ => return,
        }
        tracing::info!(export = id, name = record.name, "no client for {} s: the command that made it was ended", UNUSED.as_secs());
        if let Err(error) = self.end_export(&record, false, false).await {
            tracing::warn!(export = id, name = record.name, %error, "a private export is left");
        }
    }
}

#[cfg(test)]
mod tests;
