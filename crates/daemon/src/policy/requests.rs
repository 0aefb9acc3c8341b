//! Requests about policies: creating, listing, changing, attaching, running by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_api::instant;
use millpond_api::names::{self, Kind, VolumeName};
use millpond_api::send_target::SendTarget;
use millpond_api::{
    ApiError, CreatePolicy, ErrorKind, EventKind, Policy, PolicyRun, PolicyState, PolicyVolume, PolicyVolumes, RunPolicy, SetPolicy,
};
use millpond_engine::VolumeId;
use tokio::time::timeout;

use super::due::Progress;
use super::keep::Keep;
use super::turn::Turn;
use super::{Attached, Entry, LONGEST_NAME, MOST_IN_GROUP, MOST_POLICIES, PolicyRecord, TEMPLATE, Terms, host_zone};
use crate::service::Daemon;

/// How long a run by hand waits for the end of one in progress.
const WAIT: Duration = Duration::from_secs(10);
/// Time between two looks for that end.
const LOOK: Duration = Duration::from_millis(20);

impl Daemon {
    /// Creates a policy, without volumes. Durable on return.
    ///
    /// # Errors
    /// When the name is taken, or a property is not acceptable.
    pub fn create_policy(&self, request: &CreatePolicy) -> Result<Policy, ApiError> {
        let name = &request.name;
        let during = format!("cannot create policy '{name}'");
        names::check(Kind::Snapshot, name).map_err(|e| ApiError::from(e).during(&during))?;
        if name.len() > LONGEST_NAME {
            return Err(ApiError::usage(format!("the name has more than {LONGEST_NAME} characters; give a shorter one")).during(during));
        }
        let given = |seconds: Option<u64>| seconds.filter(|seconds| *seconds > 0);
        let record = PolicyRecord {
            name: name.clone(),
            keep: request.keep.clone(),
            group: request.group,
            at: request.at.clone(),
            zone: request.zone.clone().unwrap_or_else(host_zone),
            lock: given(request.lock_seconds),
            expire: given(request.expire_seconds),
            prune: request.prune.filter(|order| *order > 0),
            template: request.template.clone().unwrap_or_else(|| TEMPLATE.to_owned()),
            freeze: request.freeze.clone(),
            freeze_required: request.freeze_required,
            send: request.send.clone(),
            send_since: request.send.as_ref().map(|_| instant::now()),
            volumes: Vec::new(),
        };
        let terms = Terms::of(&record).map_err(|e| e.during(&during))?;
        self.check_target(&record).map_err(|e| e.during(&during))?;
        let record = PolicyRecord { keep: terms.keep.to_string(), ..record };
        {
            let mut policies = self.policies();
            if policies.all.contains_key(name) {
                let message = "it exists already; change it with 'millpond policy set', or choose another name";
                return Err(ApiError::new(ErrorKind::Exists, message).during(during));
            }
            if policies.all.len() >= MOST_POLICIES {
                return Err(ApiError::invalid(format!("there are {MOST_POLICIES} policies already; destroy some")).during(during));
            }
            if request.dry_run {
                return Ok(view(&Entry::new(record)));
            }
            policies.all.insert(name.clone(), Entry::new(record));
        }
        self.policy_changed(EventKind::PolicyCreated, name)?;
        self.policy(name)
    }

    /// Returns all policies, by name.
    pub fn list_policies(&self) -> Vec<Policy> {
        self.policies().all.values().map(view).collect()
    }

    /// Returns one policy.
    ///
    /// # Errors
    /// When there is no policy of this name.
    pub fn policy(&self, name: &str) -> Result<Policy, ApiError> {
        self.policies().all.get(name).map(view).ok_or_else(|| no_policy(name))
    }

