//! Promotion: a clone becomes independent, and its origin becomes a clone of it.

use std::collections::BTreeMap;

use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::size::Size;
use millpond_api::{ApiError, ErrorKind, EventKind, Promote, Promoted};
use millpond_engine::{CatalogCommand, Command, CommandError, PromotionPlan, Reply, SnapshotInfo, VolumeInfo};

use super::receiving;
use super::service::Daemon;
use super::shard::ShardError;

impl Daemon {
    /// Makes a clone independent of its origin: the origin snapshot and those before it move to the
    /// clone. Durable on return.
    ///
    /// # Errors
    /// When the volume is no clone, when both volumes have a snapshot of one name, or when the
    /// engine refuses.
    pub async fn promote(&self, name: &VolumeName, request: &Promote) -> Result<Promoted, ApiError> {
        // exports of moved snapshots get their new names before another command begins
        let _pool = self.lock_pool(&name.pool).await?;
        let during = format!("cannot promote '{name}'");
        let (shard, volume) = self.find_volume(name).await?;
        let (volumes, snapshots) = (shard.volumes().await?, shard.snapshots().await?);
        receiving::refuse_promotion(&volume, &volumes, &snapshots).map_err(|e| e.during(&during))?;
        let command = Command::Catalog(CatalogCommand::Promote { volume: volume.id, dry_run: request.dry_run });
        let reply = shard.command(command).await.map_err(|e| refused(e, &volume, &volumes).during(&during))?;
        let Reply::Promotion(plan) = reply else { return Err(ApiError::internal("the engine answers something else").during(during)) };
        let promoted = described(name, &plan, &volumes, &snapshots);
        if !request.dry_run {
            self.snapshots_changed();
            for (old, new) in promoted.snapshots.iter().zip(&promoted.renamed) {
                let named = |name: &String| name.parse::<SnapshotName>().map(Name::Snapshot);
                if let (Ok(old), Ok(new)) = (named(old), named(new)) {
                    self.rename_exports(&old, &new)?;
                }
            }
            self.tell(EventKind::VolumePromoted, name.to_string());
        }
        Ok(promoted)
    }
}

fn described(name: &VolumeName, plan: &PromotionPlan, volumes: &[VolumeInfo], snapshots: &[SnapshotInfo]) -> Promoted {
    let from = volumes.iter().find(|volume| volume.id == plan.from).map_or("?", |volume| volume.name.as_str());
    let names: BTreeMap<_, &str> = snapshots.iter().map(|snapshot| (snapshot.id, snapshot.name.as_str())).collect();
    let moved: Vec<&str> = plan.snapshots.iter().filter_map(|id| names.get(id).copied()).collect();
    Promoted {
        from: format!("{}/{from}", name.pool),
        snapshots: moved.iter().map(|snapshot| format!("{}/{from}@{snapshot}", name.pool)).collect(),
        renamed: moved.iter().map(|snapshot| format!("{name}@{snapshot}")).collect(),
        moved_bytes: plan.bytes,
    }
}

/// Explains a refusal: the engine reports only that space is short.
fn refused(error: ShardError, volume: &VolumeInfo, volumes: &[VolumeInfo]) -> ApiError {
    let origin = volume.origin.as_deref().and_then(|origin| origin.split_once('@')).map(|(origin, _)| origin);
    let origin = volumes.iter().find(|of| Some(of.name.as_str()) == origin).filter(|of| of.options.reservation > 0);
    match (error, origin) {
        (ShardError::Command(CommandError::NoSpace), Some(origin)) => {
            let message = format!(
                "the snapshots that move would no longer count for the reservation={} of '{}', and the pool lacks that space; lower it with 'millpond set' first",
                Size(origin.options.reservation),
                origin.name
            );
            ApiError::new(ErrorKind::NoSpace, message)
        }
        (error, _) => error.into(),
    }
}
