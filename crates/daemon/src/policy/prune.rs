//! Pruning: when a pool is nearly full, snapshots of policies that allow it are destroyed before
//! their time, in a declared order, until there is space again.
//!
//! The order is that of the policies' `prune` numbers, and within a policy oldest first. The newest
//! snapshot of each volume stays, and so do snapshots that are held, locked, exported or have
//! clones, as in every run ([`super::turn`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millpond_api::EventKind;
use millpond_api::size::Size;
use millpond_api::{ApiError, instant};
use millpond_engine::{CatalogCommand, SnapshotId, Target};
use tokio::time::timeout;

use super::due::Progress;
use super::turn::Turn;
use crate::events::Happened;
use crate::service::Daemon;
use crate::shard::ShardHandle;

/// Pruning begins when less than 1/`BEGIN` of a pool is free, and ends when 1/`END` is.
const BEGIN: u64 = 20;
const END: u64 = 10;
/// Time between two looks at the space of a pool, and between two steps of pruning.
const LOOK: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_secs(1);
/// Most snapshots that one step destroys, of one policy.
const AT_ONCE: usize = 64;
/// Snapshots that a step destroys of several policies, if the first ones have fewer.
const FEW: usize = 8;
/// How long a step waits for a command on its pool.
const WAIT: Duration = Duration::from_secs(2);

/// Returns whether a pool is to be pruned, given its free bytes and its size, and whether it is
/// being pruned.
fn is_short(free: u64, size: u64, pruning: bool) -> bool {
    free < size / if pruning { END } else { BEGIN }
}

impl Daemon {
    /// Prunes pools that are nearly full, as long as the daemon lives.
    pub(crate) async fn prune_policies(self: Arc<Daemon>) {
        // pools that are being pruned
        let mut pruning: BTreeSet<String> = BTreeSet::new();
        loop {
            tokio::time::sleep(if pruning.is_empty() { LOOK } else { STEP }).await;
            for (pool, shard) in self.shards() {
                let turns = self.prunable(&pool);
                let status = match turns.is_empty() {
                    false => timeout(self.options.deadlines.look, shard.status()).await,
                    true => {
                        pruning.remove(&pool);
                        continue;
                    }
                };
                let Ok(Ok(status)) = status else { continue };
                let info = &status.pool;
                if info.read_only || !is_short(info.free, info.size, pruning.contains(&pool)) {
                    pruning.remove(&pool);
                    continue;
                }
                pruning.insert(pool.clone());
                // space of snapshots that are gone comes back first
                if status.metrics.reclaim_backlog > 0 {
                    continue;
                }
                if let Err(error) = self.prune_step(&pool, &shard, turns, (info.free, info.size)).await {
                    tracing::warn!(pool, %error, "a nearly full pool is not pruned");
                }
            }
        }
    }

    /// Returns the policies whose snapshots in a pool may be pruned, in order.
    fn prunable(&self, pool: &str) -> Vec<Turn> {
        let Some(id) = self.registry().pools.get(pool).map(|entry| entry.record.id.clone()) else { return Vec::new() };
        let policies = self.policies();
        let of_pool = policies.entries().filter(|entry| entry.record.volumes.iter().any(|volume| volume.pool_id == id));
        let mut found: Vec<_> = of_pool.filter_map(|entry| Some((entry.record.prune?, entry))).collect();
        found.sort_by_key(|(order, entry)| (*order, entry.record.name.clone()));
        let turn = |terms: &Arc<_>, entry: &super::Entry| {
            Turn::new(&entry.record, Arc::clone(terms), &id, pool, &mut Progress::new(instant::now())).by_hand(false)
        };
        found.into_iter().filter_map(|(_, entry)| Some(turn(entry.terms.as_ref().ok()?, entry))).collect()
    }

    /// Destroys the next snapshots, and reports each.
    async fn prune_step(&self, pool: &str, shard: &ShardHandle, turns: Vec<Turn>, (free, size): (u64, u64)) -> Result<(), ApiError> {
        let Ok(_pool) = timeout(WAIT, self.wait_for_pool(pool)).await else { return Ok(()) };
        let open = shard.open_files().await?;
        let is_used = |id: SnapshotId| {
            let target = Target::Snapshot(id);
            self.serves(pool, target).is_some() || open.iter().any(|file| file.target == target)
        };
        let mut doomed: Vec<(SnapshotId, String, String)> = Vec::new();
        for turn in turns {
            let oldest = self.list(&turn, shard).await?.prunable(instant::now());
            // a policy that takes snapshots all the time always has some: the next one follows then
            let room = if doomed.is_empty() { AT_ONCE } else { FEW.saturating_sub(doomed.len()) };
            let unused = oldest.into_iter().filter(|(id, _)| !is_used(*id)).take(room);
            doomed.extend(unused.map(|(id, name)| (id, name, turn.policy.clone())));
            if doomed.len() >= FEW {
                break;
            }
        }
        if doomed.is_empty() {
            return Ok(());
        }
        let snapshots = doomed.iter().map(|(id, ..)| *id).collect();
        let destroyed = shard.command(CatalogCommand::DestroySnapshots { snapshots }).await;
        self.snapshots_changed();
        destroyed?;
        for (_, name, policy) in &doomed {
            let why = format!("{} of {} are free", Size(free), Size(size));
            let message = format!("snapshot '{name}' of policy '{policy}' is destroyed before its time: {why}");
            self.report(Happened::to_pool(EventKind::SnapshotPruned, pool, message).about(name));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! The limits between which pools are pruned.
    use super::is_short;

    #[test]
    fn pruning_begins_late_and_ends_with_a_margin() {
        assert!(!is_short(50, 1000, false) && is_short(49, 1000, false));
        assert!(is_short(99, 1000, true) && !is_short(100, 1000, true));
        assert!(!is_short(0, 0, false));
    }
}
