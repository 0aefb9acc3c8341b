//! Devices of a pool in service: adding, replacing and removing them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use millpond_api::device_words::unprotected;
use millpond_api::instant;
use millpond_api::{
    AddDevices, ApiError, DeviceRemoval, DeviceSpec, EventKind, IoMode, Job, JobKind, Pool, RemovalPlan, RemoveDevice, Severity,
};
use millpond_block::{DeviceSlot, MemberId};
use millpond_device::HostDevice;
use millpond_engine::{
    Class, Command, DeviceChange, DeviceCommand, DeviceId, GroupSpec, JobKind as EngineJob, NewDevice, PoolId, RemovalPlan as Plan, Reply,
};
use tokio::time::sleep;

use super::events::Happened;
use super::host_calls::PATIENCE;
use super::pools::{all_vacant, group_spec, open_rehearsed, rehearse};
use super::replace::settled;
use super::service::Daemon;
use super::shard::{HostDeviceInfo, SILENCE, ShardError, ShardHandle, ShardStatus};
use super::state::{PoolRecord, RemovalEnded};
use super::{device_names, labels};

/// Time between two looks at jobs that replace or remove devices.
const LOOK: Duration = Duration::from_millis(250);
/// Time between two looks at the condition of devices, and at members that spares have replaced.
pub(crate) const CARE: Duration = Duration::from_secs(5);
/// Tries to remove the label from a device that was released.
const WIPE_TRIES: u32 = 12;

impl Daemon {
    /// Adds devices to a pool. On return their space is usable and the daemon remembers them.
    ///
    /// # Errors
    /// When there is no such pool, a device cannot be used or holds something, or the engine
    /// refuses.
    pub async fn add_devices(&self, name: &str, request: AddDevices) -> Result<Pool, ApiError> {
        let _pool = self.lock_pool(name).await?;
        let during = format!("cannot add to pool '{name}'");
        let (shard, io) = (self.shard(name)?, self.io_mode(name));
        let specs: Vec<DeviceSpec> = request.groups.iter().flat_map(|group| group.devices.clone()).collect();
        let _devices = self.reserve_devices(specs.iter().map(|spec| spec.path.as_str())).map_err(|e| e.during(&during))?;
        let spare = redundancy(&shard.status().await?);
        if let Some(why) = unprotected(&request.groups, spare).filter(|_| !request.force) {
            return Err(ApiError::invalid(why).during(during));
        }
        let fresh = all_vacant(&self.calls, &specs, request.force).await.map_err(|e| e.during(&during))?;
        let groups: Vec<GroupSpec> = request.groups.iter().map(group_spec).collect();
        let opened = rehearse(&self.calls, &specs, io).await.map_err(|e| e.during(&during))?;
        let geometries = opened.iter().map(HostDevice::geometry).collect();
        let change = DeviceChange::Add { groups: groups.clone(), devices: geometries };
        settled(&shard, Command::Devices(DeviceCommand::CheckDevices(change))).await.map_err(|e| ApiError::from(e).during(&during))?;
        let warnings = self.placement_warnings(&specs).await;
        if request.dry_run {
            return Ok(Pool { warnings, ..self.pool(name).await? });
        }
        let mut devices = Vec::new();
        let taken = async {
            for (spec, rehearsed) in specs.iter().zip(opened) {
                devices.push(shard.add_device(open_rehearsed(&self.calls, rehearsed, spec, io).await?).await?);
            }
            Ok::<_, ApiError>(())
        };
        if let Err(error) = taken.await {
            self.give_up(&shard, &devices, &fresh).await;
            return Err(error.during(&during));
        }
        let paths: Vec<PathBuf> = specs.iter().map(|spec| PathBuf::from(&spec.path)).collect();
        self.expect_devices(name, &paths)?;
        if let Err(error) = shard.command(DeviceCommand::AddDevices { groups, devices: devices.clone() }).await {
            return Err(self.not_taken(name, &shard, &devices, &fresh, &paths, error).await.during(&during));
        }
        let status = shard.status().await.ok();
        if let Some(entry) = self.registry().pools.get_mut(name) {
            entry.record.replacements.retain(|known| !paths.contains(known));
            entry.record.devices.extend(paths);
            status.iter().for_each(|status| device_names::note(&mut entry.record, status));
        }
        status.iter().for_each(|status| device_names::describe(&shard, status));
        self.save()?;
        self.tell(EventKind::PoolDevicesAdded, name);
        Ok(Pool { warnings, ..self.pool(name).await? })
    }