    /// Brings the names of volumes under policies up to date, where their pools answer.
    pub async fn name_policy_volumes(&self) {
        let shards = self.shards();
        let patience = self.options.deadlines.look;
        let looks = join_all(shards.iter().map(|(_, shard)| timeout(patience, shard.volumes()))).await;
        let ids: BTreeMap<String, String> =
            self.registry().pools.iter().map(|(name, entry)| (name.clone(), entry.record.id.clone())).collect();
        let mut names: BTreeMap<(&String, VolumeId), String> = BTreeMap::new();
        for ((pool, _), look) in shards.iter().zip(looks) {
            let (Some(id), Ok(Ok(volumes))) = (ids.get(pool), look) else { continue };
            names.extend(volumes.into_iter().map(|volume| ((id, volume.id), format!("{pool}/{}", volume.name))));
        }
        for volume in self.policies().all.values_mut().flat_map(|entry| &mut entry.record.volumes) {
            if let Some(name) = names.get(&(&volume.pool_id, volume.id())) {
                volume.name.clone_from(name);
            }
        }
    }

    /// Changes properties of a policy. Durable on return.
    ///
    /// # Errors
    /// When there is no such policy, or a property is not acceptable.
    pub fn set_policy(&self, name: &str, request: &SetPolicy) -> Result<Policy, ApiError> {
        let during = format!("cannot change policy '{name}'");
        if request.send.is_some() {
            let record = self.policies().all.get(name).map(|entry| entry.record.clone()).ok_or_else(|| no_policy(name))?;
            let checked = changed(&record, request).and_then(|(record, _)| self.check_target(&record));
            checked.map_err(|e| e.during(&during))?;
        }
        {
            let mut policies = self.policies();
            let entry = policies.all.get_mut(name).ok_or_else(|| no_policy(name))?;
            let (record, terms) = changed(&entry.record, request).map_err(|e| e.during(&during))?;
            let freezes = record.freeze.is_some();
            let is_other_target = record.send != entry.record.send;
            entry.record = record;
            if is_other_target {
                entry.forget_target();
            }
            entry.terms = Ok(Arc::new(terms));
            let now = instant::now();
            entry.pools.values_mut().for_each(|progress| {
                progress.start_again(now);
                // a property that could not be used may be one that can
                (progress.late, progress.failing) = (None, None);
                if !freezes {
                    progress.not_frozen = None;
                }
            });
        }
        self.policy_changed(EventKind::PolicyChanged, name)?;
        self.policy(name)
    }

    /// Puts volumes under a policy. Durable on return.
    ///
    /// # Errors
    /// When a volume does not exist or is under the policy already; nothing is changed then.
    pub async fn attach_policy(&self, name: &str, request: &PolicyVolumes) -> Result<Policy, ApiError> {
        let during = format!("cannot attach volumes to policy '{name}'");
        self.policy(name)?;
        let mut new = Vec::new();
        for word in &request.volumes {
            let volume: VolumeName = word.parse()?;
            let (_, found) = self.find_volume(&volume).await.map_err(|e| e.during(&during))?;
            let pool_id = self.registry().pools.get(&volume.pool).map(|entry| entry.record.id.clone());
            let Some(pool_id) = pool_id else { continue };
            new.push(Attached { pool_id, volume: found.id.0, name: volume.to_string(), since: instant::now() });
        }
        if new.is_empty() {
            return Err(ApiError::usage("no volume is named; give POOL/VOL"));
        }
        {
            let mut policies = self.policies();
            let entry = policies.all.get_mut(name).ok_or_else(|| no_policy(name))?;
            let mut record = entry.record.clone();
            for volume in &new {
                if record.volumes.iter().any(|other| (&other.pool_id, other.volume) == (&volume.pool_id, volume.volume)) {
                    let message = format!("'{}' is under it already; see 'millpond policy show {name}'", volume.name);
                    return Err(ApiError::new(ErrorKind::Exists, message).during(during));
                }
                record.volumes.push(volume.clone());
            }
            check_groups(&record).and_then(|()| check_source(&record)).map_err(|e| e.during(&during))?;
            entry.record = record;
            let now = instant::now();
            for volume in &new {
                entry.pools.entry(volume.pool_id.clone()).or_insert_with(|| Progress::new(now));
            }
        }
        self.policies_changed.notify_one();
        self.sends.look_again();
        self.save()?;
        new.iter().for_each(|volume| self.tell(EventKind::PolicyAttached, format!("{} policy {name}", volume.name)));
        self.policy(name)
    }

