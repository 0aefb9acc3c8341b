//! The daemon's registry: which pools and exports there are, and how a name is found among them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use millpond_engine::{SnapshotInfo, Tuning, VolumeInfo};
use tokio::sync::{broadcast, watch};

use super::condition::Conditions;
use super::inherited::Inherited;
use super::mount::Mounted;
use super::shard::ShardHandle;
use super::state::{ExportRecord, PoolRecord, State, StateDir};
use crate::api::{ApiError, ErrorKind, Event, NbdLimits, Status};
use crate::failure::Outcome;
use crate::instant;
use crate::names::{SnapshotName, VolumeName};

/// Events kept for a listener that is slow; older ones are dropped for it.
const EVENT_BACKLOG: usize = 256;

/// Bytes of memory for what guests read, when nothing is said.
pub const READ_CACHE: u64 = 256 << 20;

/// How a daemon runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its control socket, for messages and for where exports go by default.
    pub socket: PathBuf,
    /// Knobs of every pool's engine.
    pub tuning: Tuning,
    /// Bytes of memory for what guests of all pools read more than once.
    pub read_cache: u64,
    /// What clients of an NBD export may take where the export says nothing.
    pub nbd: NbdLimits,
    /// Sockets that listen already.
    pub inherited: Arc<Inherited>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            socket: PathBuf::new(),
            tuning: Tuning::default(),
            read_cache: READ_CACHE,
            nbd: NbdLimits::default(),
            inherited: Arc::default(),
        }
    }
}

/// A pool that the daemon answers for.
pub(super) struct PoolEntry {
    /// What is remembered of it.
    pub(super) record: PoolRecord,
    /// Its shard, or why it has none.
    pub(super) shard: Result<ShardHandle, String>,
    /// When the shard was started.
    pub(super) since: Timestamp,
    /// When to look for expired snapshots next; `None`: no snapshot expires.
    pub(super) due: Option<Timestamp>,
    /// How its devices do.
    pub(super) conditions: Conditions,
}

impl PoolEntry {
    /// An entry from now on.
    pub(super) fn new(record: PoolRecord, shard: Result<ShardHandle, String>) -> PoolEntry {
        let since = instant::now();
        // What expires is not known before it was looked for.
        PoolEntry { record, shard, since, due: Some(since), conditions: Conditions::default() }
    }
}

/// An export that the daemon answers for.
pub(super) struct ExportEntry {
    /// What is remembered of it.
    pub(super) record: ExportRecord,
    /// Written to the state file; false for those that are made anew at every start.
    pub(super) kept: bool,
    /// Why it is not served, when it is not.
    pub(super) trouble: Option<String>,
}

/// What there is.
pub(super) struct Registry {
    pub(super) pools: BTreeMap<String, PoolEntry>,
    pub(super) exports: BTreeMap<u64, ExportEntry>,
    pub(super) known: Vec<PoolRecord>,
    pub(super) next_export: u64,
}

/// The daemon behind the control API.
pub struct Daemon {
    pub(super) options: Options,
    pub(super) dir: StateDir,
    /// Held over changes to the set of pools and exports, so that two of them never mix.
    pub(super) changing: tokio::sync::Mutex<()>,
    registry: Mutex<Registry>,
    /// Directories where pools are mounted, by export.
    mounts: Mutex<BTreeMap<u64, Mounted>>,
    events: broadcast::Sender<Event>,
    stopping: watch::Sender<bool>,
    started: Timestamp,
}

impl Daemon {
    /// A daemon with what `dir` remembers, nothing of it in service yet.
    ///
    /// # Errors
    /// When the state file cannot be read or understood.
    pub fn new(options: Options, dir: StateDir) -> Outcome<Daemon> {
        let state = dir.load()?;
        let waiting = || "not imported yet".to_owned();
        let pools = state.pools.into_iter().map(|record| (record.name.clone(), PoolEntry::new(record, Err(waiting()))));
        let exports = state.exports.into_iter().map(|record| (record.id, ExportEntry { record, kept: true, trouble: Some(waiting()) }));
        let registry = Registry { pools: pools.collect(), exports: exports.collect(), known: state.known, next_export: state.next_export };
        Ok(Daemon {
            options,
            dir,
            changing: tokio::sync::Mutex::new(()),
            registry: Mutex::new(registry),
            mounts: Mutex::default(),
            events: broadcast::channel(EVENT_BACKLOG).0,
            stopping: watch::channel(false).0,
            started: instant::now(),
        })
    }

