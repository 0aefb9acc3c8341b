//! One run of a policy in one pool: takes snapshots, then destroys superfluous ones.
//!
//! The snapshots of a policy are known by id between runs, so that a run every second lists
//! nothing. Everything is looked at again when a command may have changed something about
//! snapshots, when the engine refuses, and every five minutes. INV-POLICY-2: a run destroys only
//! snapshots that have the mark of the policy and a time in their name, as read since the last such
//! command, under the lock of the pool; holds, locks and clones are checked by the engine, exports
//! here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_api::ApiError;
use millpond_api::instant;
use millpond_engine::{Absent, CatalogCommand, CommandError, Reply, SnapshotId, SnapshotInfo, Target, Time, VolumeId};

use super::due::{Progress, Seen, read_only};
use super::keep::Bucket;
use super::{Attached, PolicyRecord, Terms};
use crate::freeze::{Guest, How};
use crate::receiving;
use crate::service::Daemon;
use crate::shard::{ShardError, ShardHandle};

/// Time after which the snapshots are listed again.
const FRESH: Duration = Duration::from_secs(300);
/// Shortest time between two thinnings.
const THIN_EVERY: Duration = Duration::from_secs(2);
/// How long a run waits for a command on its pool before it leaves the thinning to the next run.
const WAIT: Duration = Duration::from_secs(2);
/// Most names that are tried for a snapshot.
const NAMES: u32 = 99;

/// A snapshot of a policy.
struct Taken {
    id: SnapshotId,
    at: Timestamp,
    buckets: Box<[Bucket]>,
    /// It is held, locked or has clones, as far as known until then.
    kept_until: Timestamp,
}

/// The snapshots of a policy in one pool.
pub(in crate::policy) struct Tracked {
    volumes: BTreeMap<VolumeId, Vec<Taken>>,
    /// Names of volumes.
    names: BTreeMap<VolumeId, String>,
    /// Names of snapshots, if they were asked for.
    of_snapshots: BTreeMap<SnapshotId, String>,
    listed: Instant,
    /// Changes of snapshots by commands before the list was made.
    changes: u64,
    thinned: Option<Instant>,
}

impl Tracked {
    /// Returns numbers for lists.
    pub(in crate::policy) fn seen(&self) -> BTreeMap<VolumeId, Seen> {
        let of = |taken: &Vec<Taken>| {
            let times = || taken.iter().map(|one| one.at);
            Seen { count: taken.len() as u64, oldest: times().min(), newest: times().max() }
        };
        self.volumes.iter().map(|(volume, taken)| (*volume, of(taken))).collect()
    }

    fn newest(&self) -> Option<Timestamp> {
        self.volumes.values().filter_map(|taken| taken.last()).map(|one| one.at).max()
    }

    fn push(&mut self, terms: &Terms, volume: VolumeId, id: SnapshotId, at: Timestamp, locked: Option<Timestamp>) {
        let taken = Taken { id, at, buckets: terms.keep.buckets(&terms.zone, at), kept_until: locked.unwrap_or(Timestamp::MIN) };
        self.volumes.entry(volume).or_default().push(taken);
    }

    /// Returns the superfluous snapshots: those that can be destroyed, and those that stay for now.
    fn superfluous(&self, terms: &Terms, now: Timestamp) -> (Vec<SnapshotId>, Vec<SnapshotId>) {
        let (mut doomed, mut kept) = (Vec::new(), Vec::new());
        for taken in self.volumes.values() {
            let buckets: Vec<&[Bucket]> = taken.iter().map(|one| &*one.buckets).collect();
            for (one, _) in taken.iter().zip(terms.keep.superfluous(&buckets)).filter(|(_, superfluous)| *superfluous) {
                if one.kept_until > now { &mut kept } else { &mut doomed }.push(one.id);
            }
        }
        (doomed, kept)
    }

    /// Returns the snapshots that may be destroyed before their time, with their names, oldest
    /// first: all but the newest of each volume.
    pub(in crate::policy) fn prunable(&self, now: Timestamp) -> Vec<(SnapshotId, String)> {
        let older = self.volumes.values().filter_map(|taken| Some(taken.split_last()?.1)).flatten();
        let mut found: Vec<&Taken> = older.filter(|one| one.kept_until <= now).collect();
        found.sort_by_key(|one| (one.at, one.id));
        found.into_iter().filter_map(|one| Some((one.id, self.of_snapshots.get(&one.id)?.clone()))).collect()
    }

