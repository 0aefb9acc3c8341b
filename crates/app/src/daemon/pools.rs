//! Pools: creating, listing, exporting, destroying, and their jobs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use millpond_block::{CacheMode, SectorProfile};
use millpond_device::{HostDevice, OpenOptions, entropy};
use millpond_engine::{Class, Command, Compression, GroupSpec, JobKind, Layout, PoolId, PoolSpec, PoolState, Tuning};

use super::service::{Daemon, PoolEntry};
use super::shard::{self, ShardHandle};
use super::state::PoolRecord;
use super::view::{unavailable, view};
use super::{labels, probe};
use crate::api::{ApiError, ClassSpec, CreatePool, DeviceGroup, DeviceSpec, ErrorKind, IoMode, Job, LayoutSpec, Pool, PoolRemoval};
use crate::failure::{Failure, Outcome};
use crate::instant;
use crate::names::{self, Kind};

impl Daemon {
    /// Every pool, those that could not be imported included.
    pub async fn pools(&self) -> Vec<Pool> {
        let entries: Vec<(PoolRecord, Result<ShardHandle, String>, Timestamp)> =
            self.registry().pools.values().map(|entry| (entry.record.clone(), entry.shard.clone(), entry.since)).collect();
        let mut pools = Vec::with_capacity(entries.len());
        for (record, shard, since) in entries {
            let status = match shard {
                Ok(shard) => shard.status().await.map_err(|e| e.to_string()),
                Err(reason) => Err(reason),
            };
            let mut pool = match status {
                Ok(status) => view(&record, since, status),
                Err(reason) => unavailable(&record, reason),
            };
            if let Some(entry) = self.registry().pools.get(&pool.name) {
                entry.conditions.tell(&mut pool.devices);
            }
            pools.push(pool);
        }
        pools
    }

