//! Imports of existing pools that a user asked for. Imports by the daemon itself are in
//! [`super::bring_up`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millpond_api::{ApiError, ErrorKind, EventKind, Found, FoundState, ImportPool, IoMode, LostRange};
use millpond_block::MemberId;
use millpond_device::{HostDevice, OpenError, OpenOptions};
use millpond_engine::{Aim, DeviceInfo, Fault, MemberState, NewestLabel, PoolState, QueryCommand, Refusal, Reply, Target, Tuning};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep, timeout};

use super::device_names;
use super::events::Happened;
use super::host_calls::{NoAnswer, PATIENCE};
use super::labels::Labelled;
use super::limits;
use super::locks::PoolLock;
use super::memory::settled;
use super::pools::{parse_id, wait_online};
use super::refusal::{describe, names, state_of};
use super::scan::{Scan, check_readable};
use super::service::{Daemon, PoolEntry};
use super::shard::{self, ShardHandle};
use super::state::PoolRecord;
use crate::hint;
use millpond_api::instant;

/// How long a device may stay in use by a process that has ended: some ten milliseconds were seen,
/// more on a busy host.
const RELEASE: Duration = Duration::from_secs(3);
/// Time between two tries to open it.
const RETRY: Duration = Duration::from_millis(20);
/// How long a command waits for an import of the same pool that is in progress.
const TURN: Duration = Duration::from_secs(10);

/// Options of an import.
pub(super) struct How {
    io: IoMode,
    degraded: bool,
    aim: Aim,
    read_only: bool,
    /// Imports the pool although another host claims it.
    force: bool,
    /// Requirements on its labels.
    newest: Option<NewestLabel>,
}

impl How {
    /// Returns the options that are remembered.
    pub(super) fn of(record: &PoolRecord) -> How {
        let aim = record.checkpoint.map_or(Aim::Newest, Aim::To);
        How { io: record.io, degraded: false, aim, read_only: record.read_only, force: false, newest: None }
    }

    /// Returns the options of an import that only reads the newest state, or what is left of it with
    /// `aim`, whichever devices are missing and whichever host has the pool.
    pub(super) fn reading(aim: Aim) -> How {
        How { io: IoMode::default(), degraded: true, aim, read_only: true, force: true, newest: None }
    }

    /// Returns the options with requirements on the labels.
    pub(super) fn requiring(self, newest: NewestLabel) -> How {
        How { newest: Some(newest), ..self }
    }

    /// Returns the options of an import by the daemon itself: the labels must be those that were
    /// found, or newer.
    pub(super) fn by_itself(record: &PoolRecord, found: &Labelled, degraded: bool) -> How {
        let newest = found.evidence(None).expected(record.remembered().as_ref());
        How { degraded, newest: Some(newest), ..How::of(record) }
    }
}

/// Selection among the pools that were found.
pub(super) struct Search;

impl Search {
    /// Returns the pools with a name or id.
    fn matching(labelled: Vec<Labelled>, wanted: &str) -> Vec<Labelled> {
        let id = parse_id(wanted);
        labelled.into_iter().filter(|pool| pool.name == wanted || Some(pool.id) == id).collect()
    }

    /// Returns the only pool in `matching`.
    fn only(mut matching: Vec<Labelled>, wanted: &str) -> Result<Labelled, ApiError> {
        match (matching.pop(), matching.is_empty()) {
            (Some(pool), true) => Ok(pool),
            (None, _) => Err(ApiError::not_found(format!(
                "no pool '{wanted}' found; give the directory of its devices with -d, or run 'millpond pool import' to see what there is"
            ))),
            (Some(_), false) => Err(ApiError::invalid(format!("several pools are called '{wanted}'; name one by its id"))),
        }
    }

    /// Returns the only pool with a name or id.
    pub(super) fn one(labelled: Vec<Labelled>, wanted: &str) -> Result<Labelled, ApiError> {
        Search::only(Search::matching(labelled, wanted), wanted)
    }
}