    /// Begins to remove a device from a pool; with `stop`, stops the removals in it. The job has
    /// begun on return, and continues after a restart.
    ///
    /// # Errors
    /// When there is no such pool or device, or its data does not fit on the other devices.
    pub async fn remove_device(self: &Arc<Daemon>, name: &str, request: RemoveDevice) -> Result<DeviceRemoval, ApiError> {
        let _pool = self.lock_pool(name).await?;
        let during = format!("cannot remove {} from pool '{name}'", request.device);
        let shard = self.shard(name)?;
        let member = self.member(name, &shard, &request.device).await?;
        let device = self.device_named(name, &shard, member).await?;
        if request.stop {
            let stops = if request.dry_run { self.removals(name).await } else { Vec::new() };
            if !request.dry_run {
                shard.command(DeviceCommand::StopRemoving).await.map_err(|e| ApiError::from(e).during(&during))?;
                self.report_stop(name, &JobKind::Remove);
            } else if stops.is_empty() {
                return Err(ApiError::invalid("no removal is under way").during(during));
            }
            return Ok(DeviceRemoval { pool: self.pool(name).await?, device, plan: None, stops });
        }
        let rehearsed = settled(&shard, Command::Devices(DeviceCommand::Remove { member, dry_run: true })).await;
        if !request.dry_run {
            shard.command(DeviceCommand::Remove { member, dry_run: false }).await.map_err(|e| ApiError::from(e).during(&during))?;
            self.note_removal(name, None);
            self.tell(EventKind::PoolRemoving, name);
            self.follow(name, Some((JobKind::Remove, member)));
        }
        let plan = match rehearsed {
            Ok(Reply::Removal(plan)) => Some(self.removal_plan(name, &shard, plan).await?),
            Err(error) if request.dry_run => return Err(ApiError::from(error).during(during)),
            _ => None,
        };
        Ok(DeviceRemoval { pool: self.pool(name).await?, device, plan, stops: Vec::new() })
    }

    /// Returns the removals that run in a pool.
    async fn removals(&self, name: &str) -> Vec<Job> {
        let look = self.look_at(name, SILENCE).await;
        let mut jobs = self.list_jobs(look.as_slice());
        jobs.retain(|job| job.kind == JobKind::Remove);
        jobs
    }

    /// Returns the plan of a removal for the API: with the paths of devices, and the time in
    /// seconds.
    async fn removal_plan(&self, name: &str, shard: &ShardHandle, plan: Plan) -> Result<RemovalPlan, ApiError> {
        let status = shard.status().await?;
        let names = self.device_names(name, &status);
        let leaves_with_it = plan.others.iter().map(|member| names.member(*member)).collect();
        let limit = |host: &HostDeviceInfo| Some((host.limit.bytes_per_second?, format!("limit of {}", host.path.display())));
        let limits = status.devices.iter().flatten().filter_map(limit);
        let of_jobs = if status.pool.job_rate.is_some() { "job_rate" } else { "of jobs while guests are active" };
        let slowest = limits.chain([(plan.rate, of_jobs.to_owned())]).min_by_key(|(rate, _)| *rate);
        let (rate, rate_of) = slowest.unwrap_or_default();
        let seconds = plan.moved.div_ceil(rate.max(1));
        Ok(RemovalPlan { moved_bytes: plan.moved, in_steps: plan.in_steps, leaves_with_it, rate, rate_of, seconds })
    }

    /// Saves the paths of devices before they become members, so that the next import finds them at
    /// any point of failure.
    pub(super) fn expect_devices(&self, name: &str, paths: &[PathBuf]) -> Result<(), ApiError> {
        if let Some(entry) = self.registry().pools.get_mut(name) {
            entry.record.replacements.extend(paths.iter().cloned());
        }
        self.save()
    }

    /// Gives up devices that did not become members. When the pool was given up meanwhile it is
    /// unknown whether they did: they stay as they are, and stay remembered.
    pub(super) async fn not_taken(
        &self,
        name: &str,
        shard: &ShardHandle,
        devices: &[NewDevice],
        fresh: &[PathBuf],
        paths: &[PathBuf],
        error: ShardError,
    ) -> ApiError {
        if matches!(error, ShardError::Gone) {
            return ApiError::from(error);
        }
        self.give_up(shard, devices, fresh).await;
        if let Some(entry) = self.registry().pools.get_mut(name) {
            entry.record.replacements.retain(|known| !paths.contains(known));
        }
        match self.save() {
            Ok(()) => ApiError::from(error),
            Err(also) => ApiError::from(error).during(also),
        }
    }

