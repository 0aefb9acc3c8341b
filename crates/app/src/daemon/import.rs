//! Taking pools into service that exist already: by the user's word, and at start from memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use millpond_device::{HostDevice, OpenError, OpenOptions};
use millpond_engine::{Aim, Command, Reply, Target, Tuning};
use tokio::time::{Instant, sleep};

use super::labels::{self, Labelled};
use super::limits;
use super::pools::{parse_id, wait_online};
use super::service::{Daemon, PoolEntry};
use super::shard::{self, ShardHandle};
use super::state::PoolRecord;
use crate::api::{ApiError, ErrorKind, Found, ImportPool, IoMode, LostRange};

/// How long a device may stay in use by a process that is gone: seen are some ten milliseconds, more on a busy host.
const RELEASE: Duration = Duration::from_secs(3);
/// How often it is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// How a pool is imported.
struct How {
    io: IoMode,
    degraded: bool,
    aim: Aim,
    read_only: bool,
    /// Another host's claim is no reason to refuse it.
    force: bool,
}

impl How {
    /// As it is remembered.
    fn of(record: &PoolRecord) -> How {
        let aim = record.checkpoint.map_or(Aim::Newest, Aim::To);
        How { io: record.io, degraded: false, aim, read_only: record.read_only, force: false }
    }
}

/// Choosing one of the pools that were found.
pub(super) struct Search;

impl Search {
    /// Those of a name or id.
    fn matching(labelled: Vec<Labelled>, wanted: &str) -> Vec<Labelled> {
        let id = parse_id(wanted);
        labelled.into_iter().filter(|pool| pool.name == wanted || Some(pool.id) == id).collect()
    }

    /// The only one of these.
    fn only(mut matching: Vec<Labelled>, wanted: &str) -> Result<Labelled, ApiError> {
        match (matching.pop(), matching.is_empty()) {
            (Some(pool), true) => Ok(pool),
            (None, _) => Err(ApiError::not_found(format!(
                "no pool '{wanted}' found; give the directory of its devices with -d, or run 'millpond pool import' to see what there is"
            ))),
            (Some(_), false) => Err(ApiError::invalid(format!("several pools are called '{wanted}'; name one by its id"))),
        }
    }

    /// The one pool of a name or id.
    pub(super) fn one(labelled: Vec<Labelled>, wanted: &str) -> Result<Labelled, ApiError> {
        Search::only(Search::matching(labelled, wanted), wanted)
    }
}

impl Daemon {
    /// Imports every remembered pool and restores its exports. One that does not come is noted with its reason and stops nobody.
    pub async fn restore(&self) {
        let _changing = self.changing.lock().await;
        let records: Vec<PoolRecord> = self.registry().pools.values().map(|entry| entry.record.clone()).collect();
        let import = async |record: PoolRecord| {
            // a host comes up with what it has: what can be spared is no reason to keep every guest waiting
            let imported = match locate(&record).await {
                Ok(found) => self
                    .open(&found, &How { degraded: true, ..How::of(&record) })
                    .await
                    .map(|shard| (shard, found))
                    .map_err(|e| e.to_string()),
                Err(reason) => Err(reason),
            };
            (record, imported)
        };
        // All at once: each replays its log on a thread of its own.
        for (record, imported) in join_all(records.into_iter().map(import)).await {
            match imported {
                Ok((shard, found)) => {
                    let record = record.with(&found);
                    let name = record.name.clone();
                    limits::apply(&record, &shard).await;
                    self.registry().pools.insert(name.clone(), PoolEntry::new(record, Ok(shard)));
                    self.restore_exports(&name).await;
                    self.tell("pool.imported", name);
                }
                Err(reason) => {
                    tracing::error!(pool = record.name, reason, "not imported");
                    let mut registry = self.registry();
                    let trouble = format!("pool '{}' is not in service: {reason}", record.name);
                    let of_pool = registry.exports.values_mut().filter(|export| export.record.pool == record.name);
                    of_pool.for_each(|export| export.trouble = Some(trouble.clone()));
                    registry.pools.insert(record.name.clone(), PoolEntry::new(record, Err(reason)));
                }
            }
        }
        self.share_read_cache().await;
    }

