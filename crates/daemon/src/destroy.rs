//! Destroying volumes and snapshots: first a plan of everything that is destroyed, then its
//! execution.

use std::collections::BTreeSet;

use millpond_api::names::Doomed;
use millpond_api::{ApiError, Destroy, Destroyed, EventKind, WipePool};
use millpond_engine::{CatalogCommand, Command};

use super::attached::{self, Clients};
use super::receiving;
use super::service::Daemon;
use super::shard::ShardHandle;
use super::state::ExportRecord;
use plan::{Catalog, Plan, Step};

mod plan;

#[cfg(test)]
mod tests;

impl Daemon {
    /// Destroys volumes, snapshots and ranges of snapshots of one pool. Durable on return; the
    /// space is freed in the background. With `dry_run`, only reports what would be destroyed.
    /// Nothing is destroyed when one of the names is refused.
    ///
    /// # Errors
    /// When something else needs what would be destroyed: snapshots of a volume without
    /// `recursive`, clones without `clones`, exports without `unexport`, and holds in any case.
    pub async fn destroy(&self, request: &Destroy) -> Result<Destroyed, ApiError> {
        let names = std::iter::once(&request.name).chain(&request.more);
        let doomed: Vec<(&str, Doomed)> = names.map(|name| Ok((name.as_str(), name.parse()?))).collect::<Result<_, ApiError>>()?;
        let Some((_, first)) = doomed.first() else { return Err(ApiError::usage("nothing is named; give POOL/VOL[@SNAP]")) };
        let pool = first.of().pool.as_str();
        if doomed.iter().any(|(_, doomed)| doomed.of().pool != pool) {
            return Err(ApiError::invalid("the names are of several pools; give those of each pool in a command of its own"));
        }
        // no export, rename or change of the pool comes between the look and the command
        let _pool = self.lock_pool(pool).await?;
        let (shard, volume) = self.find_volume(first.of()).await?;
        let catalog = Catalog::new(pool, shard.volumes().await?, shard.snapshots().await?);
        let during = match request.more.len() {
            0 => format!("cannot destroy '{}'", request.name),
            more => format!("cannot destroy '{}' and {more} more", request.name),
        };
        let plan = catalog.plan(&doomed, request.recursive || request.clones, request.clones).map_err(|e| e.during(&during))?;
        if request.receive {
            self.check_step(request.export, pool, volume.id).map_err(|e| e.during(&during))?;
        } else {
            refuse_marks(&plan, &catalog).map_err(|e| e.during(&during))?;
        }
        let exports = self.in_the_way(request, &shard, &catalog, &plan).await.map_err(|e| e.during(&during))?;
        // the wipe is rehearsed, so that a refusal comes before anything is lost
        let wipe = request.wipe.map(|mode| WipePool { mode, stop: false, dry_run: true });
        let mut wiping = match wipe {
            Some(rehearsed) => Some(self.wipe(pool, rehearsed).await.map_err(|e| e.during(&during))?),
            None => None,
        };
        if !request.dry_run {
            for record in &exports {
                self.end_export(record, false, false).await.map_err(|e| e.during(format!("{during}: cannot end export {}", record.id)))?;
            }
            let carried_out = carry_out(&shard, &plan).await;
            self.snapshots_changed();
            carried_out.map_err(|e| e.during(&during))?;
        }
        if let Some(rehearsed) = wipe.filter(|_| !request.dry_run) {
            let begun = self.wipe(pool, WipePool { dry_run: false, ..rehearsed }).await;
            wiping = Some(begun.map_err(|e| e.during(format!("'{}' is destroyed, but not wiped", request.name)))?);
        }
        let (freed_bytes, exact) = plan.frees(&catalog);
        if let Some(wiping) = wiping.as_mut().filter(|_| request.dry_run) {
            // in a dry run the data still lives: add the bytes that would be left to erase
            wiping.erased_bytes += freed_bytes;
        }
        let destroyed: Vec<String> = plan.targets(&catalog).into_iter().map(|target| catalog.name_of(target)).collect();
        if !request.dry_run {
            destroyed.iter().for_each(|name| self.tell(EventKind::Destroyed, name));
        }
        let unexported = exports.iter().map(|record| record.id).collect();
        Ok(Destroyed { destroyed, freed_bytes, exact, wiping, unexported, dry_run: request.dry_run })
    }

    /// Returns the exports that have to end before the plan is carried out.
    ///
    /// # Errors
    /// When a file of a mount is open; when there are exports and the request does not end them
    /// (the message has one command that ends them all); when clients are connected without
    /// `force`.
    async fn in_the_way(
        &self,
        request: &Destroy,
        shard: &ShardHandle,
        catalog: &Catalog,
        plan: &Plan,
    ) -> Result<Vec<ExportRecord>, ApiError> {
        let open = shard.open_files().await?;
        let mut exports: Vec<ExportRecord> = Vec::new();
        let mut reasons = Vec::new();
        let mut served = Vec::new();
        for target in plan.targets(catalog) {
            let what = catalog.name_of(target);
            if let Some(file) = open.iter().find(|file| file.target == target) {
                let (id, pid) = (file.export, file.pid);
                let message = format!("'{what}' is open in the mount of export {id}, process {pid} opened it; end that process first");
                return Err(ApiError::busy(message));
            }
            let serving = self.serving(catalog.pool(), target);
            if !serving.is_empty() {
                reasons.push(format!("'{what}' is exported ({})", ids(&serving)));
                served.push(what);
            }
            exports.extend(serving);
        }
        if !exports.is_empty() && !request.unexport {
            let message = format!("{}; run 'millpond unexport {}' first, or add --unexport", reasons.join(" and "), served.join(" "));
            return Err(ApiError::busy(message));
        }
        if !request.force {
            let mut connected = Vec::new();
            for export in &exports {
                connected.extend(attached::to(shard, Clients::Export(export.id)).await?);
            }
            attached::refuse(&connected, "shut the guest down")?;
        }
        Ok(exports)
    }
}

/// `export 3`, or `exports 3 and 5`.
fn ids(exports: &[ExportRecord]) -> String {
    let ids: BTreeSet<u64> = exports.iter().map(|export| export.id).collect();
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    match ids.as_slice() {
        [one] => format!("export {one}"),
        [first @ .., last] => format!("exports {} and {last}", first.join(", ")),
        [] => String::new(),
    }
}

/// Refuses to destroy a snapshot of an incomplete receive, unless its volume goes with it.
fn refuse_marks(plan: &Plan, catalog: &Catalog) -> Result<(), ApiError> {
    let ids = plan.steps.iter().filter_map(|step| match step {
        Step::Snapshots(ids) => Some(ids),
        Step::Volume(_) => None,
    });
    let mut marks = ids.flatten().filter_map(|id| catalog.snapshot(*id)).filter(|snapshot| receiving::has_mark(snapshot));
    marks.next().map_or(Ok(()), |mark| Err(receiving::mark_stays(&catalog.name_of(millpond_engine::Target::Snapshot(mark.id)))))
}

async fn carry_out(shard: &ShardHandle, plan: &Plan) -> Result<(), ApiError> {
    for step in &plan.steps {
        let command = match step {
            Step::Volume(volume) => Command::Catalog(CatalogCommand::DestroyVolume { volume: *volume }),
            Step::Snapshots(snapshots) => Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: snapshots.clone() }),
        };
        shard.command(command).await?;
    }
    Ok(())
}