    /// Releases devices that did not become members, and removes the files that were made for them.
    async fn give_up(&self, shard: &ShardHandle, devices: &[NewDevice], fresh: &[PathBuf]) {
        for device in devices {
            // a shard that has ended holds no device
            let _ = shard.remove_device(device.slot).await;
        }
        self.remove_files(fresh).await;
    }

    pub(super) fn io_mode(&self, name: &str) -> IoMode {
        self.registry().pools.get(name).map(|entry| entry.record.io).unwrap_or_default()
    }

    /// Returns the one member that the user means: by the path at which it is or was open, by its
    /// id, or by its serial number.
    pub(super) async fn member(&self, name: &str, shard: &ShardHandle, old: &str) -> Result<MemberId, ApiError> {
        let names = self.device_names(name, &shard.status().await?);
        let known = names.find(name, old)?;
        let was_there = |member: &MemberId| names.get(*member, false).is_some_and(|named| named.was.as_deref() == Some(Path::new(old)));
        if let Some(member) = known.filter(|member| !was_there(member)) {
            return Ok(member);
        }
        // perhaps another path to a device that is open, such as a link of udev
        let open: Vec<PathBuf> = names.iter().filter_map(|named| named.path.clone()).collect();
        let same = move |path: &Path| {
            let real = path.canonicalize().ok()?;
            open.into_iter().find(|open| open.canonicalize().is_ok_and(|open| open == real))
        };
        let linked = self.calls.call(Path::new(old), PATIENCE, same).await.ok().flatten();
        let found = linked.and_then(|path| names.find(name, path.to_str()?).transpose()).transpose()?;
        if let (Some(before), Some(now)) = (known, found)
            && before != now
        {
            let id = |member: MemberId| names.get(member, false).map(|named| named.id.clone()).unwrap_or_default();
            return Err(ApiError::invalid(format!(
                "'{old}' was the path of device {} of pool '{name}', which is missing, and is that of device {} now; name one by its ID",
                id(before),
                id(now)
            )));
        }
        known.or(found).ok_or_else(|| names.unknown(name, old))
    }

    /// Follows changes to the devices of a pool that an earlier daemon began.
    pub(super) fn follow_devices(self: &Arc<Daemon>, name: &str) {
        self.follow(name, None);
    }

    /// Saves how the last removal ended when it ended by itself, for the engine forgets that at the
    /// next import. `None` when another removal has begun.
    pub(super) fn note_removal(&self, name: &str, why: Option<&String>) {
        let ended = why.map(|why| RemovalEnded { why: why.clone(), at: instant::now() });
        let changed = {
            let mut registry = self.registry();
            let Some(entry) = registry.pools.get_mut(name) else { return };
            let before = std::mem::replace(&mut entry.record.removal_ended, ended);
            before != entry.record.removal_ended
        };
        if changed && let Err(error) = self.save() {
            tracing::error!(%error, "how a removal ended is not remembered");
        }
    }

    /// Waits until a pool changes its state or gives up a device, for at most `limit`.
    pub(super) async fn until_changed(&self, limit: Duration) {
        let mut changes = vec![sleep(limit).boxed()];
        for (_, shard) in self.shards() {
            let (mut state, mut labels) = (shard.state(), shard.labels());
            state.mark_unchanged();
            labels.mark_unchanged();
            let next = async move {
                let ended = tokio::select! {
                    changed = state.changed() => changed.is_err(),
                    changed = labels.changed() => changed.is_err(),
                };
                if ended {
                    pending::<()>().await; // `watch_falls` reports it
                }
            };
            changes.push(next.boxed());
        }
        select_all(changes).await;
    }

    /// Follows changes to the devices of a pool. A job that a command began is listed until the
    /// daemon has recorded its outcome.
    pub(super) fn follow(self: &Arc<Daemon>, name: &str, job: Option<(JobKind, MemberId)>) {
        if let Some((kind, member)) = &job {
            self.expect_job(name, kind.clone(), Some(*member));
        }
        if let (Some(job), Some(entry)) = (&job, self.registry().pools.get_mut(name)) {
            entry.followed.push(job.clone());
        }
        tokio::spawn(Arc::clone(self).watch_devices(name.to_owned(), job));
    }

