//! Removing volumes and snapshots: first a plan that says all that goes, then the plan carried out.

use std::collections::{BTreeMap, BTreeSet};

use millpond_engine::{Command, SnapshotId, SnapshotInfo, Target, VolumeId, VolumeInfo};

use super::service::Daemon;
use super::shard::ShardHandle;
use crate::api::{ApiError, Destroy, Destroyed, WipePool};
use crate::names::{Doomed, Name, VolumeName};

#[cfg(test)]
mod tests;

impl Daemon {
    /// Removes a volume, a snapshot or a range of snapshots. Durable on return; the space returns in the background. With `dry_run`, only
    /// says what would go.
    ///
    /// # Errors
    /// When something else needs what would go: snapshots of a volume without `recursive`, clones and holds without `clones`, exports.
    pub async fn destroy(&self, request: &Destroy) -> Result<Destroyed, ApiError> {
        let doomed: Doomed = request.name.parse()?;
        let of = match &doomed {
            Doomed::One(Name::Volume(of)) | Doomed::Range { of, .. } => of,
            Doomed::One(Name::Snapshot(name)) => &name.of,
        };
        // nothing of it is exported, renamed or changed between the look and the command
        let _pool = self.lock_pool(&of.pool).await?;
        let (shard, _) = self.find_volume(of).await?;
        let catalog = Catalog::new(shard.volumes().await?, shard.snapshots().await?);
        let during = format!("cannot destroy '{}'", request.name);
        let plan = catalog.plan(&doomed, request.recursive || request.clones, request.clones).map_err(|e| e.during(&during))?;
        let open = shard.open_files().await?;
        for target in plan.targets(&catalog) {
            if let Some(file) = open.iter().find(|file| file.target == target) {
                let (what, id, pid) = (catalog.told(&of.pool, target), file.export, file.pid);
                let message = format!("'{what}' is open in the mount of export {id}, process {pid} opened it; end that first");
                return Err(ApiError::busy(message).during(during));
            }
            if let Some(id) = self.serves(&of.pool, target) {
                let what = catalog.told(&of.pool, target);
                return Err(ApiError::busy(format!("'{what}' is exported; run 'millpond unexport {id}' first")).during(during));
            }
        }
        // what would be refused is refused before anything is lost
        let wipe = request.wipe.map(|mode| WipePool { mode, stop: false, dry_run: true });
        let mut wiping = match wipe {
            Some(rehearsed) => Some(self.wipe(&of.pool, rehearsed).await.map_err(|e| e.during(&during))?),
            None => None,
        };
        if !request.dry_run {
            self.carry_out(&shard, &plan, &catalog).await.map_err(|e| e.during(&during))?;
        }
        if let Some(rehearsed) = wipe.filter(|_| !request.dry_run) {
            let begun = self.wipe(&of.pool, WipePool { dry_run: false, ..rehearsed }).await;
            wiping = Some(begun.map_err(|e| e.during(format!("'{}' is destroyed, but not wiped", request.name)))?);
        }
        let (freed_bytes, exact) = plan.frees(&catalog);
        if let Some(wiping) = wiping.as_mut().filter(|_| request.dry_run) {
            // it has not died yet
            wiping.erased_bytes += freed_bytes;
        }
        let destroyed: Vec<String> = plan.targets(&catalog).into_iter().map(|target| catalog.told(&of.pool, target)).collect();
        if !request.dry_run {
            destroyed.iter().for_each(|name| self.tell("destroyed", name));
        }
        Ok(Destroyed { destroyed, freed_bytes, exact, wiping, dry_run: request.dry_run })
    }

    async fn carry_out(&self, shard: &ShardHandle, plan: &Plan, catalog: &Catalog) -> Result<(), ApiError> {
        for target in plan.targets(catalog) {
            let Target::Snapshot(snapshot) = target else { continue };
            for _ in 0..catalog.snapshot(snapshot).map_or(0, |info| info.holds) {
                shard.command(Command::Release { snapshot }).await?;
            }
        }
        for step in &plan.steps {
            let command = match step {
                Step::Volume(volume) => Command::DestroyVolume { volume: *volume },
                Step::Snapshots(snapshots) => Command::DestroySnapshots { snapshots: snapshots.clone() },
            };
            shard.command(command).await?;
        }
        Ok(())
    }
}