    /// One pool.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn pool(&self, name: &str) -> Result<Pool, ApiError> {
        let pools = self.pools().await;
        let found = pools.into_iter().find(|pool| pool.name == name);
        found.ok_or_else(|| ApiError::not_found(format!("no pool '{name}'; see 'millpond pool list'")))
    }

    /// Makes a pool and takes it into service. Durable on return, the daemon's memory of it included.
    ///
    /// # Errors
    /// When the name is taken, a device cannot be used or holds something, or the engine refuses. Files made for it are removed again.
    pub async fn create_pool(&self, request: CreatePool) -> Result<Pool, ApiError> {
        let _changing = self.changing.lock().await;
        names::check(Kind::Pool, &request.name)?;
        if self.registry().pools.contains_key(&request.name) {
            return Err(ApiError::new(ErrorKind::Exists, format!("pool '{}' exists already; choose another name", request.name)));
        }
        let during = format!("cannot create pool '{}'", request.name);
        let devices: Vec<DeviceSpec> = request.groups.iter().flat_map(|group| group.devices.clone()).collect();
        for device in &devices {
            vacant(device, request.force).map_err(|e| e.during(&during))?;
        }
        let record = PoolRecord {
            name: request.name.clone(),
            id: String::new(),
            devices: devices.iter().map(|device| PathBuf::from(&device.path)).collect(),
            successors: Vec::new(),
            io: request.io,
            read_only: false,
            checkpoint: None,
            limits: BTreeMap::new(),
        };
        if request.dry_run {
            let mut planned = unavailable(&record, "only asked for".to_owned());
            planned.health = "planned".to_owned();
            planned.layout = request.groups.first().map_or(LayoutSpec::Linear, |group| group.layout);
            return Ok(planned);
        }
        let fresh: Vec<PathBuf> = record.devices.iter().filter(|path| !path.exists()).cloned().collect();
        let made = format_devices(&request.name, &request.groups, request.io, self.options.tuning.clone()).await;
        let (shard, id) = match made {
            Ok(made) => made,
            Err(error) => {
                // What matters is why it failed; a file left behind is only litter.
                fresh.iter().for_each(|path| drop(fs::remove_file(path)));
                return Err(error.during(&during));
            }
        };
        let record = PoolRecord { id: id.to_string(), ..record };
        {
            let mut registry = self.registry();
            registry.known.retain(|known| known.name != record.name);
            registry.pools.insert(record.name.clone(), PoolEntry::new(record.clone(), Ok(shard.clone())));
        }
        self.save()?;
        self.share_read_cache().await;
        self.tell("pool.created", &record.name);
        Ok(view(&record, instant::now(), shard.status().await?))
    }

    /// Closes a pool cleanly and lets its devices go; where it was is remembered for the next import.
    ///
    /// # Errors
    /// When clients are connected, or it could not be closed cleanly (it is out of service all the same).
    pub async fn export_pool(&self, name: &str) -> Result<(), ApiError> {
        let _changing = self.changing.lock().await;
        self.refuse_clients(name, "export").await?;
        let closed = self.close_pool(name).await;
        {
            let mut registry = self.registry();
            if let Some(entry) = registry.pools.remove(name) {
                registry.known.retain(|known| known.id != entry.record.id);
                registry.known.push(entry.record);
            }
            let of_pool = registry.exports.values_mut().filter(|export| export.record.pool == name);
            of_pool.for_each(|export| export.trouble = Some(format!("pool '{name}' is exported")));
        }
        self.save()?;
        self.share_read_cache().await;
        self.tell("pool.exported", name);
        closed
    }

    /// Ends the shard of a pool, if it has one.
    async fn close_pool(&self, name: &str) -> Result<(), ApiError> {
        self.end_fuses(Some(name)).await;
        let shard = self.registry().pools.get(name).and_then(|entry| entry.shard.clone().ok());
        match shard {
            Some(shard) => shard.shutdown().await.map_err(|e| ApiError::from(e).during(format!("pool '{name}' was not closed cleanly"))),
            None => Ok(()),
        }
    }

    async fn refuse_clients(&self, name: &str, verb: &str) -> Result<(), ApiError> {
        let pool = self.pool(name).await?;
        match pool.clients {
            0 => Ok(()),
            n => Err(ApiError::busy(format!(
                "cannot {verb} pool '{name}': {n} clients are connected; disconnect them, see 'millpond exports'"
            ))),
        }
    }

    /// A pool that did not come because it is another host's is not this one's to destroy.
    fn refuse_others(&self, name: &str) -> Result<(), ApiError> {
        let registry = self.registry();
        let Some(entry) = registry.pools.get(name).filter(|entry| entry.shard.is_err()) else { return Ok(()) };
        let (id, me) = (parse_id(&entry.record.id), self.options.tuning.holder.as_ref().map(|holder| holder.host));
        let claims = entry.record.paths().filter_map(|path| labels::claim(path, id?).ok().flatten());
        match claims.into_iter().find(|claim| Some(claim.holder.host) != me) {
            Some(claim) => Err(ApiError::busy(format!(
                "pool '{name}' was not closed by host '{}'; destroy it there, or take it over first with 'millpond pool import {name} --force'",
                claim.holder.name
            ))),
            None => Ok(()),
        }
    }

    /// Destroys a pool with all its volumes: labels and checkpoints are overwritten. With `dry_run`, only says what would be lost.
    ///
    /// # Errors
    /// When clients are connected or a label cannot be overwritten.
    pub async fn destroy_pool(&self, name: &str, dry_run: bool) -> Result<PoolRemoval, ApiError> {
        let _changing = self.changing.lock().await;
        let pool = self.pool(name).await?;
        let mut removal = PoolRemoval {
            name: name.to_owned(),
            volumes: Vec::new(),
            snapshots: 0,
            allocated: pool.allocated,
            devices: pool.devices.iter().map(|device| device.path.clone()).collect(),
        };
        if let Ok(shard) = self.shard(name) {
            removal.volumes = shard.volumes().await?.into_iter().map(|volume| format!("{name}/{}", volume.name)).collect();
            removal.snapshots = shard.snapshots().await?.len() as u64;
        }
        if dry_run {
            return Ok(removal);
        }
        if pool.readonly {
            let why = format!("pool '{name}' is imported read-only; export it and import it without --readonly to destroy it");
            return Err(ApiError::busy(why));
        }
        self.refuse_others(name)?;
        self.refuse_clients(name, "destroy").await?;
        // A shard that could not write its last checkpoint is no reason to keep a pool that is to be destroyed.
        if let Err(error) = self.close_pool(name).await {
            tracing::warn!(%error, "closing before destroying");
        }
        let record = {
            let mut registry = self.registry();
            registry.exports.retain(|_, export| export.record.pool != name);
            registry.pools.remove(name).map(|entry| entry.record)
        };
        self.share_read_cache().await;
        // Forgotten first: a crash from here on leaves a pool that somebody could import, never a daemon that expects one.
        self.save()?;
        let id = record
            .as_ref()
            .and_then(|record| parse_id(&record.id))
            .ok_or_else(|| ApiError::internal(format!("pool '{name}' has no valid id")))?;
        let devices: Vec<PathBuf> = record.iter().flat_map(|record| record.paths().cloned().collect::<Vec<_>>()).collect();
        for path in devices.into_iter().filter(|path| path.exists()) {
            let told = path.display().to_string();
            let wiped = tokio::task::spawn_blocking(move || labels::wipe(&path, id)).await;
            wiped
                .map_err(|e| ApiError::internal(e.to_string()))
                .and_then(|wiped| wiped.map_err(|e| ApiError::internal(e.to_string())))
                .map_err(|e| e.during(format!("pool '{name}' is out of service but the label on {told} is still there")))?;
        }
        self.tell("pool.destroyed", name);
        Ok(removal)
    }

    /// What runs in the background, in every pool or one.
    pub async fn jobs(&self) -> Vec<Job> {
        let reclaiming = |pool: &Pool| pool.io.reclaim_backlog > 0;
        let mut jobs = Vec::new();
        for pool in self.pools().await.iter().filter(|pool| reclaiming(pool)) {
            let state = job_state(pool.health == "faulted");
            jobs.push(Job { state, ..job(&pool.name, "reclaim", None, pool.io.reclaim_backlog) });
        }
        let shards: Vec<(String, ShardHandle)> =
            self.registry().pools.iter().filter_map(|(name, entry)| Some((name.clone(), entry.shard.clone().ok()?))).collect();
        for (name, shard) in shards {
            let Ok(status) = shard.status().await else { continue };
            let state = job_state(matches!(status.pool.state, PoolState::Faulted(_)));
            for info in &status.pool.jobs {
                let kind = match info.kind {
                    JobKind::Resilver => "resilver",
                    JobKind::Replace => "replace",
                    JobKind::Remove => "remove",
                    JobKind::Rebalance => "rebalance",
                    JobKind::Wipe => "wipe",
                    JobKind::Scrub => "scrub",
                };
                let (remaining, done) = (info.total.saturating_sub(info.done), info.done);
                let rate = Some(info.rate).filter(|rate| *rate > 0);
                let eta_seconds = rate.filter(|_| info.total > 0).map(|rate| remaining.div_ceil(rate));
                let (state, errors) = (state.clone(), info.errors);
                jobs.push(Job { state, done_bytes: done, rate, eta_seconds, errors, ..job(&name, kind, info.member, remaining) });
            }
        }
        jobs
    }
}