    /// The registry. Never held across an await.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mounts. Never held across an await.
    pub(super) fn mounts(&self) -> MutexGuard<'_, BTreeMap<u64, Mounted>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the state file; durable on return.
    pub(super) fn save(&self) -> Result<(), ApiError> {
        let state = {
            let registry = self.registry();
            let pools = registry.pools.values().map(|entry| entry.record.clone()).collect();
            let kept = registry.exports.values().filter(|entry| entry.kept).map(|entry| entry.record.clone()).collect();
            State::new(registry.next_export, pools, kept, registry.known.clone())
        };
        let path = self.dir.path().display();
        self.dir.save(&state).map_err(|e| {
            ApiError::internal(format!("cannot write the state in {path}: {e}; the change is in force but forgotten at the next start"))
        })
    }

    /// Tells those who listen.
    pub(super) fn tell(&self, event: &str, subject: impl Into<String>) {
        let subject = subject.into();
        tracing::info!("{event} {subject}");
        // Nobody listening is no error.
        let _ = self.events.send(Event { time: instant::now(), event: event.to_owned(), subject });
    }

    /// Events from now on.
    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Turns true when the daemon begins to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Says that the daemon begins to stop: streams end.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// The shard of a pool in service.
    pub(super) fn shard(&self, pool: &str) -> Result<ShardHandle, ApiError> {
        match self.registry().pools.get(pool) {
            None => Err(ApiError::not_found(format!("no pool '{pool}'; see 'millpond pool list', or import it"))),
            Some(PoolEntry { shard: Ok(shard), .. }) => Ok(shard.clone()),
            Some(PoolEntry { shard: Err(reason), .. }) => {
                let message = format!("pool '{pool}' is not in service: {reason}; mend that and run 'millpond pool import {pool}'");
                Err(ApiError::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Every pool in service, by name.
    pub(super) fn shards(&self) -> Vec<(String, ShardHandle)> {
        let registry = self.registry();
        let open = registry.pools.iter().filter_map(|(name, entry)| Some((name.clone(), entry.shard.as_ref().ok()?.clone())));
        open.collect()
    }

    /// Deals the memory for what guests read out to the pools in service: the same to each. To be called when there are more or fewer of them.
    pub(super) async fn share_read_cache(&self) {
        let shards = self.shards();
        let each = self.options.read_cache / shards.len().max(1) as u64;
        for (_, shard) in shards {
            // one that has ended meanwhile needs none
            let _ = shard.set_read_cache(each).await;
        }
    }

    /// A volume by name.
    pub(super) async fn find_volume(&self, name: &VolumeName) -> Result<(ShardHandle, VolumeInfo), ApiError> {
        let shard = self.shard(&name.pool)?;
        let found = shard.find_volume(&name.volume).await?;
        let volume = found.ok_or_else(|| ApiError::not_found(format!("no volume '{name}'; see 'millpond list {}'", name.pool)))?;
        Ok((shard, volume))
    }

    /// A snapshot by name.
    pub(super) async fn find_snapshot(&self, name: &SnapshotName) -> Result<(ShardHandle, VolumeInfo, SnapshotInfo), ApiError> {
        let (shard, volume) = self.find_volume(&name.of).await?;
        let found = shard.find_snapshot(volume.id, &name.snapshot).await?;
        let snapshot =
            found.ok_or_else(|| ApiError::not_found(format!("no snapshot '{name}'; see 'millpond list -t snapshot {}'", name.of)))?;
        Ok((shard, volume, snapshot))
    }

    /// The daemon as a whole.
    ///
    /// # Errors
    /// None of its own: a pool that does not answer is listed as unavailable.
    pub async fn status(&self) -> Result<Status, ApiError> {
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
            socket: self.options.socket.display().to_string(),
            state_dir: self.dir.path().display().to_string(),
            pools: self.pools().await,
            exports: self.exports().await?,
        })
    }
}