    /// Finds pools, and imports the one named. Durable on return, the daemon's memory of it included.
    ///
    /// # Errors
    /// When it is not found, is incomplete, is in service already, or does not come up.
    pub async fn import_pool(&self, request: ImportPool) -> Result<Vec<Found>, ApiError> {
        let _changing = self.changing.lock().await;
        let labelled = self.search(&request.search).await?;
        let Some(wanted) = request.name else {
            return Ok(labelled.iter().map(|pool| self.found(pool)).collect());
        };
        let during = format!("cannot import '{wanted}'");
        let pool = self.choose(&wanted, labelled)?;
        // special devices alone are missing, and are to be given up
        let rebuild = request.rebuild && !pool.missing.is_empty() && pool.special == pool.missing;
        if !pool.missing.is_empty() && !request.degraded && !rebuild {
            let why = missing(&pool, self.remembered(&pool).as_ref());
            return Err(ApiError::new(ErrorKind::Unavailable, why).during(during));
        }
        let mut found = self.found(&pool);
        let aim = match request.to {
            Some(id) => Aim::To(id),
            None if request.rebuild => Aim::Rebuild,
            None if request.rewind => Aim::Rewind,
            None => Aim::Newest,
        };
        if rebuild {
            let lost = self.lost_without_special(&pool).await;
            found.lost = Some(lost.map_err(|e| e.during(&during))?);
        } else if aim != Aim::Newest {
            let to = self.destination(pool.devices(), aim).await;
            found.checkpoint = Some(to.map_err(|e| e.during(&during))?);
        }
        if request.dry_run {
            return Ok(vec![found]);
        }
        let fresh = || PoolRecord {
            name: pool.name.clone(),
            id: pool.id.to_string(),
            devices: Vec::new(),
            successors: Vec::new(),
            io: IoMode::default(),
            read_only: false,
            checkpoint: None,
            limits: BTreeMap::new(),
        };
        let record = self.remembered(&pool).unwrap_or_else(fresh).with(&pool);
        let record = PoolRecord { read_only: request.readonly, checkpoint: request.to.filter(|_| request.readonly), ..record };
        let how = How { degraded: request.degraded, aim, force: request.force, ..How::of(&record) };
        let shard = self.open(&pool, &how).await.map_err(|e| way_out(e, &how).during(&during))?;
        limits::apply(&record, &shard).await;
        {
            let mut registry = self.registry();
            registry.known.retain(|known| known.id != record.id);
            registry.pools.insert(pool.name.clone(), PoolEntry::new(record, Ok(shard)));
        }
        self.share_read_cache().await;
        self.restore_exports(&pool.name).await;
        self.save()?;
        self.tell("pool.imported", &pool.name);
        Ok(vec![Found { state: "imported".to_owned(), ..found }])
    }

    /// Looks for pools where the user says, or where they were before and on the block devices of the host.
    pub(super) async fn search(&self, given: &[String]) -> Result<Vec<Labelled>, ApiError> {
        let search: Vec<PathBuf> = if given.is_empty() {
            let registry = self.registry();
            let unavailable = registry.pools.values().filter(|entry| entry.shard.is_err()).map(|entry| &entry.record);
            let remembered = registry.known.iter().chain(unavailable).flat_map(|record| record.paths().cloned().collect::<Vec<_>>());
            remembered.chain(labels::host_devices()).collect()
        } else {
            given.iter().map(PathBuf::from).collect()
        };
        let labelled = tokio::task::spawn_blocking(move || labels::scan(&search)).await;
        labelled.map_err(|e| ApiError::internal(e.to_string()))
    }

    /// The one pool of this name or id that is not here yet.
    fn choose(&self, wanted: &str, labelled: Vec<Labelled>) -> Result<Labelled, ApiError> {
        let matching = Search::matching(labelled, wanted);
        if let Some(entry) = self.registry().pools.get(matching.first().map_or(wanted, |pool| &pool.name)) {
            let same = matching.iter().any(|pool| pool.id.to_string() == entry.record.id);
            if entry.shard.is_ok() || (!matching.is_empty() && !same) {
                return Err(ApiError::new(ErrorKind::Exists, format!("pool '{wanted}' is here already; see 'millpond pool list'")));
            }
        }
        Search::only(matching, wanted)
    }

    fn found(&self, pool: &Labelled) -> Found {
        let id = pool.id.to_string();
        let here = self.registry().pools.values().any(|entry| entry.record.id == id && entry.shard.is_ok());
        let state = match (pool.missing.is_empty(), pool.down.is_empty()) {
            _ if here => "imported",
            (false, _) => "incomplete",
            (true, false) => "degraded",
            (true, true) => "importable",
        };
        Found {
            name: pool.name.clone(),
            id,
            state: state.to_owned(),
            devices: pool.devices().iter().map(|path| path.display().to_string()).collect(),
            missing: pool.missing.iter().chain(&pool.down).copied().collect(),
            checkpoint: None,
            lost: None,
        }
    }

    /// What a pool loses when it does without its special devices. Nothing is written.
    async fn lost_without_special(&self, pool: &Labelled) -> Result<Vec<LostRange>, ApiError> {
        let how = How { io: IoMode::default(), degraded: true, aim: Aim::Rebuild, read_only: true, force: true };
        let shard = self.open(pool, &how).await?;
        let lost = lost_of(&pool.name, &shard).await;
        let closed = shard.shutdown().await;
        let lost = lost?;
        closed?;
        Ok(lost)
    }

    /// What is remembered of a pool that was found.
    fn remembered(&self, pool: &Labelled) -> Option<PoolRecord> {
        let id = pool.id.to_string();
        let registry = self.registry();
        let mut records = registry.known.iter().chain(registry.pools.values().map(|entry| &entry.record));
        records.find(|record| record.id == id).cloned()
    }

