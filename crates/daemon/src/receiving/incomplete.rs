//! Which receives are incomplete, and how far they are.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_api::identity::{RECEIVING, RECEIVING_VERIFIED, RECEIVING_VOLUME, SnapshotOrigin};
use millpond_api::instant::{about, from_millis};
use millpond_api::size::Size;
use millpond_api::{ConditionKind, IncompleteReceive, Pool};
use millpond_engine::{SnapshotInfo, VolumeId, VolumeInfo};
use tokio::time::timeout;

use super::has_mark;
use crate::conditions::Found;
use crate::service::Daemon;
use crate::shard::{ShardError, ShardHandle};

/// An incomplete receive without progress for this time is a condition.
const STALLED: Duration = Duration::from_secs(24 * 3600);

/// Incomplete receives of each pool as of the last look, by the ids of pools.
#[derive(Default)]
pub(crate) struct Receives(Mutex<BTreeMap<String, (Instant, Vec<IncompleteReceive>)>>);

impl Receives {
    /// Locks the table. Never held across an await.
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, Vec<IncompleteReceive>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns those of a pool.
    pub(crate) fn of(&self, pool_id: &str) -> Vec<IncompleteReceive> {
        self.known().get(pool_id).map(|(_, receives)| receives.clone()).unwrap_or_default()
    }

    /// Returns the conditions of a pool: receives without progress for a day.
    pub(crate) fn stalled(&self, pool: &Pool, now: Timestamp) -> Vec<Found> {
        if !pool.health.is_in_service() {
            return Vec::new();
        }
        self.of(&pool.id).iter().filter_map(|receive| stalled(pool, receive, now)).collect()
    }
}

impl Daemon {
    /// Looks for incomplete receives in pools where the last look is longer ago than `age`. A look
    /// takes the thread of a pool as long as a list of its snapshots.
    pub(crate) async fn look_at_receives(&self, pools: &[Pool], age: Duration) {
        let old = |pool: &&Pool| self.receives.known().get(&pool.id).is_none_or(|(at, _)| at.elapsed() >= age);
        let asked: Vec<&Pool> =
            pools.iter().filter(|pool| pool.health.is_in_service() && pool.silent_since.is_none()).filter(old).collect();
        let look = async |pool: &Pool| {
            let shard = self.shard(&pool.name).ok()?;
            let found = timeout(self.options.deadlines.look, find(&pool.name, &shard)).await.ok()?.ok()?;
            Some((pool.id.clone(), found))
        };
        let found = join_all(asked.into_iter().map(look)).await;
        let mut known = self.receives.known();
        known.extend(found.into_iter().flatten().map(|(id, receives)| (id, (Instant::now(), receives))));
        known.retain(|id, _| pools.iter().any(|pool| pool.id == *id));
    }
}

/// True for a snapshot that says how far a receive is. While progress is replaced, there are two.
fn says_progress(snapshot: &SnapshotInfo) -> bool {
    [RECEIVING, RECEIVING_VERIFIED].contains(&snapshot.name.as_str()) && has_mark(snapshot)
}

async fn find(pool: &str, shard: &ShardHandle) -> Result<Vec<IncompleteReceive>, ShardError> {
    let mut marks: BTreeMap<VolumeId, SnapshotInfo> = BTreeMap::new();
    let note = |piece: Vec<SnapshotInfo>| {
        for snapshot in piece.into_iter().filter(says_progress) {
            // the newer one comes later
            marks.insert(snapshot.volume, snapshot);
        }
    };
    shard.each_piece_of_snapshots(note).await?;
    if marks.is_empty() {
        return Ok(Vec::new());
    }
    let volumes = shard.volumes().await?;
    let mut found: Vec<IncompleteReceive> = volumes.iter().filter_map(|volume| view(pool, volume, marks.get(&volume.id)?)).collect();
    found.sort_by(|a, b| a.volume.cmp(&b.volume));
    Ok(found)
}

/// Returns the incomplete receive into a volume, if there is one.
///
/// # Errors
/// When the pool does not answer.
pub(crate) async fn into(pool: &str, shard: &ShardHandle, volume: &VolumeInfo) -> Result<Option<IncompleteReceive>, ShardError> {
    let marks = shard.find_snapshots(volume.id, &[RECEIVING_VERIFIED, RECEIVING]).await?;
    Ok(marks.iter().find(|mark| has_mark(mark)).and_then(|mark| view(pool, volume, mark)))
}

fn view(pool: &str, volume: &VolumeInfo, mark: &SnapshotInfo) -> Option<IncompleteReceive> {
    let (said, origin) = SnapshotOrigin::split(&mark.description);
    let SnapshotOrigin { identity, position, .. } = origin?;
    let name = said.trim().strip_prefix("receiving '").and_then(|rest| rest.strip_suffix('\''));
    Some(IncompleteReceive {
        volume: format!("{pool}/{}", volume.name),
        snapshot: name.map_or_else(|| identity.to_string(), str::to_owned),
        received_bytes: position?,
        size: volume.size,
        progressed: from_millis(mark.created.0),
    })
}

fn stalled(pool: &Pool, receive: &IncompleteReceive, now: Timestamp) -> Option<Found> {
    let since = Duration::try_from(now.duration_since(receive.progressed)).ok().filter(|since| *since >= STALLED)?;
    let IncompleteReceive { volume, snapshot, received_bytes, size, .. } = receive;
    let target = volume.replacen(&format!("/{RECEIVING_VOLUME}"), "/", 1);
    let cause = format!(
        "a receive of '{snapshot}' into '{volume}' is incomplete, {} of {}, and has had no progress for {}",
        Size(*received_bytes),
        Size(*size),
        about(since)
    );
    let remedy = format!(
        "continue it with the token that 'millpond receive {target} --token' prints, or give it up with 'millpond receive {target} --abandon'"
    );
    Some(Found {
        pool: Some(pool.name.clone()),
        owner: pool.id.clone(),
        ..Found::new(ConditionKind::ReceiveStalled, volume, cause, &remedy)
    })
}

#[cfg(test)]
mod tests {
    //! A receive is a condition when it had no progress for a day, and not before.
    use millpond_api::sample::pool;

    use super::*;

    #[test]
    fn a_receive_without_progress_for_a_day_says_what_to_do() {
        let begun = from_millis(1_000_000_000_000);
        let receive = IncompleteReceive {
            volume: "tank/receiving-w".to_owned(),
            snapshot: "monday".to_owned(),
            received_bytes: 3 << 20,
            size: 32 << 20,
            progressed: begun,
        };
        let receives = Receives::default();
        let tank = pool("online", &[]);
        receives.known().insert(tank.id.clone(), (Instant::now(), vec![receive]));
        let after = |seconds: i64| begun + jiff::SignedDuration::from_secs(seconds);
        assert_eq!(receives.stalled(&tank, after(24 * 3600 - 1)), []);
        assert_eq!(receives.stalled(&tank, after(-5)), [], "the clock was set back");
        let found = receives.stalled(&tank, after(24 * 3600));
        let [found] = found.as_slice() else { panic!("{found:?}") };
        assert!(found.cause.contains("of 'monday' into 'tank/receiving-w' is incomplete, 3M of 32M"), "{}", found.cause);
        assert!(found.remedy.contains("millpond receive tank/w --abandon"), "{}", found.remedy);
        assert_eq!((found.kind.clone(), found.pool.as_deref()), (ConditionKind::ReceiveStalled, Some("tank")));
        assert_eq!(receives.stalled(&pool("unavailable", &[]), after(48 * 3600)), [], "it is not in service");
    }
}