impl Daemon {
    /// Finds pools, and imports the one that is named. Durable on return, including the daemon's
    /// record of it.
    ///
    /// # Errors
    /// When the pool is not found, is incomplete, is in service already, or does not come into
    /// service.
    pub async fn import_pool(&self, request: ImportPool) -> Result<Vec<Found>, ApiError> {
        if let Some(wanted) = &request.name {
            self.refuse_left_behind(wanted)?;
        }
        let Some(wanted) = &request.name else {
            let scan = self.search(&request.search).await;
            let known = scan.pools.iter().map(|pool| self.found(pool));
            return Ok(known.chain(scan.newer_pools()).chain(scan.silent.iter().map(not_answering)).collect());
        };
        let during = format!("cannot import '{wanted}'");
        let waited = self.in_service(wanted).is_none();
        let _importing = self.importing(wanted).await.map_err(|e| e.during(&during))?;
        if let Some(found) = self.in_service(wanted).filter(|_| waited && !request.dry_run) {
            // the daemon has just imported it by itself
            return Ok(vec![found]);
        }
        let (pool, silent, _lock) = self.choose_and_lock(wanted, &request.search).await?;
        self.check_chosen(&request, &pool, silent.first()).map_err(|e| e.during(&during))?;
        let found = self.preview(&request, &pool).await.map_err(|e| e.during(&during))?;
        if request.dry_run {
            return Ok(vec![found]);
        }
        let (record, shard, left_out) = self.open_chosen(&request, &pool).await.map_err(|e| e.during(&during))?;
        self.add_opened(&pool.name, record, shard);
        // saved before any client is served: after a crash from here on, no other state of the pool
        // is taken
        let saved = self.save();
        let first = self.rules().must_be_remembered(&self.evidence(&pool), true, left_out);
        if let Some(error) = saved.as_ref().err().filter(|_| first) {
            // INV-MEMORY-1: without this record the next start would trust the devices that are
            // missing now
            let ending = self.close_pool(&pool.name, true).await;
            self.retire(&pool.name, &ending);
            let why =
                format!("it cannot be remembered that devices are out of date ({}); make room there and import it again", error.message);
            return Err(ApiError::internal(why).during(during));
        }
        self.restore_exports(&pool.name).await;
        self.take_back_copies(&pool.name).await;
        saved?;
        if let Some(warning) = &found.warning {
            let message = format!("pool '{}' is imported at an older state: {warning}", pool.name);
            self.report(Happened::to_pool(EventKind::PoolOlderState, &pool.name, message));
        }
        self.tell(EventKind::PoolImported, &pool.name);
        Ok(vec![Found { state: FoundState::Imported, ..found }])
    }

    /// Finds the one pool of this name or id, and locks it. Also returns the devices that did not
    /// answer.
    async fn choose_and_lock(&self, wanted: &str, search: &[String]) -> Result<(Labelled, Vec<NoAnswer>, PoolLock), ApiError> {
        let scan = self.search(search).await;
        if let Some(error) = scan.newer(wanted) {
            return Err(error.during(format!("cannot import '{wanted}'")));
        }
        let Scan { pools, silent, .. } = scan;
        let pool = self.choose(wanted, pools).map_err(|e| also_silent(e, silent.first()))?;
        let lock = self.lock_pool(&pool.name).await?;
        // the devices may have changed while another command held the lock
        let again = if lock.waited { self.search(search).await.pools } else { vec![pool.clone()] };
        let pool = self.choose(wanted, again).and_then(|again| match again.name == pool.name {
            true => Ok(again),
            false => Err(ApiError::busy(format!("pool '{wanted}' has changed its name meanwhile; try again"))),
        })?;
        Ok((pool, silent, lock))
    }

    /// Checks that the request permits an import of a pool as it was found.
    fn check_chosen(&self, request: &ImportPool, pool: &Labelled, silent: Option<&NoAnswer>) -> Result<(), ApiError> {
        // no option does without a device that may have the newest state
        check_readable(pool)?;
        if !pool.missing.is_empty() && !request.degraded && !gives_up_special(request, pool) {
            let why = missing(pool, &fresh(pool, self.remembered(pool)).with(pool));
            return Err(also_silent(ApiError::new(ErrorKind::Unavailable, why), silent));
        }
        let Some((refusal, why)) = self.refusal(pool) else { return Ok(()) };
        let whole = pool.missing.is_empty() && pool.down.is_empty();
        let chosen = whole || request.degraded || request.rewind || request.rebuild || request.to.is_some();
        // no option joins parts that contradict each other
        if refusal == Refusal::Apart || (!chosen && !request.dry_run) {
            return Err(ApiError::new(ErrorKind::Unavailable, why));
        }
        Ok(())
    }

    /// Returns the pool as it was found, with the losses of the import. Writes nothing.
    async fn preview(&self, request: &ImportPool, pool: &Labelled) -> Result<Found, ApiError> {
        let mut found = self.found(pool);
        let aim = aim(request);
        if gives_up_special(request, pool) {
            found.lost = Some(self.lost_without_special(pool).await?);
        } else if aim != Aim::Newest {
            found.checkpoint = Some(self.destination(pool, aim).await?);
        }
        Ok(found)
    }