    /// Opens devices and imports the pool on them.
    async fn open(&self, found: &Labelled, how: &How) -> Result<ShardHandle, ApiError> {
        let mut devices = Vec::new();
        for path in found.devices() {
            match open_patiently(&path, how).await {
                Ok(device) => devices.push(device),
                Err(error) if found.asides.contains(&path) => {
                    tracing::warn!(pool = found.name, device = %path.display(), %error, "imported without this device of the cache, or spare");
                }
                Err(error) => return Err(error),
            }
        }
        let How { degraded, aim, read_only, force, .. } = *how;
        let shard = shard::import(devices, Tuning { degraded, aim, read_only, force, ..self.options.tuning.clone() })?;
        wait_online(&shard).await?;
        Ok(shard)
    }
}

/// What no device has of volumes and snapshots.
async fn lost_of(pool: &str, shard: &ShardHandle) -> Result<Vec<LostRange>, ApiError> {
    let mut names: Vec<(String, Target)> = Vec::new();
    for volume in shard.volumes().await? {
        names.push((format!("{pool}/{}", volume.name), Target::Head(volume.id)));
    }
    let heads = names.clone();
    for snapshot in shard.snapshots().await? {
        let volume = heads.iter().find(|(_, target)| *target == Target::Head(snapshot.volume));
        let volume = volume.map_or(pool, |(name, _)| name.as_str());
        names.push((format!("{volume}@{}", snapshot.name), Target::Snapshot(snapshot.id)));
    }
    let mut lost = Vec::new();
    for (name, target) in names {
        let Reply::Lost(ranges) = shard.command(Command::Lost { target }).await? else {
            return Err(ApiError::internal("the pool answered something else"));
        };
        lost.extend(ranges.iter().map(|range| LostRange { name: name.clone(), offset: range.offset, length: range.length }));
    }
    Ok(lost)
}

/// Opens a device. The kernel lets go of a killed daemon's devices a little after the process is gone, when its ring is taken down; so one
/// that is in use is tried again for a while.
async fn open_patiently(path: &Path, how: &How) -> Result<HostDevice, ApiError> {
    let options = OpenOptions { create_size: None, direct: how.io == IoMode::Direct, read_only: how.read_only };
    let end = Instant::now() + RELEASE;
    loop {
        match HostDevice::open(path, options) {
            Ok(device) => return Ok(device),
            Err(OpenError::InUse { .. }) if Instant::now() < end => sleep(RETRY).await,
            Err(error) => return Err(ApiError::busy(error.to_string())),
        }
    }
}

/// Says what to do about a newest state that is damaged.
fn way_out(error: ApiError, how: &How) -> ApiError {
    let damaged = ["damaged", "is gone", "cannot be read", "no root"].iter().any(|word| error.message.contains(word));
    if error.kind != ErrorKind::Unavailable || how.aim != Aim::Newest || !damaged {
        return error;
    }
    let option = if error.message.contains("no root") { "--rebuild" } else { "--rewind" };
    ApiError { message: format!("{}; what going back would lose says {option} -n", error.message), ..error }
}

fn missing(pool: &Labelled, record: Option<&PoolRecord>) -> String {
    let name = |member: u16| match record.and_then(|record| record.devices.get(usize::from(member))) {
        Some(path) => format!("device {member} ({})", path.display()),
        None => format!("device {member}"),
    };
    let names: Vec<String> = pool.missing.iter().copied().map(name).collect();
    let how = match pool.special == pool.missing {
        true => "with --degraded where another has the same, else for good with --rebuild (-n says what that loses)",
        false => "with --degraded",
    };
    format!(
        "{} of {} not found; bring it back, give its directory with -d, or import without it {how}",
        names.join(", "),
        pool.members.len()
    )
}

/// Where the devices of a remembered pool are now: where they were, or wherever their labels are found on this host.
async fn locate(record: &PoolRecord) -> Result<Labelled, String> {
    let id = parse_id(&record.id).ok_or("its remembered id is not valid")?;
    let search: Vec<PathBuf> = record.paths().cloned().collect();
    let scan = move || {
        let mine = |found: Vec<Labelled>| found.into_iter().find(|pool| pool.id == id);
        let here = mine(labels::scan(&search));
        if here.as_ref().is_some_and(|pool| pool.missing.is_empty() && pool.down.is_empty()) {
            return here;
        }
        let wider: Vec<PathBuf> = search.into_iter().chain(labels::host_devices()).collect();
        mine(labels::scan(&wider)).or(here)
    };
    let found = tokio::task::spawn_blocking(scan).await.map_err(|e| e.to_string())?;
    found.ok_or_else(|| gone(record))
}

/// Why none of a pool's devices can be found.
fn gone(record: &PoolRecord) -> String {
    let describe = |path: &Path| match path.exists() {
        true => format!("{} holds no label of it", path.display()),
        false => format!("{} does not exist", path.display()),
    };
    let told: Vec<String> = record.paths().map(|path| describe(path)).collect();
    told.join(", ")
}
