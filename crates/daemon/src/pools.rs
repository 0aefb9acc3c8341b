//! Pools: creating, listing, exporting, destroying, and their jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use millpond_api::device_words::unprotected;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::Kind;
use millpond_api::size::Size;
use millpond_api::{
    ApiError, ClassSpec, CreatePool, DeviceGroup, DeviceSpec, DeviceState, EndedExport, ErrorKind, EventKind, IoMode, Job, JobKind,
    JobState, LayoutSpec, Pool, PoolHealth,
};
use millpond_block::{CacheMode, DeviceGeometry, MemberId, SectorProfile};
use millpond_device::{HostDevice, OpenError, OpenOptions, entropy, wall_millis};
use millpond_engine::{
    CatalogCommand, Class, Command, Compression, Engine, GroupSpec, JobInfo, JobKind as EngineJob, Layout, PoolId, PoolInfo, PoolSpec,
    PoolState, Time, Tuning,
};

use super::host_calls::{HostCalls, PATIENCE};
use super::locks::blocking;
use super::look::{Lacking, PoolLook, Seen};
use super::memory::settled;
use super::placement::PoolFile;
use super::service::{Daemon, PoolEntry};
use super::shard::{SILENCE, ShardHandle, refused};
use super::state::PoolRecord;
use super::view::{unavailable, view};
use super::{device_names, placement, probe, shard};
use crate::hint;
use millpond_api::{instant, names};

/// Limit of a look at the file systems below files.
const LOOK: Duration = Duration::from_secs(2);

impl Daemon {
    /// Returns every pool, including those that could not be imported.
    pub async fn pools(&self) -> Vec<Pool> {
        self.list_pools(&self.look().await)
    }

    /// Returns the pools as of a look at them.
    pub(super) fn list_pools(&self, looks: &[PoolLook]) -> Vec<Pool> {
        looks.iter().map(|look| self.listed(look)).collect()
    }

    /// Returns the absent devices of a pool out of service, with their state at the last look.
    fn absent_devices(&self, name: &str) -> BTreeMap<PathBuf, DeviceState> {
        self.registry().pools.get(name).map(|entry| entry.absent.clone()).unwrap_or_default()
    }

    /// Returns one pool.
    ///
    /// # Errors
    /// When there is no pool of this name.
    pub async fn pool(&self, name: &str) -> Result<Pool, ApiError> {
        let found = self.look_at(name, SILENCE).await.map(|look| self.listed(&look));
        found.ok_or_else(|| ApiError::not_found(format!("no pool '{name}'; see 'millpond pool list'")))
    }

    /// Returns a pool as of a look at it.
    fn listed(&self, look: &PoolLook) -> Pool {
        let PoolLook { record, since, seen } = look;
        let name = &record.name;
        let mut pool = match seen {
            Seen::Answered(answer) => view(record, *since, &answer.status),
            Seen::Silent(since) => {
                let reason = format!(
                    "it has not answered since {since}, the host may be waiting for a device; see the host's messages, or give the pool up with 'millpond pool export {name} --force'"
                );
                Pool { silent_since: Some(*since), ..unavailable(record, reason, &self.absent_devices(name)) }
            }
            Seen::Refused(error) => unavailable(record, error.to_string(), &self.absent_devices(name)),
            Seen::OutOfService(reason) => unavailable(record, reason.clone(), &self.absent_devices(name)),
        };
        if let Some(entry) = self.registry().pools.get(name) {
            if entry.opening && !look.in_service() {
                pool.health = PoolHealth::Opening;
            }
            if entry.closing && look.in_service() {
                pool.health = PoolHealth::Closing;
            }
            entry.device_health.tell(&mut pool.devices);
        }
        pool.late_policies = self.late_policies(&record.id);
        pool.late_policies.extend(self.stuck_guests(&record.name).into_iter().map(|(_, reason)| reason));
        pool.full_in_seconds = self.watches().full_in(&pool, Instant::now()).map(|left| left.as_secs());
        pool
    }