    /// Opens a pool as requested. Returns the record of it, and true if devices that were found were
    /// left out.
    async fn open_chosen(&self, request: &ImportPool, pool: &Labelled) -> Result<(PoolRecord, ShardHandle, bool), ApiError> {
        let record = fresh(pool, self.remembered(pool)).with(pool);
        let record = PoolRecord { read_only: request.readonly, checkpoint: request.to.filter(|_| request.readonly), ..record };
        // require the labels that were found, or newer ones: an import never does without a device
        // that had them and no longer answers
        let newest = Some(self.evidence(pool).expected(None));
        let how = How { degraded: request.degraded, aim: aim(request), force: request.force, newest, ..How::of(&record) };
        let shard = self.open(pool, &how).await.map_err(|failed| way_out(failed, &how))?;
        // the user decided: the state that is now in service counts, whatever was remembered
        let labels = settled(&shard).await?;
        // devices with the state that this host had before, or with another one elsewhere, may be
        // found again
        let mut record = record.remembering(&labels.by_hand());
        let status = shard.status().await;
        for status in status.iter() {
            device_names::note(&mut record, status);
            device_names::describe(&shard, status);
        }
        // a device that was found may have been left out because it did not answer
        let whole = |device: &DeviceInfo| device.state == MemberState::Present || device.class.is_auxiliary();
        let left_out = status.is_ok_and(|status| !status.pool.devices.iter().all(whole));
        limits::apply(&record, &shard).await;
        Ok((record, shard, left_out))
    }

    /// Adds an opened pool to those in service.
    fn add_opened(&self, name: &str, record: PoolRecord, shard: ShardHandle) {
        {
            let mut registry = self.registry();
            registry.known.retain(|known| known.id != record.id);
            let importing = registry.pools.get(name).map(|entry| Arc::clone(&entry.importing)).unwrap_or_default();
            registry.pools.insert(name.to_owned(), PoolEntry { importing, ..PoolEntry::new(record, Ok(shard)) });
        }
        self.pools_changed.notify_one();
        self.share_read_cache();
    }