/// The volumes and snapshots of a pool at one instant.
struct Catalog {
    volumes: Vec<VolumeInfo>,
    snapshots: BTreeMap<SnapshotId, SnapshotInfo>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A volume and its snapshots.
    Volume(VolumeId),
    /// Snapshots of one volume.
    Snapshots(Vec<SnapshotId>),
}

/// What goes, clones before what they are made on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// Everything that goes: of a volume, its snapshots as well.
    fn targets(&self, catalog: &Catalog) -> Vec<Target> {
        let of_step = |step: &Step| -> Vec<Target> {
            match step {
                Step::Volume(volume) => {
                    let snapshots = catalog.of_volume(*volume).into_iter().map(|snapshot| Target::Snapshot(snapshot.id));
                    snapshots.chain([Target::Head(*volume)]).collect()
                }
                Step::Snapshots(snapshots) => snapshots.iter().copied().map(Target::Snapshot).collect(),
            }
        };
        self.steps.iter().flat_map(of_step).collect()
    }

    /// Bytes that it frees, and whether that is exact: what only several snapshots share is in no one's own count. Whole volumes have no such
    /// part, for every block belongs to one.
    fn frees(&self, catalog: &Catalog) -> (u64, bool) {
        let own = |step: &Step| -> u64 {
            match step {
                Step::Volume(id) => catalog.volumes.iter().find(|volume| volume.id == *id).map_or(0, |volume| volume.unique_bytes),
                Step::Snapshots(ids) => ids.iter().filter_map(|id| catalog.snapshot(*id)).map(|snapshot| snapshot.unique_bytes).sum(),
            }
        };
        let exact = match self.steps.as_slice() {
            [Step::Snapshots(ids)] => ids.len() == 1,
            steps => steps.iter().all(|step| matches!(step, Step::Volume(_))),
        };
        (self.steps.iter().map(own).sum(), exact)
    }
}

impl Catalog {
    fn new(volumes: Vec<VolumeInfo>, snapshots: Vec<SnapshotInfo>) -> Catalog {
        Catalog { volumes, snapshots: snapshots.into_iter().map(|snapshot| (snapshot.id, snapshot)).collect() }
    }

    fn snapshot(&self, id: SnapshotId) -> Option<&SnapshotInfo> {
        self.snapshots.get(&id)
    }

    /// Snapshots of a volume, oldest first.
    fn of_volume(&self, volume: VolumeId) -> Vec<&SnapshotInfo> {
        let mut found: Vec<&SnapshotInfo> = self.snapshots.values().filter(|snapshot| snapshot.volume == volume).collect();
        found.sort_by_key(|snapshot| (snapshot.epoch, snapshot.id));
        found
    }

    /// The full name of what goes.
    fn told(&self, pool: &str, target: Target) -> String {
        let volume = |id: VolumeId| self.volumes.iter().find(|volume| volume.id == id).map_or("?", |volume| &volume.name);
        match target {
            Target::Head(id) => format!("{pool}/{}", volume(id)),
            Target::Snapshot(id) => match self.snapshot(id) {
                Some(snapshot) => format!("{pool}/{}@{}", volume(snapshot.volume), snapshot.name),
                None => format!("{pool}/?"),
            },
        }
    }

    fn volume(&self, name: &VolumeName) -> Result<&VolumeInfo, ApiError> {
        let found = self.volumes.iter().find(|volume| volume.name == name.volume);
        found.ok_or_else(|| ApiError::not_found(format!("no volume '{name}'; see 'millpond list {}'", name.pool)))
    }