    /// Removes volumes from a policy. Their snapshots stay, without thinning. Durable on return.
    ///
    /// # Errors
    /// When a volume is not under the policy; nothing is changed then.
    pub async fn detach_policy(&self, name: &str, request: &PolicyVolumes) -> Result<Policy, ApiError> {
        self.name_policy_volumes().await;
        let names: BTreeSet<&String> = request.volumes.iter().collect();
        if names.is_empty() {
            return Err(ApiError::usage("no volume is named; give POOL/VOL"));
        }
        {
            let mut policies = self.policies();
            let entry = policies.all.get_mut(name).ok_or_else(|| no_policy(name))?;
            if let Some(other) = names.iter().find(|name| !entry.record.volumes.iter().any(|volume| volume.name == ***name)) {
                let message = format!("'{other}' is not under it; see 'millpond policy show {name}'");
                return Err(ApiError::not_found(message).during(format!("cannot detach volumes from policy '{name}'")));
            }
            entry.record.volumes.retain(|volume| !names.contains(&volume.name));
            // a run in progress may end
            entry.pools.values_mut().for_each(|progress| progress.tracked = None);
        }
        self.policies_changed.notify_one();
        self.sends.look_again();
        self.save()?;
        names.iter().for_each(|volume| self.tell(EventKind::PolicyDetached, format!("{volume} policy {name}")));
        self.policy(name)
    }

    /// Destroys a policy. Its snapshots stay. Durable on return. With `dry_run`, only reports it.
    ///
    /// # Errors
    /// When there is no such policy.
    pub fn destroy_policy(&self, name: &str, dry_run: bool) -> Result<Policy, ApiError> {
        let shown = self.policy(name)?;
        if !dry_run {
            self.policies().all.remove(name);
            self.policy_changed(EventKind::PolicyDestroyed, name)?;
        }
        Ok(shown)
    }

    /// Runs a policy now, in all pools that are in service here. With `dry_run`, only reports what
    /// would be taken and destroyed, with other properties if the request has some.
    ///
    /// # Errors
    /// When a pool takes no snapshots; other pools have theirs then.
    pub async fn run_policy(self: &Arc<Daemon>, name: &str, request: &RunPolicy) -> Result<PolicyRun, ApiError> {
        let (during, dry_run) = (format!("cannot run policy '{name}'"), request.dry_run);
        if request.change.is_some() && !dry_run {
            return Err(ApiError::usage("other properties are for dry runs; change the policy, and then run it").during(during));
        }
        self.name_policy_volumes().await;
        let pools: BTreeMap<String, String> =
            self.registry().pools.iter().map(|(pool, entry)| (entry.record.id.clone(), pool.clone())).collect();
        let wanted: BTreeSet<String> = {
            let policies = self.policies();
            let entry = policies.all.get(name).ok_or_else(|| no_policy(name))?;
            entry.record.volumes.iter().map(|volume| volume.pool_id.clone()).collect()
        };
        if wanted.is_empty() {
            return Err(ApiError::invalid("no volume is attached; run 'millpond policy attach' first").during(during));
        }
        let mut all = PolicyRun::default();
        let mut outcome = Ok(());
        for (id, pool) in wanted.iter().filter_map(|id| Some((id, pools.get(id)?))) {
            let Some(mut turn) = self.begin_by_hand(name, id, pool, request).await.map_err(|e| e.during(&during))? else { continue };
            let mut run = self.make_run(&mut turn).await;
            let report = std::mem::take(&mut run.report);
            outcome = outcome.and(run.error.clone().map_or(Ok(()), Err));
            if dry_run {
                (run.made, run.tracked, run.error) = (None, None, None);
            }
            self.end_run(&turn, run);
            all.taken.extend(report.taken);
            all.destroyed.extend(report.destroyed);
            all.kept.extend(report.kept);
            all.not_frozen.extend(report.not_frozen);
            all.sending.extend(turn.sent_volumes(dry_run));
        }
        outcome.map(|()| all).map_err(|e| e.during(during))
    }

