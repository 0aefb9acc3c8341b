//! Holds of the newest snapshots that both ends have, and of those that are being sent. Their tag names
//! the policy.

use std::sync::atomic::Ordering;
use std::time::Instant;

use jiff::Timestamp;
use millpond_api::identity::{SnapshotOrigin, taken};
use millpond_api::instant;
use millpond_engine::{CatalogCommand, SnapshotId, SnapshotInfo};

use super::{AtTarget, Job};
use crate::service::Daemon;
use crate::shard::{ShardError, ShardHandle};

/// Start of the tag of such a hold; the name of the policy follows.
const TAG: &str = "policy-send-";
/// Longest name of a policy that sends: a tag has 64 bytes.
pub(in crate::policy) const LONGEST_SENDER: usize = 64 - TAG.len();

fn tag_of(policy: &str) -> String {
    format!("{TAG}{policy}")
}

fn has_tag(snapshot: &SnapshotInfo, tag: &str) -> bool {
    snapshot.hold_list.iter().any(|hold| hold.tag.as_deref() == Some(tag))
}

async fn held(shard: &ShardHandle, wanted: impl Fn(&SnapshotInfo) -> bool) -> Result<Vec<SnapshotInfo>, ShardError> {
    let mut found = Vec::new();
    shard.each_piece_of_snapshots(|piece| found.extend(piece.into_iter().filter(&wanted))).await?;
    Ok(found)
}

async fn release(shard: &ShardHandle, snapshot: SnapshotId, tag: &str) {
    let released = shard.command(CatalogCommand::Release { snapshot, tag: Some(tag.to_owned()) }).await;
    if let Err(error) = released {
        // somebody released it, or destroyed the volume
        tracing::debug!(%error, tag, "a hold of a policy that sends is not released");
    }
}

impl Daemon {
    /// Holds snapshots of the source, and releases the policy's holds of others of the volume.
    ///
    /// # Errors
    /// The reason why one is not held.
    pub(super) async fn move_holds(&self, job: &Job, to: &[SnapshotId]) -> Result<(), String> {
        let tag = tag_of(&job.policy);
        let shard = self.shard(&job.pool).map_err(|error| error.message)?;
        let of_volume = |snapshot: &SnapshotInfo| snapshot.volume == job.volume && has_tag(snapshot, &tag);
        let before = held(&shard, of_volume).await.map_err(|error| error.to_string())?;
        for snapshot in to.iter().filter(|wanted| !before.iter().any(|snapshot| snapshot.id == **wanted)) {
            let command = CatalogCommand::Hold { snapshot: *snapshot, tag: Some(tag.clone()), until: None, locked: false };
            shard.command(command).await.map_err(|error| format!("a snapshot that is to be sent cannot be held: {error}"))?;
        }
        for snapshot in before.iter().filter(|snapshot| !to.contains(&snapshot.id)) {
            release(&shard, snapshot.id, &tag).await;
        }
        Ok(())
    }

    /// Releases the holds of policies that no longer send, and learns from the others what the
    /// targets have.
    pub(super) async fn release_left_holds(&self) {
        if !self.sends.look_at_holds.swap(false, Ordering::SeqCst) {
            return;
        }
        for (pool_id, pool) in self.pools_in_service() {
            let Ok(shard) = self.shard(&pool) else { continue };
            let is_ours =
                |snapshot: &SnapshotInfo| snapshot.hold_list.iter().any(|hold| hold.tag.as_deref().is_some_and(|tag| tag.starts_with(TAG)));
            let Ok(found) = held(&shard, is_ours).await else { continue };
            for snapshot in found {
                for hold in &snapshot.hold_list {
                    let Some(tag) = hold.tag.as_deref() else { continue };
                    let Some(policy) = tag.strip_prefix(TAG) else { continue };
                    let held = hold.since.map(|since| instant::from_millis(since.0));
                    if !self.learn(policy, &pool_id, &snapshot, held) {
                        release(&shard, snapshot.id, tag).await;
                    }
                }
            }
        }
    }

    /// Notes that the target has a snapshot, where nothing newer is known, and the hold is not of an
    /// earlier target. Returns false if the policy does not send the volume.
    fn learn(&self, policy: &str, pool_id: &str, snapshot: &SnapshotInfo, held: Option<Timestamp>) -> bool {
        let mut policies = self.policies();
        let Some(entry) = policies.all.get_mut(policy) else { return false };
        entry.meet_volumes(Instant::now());
        let begun = entry.record.send_since;
        let Some(sending) = entry.sends.get_mut(&(pool_id.to_owned(), snapshot.volume)) else { return false };
        let taken = SnapshotOrigin::split(&snapshot.description).1.and_then(|origin| taken(&origin.identity));
        let taken = taken.unwrap_or_else(|| instant::from_millis(snapshot.created.0));
        let is_of_target = held.zip(begun).is_some_and(|(held, begun)| held >= begun);
        if is_of_target && !sending.looked && sending.newest.is_none() {
            sending.newest = Some(AtTarget { name: snapshot.name.clone(), taken });
        }
        true
    }
}