    /// Waits until no other import of a pool is in progress, such as one by the daemon itself.
    /// Returns `None` for a pool that is not remembered.
    ///
    /// # Errors
    /// When that takes longer than [`TURN`]: a device of the pool may hang.
    pub(super) async fn importing(&self, wanted: &str) -> Result<Option<OwnedMutexGuard<()>>, ApiError> {
        let found = {
            let registry = self.registry();
            let entry = registry.pools.values().find(|entry| entry.record.name == wanted || entry.record.id == wanted);
            entry.map(|entry| Arc::clone(&entry.importing))
        };
        let Some(importing) = found else { return Ok(None) };
        match timeout(TURN, importing.lock_owned()).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) => Err(ApiError::busy(format!(
                "the daemon has been importing it for more than {} s; see 'millpond status', and try again",
                TURN.as_secs()
            ))),
        }
    }

    /// Returns a pool in service as the result of an import.
    fn in_service(&self, wanted: &str) -> Option<Found> {
        let registry = self.registry();
        let entry = registry.pools.values().find(|entry| entry.record.name == wanted || entry.record.id == wanted)?;
        entry.shard.as_ref().ok()?;
        Some(Found {
            name: entry.record.name.clone(),
            id: entry.record.id.clone(),
            state: FoundState::Imported,
            devices: entry.record.paths().map(|path| path.display().to_string()).collect(),
            missing: Vec::new(),
            missing_devices: Vec::new(),
            checkpoint: None,
            lost: None,
            warning: None,
            used_by: None,
            used_at: None,
        })
    }

    /// Returns the one pool of this name or id that is not in service yet.
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
        let me = self.options.tuning.holder.as_ref().map(|holder| holder.host);
        let other = pool.claim.as_ref().filter(|claim| !claim.released && me.is_some_and(|me| claim.holder.host != me));
        let used_by = other.map(|claim| claim.holder.name.clone());
        let used_at = pool.seen.filter(|_| used_by.is_some()).map(instant::from_millis);
        let refused = self.refusal(pool).filter(|_| !here);
        let state = match (&refused, pool.missing.is_empty(), pool.down.is_empty()) {
            _ if here => FoundState::Imported,
            (_, true, _) if used_by.is_some() => FoundState::InUse,
            (Some((refusal, _)), ..) => state_of(refusal),
            (None, false, _) => FoundState::Incomplete,
            (None, true, false) => FoundState::Degraded,
            (None, true, true) => FoundState::Importable,
        };
        let missing: Vec<MemberId> = pool.missing.iter().chain(&pool.down).copied().collect();
        Found {
            name: pool.name.clone(),
            id,
            state,
            devices: pool.devices().iter().map(|path| path.display().to_string()).collect(),
            missing: missing.iter().map(|member| member.0).collect(),
            missing_devices: device_names::absent(self.remembered(pool).as_ref(), &missing),
            checkpoint: None,
            lost: None,
            warning: refused.map(|(_, why)| why),
            used_by,
            used_at,
        }
    }

    /// Returns why the daemon does not import this pool by itself, by the rules that it follows at
    /// its start; `None` when nothing on the labels is against it.
    fn refusal(&self, pool: &Labelled) -> Option<(Refusal, String)> {
        let record = fresh(pool, self.remembered(pool));
        let now = record.clone().with(pool);
        let refusal = self.rules().check(now.remembered().as_ref(), &self.evidence(pool)).err()?;
        // the newest label may have other devices in the places of those that are remembered
        let why = describe(&refusal, &record, &pool.sides, &pool.foreign);
        Some((refusal, why))
    }

    /// Returns the ranges that a pool loses without its special devices. Writes nothing.
    async fn lost_without_special(&self, pool: &Labelled) -> Result<Vec<LostRange>, ApiError> {
        let shard = self.open(pool, &How::reading(Aim::Rebuild)).await?;
        let lost = lost_of(&pool.name, &shard).await;
        let closed = shard.shutdown().await;
        let lost = lost?;
        closed?;
        Ok(lost)
    }

    /// Returns the record of a pool that was found.
    fn remembered(&self, pool: &Labelled) -> Option<PoolRecord> {
        let id = pool.id.to_string();
        let registry = self.registry();
        let mut records = registry.known.iter().chain(registry.pools.values().map(|entry| &entry.record));
        records.find(|record| record.id == id).cloned()
    }

    /// Opens the devices of a pool and imports it.
    pub(super) async fn open(&self, found: &Labelled, how: &How) -> Result<ShardHandle, NotOpened> {
        let (mut devices, mut paths) = (Vec::new(), Vec::new());
        for path in found.devices() {
            match self.open_patiently(&path, how).await {
                Ok(device) => {
                    devices.push(device);
                    paths.push(path);
                }
                Err(NotOpened { error, .. }) if found.asides.contains(&path) => {
                    tracing::warn!(pool = found.name, device = %path.display(), %error, "imported without this device of the cache, or spare");
                }
                Err(error) => return Err(error),
            }
        }
        let How { degraded, aim, read_only, force, .. } = *how;
        let newest_label = how.newest.clone();
        let shard = shard::import(devices, Tuning { degraded, newest_label, aim, read_only, force, ..self.options.tuning.clone() })
            .map_err(ApiError::from)?;
        let silent = wait_imported(&shard, &paths).await?;
        for path in silent {
            tracing::warn!(pool = found.name, device = %path.display(), "imported without this device: it does not answer");
        }
        Ok(shard)
    }
}

/// Reason why a pool was not opened.
pub(super) struct NotOpened {
    /// The error for users.
    pub(super) error: ApiError,
    /// Devices that did not answer.
    pub(super) silent: Vec<PathBuf>,
    /// The engine's reason, if it is the engine that refused.
    fault: Option<Fault>,
}

impl From<ApiError> for NotOpened {
    fn from(error: ApiError) -> NotOpened {
        NotOpened { error, silent: Vec::new(), fault: None }
    }
}

impl From<NotOpened> for ApiError {
    fn from(failed: NotOpened) -> ApiError {
        failed.error
    }
}

/// Waits until a pool on these devices is in service; ends its shard when that fails. Returns the
/// devices that the pool goes without because they do not answer.
async fn wait_imported(shard: &ShardHandle, paths: &[PathBuf]) -> Result<Vec<PathBuf>, NotOpened> {
    let state = shard.opened().await.map_err(ApiError::from)?;
    let unanswered = shard.unanswered().await.unwrap_or_default();
    let silent: Vec<PathBuf> = unanswered.into_iter().filter_map(|slot| paths.get(slot.index()).cloned()).collect();
    let PoolState::Faulted(fault) = state else {
        wait_online(shard).await?;
        return Ok(silent);
    };
    if silent.is_empty() {
        let failed = |error| NotOpened { error, silent: Vec::new(), fault: Some(fault) };
        return wait_online(shard).await.map(|()| Vec::new()).map_err(failed);
    }
    // this frees the other devices at once, and a device that does not answer as soon as it does
    shard.abandon();
    let names: Vec<String> = silent.iter().map(|path| path.display().to_string()).collect();
    let why = format!("{} ({}); check the device and its cables, or do without it with --degraded", hint::fault(&fault), names.join(", "));
    Err(NotOpened { error: ApiError::new(ErrorKind::Unavailable, why), silent, fault: Some(fault) })
}