    /// Follows replacements and removals in a pool to their end: devices that the pool no longer
    /// uses are released, lose their labels, and are forgotten.
    async fn watch_devices(self: Arc<Daemon>, name: String, job: Option<(JobKind, MemberId)>) {
        let mut followed = Followed { daemon: &self, name: &name, job };
        let mut ids = ReleasedIds::default();
        self.registry().pools.get(&name).into_iter().for_each(|entry| ids.remember(&entry.record));
        loop {
            // under the pool's lock, so that a device that a command is about to add does not look
            // unused
            let pool = self.wait_for_pool(&name).await;
            let Ok(shard) = self.shard(&name) else { return };
            let status = match shard.status().await {
                Ok(status) => status,
                // the host may be holding up its thread, and may let it continue
                Err(ShardError::Silent) => continue,
                Err(_) => return,
            };
            ids.note(&status);
            let used = |slot: DeviceSlot| status.pool.devices.iter().any(|device| [device.slot, device.replacement].contains(&Some(slot)));
            let of_devices = |kind| matches!(kind, EngineJob::Resilver | EngineJob::Replace | EngineJob::Remove);
            let switching = status.pool.devices.iter().any(|device| device.replacement.is_some());
            let mut left = switching || status.pool.jobs.iter().any(|job| of_devices(job.kind));
            // INV-JOB-1: the job is listed until the old device is gone from the pool's table and a
            // save was tried (a failure is logged)
            self.remember_devices(&name, &status);
            if !left {
                followed.end();
            }
            let unused = status.hosts().filter(|(slot, _)| !used(*slot));
            let mut released = Vec::new();
            for (slot, host) in unused {
                match shard.remove_device(slot).await {
                    Ok(true) => released.push(host.path.clone()),
                    Ok(false) => left = true,
                    Err(_) => return,
                }
            }
            // release the lock first, so that a hanging device keeps no command waiting
            drop(pool);
            for path in released {
                self.let_go(&name, path, status.pool.id, &ids).await;
            }
            if !left {
                return;
            }
            sleep(LOOK).await;
        }
    }

    /// Removes the label from a device that belonged to a pool. Tries again when the device is
    /// busy, for instance because another process examines it. INV-LABEL-2: the label of the device
    /// that is written to says that this is the device that was released.
    async fn let_go(&self, name: &str, path: PathBuf, pool: PoolId, ids: &ReleasedIds) {
        let shown_path = path.display().to_string();
        for tries_left in (0..WIPE_TRIES).rev() {
            let (expected, used) = (ids.known.get(&path).copied(), ids.used.clone());
            let meant = move |id: DeviceId| !used.contains(&id) && expected.is_none_or(|expected| expected == id);
            match self.calls.call(&path, PATIENCE, move |path| labels::wipe(path, pool, meant)).await {
                Ok(Ok(labels::Wiped::Done)) => {
                    let message = format!("device {shown_path} was removed from pool '{name}'");
                    return self.report(Happened::to_device(EventKind::DeviceReleased, name, &shown_path, message));
                }
                Ok(Ok(labels::Wiped::Other(_))) => {
                    let message = format!(
                        "a device was removed from pool '{name}'; its label was not erased, because another device is at {shown_path} now"
                    );
                    return self.report(Happened::to_device(EventKind::DeviceReleased, name, &shown_path, message).at(Severity::Warning));
                }
                Ok(Err(_)) | Err(_) if tries_left > 0 => sleep(LOOK).await,
                Ok(Err(error)) => tracing::warn!(device = shown_path, %error, "cannot erase the label of a released device"),
                Err(silent) => tracing::warn!(device = shown_path, "cannot erase the label of a released device: {silent}"),
            }
        }
    }