    /// Creates a pool and takes it into service; with `dry_run`, only checks that this is possible.
    /// Durable on return, including the daemon's record of it.
    ///
    /// # Errors
    /// When the name is taken, a device cannot be used or holds something, or the engine refuses.
    /// Files made for it are removed again.
    pub async fn create_pool(&self, request: CreatePool) -> Result<Pool, ApiError> {
        names::check(Kind::Pool, &request.name)?;
        let _pool = self.lock_pool(&request.name).await?;
        if self.registry().pools.contains_key(&request.name) {
            return Err(ApiError::new(ErrorKind::Exists, format!("pool '{}' exists already; choose another name", request.name)));
        }
        let during = format!("cannot create pool '{}'", request.name);
        let devices: Vec<DeviceSpec> = request.groups.iter().flat_map(|group| group.devices.clone()).collect();
        let _devices = self.reserve_devices(devices.iter().map(|device| device.path.as_str())).map_err(|e| e.during(&during))?;
        let spare = request.groups.iter().filter(|group| group.class == ClassSpec::Data).map(|group| group.layout.spare()).max();
        if let Some(why) = unprotected(&request.groups, spare.unwrap_or(0)).filter(|_| !request.force) {
            return Err(ApiError::invalid(why).during(during));
        }
        let fresh = all_vacant(&self.calls, &devices, request.force).await.map_err(|e| e.during(&during))?;
        let warnings = self.placement_warnings(&devices).await;
        let paths = devices.iter().map(|device| PathBuf::from(&device.path)).collect();
        let record = PoolRecord::new(request.name.clone(), String::new(), paths, request.io);
        if request.dry_run {
            let opened = rehearse(&self.calls, &devices, request.io).await.map_err(|e| e.during(&during))?;
            let geometries: Vec<DeviceGeometry> = opened.iter().map(HostDevice::geometry).collect();
            let spec = pool_spec(&request.name, &request.groups, !request.without_features).map_err(|e| e.during(&during))?;
            let tuning = self.options.tuning.clone();
            let check = move || Engine::check_create(spec, &geometries, tuning, Time(wall_millis())).map_err(|error| refused(&error));
            blocking(check).await.map_err(|e| e.during(&during))?;
            drop(opened);
            let absent = fresh.iter().map(|path| (path.clone(), DeviceState::Missing)).collect();
            let mut planned = unavailable(&record, "only asked for".to_owned(), &absent);
            planned.health = PoolHealth::Planned;
            planned.devices.iter_mut().for_each(|device| device.was = None);
            planned.warnings = warnings;
            planned.layout = request.groups.first().map(|group| group.layout.into());
            return Ok(planned);
        }
        let made = format_devices(&self.calls, &request, self.options.tuning.clone()).await;
        let (shard, id) = match made {
            Ok(made) => made,
            Err(error) => {
                self.remove_files(&fresh).await;
                return Err(error.during(&during));
            }
        };
        let mut record = PoolRecord { id: id.to_string(), ..record }.remembering(&settled(&shard).await.map_err(|e| e.during(&during))?);
        let status = shard.status().await;
        for status in status.iter() {
            device_names::note(&mut record, status);
            device_names::describe(&shard, status);
        }
        {
            let mut registry = self.registry();
            registry.known.retain(|known| known.name != record.name);
            registry.pools.insert(record.name.clone(), PoolEntry::new(record.clone(), Ok(shard.clone())));
        }
        self.pools_changed.notify_one();
        self.save()?;
        self.share_read_cache();
        self.tell(EventKind::PoolCreated, &record.name);
        Ok(Pool { warnings, ..view(&record, instant::now(), &status?) })
    }

    /// Returns warnings about the places of devices that are about to become members of a pool.
    /// Waits for a file system for [`LOOK`] at most: a warning is not worth more.
    pub(super) async fn placement_warnings(&self, devices: &[DeviceSpec]) -> Vec<String> {
        let silent = self.unanswering();
        let others: BTreeSet<PathBuf> = {
            let registry = self.registry();
            let paths = registry.pools.values().flat_map(|entry| entry.record.paths());
            paths.filter(|path| !silent.contains(path) && !devices.iter().any(|device| Path::new(&device.path) == *path)).cloned().collect()
        };
        let new = join_all(devices.iter().map(|device| self.look_at_file(Path::new(&device.path), device.create)));
        let beside = join_all(others.iter().map(|path| self.look_at_file(path, None)));
        let (new, beside) = join(new, beside).await;
        let warnings = placement::judge(&new.into_iter().flatten().collect::<Vec<_>>(), &beside.into_iter().flatten().collect::<Vec<_>>());
        warnings.iter().for_each(|line| tracing::warn!("{line}"));
        warnings
    }