impl Daemon {
    /// Opens a device; tries again for a while when it is in use. The kernel releases the devices
    /// of a killed daemon a little after the process has ended, when it takes down the process's
    /// ring.
    async fn open_patiently(&self, path: &Path, how: &How) -> Result<HostDevice, NotOpened> {
        let options = OpenOptions { create_size: None, direct: how.io == IoMode::Direct, read_only: how.read_only };
        let end = Instant::now() + RELEASE;
        loop {
            let opened = self.calls.call(path, PATIENCE, move |path| HostDevice::open(path, options).map(HostDevice::with_space)).await;
            let silent = |silent: NoAnswer| NotOpened { error: ApiError::busy(silent.to_string()), silent: vec![silent.path], fault: None };
            match opened.map_err(silent)? {
                Ok(device) => return Ok(device),
                Err(OpenError::InUse { .. }) if Instant::now() < end => sleep(RETRY).await,
                Err(error) => return Err(ApiError::busy(error.to_string()).into()),
            }
        }
    }
}

/// Returns the checkpoint that the request wants.
fn aim(request: &ImportPool) -> Aim {
    match request.to {
        Some(id) => Aim::To(id),
        None if request.rebuild => Aim::Rebuild,
        None if request.rewind => Aim::Rewind,
        None => Aim::Newest,
    }
}

/// Returns true if only special devices are missing, and the user gives them up.
fn gives_up_special(request: &ImportPool, pool: &Labelled) -> bool {
    request.rebuild && !pool.missing.is_empty() && pool.special == pool.missing
}

/// Adds a device that did not answer to the message of an error.
fn also_silent(error: ApiError, silent: Option<&NoAnswer>) -> ApiError {
    match silent {
        Some(silent) => ApiError { message: format!("{}; {silent}", error.message), ..error },
        None => error,
    }
}

/// Returns the entry of a device that does not answer in the list of pools.
fn not_answering(silent: &NoAnswer) -> Found {
    Found {
        name: "-".to_owned(),
        id: "-".to_owned(),
        state: FoundState::NoAnswer,
        devices: vec![silent.path.display().to_string()],
        missing: Vec::new(),
        missing_devices: Vec::new(),
        checkpoint: None,
        lost: None,
        warning: Some(silent.to_string()),
        used_by: None,
        used_at: None,
    }
}

/// Returns the ranges of volumes and snapshots that are on no device.
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
        let Reply::Lost(ranges) = shard.command(QueryCommand::Lost { target }).await? else {
            return Err(ApiError::internal("the pool answered something else"));
        };
        lost.extend(ranges.iter().map(|range| LostRange { name: name.clone(), offset: range.offset, length: range.length }));
    }
    Ok(lost)
}

/// Adds advice to an error about a damaged newest state.
fn way_out(failed: NotOpened, how: &How) -> ApiError {
    let NotOpened { error, fault, .. } = failed;
    let option = match &fault {
        Some(Fault::Open(refused)) if how.aim == Aim::Newest => hint::way_back(&refused.kind),
        _ => None,
    };
    match option {
        Some(option) => ApiError { message: format!("{}; {option} -n shows what going back would lose", error.message), ..error },
        None => error,
    }
}

/// Returns the remembered record of a pool that was found, or an empty one.
fn fresh(pool: &Labelled, remembered: Option<PoolRecord>) -> PoolRecord {
    remembered.unwrap_or_else(|| PoolRecord::new(pool.name.clone(), pool.id.to_string(), Vec::new(), IoMode::default()))
}

fn missing(pool: &Labelled, record: &PoolRecord) -> String {
    let known = names(record, &pool.missing);
    let how = match pool.special == pool.missing {
        true => "with --degraded where another has the same, else for good with --rebuild (-n says what that loses)",
        false => "with --degraded",
    };
    format!("{} of {} not found; bring it back, give its directory with -d, or import without it {how}", known, pool.members.len())
}