    fn forget(&mut self, gone: &[SnapshotId]) {
        let gone: BTreeSet<SnapshotId> = gone.iter().copied().collect();
        self.volumes.values_mut().for_each(|taken| taken.retain(|one| !gone.contains(&one.id)));
    }

    fn names_of(&self, snapshots: &[SnapshotId]) -> Vec<String> {
        let names = snapshots.iter().filter_map(|id| self.of_snapshots.get(id));
        names.cloned().collect()
    }
}

/// A run that is to be made.
pub(in crate::policy) struct Turn {
    pub(in crate::policy) policy: String,
    pub(in crate::policy) terms: Arc<Terms>,
    pub(in crate::policy) pool_id: String,
    pub(in crate::policy) pool: String,
    pub(in crate::policy) volumes: Vec<Attached>,
    due: Option<Timestamp>,
    tracked: Option<Tracked>,
    /// The policy sends.
    sends: bool,
    /// A user asked for it: it is made now, with names.
    by_hand: bool,
    dry_run: bool,
}

impl Turn {
    pub(in crate::policy) fn new(record: &PolicyRecord, terms: Arc<Terms>, pool_id: &str, pool: &str, progress: &mut Progress) -> Turn {
        Turn {
            policy: record.name.clone(),
            terms,
            pool_id: pool_id.to_owned(),
            pool: pool.to_owned(),
            volumes: record.volumes.iter().filter(|volume| volume.pool_id == pool_id).cloned().collect(),
            due: progress.due,
            tracked: progress.tracked.take(),
            sends: record.send.is_some(),
            by_hand: false,
            dry_run: false,
        }
    }

    /// Returns the names of the volumes that are sent now.
    pub(in crate::policy) fn sent_volumes(&self, dry_run: bool) -> impl Iterator<Item = String> {
        let sent = self.volumes.iter().filter(move |_| self.sends && !dry_run);
        sent.map(|volume| volume.name.clone())
    }

    /// True if a user asked for it.
    pub(in crate::policy) fn is_by_hand(&self) -> bool {
        self.by_hand && !self.dry_run
    }

    /// The same, made now for a user.
    pub(in crate::policy) fn by_hand(self, dry_run: bool) -> Turn {
        Turn { by_hand: true, dry_run, tracked: None, ..self }
    }

    /// Returns the time of a run that nothing is known about yet: that after the newest snapshot,
    /// or after the volumes came under the policy.
    fn first_due(&self, tracked: &Tracked, now: Timestamp) -> Timestamp {
        let since = self.volumes.iter().map(|volume| volume.since).min().unwrap_or(now);
        // a snapshot of the future was taken before the clock was set back
        let last = tracked.newest().unwrap_or(since).min(now);
        self.terms.schedule.next_after(&self.terms.zone, last)
    }
}

/// How a run ended.
#[derive(Default)]
pub(in crate::policy) struct Run {
    /// Time of its snapshots, if it took any.
    pub(in crate::policy) made: Option<Timestamp>,
    /// Time when it was due.
    pub(in crate::policy) due: Option<Timestamp>,
    pub(in crate::policy) taken: u64,
    pub(in crate::policy) destroyed: u64,
    pub(in crate::policy) tracked: Option<Tracked>,
    /// Volumes that do not exist any more.
    pub(in crate::policy) gone: Vec<VolumeId>,
    /// Reasons why guests were not frozen; `None` if none was to be.
    pub(in crate::policy) freezing: Option<Vec<String>>,
    /// Names, for a run by hand.
    pub(in crate::policy) report: millpond_api::PolicyRun,
    pub(in crate::policy) error: Option<ApiError>,
}

impl Daemon {
    /// Makes a run, if it is due.
    pub(in crate::policy) async fn make_run(self: &Arc<Daemon>, turn: &mut Turn) -> Run {
        let mut run = Run::default();
        if let Err(error) = self.try_run(turn, &mut run).await {
            run.error = Some(error);
        }
        run
    }