    async fn look_at_file(&self, path: &Path, create: Option<u64>) -> Option<PoolFile> {
        self.calls.call(path, LOOK, move |path| placement::look(path, create)).await.ok().flatten()
    }

    /// Removes files that were made for a command that failed. A file that stays does no harm.
    pub(super) async fn remove_files(&self, fresh: &[PathBuf]) {
        join_all(fresh.iter().map(|path| self.calls.call(path, LOOK, |path| drop(fs::remove_file(path))))).await;
    }

    /// Returns the exports of a pool.
    pub(super) fn exports_of(&self, name: &str) -> Vec<EndedExport> {
        let registry = self.registry();
        let of_pool = registry.exports.values().filter(|export| export.record.pool == name);
        of_pool.map(|export| EndedExport { id: export.record.id, name: export.record.name.clone() }).collect()
    }

    /// Returns the jobs that run in the background, of every pool.
    pub async fn jobs(&self) -> Vec<Job> {
        self.list_jobs(&self.look().await)
    }

    /// Returns the jobs as of a look at the pools.
    pub(super) fn list_jobs(&self, looks: &[PoolLook]) -> Vec<Job> {
        let mut jobs = self.copy_jobs();
        for (look, status) in looks.iter().filter_map(|look| Some((look, &look.answer()?.status))) {
            let backlog = status.metrics.reclaim_backlog;
            if backlog > 0 {
                let state = job_state(matches!(status.pool.state, PoolState::Faulted(_)));
                jobs.push(Job { state, ..job(&look.record.name, JobKind::Reclaim, None, backlog) });
            }
        }
        let mut registry = self.registry();
        for look in looks.iter().filter(|look| look.in_service()) {
            let name = &look.record.name;
            if let Some(entry) = registry.pools.get_mut(name) {
                jobs.extend(entry.jobs(name, look.seen.pool()));
            }
        }
        jobs
    }
}

impl PoolEntry {
    /// Returns the jobs of a pool, given its answer or the reason why there is none.
    fn jobs(&mut self, name: &str, info: Result<&PoolInfo, Lacking>) -> Vec<Job> {
        match info {
            Ok(pool) => self.listed = jobs_of(name, pool),
            // INV-JOB-2: a job has not ended because its pool does not answer
            Err(Lacking::Silent) => {}
            Err(Lacking::Gone) => self.listed.clear(),
        }
        let mut jobs = self.listed.clone();
        let faulted = matches!(info, Ok(PoolInfo { state: PoolState::Faulted(_), .. }));
        for (kind, member) in &self.followed {
            // the job of a missing device is a resilver, whatever the command was
            let of_member = format!(":{name}:{member}");
            if !jobs.iter().any(|job| job.id.ends_with(&of_member)) {
                jobs.push(Job { state: job_state(faulted), ..job(name, kind.clone(), Some(*member), 0) });
            }
        }
        jobs
    }
}

/// Returns the jobs in a pool's answer.
fn jobs_of(name: &str, pool: &PoolInfo) -> Vec<Job> {
    let state = job_state(matches!(pool.state, PoolState::Faulted(_)));
    let listed = |info: &JobInfo| {
        let kind = match info.kind {
            EngineJob::Resilver => JobKind::Resilver,
            EngineJob::Replace => JobKind::Replace,
            EngineJob::Remove => JobKind::Remove,
            EngineJob::Rejoin => JobKind::Rejoin,
            EngineJob::Rebalance => JobKind::Rebalance,
            EngineJob::Wipe => JobKind::Wipe,
            EngineJob::Scrub => JobKind::Scrub,
        };
        let (remaining, done) = (info.total.saturating_sub(info.done), info.done);
        let rate = Some(info.rate).filter(|rate| *rate > 0);
        let eta_seconds = rate.filter(|_| info.total > 0).map(|rate| remaining.div_ceil(rate));
        Job { state: state.clone(), done_bytes: done, rate, eta_seconds, errors: info.errors, ..job(name, kind, info.member, remaining) }
    };
    pool.jobs.iter().map(listed).collect()
}