/// What a job does in a pool that goes on, or does not.
fn job_state(faulted: bool) -> String {
    if faulted { "stopped" } else { "running" }.to_owned()
}

/// A job of a pool, and of one of its devices.
fn job(pool: &str, kind: &str, device: Option<u16>, remaining_bytes: u64) -> Job {
    let id = device.map_or_else(|| format!("{kind}:{pool}"), |device| format!("{kind}:{pool}:{device}"));
    Job {
        id,
        pool: pool.to_owned(),
        kind: kind.to_owned(),
        state: job_state(false),
        remaining_bytes,
        done_bytes: 0,
        rate: None,
        eta_seconds: None,
        errors: 0,
    }
}

/// Refuses a device that holds something, unless forced.
pub(super) fn vacant(device: &DeviceSpec, force: bool) -> Result<(), ApiError> {
    let path = Path::new(&device.path);
    if !path.is_absolute() {
        return Err(ApiError::invalid(format!("'{}' is not an absolute path; give one", device.path)));
    }
    if !path.exists() {
        return match device.create {
            Some(_) => Ok(()),
            None => Err(ApiError::not_found(format!("{} does not exist; give {}:SIZE to create it", device.path, device.path))),
        };
    }
    let held = probe::holds(path).map_err(|e| ApiError::internal(format!("cannot read {}: {e}; check the path", device.path)))?;
    match held {
        Some(what) if !force => Err(ApiError::busy(format!("{} holds {what}; give another device, or -f to overwrite it", device.path))),
        _ => Ok(()),
    }
}