    async fn try_run(self: &Arc<Daemon>, turn: &mut Turn, run: &mut Run) -> Result<(), ApiError> {
        let shard = self.shard(&turn.pool)?;
        if self.registry().pools.get(&turn.pool).is_some_and(|entry| entry.record.read_only) {
            return Err(read_only(&turn.pool));
        }
        let mut tracked = match turn.tracked.take().filter(|tracked| self.is_fresh(turn, tracked)) {
            Some(tracked) => tracked,
            None => self.list(turn, &shard).await?,
        };
        run.gone = turn.volumes.iter().map(Attached::id).filter(|id| !tracked.names.contains_key(id)).collect();
        let now = instant::now();
        let due = turn.due.unwrap_or_else(|| turn.first_due(&tracked, now));
        run.due = Some(due);
        let mut outcome = Ok(());
        if turn.dry_run {
            rehearse(turn, &mut tracked, run, now);
            self.thin(turn, &shard, &mut tracked, run).await?;
        } else if turn.by_hand || due <= now {
            outcome = self.take(turn, &shard, &mut tracked, run, now).await;
            // a pool that is full gets space by thinning
            let rested = tracked.thinned.is_none_or(|thinned| thinned.elapsed() >= THIN_EVERY);
            if turn.by_hand || rested {
                tracked.thinned = Some(Instant::now());
                outcome = outcome.and(self.thin(turn, &shard, &mut tracked, run).await);
            }
        }
        run.tracked = Some(tracked);
        outcome
    }

    fn is_fresh(&self, turn: &Turn, tracked: &Tracked) -> bool {
        let same = tracked.changes == self.snapshot_changes.load(Ordering::SeqCst);
        let of_turn =
            tracked.names.len() == turn.volumes.len() && turn.volumes.iter().all(|volume| tracked.names.contains_key(&volume.id()));
        same && of_turn && tracked.listed.elapsed() < FRESH
    }

    /// Lists the snapshots of the policy.
    pub(in crate::policy) async fn list(&self, turn: &Turn, shard: &ShardHandle) -> Result<Tracked, ApiError> {
        let changes = self.snapshot_changes.load(Ordering::SeqCst);
        let wanted: BTreeSet<VolumeId> = turn.volumes.iter().map(Attached::id).collect();
        let names = shard.volumes().await?.into_iter().filter(|volume| wanted.contains(&volume.id));
        let names: BTreeMap<VolumeId, String> = names.map(|volume| (volume.id, format!("{}/{}", turn.pool, volume.name))).collect();
        let mut found: Vec<(VolumeId, u64, Taken)> = Vec::new();
        let mut of_snapshots = BTreeMap::new();
        let add = |piece: Vec<SnapshotInfo>| {
            for snapshot in piece.into_iter().filter(|snapshot| names.contains_key(&snapshot.volume)) {
                let Some(at) = turn.terms.time_of(&snapshot.name, &snapshot.description) else { continue };
                let buckets = turn.terms.keep.buckets(&turn.terms.zone, at);
                let taken = Taken { id: snapshot.id, at, buckets, kept_until: kept_until(&snapshot) };
                if turn.by_hand {
                    let volume = names.get(&snapshot.volume).map(String::as_str).unwrap_or_default();
                    of_snapshots.insert(snapshot.id, format!("{volume}@{}", snapshot.name));
                }
                found.push((snapshot.volume, snapshot.epoch, taken));
            }
        };
        shard.each_piece_of_snapshots(add).await?;
        found.sort_by_key(|(volume, epoch, taken)| (*volume, *epoch, taken.id));
        let mut volumes: BTreeMap<VolumeId, Vec<Taken>> = names.keys().map(|volume| (*volume, Vec::new())).collect();
        found.into_iter().for_each(|(volume, _, taken)| volumes.entry(volume).or_default().push(taken));
        Ok(Tracked { volumes, names, of_snapshots, listed: Instant::now(), changes, thinned: None })
    }