/// Returns the state of the jobs of a pool.
fn job_state(faulted: bool) -> JobState {
    if faulted { JobState::Stopped } else { JobState::Running }
}

/// Returns a job of a pool, or of one of its devices.
fn job(pool: &str, kind: JobKind, device: Option<MemberId>, remaining_bytes: u64) -> Job {
    let id = device.map_or_else(|| format!("{kind}:{pool}"), |device| format!("{kind}:{pool}:{device}"));
    Job {
        id,
        pool: pool.to_owned(),
        kind,
        state: job_state(false),
        remaining_bytes,
        done_bytes: 0,
        rate: None,
        eta_seconds: None,
        errors: 0,
    }
}

/// Refuses a device that holds something, unless forced.
fn vacant(device: &DeviceSpec, force: bool) -> Result<(), ApiError> {
    let path = Path::new(&device.path);
    if !path.is_absolute() {
        return Err(ApiError::usage(format!("'{}' is not an absolute path; give one", device.path)));
    }
    if !path.exists() {
        return match device.create {
            Some(_) if force => Ok(()),
            Some(_) => placement::refuse_below_dev(device),
            None => Err(ApiError::not_found(placement::nothing_at(&device.path))),
        };
    }
    if !force {
        placement::refuse_below_dev(device)?;
    }
    if let Some(size) = device.create {
        refuse_other_size(path, size)?;
    }
    let held = probe::holds(path).map_err(|e| ApiError::internal(format!("cannot read {}: {e}; check the path", device.path)))?;
    match held {
        Some(what) if !force => Err(ApiError::busy(match HostDevice::open(path, OpenOptions::default()) {
            // force does not open a device that is in use
            Err(OpenError::InUse { .. }) => format!("{} is in use, and contains {what}; give another device", device.path),
            _ => format!("{} contains {what}; give another device, or -f to overwrite it", device.path),
        })),
        _ => Ok(()),
    }
}

/// Refuses `FILE:SIZE` for an existing file of another size: the device would not be as requested.
/// An empty file counts as missing.
fn refuse_other_size(path: &Path, size: u64) -> Result<(), ApiError> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() != size && meta.len() > 0 => Err(ApiError::invalid(format!(
            "{0} is there already and has {1}, not {2}; leave ':SIZE' out to use all of it, or change it first ('truncate -s {size} {0}', or remove it)",
            path.display(),
            Size(meta.len()),
            Size(size)
        ))),
        Ok(meta) if !meta.is_file() => {
            Err(ApiError::invalid(format!("{0} is not a file, and its size is fixed; omit ':SIZE'", path.display())))
        }
        _ => Ok(()),
    }
}

/// Refuses devices that hold something, unless forced. Returns the paths of files that are still to
/// be made.
pub(super) async fn all_vacant(calls: &HostCalls, devices: &[DeviceSpec], force: bool) -> Result<Vec<PathBuf>, ApiError> {
    let look = |device: &DeviceSpec| {
        let (path, device) = (PathBuf::from(&device.path), device.clone());
        async move {
            let is_fresh = calls.call(&path, PATIENCE, move |path| vacant(&device, force).map(|()| !path.exists())).await;
            let is_fresh = is_fresh.map_err(|silent| ApiError::busy(silent.to_string()))??;
            Ok::<_, ApiError>(is_fresh.then_some(path))
        }
    };
    let looked = join_all(devices.iter().map(look)).await;
    looked.into_iter().filter_map(Result::transpose).collect()
}