    /// Waits for the end of a run in progress, and begins one by hand.
    async fn begin_by_hand(&self, name: &str, id: &str, pool: &str, request: &RunPolicy) -> Result<Option<Turn>, ApiError> {
        let try_begin = || {
            let mut policies = self.policies();
            let entry = policies.all.get_mut(name).ok_or_else(|| no_policy(name))?;
            let (record, terms) = match &request.change {
                Some(change) => changed(&entry.record, change).map(|(record, terms)| (record, Arc::new(terms)))?,
                None => (entry.record.clone(), entry.terms.clone()?),
            };
            let progress = entry.pools.entry(id.to_owned()).or_insert_with(|| Progress::new(instant::now()));
            if progress.running {
                return Ok(None);
            }
            progress.running = true;
            Ok::<_, ApiError>(Some(Turn::new(&record, terms, id, pool, progress).by_hand(request.dry_run)))
        };
        let begun = timeout(WAIT, async {
            loop {
                match try_begin() {
                    Ok(None) => tokio::time::sleep(LOOK).await,
                    begun => return begun,
                }
            }
        });
        begun
            .await
            .unwrap_or_else(|_| Err(ApiError::busy(format!("a run in pool '{pool}' does not end; see 'millpond pool status {pool}'"))))
    }

    /// Returns the name and the rules of a policy, and its volumes in a pool.
    ///
    /// # Errors
    /// When there is no such policy, or this host cannot use it.
    pub(crate) fn terms_for_plan(&self, name: &str, pool: &str) -> Result<(String, Keep, Vec<VolumeId>), ApiError> {
        let pool_id = self.registry().pools.get(pool).map(|entry| entry.record.id.clone());
        let policies = self.policies();
        let entry = policies.all.get(name).ok_or_else(|| no_policy(name))?;
        let keep = entry.terms.as_ref().map_err(Clone::clone)?.keep.clone();
        let volumes = entry.record.volumes.iter().filter(|volume| Some(&volume.pool_id) == pool_id.as_ref()).map(Attached::id).collect();
        Ok((name.to_owned(), keep, volumes))
    }

    /// Refuses a target that is no pool of this daemon, or the pool of a volume of the policy.
    fn check_target(&self, record: &PolicyRecord) -> Result<(), ApiError> {
        let Some(target) = record.send.as_deref().map(str::parse::<SendTarget>).transpose()? else { return Ok(()) };
        check_source(record)?;
        match target {
            SendTarget::Pool(pool) if !self.registry().pools.contains_key(&pool) => {
                let message = format!(
                    "no pool '{pool}' here to send to; see 'millpond pool list', or give ssh://[USER@]HOST[:PORT]/POOL, unix:SOCKET/POOL, \
                     /directory, or s3://BUCKET/PREFIX"
                );
                Err(ApiError::not_found(message))
            }
            SendTarget::Unix { socket, .. } if socket == self.options.socket => {
                Err(ApiError::invalid("the socket is that of this daemon; give the name of the pool alone"))
            }
            _ => Ok(()),
        }
    }

    fn policy_changed(&self, kind: EventKind, name: &str) -> Result<(), ApiError> {
        self.policies_changed.notify_one();
        self.sends.look_again();
        self.save()?;
        self.tell(kind, name);
        Ok(())
    }
}

/// Refuses more volumes of a pool than one command takes.
fn check_groups(record: &PolicyRecord) -> Result<(), ApiError> {
    let mut of_pools: BTreeMap<&String, usize> = BTreeMap::new();
    record.volumes.iter().for_each(|volume| *of_pools.entry(&volume.pool_id).or_default() += 1);
    match of_pools.values().max() {
        Some(most) if record.group && *most > MOST_IN_GROUP => Err(ApiError::invalid(format!(
            "{most} volumes of one pool are more than one instant takes, which is {MOST_IN_GROUP}; use two policies"
        ))),
        _ => Ok(()),
    }
}

/// Refuses to send volumes to the pool in which they are.
fn check_source(record: &PolicyRecord) -> Result<(), ApiError> {
    let Some(Ok(SendTarget::Pool(pool))) = record.send.as_deref().map(str::parse) else { return Ok(()) };
    match record.volumes.iter().find(|volume| volume.name.split('/').next() == Some(pool.as_str())) {
        Some(volume) => Err(ApiError::invalid(format!("'{}' is in pool '{pool}' already; send it to another pool", volume.name))),
        None => Ok(()),
    }
}