    /// Takes the snapshots of a run.
    async fn take(
        self: &Arc<Daemon>,
        turn: &Turn,
        shard: &ShardHandle,
        tracked: &mut Tracked,
        run: &mut Run,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let volumes: Vec<VolumeId> = tracked.names.keys().copied().collect();
        let results = match &turn.terms.freeze {
            Some(template) => self.take_frozen(turn, shard, template, &tracked.names, run, now).await,
            None => take_groups(turn, shard, &volumes, now).await,
        };
        let mut outcome = Ok(());
        let locked = turn.terms.lock.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)).ok());
        for result in results {
            match result {
                Ok((name, ids)) => {
                    for (volume, id) in ids {
                        run.taken += 1;
                        tracked.push(&turn.terms, volume, id, now, locked);
                        let volume = tracked.names.get(&volume).map(String::as_str).unwrap_or_default();
                        let name = format!("{volume}@{name}");
                        if turn.by_hand {
                            tracked.of_snapshots.insert(id, name.clone());
                            run.report.taken.push(name);
                        }
                    }
                }
                Err(error) => {
                    // a volume that was destroyed meanwhile is noticed by the next list
                    if matches!(error, NotTaken::Shard(ShardError::Command(CommandError::NotFound(Absent::Volume)))) {
                        self.snapshots_changed();
                    }
                    outcome = outcome.and(Err(error.into()));
                }
            }
        }
        if run.taken > 0 {
            run.made = Some(now);
            if let Some(time) = turn.terms.expire.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)).ok()) {
                self.expires(&turn.pool, time);
            }
        } else if volumes.is_empty() {
            run.made = Some(now);
        }
        outcome
    }

    /// Takes the snapshots of a run while their guests are frozen: with `group` all guests at once,
    /// else each guest by itself, so that none waits for another.
    async fn take_frozen(
        self: &Arc<Daemon>,
        turn: &Turn,
        shard: &ShardHandle,
        template: &str,
        names: &BTreeMap<VolumeId, String>,
        run: &mut Run,
        now: Timestamp,
    ) -> Vec<Result<Group, NotTaken>> {
        let volumes: Vec<(VolumeId, String)> = names.iter().map(|(id, name)| (*id, name.clone())).collect();
        let guests = match self.guests_of(template, shard, &volumes).await {
            Ok(guests) => guests,
            Err(error) => return vec![Err(NotTaken::Shard(error))],
        };
        // without `group` a part has the volumes of one guest, or those without a guest's socket
        let mut parts: Vec<Part> = Vec::new();
        for ((id, _), guest) in volumes.iter().zip(guests) {
            let socket = guest.as_ref().ok().map(|guest| &guest.socket);
            let is_same = |part: &Part| turn.terms.group || part.guests.first().map(|guest| &guest.socket) == socket;
            let index = parts.iter().position(is_same).unwrap_or(parts.len());
            if index == parts.len() {
                parts.push(Part::default());
            }
            let Some(part) = parts.get_mut(index) else { continue };
            part.volumes.push(*id);
            match guest {
                Ok(guest) => part.guests.push(guest),
                Err(reason) => part.reasons.push(reason),
            }
        }
        let how = How { required: turn.terms.freeze_required, patient: turn.by_hand };
        let taken = join_all(parts.into_iter().map(|Part { guests, mut reasons, volumes }| async move {
            let not_frozen = |reasons: &[String]| Err(NotTaken::NotFrozen(reasons.join("; ")));
            if how.required && !reasons.is_empty() {
                return (vec![not_frozen(&reasons)], reasons);
            }
            let (taken, failed) = self.frozen(&guests, how, take_groups(turn, shard, &volumes, now)).await;
            reasons.extend(failed);
            let mut taken = taken.unwrap_or_default();
            if how.required && !reasons.is_empty() {
                taken.push(not_frozen(&reasons));
            }
            (taken, reasons)
        }));
        let (mut results, mut all) = (Vec::new(), Vec::new());
        for (taken, reasons) in taken.await {
            results.extend(taken);
            all.extend(reasons);
        }
        if turn.by_hand {
            run.report.not_frozen.clone_from(&all);
        }
        run.freezing = Some(all);
        results
    }

    /// Destroys superfluous snapshots, or only names them.
    async fn thin(&self, turn: &Turn, shard: &ShardHandle, tracked: &mut Tracked, run: &mut Run) -> Result<(), ApiError> {
        // no snapshot is exported or renamed between the list and the command
        let Ok(_pool) = tokio::time::timeout(WAIT, self.wait_for_pool(&turn.pool)).await else {
            tracing::debug!(policy = turn.policy, pool = turn.pool, "another command has the pool: the next run thins");
            return Ok(());
        };
        for attempt in 0..2 {
            if attempt > 0 || !(turn.dry_run || self.is_fresh(turn, tracked)) {
                *tracked = Tracked { thinned: tracked.thinned, ..self.list(turn, shard).await? };
            }
            let (doomed, kept) = tracked.superfluous(&turn.terms, instant::now());
            if doomed.is_empty() && !turn.by_hand {
                return Ok(());
            }
            let open = shard.open_files().await?;
            let is_used = |id: &SnapshotId| {
                let target = Target::Snapshot(*id);
                self.serves(&turn.pool, target).is_some() || open.iter().any(|file| file.target == target)
            };
            let (used, doomed): (Vec<SnapshotId>, Vec<SnapshotId>) = doomed.into_iter().partition(is_used);
            if turn.by_hand {
                run.report.destroyed = tracked.names_of(&doomed);
                run.report.kept = tracked.names_of(&[kept, used].concat());
            }
            if doomed.is_empty() || turn.dry_run {
                return Ok(());
            }
            match shard.command(CatalogCommand::DestroySnapshots { snapshots: doomed.clone() }).await {
                Ok(_) => {
                    tracked.forget(&doomed);
                    run.destroyed += doomed.len() as u64;
                    return Ok(());
                }
                // held, cloned or destroyed since the list
                Err(ShardError::Command(CommandError::Busy(_) | CommandError::NotFound(_))) => {}
                Err(error) => return Err(error.into()),
            }
        }
        tracing::debug!(policy = turn.policy, pool = turn.pool, "snapshots change: the next run thins");
        self.snapshots_changed();
        Ok(())
    }
}

