//! Plan of a destroy: everything that is destroyed, in order, and the reasons to refuse it.

use std::collections::{BTreeMap, BTreeSet};

use millpond_api::ApiError;
use millpond_api::names::{Doomed, Name, VolumeName};
use millpond_engine::{SnapshotId, SnapshotInfo, Target, VolumeId, VolumeInfo};

use crate::holds;

/// Number of held snapshots that a refusal names; of the rest it gives the count.
const NAMED: usize = 8;

/// The volumes and snapshots of a pool at one instant.
pub(super) struct Catalog {
    pool: String,
    volumes: Vec<VolumeInfo>,
    snapshots: BTreeMap<SnapshotId, SnapshotInfo>,
}

/// One command of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A volume and its snapshots.
    Volume(VolumeId),
    /// Snapshots of one volume.
    Snapshots(Vec<SnapshotId>),
}

/// Commands of a destroy, clones before their origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
}

impl Plan {
    /// Returns everything that the plan destroys: for a volume, its snapshots as well.
    pub(super) fn targets(&self, catalog: &Catalog) -> Vec<Target> {
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

    /// Returns the bytes that the plan frees, and whether the figure is exact: blocks that only
    /// several snapshots share are in no snapshot's own count. Figures of whole volumes are exact,
    /// for every block belongs to one volume.
    pub(super) fn frees(&self, catalog: &Catalog) -> (u64, bool) {
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
    pub(super) fn new(pool: &str, volumes: Vec<VolumeInfo>, snapshots: Vec<SnapshotInfo>) -> Catalog {
        let snapshots = snapshots.into_iter().map(|snapshot| (snapshot.id, snapshot)).collect();
        Catalog { pool: pool.to_owned(), volumes, snapshots }
    }

    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    pub(super) fn snapshot(&self, id: SnapshotId) -> Option<&SnapshotInfo> {
        self.snapshots.get(&id)
    }

    /// Snapshots of a volume, oldest first.
    fn of_volume(&self, volume: VolumeId) -> Vec<&SnapshotInfo> {
        let mut found: Vec<&SnapshotInfo> = self.snapshots.values().filter(|snapshot| snapshot.volume == volume).collect();
        found.sort_by_key(|snapshot| (snapshot.epoch, snapshot.id));
        found
    }

    /// Returns the full name of a target.
    pub(super) fn name_of(&self, target: Target) -> String {
        let pool = &self.pool;
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

    /// Plans to destroy all of `doomed`, each with the name that the user gave.
    ///
    /// # Errors
    /// When one of them does not exist, or something else needs it.
    pub(super) fn plan(&self, doomed: &[(&str, Doomed)], with_snapshots: bool, with_clones: bool) -> Result<Plan, ApiError> {
        let several = doomed.len() > 1;
        let mut going = BTreeSet::new();
        // one step for the snapshots of a volume, however many names the user gave
        let mut snapshots: BTreeMap<VolumeId, BTreeSet<(u64, SnapshotId)>> = BTreeMap::new();
        for (name, doomed) in doomed {
            let found = self.found(doomed, with_snapshots).map_err(|e| if several { e.during(format!("'{name}'")) } else { e })?;
            match found {
                Found::Volume(id) => {
                    going.insert(id);
                }
                Found::Snapshots(of, found) => snapshots.entry(of).or_default().extend(found),
            }
        }
        let mut planner =
            Planner { catalog: self, with_clones, going, seen: BTreeSet::new(), held: BTreeSet::new(), plan: Plan::default() };
        for id in planner.going.clone() {
            planner.volume(id)?;
        }
        for id in snapshots.values().flatten().map(|(_, id)| id) {
            planner.dependents(*id)?;
        }
        for (_, ids) in snapshots.into_iter().filter(|(of, ids)| !planner.seen.contains(of) && !ids.is_empty()) {
            planner.plan.steps.push(Step::Snapshots(ids.into_iter().map(|(_, id)| id).collect()));
        }
        self.refuse_held(&planner.held)?;
        Ok(planner.plan)
    }

    /// Refuses the whole plan when it has held snapshots: their holders rely on them, whatever else
    /// is destroyed.
    fn refuse_held(&self, held: &BTreeSet<SnapshotId>) -> Result<(), ApiError> {
        if held.is_empty() {
            return Ok(());
        }
        let found = held.iter().filter_map(|id| self.snapshot(*id));
        let (whys, commands): (Vec<String>, Vec<Vec<String>>) =
            found.take(NAMED).map(|snapshot| holds::describe(&self.name_of(Target::Snapshot(snapshot.id)), &snapshot.hold_list)).unzip();
        let commands = commands.concat();
        let more = match held.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let how = if commands.is_empty() { "wait until the locks end".to_owned() } else { format!("run '{}' first", commands.join("; ")) };
        Err(ApiError::busy(format!("snapshots with holds: {}{more}; {how}; -R does not override holds", whys.join(", "))))
    }

    /// Resolves a name.
    fn found(&self, doomed: &Doomed, with_snapshots: bool) -> Result<Found, ApiError> {
        let of = doomed.of();
        let volume = self.volume(of)?.id;
        let all = self.of_volume(volume);
        let found = match doomed {
            Doomed::One(Name::Volume(_)) => {
                if !all.is_empty() && !with_snapshots {
                    return Err(ApiError::busy(format!("it has {} snapshots; add -r to destroy them with it", all.len())));
                }
                return Ok(Found::Volume(volume));
            }
            Doomed::One(Name::Snapshot(name)) => vec![self.named(of, volume, &name.snapshot)?],
            Doomed::Range { first, last, .. } => {
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
                all.get(from..to).unwrap_or_default().to_vec()
            }
        };
        Ok(Found::Snapshots(volume, found.into_iter().map(|snapshot| (snapshot.epoch, snapshot.id)).collect()))
    }
}

/// Target of a name.
enum Found {
    Volume(VolumeId),
    /// Snapshots of one volume, with their epochs.
    Snapshots(VolumeId, Vec<(u64, SnapshotId)>),
}

/// Builds a plan, clones first.
struct Planner<'a> {
    catalog: &'a Catalog,
    with_clones: bool,
    /// Volumes that the user named: as clones they need no `with_clones`.
    going: BTreeSet<VolumeId>,
    /// Volumes planned already; a clone of a clone can be reached in several ways.
    seen: BTreeSet<VolumeId>,
    /// Held snapshots, which refuse the plan.
    held: BTreeSet<SnapshotId>,
    plan: Plan,
}

impl Planner<'_> {
    fn volume(&mut self, id: VolumeId) -> Result<(), ApiError> {
        if !self.seen.insert(id) {
            return Ok(());
        }
        for snapshot in self.catalog.of_volume(id) {
            self.dependents(snapshot.id)?;
        }
        self.plan.steps.push(Step::Volume(id));
        Ok(())
    }

    /// Plans the clones of a snapshot before it, or refuses them; collects held snapshots.
    fn dependents(&mut self, id: SnapshotId) -> Result<(), ApiError> {
        let catalog = self.catalog;
        let Some(snapshot) = catalog.snapshot(id) else { return Ok(()) };
        let volume = catalog.volumes.iter().find(|volume| volume.id == snapshot.volume).map_or("?", |volume| &volume.name);
        let name = format!("{volume}@{}", snapshot.name);
        let clones: Vec<&VolumeInfo> = catalog.volumes.iter().filter(|volume| volume.origin.as_deref() == Some(&name)).collect();
        let unasked: Vec<&str> =
            clones.iter().filter(|clone| !self.with_clones && !self.going.contains(&clone.id)).map(|clone| clone.name.as_str()).collect();
        if !unasked.is_empty() {
            return Err(ApiError::busy(format!("'{name}' has clones ({}); add -R to destroy them with it", unasked.join(", "))));
        }
        if snapshot.holds > 0 {
            self.held.insert(id);
        }
        clones.into_iter().try_for_each(|clone| self.volume(clone.id))
    }
}