/// Opens a device that is no part of a pool yet.
pub(super) fn open_new(device: &DeviceSpec, io: IoMode) -> Result<HostDevice, ApiError> {
    let options = OpenOptions { create_size: device.create, direct: io == IoMode::Direct, read_only: false };
    HostDevice::open(Path::new(&device.path), options).map_err(|e| ApiError::busy(e.to_string()))
}

/// A group as the engine is told.
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

/// Formats devices and waits until the pool is in service.
async fn format_devices(name: &str, groups: &[DeviceGroup], io: IoMode, tuning: Tuning) -> Result<(ShardHandle, PoolId), ApiError> {
    let devices = groups.iter().flat_map(|group| &group.devices).map(|device| open_new(device, io)).collect::<Result<Vec<_>, _>>()?;
    let id = PoolId(entropy().map_err(|e| ApiError::internal(format!("no entropy: {e}")))?);
    let groups = groups.iter().map(group_spec).collect();
    let spec = PoolSpec { name: name.to_owned(), id, groups, extent_bytes: None };
    let shard = shard::create(spec, devices, tuning)?;
    wait_online(&shard).await?;
    Ok((shard, id))
}

/// Waits until a pool that is being created or imported is in service; ends its shard when it does not come.
pub(super) async fn wait_online(shard: &ShardHandle) -> Result<(), ApiError> {
    let reason = match shard.opened().await? {
        PoolState::Online => return Ok(()),
        PoolState::Faulted(reason) => reason,
        state => format!("it came to {state:?}"),
    };
    // The fault is the news; what ending it says adds nothing.
    let _ = shard.shutdown().await;
    Err(ApiError::new(ErrorKind::Unavailable, reason))
}

/// Makes a pool with one volume in a file that appears under its name only when all of it is durable, and closes it again.
///
/// # Errors
/// One line, when the file cannot be made or the engine refuses.
pub async fn format_file(path: &Path, pool: &str, pool_bytes: u64, volume: &str, volume_bytes: u64, tuning: Tuning) -> Outcome {
    let fail = |why: String| Failure::failed(format!("cannot make {}: {why}", path.display()));
    let part = path.with_extension("millpond.part");
    if part.exists() {
        fs::remove_file(&part).map_err(|e| fail(e.to_string()))?;
    }
    let device = DeviceSpec { path: part.display().to_string(), create: Some(pool_bytes) };
    let make = async {
        let group = DeviceGroup { class: ClassSpec::Data, layout: LayoutSpec::Linear, devices: vec![device] };
        let (shard, _) = format_devices(pool, &[group], IoMode::default(), tuning).await?;
        let create = Command::CreateVolume {
            name: volume.to_owned(),
            size: volume_bytes,
            sector: SectorProfile::default(),
            cache: CacheMode::default(),
            compression: Compression::default(),
        };
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

/// Reads an id as printed.
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