/// Opens a device that does not belong to a pool yet.
pub(super) async fn open_new(calls: &HostCalls, device: &DeviceSpec, io: IoMode) -> Result<HostDevice, ApiError> {
    let options = OpenOptions { create_size: device.create, direct: io == IoMode::Direct, read_only: false };
    let opened =
        calls.call(Path::new(&device.path), PATIENCE, move |path| HostDevice::open(path, options).map(HostDevice::with_space)).await;
    opened.map_err(|silent| ApiError::busy(silent.to_string()))?.map_err(|e| ApiError::busy(e.to_string()))
}

/// Translates a group for the engine.
pub(super) fn group_spec(group: &DeviceGroup) -> GroupSpec {
    let layout = match group.layout {
        LayoutSpec::Linear => Layout::Linear,
        LayoutSpec::Stripe { width, unit } => Layout::Stripe { width, unit },
        LayoutSpec::Mirror { copies } => Layout::Mirror { copies },
        LayoutSpec::Parity { width, parity, unit } => Layout::Parity { width, parity, unit },
    };
    let class = match group.class {
        ClassSpec::Data => Class::Data,
        ClassSpec::Special => Class::Special,
        ClassSpec::Log => Class::Log,
        ClassSpec::Cache => Class::Cache,
        ClassSpec::Spare => Class::Spare,
    };
    GroupSpec { class, layout, devices: Some(group.devices.len()) }
}

/// Checks that devices that do not belong to a pool yet can be opened, and makes none. All are held
/// until they are dropped, so that a device that is given twice is in use.
pub(super) async fn rehearse(calls: &HostCalls, devices: &[DeviceSpec], io: IoMode) -> Result<Vec<HostDevice>, ApiError> {
    let mut opened = Vec::new();
    for device in devices {
        let options = OpenOptions { create_size: device.create, direct: io == IoMode::Direct, read_only: false };
        let rehearsed = calls.call(Path::new(&device.path), PATIENCE, move |path| HostDevice::rehearse(path, options)).await;
        opened.push(rehearsed.map_err(|silent| ApiError::busy(silent.to_string()))?.map_err(|e| ApiError::busy(e.to_string()))?);
    }
    Ok(opened)
}

/// Opens a device that was rehearsed. An existing one stays open: closing it would make the host
/// examine it, and lock it for that.
pub(super) async fn open_rehearsed(
    calls: &HostCalls,
    rehearsed: HostDevice,
    device: &DeviceSpec,
    io: IoMode,
) -> Result<HostDevice, ApiError> {
    if rehearsed.is_stand_in() {
        drop(rehearsed);
        return open_new(calls, device, io).await;
    }
    let with_space = calls.call(Path::new(&device.path), PATIENCE, move |_| rehearsed.with_space()).await;
    with_space.map_err(|silent| ApiError::busy(silent.to_string()))
}

/// Returns the engine's specification of a new pool, with a random id.
fn pool_spec(name: &str, groups: &[DeviceGroup], features: bool) -> Result<PoolSpec, ApiError> {
    let id = PoolId(entropy().map_err(|e| ApiError::internal(format!("no entropy: {e}")))?);
    Ok(PoolSpec { name: name.to_owned(), id, groups: groups.iter().map(group_spec).collect(), extent_bytes: None, features })
}

/// Formats devices and waits until the pool is in service.
async fn format_devices(calls: &HostCalls, request: &CreatePool, tuning: Tuning) -> Result<(ShardHandle, PoolId), ApiError> {
    let mut devices = Vec::new();
    for device in request.groups.iter().flat_map(|group| &group.devices) {
        devices.push(open_new(calls, device, request.io).await?);
    }
    let spec = pool_spec(&request.name, &request.groups, !request.without_features)?;
    let id = spec.id;
    let shard = shard::create(spec, devices, tuning)?;
    wait_online(&shard).await?;
    Ok((shard, id))
}

/// Waits until a pool that is being created or imported is in service; ends its shard when that
/// fails.
pub(super) async fn wait_online(shard: &ShardHandle) -> Result<(), ApiError> {
    let reason = match shard.opened().await? {
        PoolState::Online => return Ok(()),
        PoolState::Faulted(fault) => hint::fault(&fault),
        state => format!("it came to {state:?}"),
    };
    // The fault is the error to report; errors of ending the shard add nothing.
    let _ = shard.shutdown().await;
    Err(ApiError::new(ErrorKind::Unavailable, reason))
}