fn no_policy(name: &str) -> ApiError {
    ApiError::not_found(format!("no policy '{name}'; see 'millpond policy list'"))
}

/// Returns the record and the terms of a policy with other properties.
///
/// # Errors
/// When a property is not acceptable.
fn changed(record: &PolicyRecord, request: &SetPolicy) -> Result<(PolicyRecord, Terms), ApiError> {
    let mut record = record.clone();
    let seconds = |new: Option<u64>, old: Option<u64>| new.map_or(old, |new| Some(new).filter(|new| *new > 0));
    request.keep.iter().for_each(|keep| record.keep.clone_from(keep));
    request.group.iter().for_each(|group| record.group = *group);
    request.at.iter().for_each(|at| record.at = Some(at.clone()).filter(|at| !at.trim().is_empty()));
    request.zone.iter().for_each(|zone| record.zone.clone_from(zone));
    request.template.iter().for_each(|template| record.template.clone_from(template));
    request.freeze.iter().for_each(|freeze| record.freeze = Some(freeze.clone()).filter(|freeze| !freeze.is_empty()));
    record.freeze_required = request.freeze_required.unwrap_or(record.freeze_required);
    if let Some(send) = request.send.as_ref().filter(|send| Some(send.as_str()) != record.send.as_deref()) {
        record.send = Some(send.clone()).filter(|send| !send.is_empty());
        record.send_since = record.send.as_ref().map(|_| instant::now());
    }
    record.prune = request.prune.map_or(record.prune, |order| Some(order).filter(|order| *order > 0));
    record.lock = seconds(request.lock_seconds, record.lock);
    record.expire = seconds(request.expire_seconds, record.expire);
    let terms = Terms::of(&record)?;
    record.keep = terms.keep.to_string();
    check_groups(&record)?;
    Ok((record, terms))
}

/// Returns a policy as the API shows it.
fn view(entry: &Entry) -> Policy {
    let record = &entry.record;
    let volumes: Vec<PolicyVolume> = record.volumes.iter().map(|volume| volume_view(entry, volume)).collect();
    let worst = [PolicyState::Late, PolicyState::Waiting, PolicyState::Ok];
    let state = worst.into_iter().find(|state| volumes.iter().any(|volume| volume.state == *state)).unwrap_or(PolicyState::Idle);
    let reason = volumes.iter().find_map(|volume| volume.reason.clone());
    Policy {
        name: record.name.clone(),
        keep: record.keep.clone(),
        keeps: entry.terms.as_ref().map_or(0, |terms| terms.keep.most()),
        group: record.group,
        at: record.at.clone(),
        zone: record.zone.clone(),
        lock_seconds: record.lock,
        expire_seconds: record.expire,
        prune: record.prune,
        template: record.template.clone(),
        freeze: record.freeze.clone(),
        freeze_required: record.freeze_required,
        send: record.send.clone(),
        lag_seconds: volumes.iter().filter_map(|volume| volume.send.as_ref()?.lag_seconds).max(),
        state,
        reason: reason.or_else(|| entry.terms.as_ref().err().map(|error| error.message.clone())),
        volumes,
        taken: entry.counts.taken,
        destroyed: entry.counts.destroyed,
        missed: entry.counts.missed,
        not_frozen: entry.counts.not_frozen,
    }
}

fn volume_view(entry: &Entry, volume: &Attached) -> PolicyVolume {
    let progress = entry.pools.get(&volume.pool_id);
    let seen = progress.and_then(|progress| progress.seen.get(&volume.id()));
    let next: Option<Timestamp> = progress.filter(|progress| progress.here).and_then(|progress| progress.due);
    PolicyVolume {
        name: volume.name.clone(),
        state: progress.map_or(PolicyState::Waiting, Progress::state),
        reason: progress.and_then(|progress| progress.late.clone()),
        not_frozen: progress.and_then(|progress| progress.not_frozen.clone()),
        snapshots: seen.map(|seen| seen.count),
        oldest: seen.and_then(|seen| seen.oldest),
        newest: seen.and_then(|seen| seen.newest),
        next,
        send: entry.send_view(volume),
    }
}