    /// Records where the devices of a pool are now.
    fn remember_devices(&self, name: &str, status: &ShardStatus) {
        let record = self.registry().pools.get(name).map(|entry| entry.record.clone());
        for (spare, lost) in record.iter().flat_map(|record| places_taken(record, status)) {
            let (spare, lost) = (spare.display().to_string(), lost.display().to_string());
            // it was replaced before any look saw it fail
            if !record.as_ref().is_some_and(|record| self.watches().is_unwell(&record.id, &lost)) {
                let message = format!("device {lost} of pool '{name}' failed, and a spare has taken its place");
                self.report(Happened::to_device(EventKind::DeviceFailed, name, &lost, message));
            }
            let message = format!("spare {spare} takes the place of {lost} in pool '{name}'");
            self.report(Happened::to_device(EventKind::DeviceSpareUsed, name, &spare, message));
        }
        let path = |slot: DeviceSlot| status.host(slot).map(|host| host.path.clone());
        let members = status.pool.devices.iter().map(|device| device.member.index() + 1).max().unwrap_or(0);
        let changed = {
            let mut registry = self.registry();
            let Some(entry) = registry.pools.get_mut(name) else { return };
            let before = entry.record.clone();
            let mut devices = vec![PathBuf::new(); members];
            for device in &status.pool.devices {
                let at = device.member.index();
                let now = device.slot.and_then(path).or_else(|| before.devices.get(at).cloned());
                if let (Some(place), Some(now)) = (devices.get_mut(at), now) {
                    *place = now;
                }
            }
            // a cap belongs to the device and is removed with it
            let same = |member: MemberId| before.devices.get(member.index()) == devices.get(member.index());
            entry.record.limits.retain(|member, _| same(MemberId(*member)));
            entry.record.devices = devices;
            device_names::note(&mut entry.record, status);
            entry.record.replacements = status.pool.devices.iter().filter_map(|device| device.replacement.and_then(path)).collect();
            entry.record != before
        };
        if changed && let Err(error) = self.save() {
            tracing::error!(%error, "the devices of a pool are not remembered");
        }
    }
}

/// Returns the remembered path of a member.
pub(super) fn remembered_path(devices: &[PathBuf], member: MemberId) -> Option<String> {
    let path = devices.get(member.index())?;
    (!path.as_os_str().is_empty()).then(|| path.display().to_string())
}

/// The ids of devices that a pool has, or had while it was followed.
#[derive(Debug, Default)]
struct ReleasedIds {
    /// By path: the device that was last in use there.
    known: BTreeMap<PathBuf, DeviceId>,
    /// Devices that the pool has: they are never released.
    used: BTreeSet<DeviceId>,
}

impl ReleasedIds {
    /// Records devices as they were last seen.
    fn remember(&mut self, record: &PoolRecord) {
        let seen = record.seen.iter().filter_map(|(member, seen)| Some((record.last_path(MemberId(*member))?.clone(), DeviceId(seen.id))));
        self.known.extend(seen);
    }

    /// Records the devices that the pool has now.
    fn note(&mut self, status: &ShardStatus) {
        let devices = &status.pool.devices;
        let members = devices.iter().map(|device| (device.slot, Some(device.id)));
        let all = members.chain(devices.iter().map(|device| (device.replacement, device.replacement_id)));
        self.used.clear();
        for (slot, id) in all.filter_map(|(slot, id)| Some((slot, id?))) {
            self.used.insert(id);
            if let Some(host) = slot.and_then(|slot| status.host(slot)) {
                self.known.insert(host.path.clone(), id);
            }
        }
    }
}

/// A job that stays listed until its outcome is recorded; dropping this ends that.
struct Followed<'a> {
    daemon: &'a Daemon,
    name: &'a str,
    job: Option<(JobKind, MemberId)>,
}

impl Followed<'_> {
    fn end(&mut self) {
        let Some(job) = self.job.take() else { return };
        if let Some(entry) = self.daemon.registry().pools.get_mut(self.name)
            && let Some(at) = entry.followed.iter().position(|followed| *followed == job)
        {
            entry.followed.remove(at);
        }
    }
}

impl Drop for Followed<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the number of devices that every data group can lose.
fn redundancy(status: &ShardStatus) -> u16 {
    let data = status.pool.devices.iter().filter(|device| device.class == Class::Data);
    data.map(|device| device.layout.spare()).min().unwrap_or(0)
}

/// Returns pairs of paths: a device that was remembered as another member, and the device whose
/// place it has now. Such a device is a spare; no other device changes its place.
pub(super) fn places_taken(record: &PoolRecord, status: &ShardStatus) -> Vec<(PathBuf, PathBuf)> {
    let path = |slot: DeviceSlot| status.host(slot).map(|host| host.path.clone());
    let taken = status.pool.devices.iter().filter_map(|device| {
        let (now, before) = (path(device.slot?)?, record.devices.get(device.member.index())?);
        (now != *before && record.devices.contains(&now)).then(|| (now, before.clone()))
    });
    taken.collect()
}