/// Creates a pool with one volume in a file, and closes it. The file appears under its name only
/// when all of it is durable.
///
/// # Errors
/// When the file cannot be made or the engine refuses.
pub async fn format_file(path: &Path, pool: &str, pool_bytes: u64, volume: &str, volume_bytes: u64, tuning: Tuning) -> Outcome {
    let fail = |why: String| Failure::failed(format!("cannot make {}: {why}", path.display()));
    let part = path.with_extension("millpond.part");
    if part.exists() {
        fs::remove_file(&part).map_err(|e| fail(e.to_string()))?;
    }
    let device = DeviceSpec { path: part.display().to_string(), create: Some(pool_bytes) };
    let make = async {
        let group = DeviceGroup { class: ClassSpec::Data, layout: LayoutSpec::Linear, devices: vec![device] };
        let request = CreatePool { name: pool.to_owned(), groups: vec![group], ..CreatePool::default() };
        let (shard, _) = format_devices(&HostCalls::default(), &request, tuning).await?;
        let create = Command::Catalog(CatalogCommand::CreateVolume {
            name: volume.to_owned(),
            size: volume_bytes,
            sector: SectorProfile::default(),
            cache: CacheMode::default(),
            compression: Compression::default(),
        });
        let made = shard.command(create).await;
        shard.shutdown().await?;
        made.map_err(ApiError::from)
    };
    let made = make.await;
    if let Err(error) = made {
        let _ = fs::remove_file(&part);
        return Err(fail(error.to_string()));
    }
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::rename(&part, path).and_then(|()| File::open(parent)?.sync_all()).map_err(|e| fail(e.to_string()))
}

/// Parses a pool's id as printed.
pub(super) fn parse_id(hex: &str) -> Option<PoolId> {
    let mut id = [0; 16];
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in id.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(PoolId(id))
}

#[cfg(test)]
mod tests {
    //! Jobs of pools that do not answer.
    use millpond_engine::SpaceInfo;

    use super::*;

    fn pool(jobs: Vec<JobInfo>) -> PoolInfo {
        PoolInfo {
            name: "tank".into(),
            id: PoolId([7; 16]),
            state: PoolState::Online,
            read_only: false,
            refuses_writes: false,
            features: millpond_format::FeatureSet::default(),
            named_features: millpond_format::FeatureSet::default(),
            feature_names: millpond_format::FeatureNames::default(),
            layout: Layout::Linear,
            size: 0,
            allocated: 0,
            free: 0,
            space: SpaceInfo::default(),
            devices: Vec::new(),
            jobs,
            job_rate: None,
            scrub: None,
            given_up: 0,
            removal_ended: None,
            removal_waits: None,
            fell_back: None,
        }
    }

    #[test]
    fn a_job_has_not_ended_because_its_pool_does_not_answer() {
        let record = PoolRecord::new("tank".into(), "7".into(), Vec::new(), IoMode::Direct);
        let mut entry = PoolEntry::new(record, Err("not in this test".into()));
        let ids = |entry: &mut PoolEntry, info: Result<&PoolInfo, Lacking>| {
            entry.jobs("tank", info).into_iter().map(|job| job.id).collect::<Vec<_>>()
        };
        entry.followed.push((JobKind::Replace, MemberId(1)));
        assert_eq!(ids(&mut entry, Err(Lacking::Silent)), ["replace:tank:1"]);
        entry.followed.clear();
        let info = JobInfo { kind: EngineJob::Scrub, member: None, done: 1, total: 3, errors: 0, rate: 0 };
        assert_eq!(ids(&mut entry, Ok(&pool(vec![info]))), ["scrub:tank"]);
        assert_eq!(ids(&mut entry, Err(Lacking::Silent)), ["scrub:tank"]);
        assert_eq!(ids(&mut entry, Ok(&pool(Vec::new()))), [""; 0]);
        assert_eq!(ids(&mut entry, Err(Lacking::Silent)), [""; 0]);
        assert_eq!(ids(&mut entry, Err(Lacking::Gone)), [""; 0]);
    }
}