/// Adds the snapshots that a run would take to the tracked ones.
fn rehearse(turn: &Turn, tracked: &mut Tracked, run: &mut Run, now: Timestamp) {
    let name = turn.terms.name_at(now);
    for (volume, of) in tracked.names.clone() {
        tracked.push(&turn.terms, volume, SnapshotId(u64::MAX), now, None);
        run.report.taken.push(format!("{of}@{name}"));
    }
}

/// Returns until when a snapshot stays in any case, as far as is known.
fn kept_until(snapshot: &SnapshotInfo) -> Timestamp {
    let until = |until: Option<Time>| until.map_or(Timestamp::MAX, |time| instant::from_millis(time.0));
    let of_holds = snapshot.hold_list.iter().map(|hold| until(hold.until)).max();
    if snapshot.clones > 0 { Timestamp::MAX } else { of_holds.unwrap_or(Timestamp::MIN) }
}

/// A group that was taken: the name of the snapshots, and the snapshot of each volume.
type Group = (String, Vec<(VolumeId, SnapshotId)>);

/// Volumes of which snapshots are taken while the same guests are frozen.
#[derive(Default)]
struct Part {
    volumes: Vec<VolumeId>,
    guests: Vec<Guest>,
    /// Reasons for volumes without a guest's socket.
    reasons: Vec<String>,
}

/// Reason why a group was not taken.
enum NotTaken {
    /// The pool refused or failed.
    Shard(ShardError),
    /// A guest was not frozen until the end, and the policy requires it.
    NotFrozen(String),
    /// A receive into the volume is incomplete, so its present state is of no instant.
    Receiving,
}

impl From<NotTaken> for ApiError {
    fn from(error: NotTaken) -> ApiError {
        match error {
            NotTaken::Shard(error) => error.into(),
            NotTaken::Receiving => ApiError::busy("a receive into one of its volumes is incomplete; finish it, or give it up"),
            NotTaken::NotFrozen(reason) => ApiError::busy(format!("a guest was not frozen: {reason}")),
        }
    }
}

/// Takes snapshots of volumes: with `group` at one instant, else one after the other.
async fn take_groups(turn: &Turn, shard: &ShardHandle, volumes: &[VolumeId], now: Timestamp) -> Vec<Result<Group, NotTaken>> {
    let (mut complete, mut left_out) = (Vec::with_capacity(volumes.len()), Vec::new());
    for volume in volumes {
        match receiving::is_receiving(shard, *volume).await {
            Ok(false) => complete.push(*volume),
            Ok(true) => left_out.push(Err(NotTaken::Receiving)),
            Err(error) => left_out.push(Err(NotTaken::Shard(error))),
        }
    }
    let groups: Vec<&[VolumeId]> = if turn.terms.group { vec![&complete] } else { complete.chunks(1).collect() };
    let groups = groups.into_iter().filter(|group| !group.is_empty());
    let taken = join_all(groups.map(|group| take_group(turn, shard, group, now))).await;
    taken.into_iter().map(|result| result.map_err(NotTaken::Shard)).chain(left_out).collect()
}

/// Takes snapshots of volumes at one instant.
async fn take_group(turn: &Turn, shard: &ShardHandle, volumes: &[VolumeId], now: Timestamp) -> Result<Group, ShardError> {
    let first = turn.terms.name_at(now);
    let expire = turn.terms.expire.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)).ok());
    let mut name = first.clone();
    for nth in 2.. {
        let command = CatalogCommand::Snapshot {
            targets: volumes.iter().map(|volume| (*volume, name.clone())).collect(),
            description: turn.terms.mark.clone(),
            expires: expire.map(|time| Time(instant::to_millis(time))),
            lock_millis: turn.terms.lock.map(|seconds| seconds * 1000),
        };
        match shard.command(command).await {
            Ok(Reply::Snapshots(ids)) => return Ok((name, volumes.iter().copied().zip(ids).collect())),
            Ok(_) => break,
            // the clock was set back, or a second run is within the same second
            Err(ShardError::Command(CommandError::Exists(_))) if nth <= NAMES => name = format!("{first}-{nth}"),
            Err(error) => return Err(error),
        }
    }
    Ok((name, Vec::new()))
}
