//! One look at all pools: each shard is asked once, all at the same time, within one limit; a
//! silent one delays the look no longer.
//!
//! Lists of pools, jobs and exports in the API are made from one look, so they agree with each
//! other.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_engine::PoolInfo;

use super::service::Daemon;
use super::shard::{ShardError, ShardHandle, ShardLook, Unseen};
use super::state::PoolRecord;

/// A pool of the daemon, and its answer.
pub(super) struct PoolLook {
    pub(super) record: PoolRecord,
    /// Start of its shard.
    pub(super) since: Timestamp,
    pub(super) seen: Seen,
}

/// The answer of a pool.
pub(super) enum Seen {
    Answered(Arc<ShardLook>),
    /// No answer since then.
    Silent(Timestamp),
    /// Its shard has ended, or it is not open.
    Refused(Arc<ShardError>),
    /// It has no shard, for this reason.
    OutOfService(String),
}

/// Reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacking {
    /// Its thread is busy: its last answer may still be true.
    Silent,
    /// It is not open.
    Gone,
}

impl Seen {
    /// Returns the pool as it answered.
    pub(super) fn pool(&self) -> Result<&PoolInfo, Lacking> {
        match self {
            Seen::Answered(look) => Ok(&look.status.pool),
            Seen::Silent(_) => Err(Lacking::Silent),
            Seen::Refused(_) | Seen::OutOfService(_) => Err(Lacking::Gone),
        }
    }
}

impl PoolLook {
    /// Returns the pool's answer about itself and its exports.
    pub(super) fn answer(&self) -> Option<&ShardLook> {
        match &self.seen {
            Seen::Answered(look) => Some(look),
            Seen::Silent(_) | Seen::Refused(_) | Seen::OutOfService(_) => None,
        }
    }

    pub(super) fn in_service(&self) -> bool {
        !matches!(self.seen, Seen::OutOfService(_))
    }
}

impl Daemon {
    /// Looks at all pools. The result is in order of their names.
    pub(super) async fn look(&self) -> Vec<PoolLook> {
        let names: Vec<String> = self.registry().pools.keys().cloned().collect();
        let patience = self.options.deadlines.look;
        join_all(names.iter().map(|name| self.look_at(name, patience))).await.into_iter().flatten().collect()
    }

    /// Returns the shards of pools in service that answer, by name: a list over all pools leaves
    /// silent ones out.
    pub(super) async fn answering(&self) -> Vec<(String, ShardHandle)> {
        let looks = self.look().await;
        let silent = |name: &str| looks.iter().any(|look| look.record.name == name && matches!(look.seen, Seen::Silent(_)));
        self.shards().into_iter().filter(|(name, _)| !silent(name)).collect()
    }

    /// Looks at one pool; `None` when there is none of this name.
    pub(super) async fn look_at(&self, name: &str, patience: Duration) -> Option<PoolLook> {
        let (record, since, shard) = {
            let registry = self.registry();
            let entry = registry.pools.get(name)?;
            (entry.record.clone(), entry.since, entry.shard.clone())
        };
        let seen = match shard {
            Err(reason) => Seen::OutOfService(reason),
            Ok(shard) => match shard.look(patience).await {
                Ok(look) => Seen::Answered(look),
                Err(Unseen::Silent(since)) => Seen::Silent(since),
                Err(Unseen::Refused(error)) => Seen::Refused(error),
            },
        };
        Some(PoolLook { record, since, seen })
    }
}