    fn named(&self, of: &VolumeName, volume: VolumeId, name: &str) -> Result<&SnapshotInfo, ApiError> {
        let found = self.snapshots.values().find(|snapshot| snapshot.volume == volume && snapshot.name == name);
        found.ok_or_else(|| ApiError::not_found(format!("no snapshot '{of}@{name}'; see 'millpond list -t snapshot {of}'")))
    }

    fn plan(&self, doomed: &Doomed, with_snapshots: bool, with_clones: bool) -> Result<Plan, ApiError> {
        let mut planner = Planner { catalog: self, with_clones, seen: BTreeSet::new(), plan: Plan::default() };
        match doomed {
            Doomed::One(Name::Volume(name)) => {
                let volume = self.volume(name)?;
                let snapshots = self.of_volume(volume.id).len();
                if snapshots > 0 && !with_snapshots {
                    return Err(ApiError::busy(format!("it has {snapshots} snapshots; add -r to destroy them with it")));
                }
                planner.volume(volume.id)?;
            }
            Doomed::One(Name::Snapshot(name)) => {
                let volume = self.volume(&name.of)?.id;
                let snapshot = self.named(&name.of, volume, &name.snapshot)?;
                planner.snapshots(&[snapshot])?;
            }
            Doomed::Range { of, first, last } => {
                let volume = self.volume(of)?.id;
                let all = self.of_volume(volume);
                let place = |name: &Option<String>| -> Result<Option<usize>, ApiError> {
                    let Some(name) = name else { return Ok(None) };
                    let id = self.named(of, volume, name)?.id;
                    Ok(all.iter().position(|snapshot| snapshot.id == id))
                };
                let from = place(first)?.unwrap_or(0);
                let to = place(last)?.map_or(all.len(), |at| at + 1);
                if first.is_some() && last.is_some() && from >= to {
                    return Err(ApiError::invalid("the first snapshot of the range is newer than the last; give the older one first"));
                }
                let range = all.get(from..to).unwrap_or_default();
                planner.snapshots(range)?;
            }
        }
        Ok(planner.plan)
    }
}

/// Builds a plan, clones first.
struct Planner<'a> {
    catalog: &'a Catalog,
    with_clones: bool,
    /// Volumes planned already; clones of clones can be reached on several ways.
    seen: BTreeSet<VolumeId>,
    plan: Plan,
}

impl Planner<'_> {
    fn volume(&mut self, id: VolumeId) -> Result<(), ApiError> {
        if !self.seen.insert(id) {
            return Ok(());
        }
        for snapshot in self.catalog.of_volume(id) {
            self.dependents(snapshot)?;
        }
        self.plan.steps.push(Step::Volume(id));
        Ok(())
    }

    fn snapshots(&mut self, snapshots: &[&SnapshotInfo]) -> Result<(), ApiError> {
        if snapshots.is_empty() {
            return Ok(());
        }
        for snapshot in snapshots {
            self.dependents(snapshot)?;
        }
        self.plan.steps.push(Step::Snapshots(snapshots.iter().map(|snapshot| snapshot.id).collect()));
        Ok(())
    }

    /// What stands on a snapshot: refused, or planned before it.
    fn dependents(&mut self, snapshot: &SnapshotInfo) -> Result<(), ApiError> {
        let catalog = self.catalog;
        let volume = catalog.volumes.iter().find(|volume| volume.id == snapshot.volume).map_or("?", |volume| &volume.name);
        let name = format!("{volume}@{}", snapshot.name);
        let clones: Vec<&VolumeInfo> = catalog.volumes.iter().filter(|volume| volume.origin.as_deref() == Some(&name)).collect();
        if !self.with_clones && !clones.is_empty() {
            let names: Vec<&str> = clones.iter().map(|clone| clone.name.as_str()).collect();
            return Err(ApiError::busy(format!("'{name}' has clones ({}); add -R to destroy them with it", names.join(", "))));
        }
        if !self.with_clones && snapshot.holds > 0 {
            return Err(ApiError::busy(format!("'{name}' is held ({} times); run 'millpond release', or add -R", snapshot.holds)));
        }
        clones.into_iter().try_for_each(|clone| self.volume(clone.id))
    }
}
