//! Registry of the daemon: its pools and exports, found by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant;
use millpond_api::{ApiError, DeviceState, ErrorKind, Job, JobKind, NbdLimits};
use millpond_block::MemberId;
use millpond_engine::Tuning;
use tokio::sync::{Notify, watch};

use super::access::{Access, Grants};
use super::budget::Budget;
use super::closing::LeftBehind;
use super::conditions::Conditions;
use super::copies::Copies;
use super::device_health::DevicesHealth;
use super::errors::ErrorsUnsaved;
use super::events::{EventBounds, EventLog};
use super::exports::Unused;
use super::fetch::Fetching;
use super::freeze::Freezer;
use super::helpers::Helpers;
use super::hook::{Hook, HookQueue};
use super::host_calls::HostCalls;
use super::inherited::Inherited;
use super::locks::{Deadlines, PoolLocks, Reserved};
use super::metrics::Scrapes;
use super::mount::Mounted;
use super::plan::Samples;
use super::policy::Policies;
use super::policy::send::SendWake;
use super::receiving::incomplete::Receives;
use super::shard::ShardHandle;
use super::sinks::{Sink, Sinks};
use super::state::{ExportRecord, PoolRecord, State, StateDir};
use super::watch::Watches;

/// Default size of the read cache of all pools, in bytes.
pub const READ_CACHE: u64 = 256 << 20;

/// Options of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of its control socket, for messages; exports without an address go beside it.
    pub socket: PathBuf,
    /// Tuning of every pool's engine.
    pub tuning: Tuning,
    /// Size of the read cache of all pools together, in bytes.
    pub read_cache: u64,
    /// Memory for requests of all clients.
    pub budget: Arc<Budget>,
    /// Threads that compress and decompress for all pools.
    pub helpers: Arc<Helpers>,
    /// Limits on the clients of an NBD export where the export sets none.
    pub nbd: NbdLimits,
    /// Listening sockets that were passed on to the daemon.
    pub inherited: Arc<Inherited>,
    /// How long the start waits for missing devices of a pool that can do without them.
    pub import_wait: Duration,
    /// How long the daemon waits for its pools before it reports that it is ready; `None`: without
    /// a limit.
    pub start_limit: Option<Duration>,
    /// Limits on waits for events that may never come.
    pub deadlines: Deadlines,
    /// Command that is run for events.
    pub on_event: Option<Hook>,
    /// Roles of users and groups on the control socket.
    pub grants: Arc<Grants>,
    /// Names of this host under which browsers may reach the console, beside its addresses.
    pub web_hosts: Arc<[String]>,
    /// Bounds of the stored events.
    pub events: EventBounds,
    /// Sinks of alerts.
    pub sinks: Vec<Sink>,
    /// Time without a complete scrub after which one is overdue; `None`: never.
    pub scrub_overdue: Option<Duration>,
}

/// Default of [`Options::import_wait`].
pub const IMPORT_WAIT: Duration = Duration::from_secs(30);
/// Default of [`Options::scrub_overdue`].
pub const SCRUB_OVERDUE: Duration = Duration::from_secs(35 * 86_400);
/// How long a start may wait for pools that replay their log.
const START_LIMIT: Duration = Duration::from_secs(30);

impl Default for Options {
    fn default() -> Self {
        Options {
            socket: PathBuf::new(),
            tuning: Tuning::default(),
            read_cache: READ_CACHE,
            budget: Arc::default(),
            helpers: Arc::default(),
            nbd: NbdLimits::default(),
            inherited: Arc::default(),
            import_wait: IMPORT_WAIT,
            start_limit: Some(START_LIMIT),
            deadlines: Deadlines::default(),
            on_event: None,
            grants: Arc::default(),
            web_hosts: Arc::default(),
            events: EventBounds::default(),
            sinks: Vec::new(),
            scrub_overdue: Some(SCRUB_OVERDUE),
        }
    }
}

/// A pool of the daemon, in service or not.
pub(super) struct PoolEntry {
    /// Its record in the state file.
    pub(super) record: PoolRecord,
    /// Its shard, or the reason why it has none.
    pub(super) shard: Result<ShardHandle, String>,
    /// Start of the shard.
    pub(super) since: Timestamp,
    /// Time of the next look for expired snapshots; `None` when no snapshot expires.
    pub(super) due: Option<Timestamp>,
    /// Health of its devices.
    pub(super) device_health: DevicesHealth,
    /// Errors of its devices that are not in the state file yet.
    pub(super) errors: ErrorsUnsaved,
    /// Held during an import, by the daemon itself or by a command.
    pub(super) importing: Arc<tokio::sync::Mutex<()>>,
    /// An import is in progress.
    pub(super) opening: bool,
    /// A command, or the end of the daemon, is ending its service.
    pub(super) closing: bool,
    /// Its exports are being restored.
    pub(super) restoring: bool,
    /// For a pool out of service: absent devices, with their states.
    pub(super) absent: BTreeMap<PathBuf, DeviceState>,
    /// Jobs of devices whose outcome is not recorded yet: kind and member.
    pub(super) followed: Vec<(JobKind, MemberId)>,
    /// Samples of its bytes, for forecasts.
    pub(super) samples: Samples,
    /// Jobs in its last answer.
    pub(super) listed: Vec<Job>,
}

impl PoolEntry {
    /// Returns an entry whose service begins now.
    pub(super) fn new(mut record: PoolRecord, shard: Result<ShardHandle, String>) -> PoolEntry {
        let since = instant::now();
        // the engine's counts begin anew with each import
        record.seen.values_mut().for_each(|seen| seen.counted = (0, 0));
        // Before the first look it is unknown whether a snapshot expires.
        PoolEntry {
            record,
            shard,
            since,
            due: Some(since),
            device_health: DevicesHealth::default(),
            errors: ErrorsUnsaved::default(),
            importing: Arc::default(),
            opening: false,
            closing: false,
            restoring: false,
            absent: BTreeMap::new(),
            followed: Vec::new(),
            samples: Samples::default(),
            listed: Vec::new(),
        }
    }
}

/// An export of the daemon, served or not.
pub(super) struct ExportEntry {
    /// Its record in the state file.
    pub(super) record: ExportRecord,
    /// The state file has it; false for transient ones.
    pub(super) kept: bool,
    /// A receive made it.
    pub(super) receive: bool,
    /// Time since which a transient one has no client.
    pub(super) unused: Unused,
    /// Reason why it is not served; `None` when it is.
    pub(super) trouble: Option<String>,
}

impl ExportEntry {
    /// Returns an entry of an export that is served.
    pub(super) fn new(record: ExportRecord, kept: bool) -> ExportEntry {
        ExportEntry { record, kept, receive: false, unused: Unused::default(), trouble: None }
    }
}

/// Pools and exports of the daemon.
pub(super) struct Registry {
    pub(super) pools: BTreeMap<String, PoolEntry>,
    pub(super) exports: BTreeMap<u64, ExportEntry>,
    pub(super) known: Vec<PoolRecord>,
    pub(super) next_export: u64,
    /// Reservations of commands in progress.
    pub(super) reserved: Reserved,
    /// Pools that were given up while the kernel had operations on their devices.
    pub(super) left: Vec<LeftBehind>,
}

/// The daemon behind the control API.
pub struct Daemon {
    pub(super) options: Options,
    pub(super) dir: StateDir,
    /// Calls to the host that may never return.
    pub(super) calls: HostCalls,
    /// Notified when a pool comes into service.
    pub(super) pools_changed: Notify,
    /// Locks of commands that change a pool.
    pub(super) locks: Mutex<PoolLocks>,
    /// Held from reading the registry until the state is written, so that an older state never
    /// replaces a newer one.
    saving: Mutex<()>,
    registry: Mutex<Registry>,
    /// Directories where pools are mounted, by export.
    mounts: Mutex<BTreeMap<u64, Mounted>>,
    /// Full copies.
    copies: Mutex<Copies>,
    policies: Mutex<Policies>,
    /// Notified when a policy or one of its runs has changed.
    pub(super) policies_changed: Notify,
    /// Wakes the sends of policies.
    pub(super) sends: SendWake,
    /// Blocks that pools fetch from publications.
    pub(super) fetching: Fetching,
    /// Number of commands since the start that changed something about snapshots that runs of
    /// policies know.
    pub(super) snapshot_changes: AtomicU64,
    pub(super) events: EventLog,
    /// Guests that are frozen while snapshots are taken.
    pub(super) freezer: Freezer,
    /// Tokens, sessions, and failed attempts.
    pub(crate) access: Access,
    /// Conditions that last.
    pub(super) conditions: Conditions,
    /// Incomplete receives.
    pub(super) receives: Receives,
    pub(super) sinks: Sinks,
    /// Results of earlier scrapes of metrics.
    pub(super) scrapes: Scrapes,
    /// Pools and exports as of the last comparison, which finds their changes.
    watches: Mutex<Watches>,
    stopping: watch::Sender<bool>,
    /// True when every remembered pool is in service or waits for something.
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) started: Timestamp,
}

impl Daemon {
    /// Returns a daemon with the state in `dir`; none of its pools is in service yet.
    ///
    /// # Errors
    /// When the state file cannot be read or understood.
    pub fn new(options: Options, dir: StateDir) -> Outcome<Daemon> {
        let hook = options.on_event.clone().map(HookQueue::start).transpose();
        let hook = hook.map_err(|e| Failure::failed(format!("cannot start a thread for on_event: {e}")))?;
        let events = EventLog::open(dir.path(), options.events, hook);
        let conditions = Conditions::load(dir.path(), events.last_time());
        let sinks = Sinks::start(options.sinks.clone()).map_err(|e| Failure::failed(format!("cannot start a thread for a sink: {e}")))?;
        let state = dir.load()?;
        let waiting = || "not imported yet".to_owned();
        let pools = state.pools.into_iter().map(|record| (record.name.clone(), PoolEntry::new(record, Err(waiting()))));
        let exports =
            state.exports.into_iter().map(|record| (record.id, ExportEntry { trouble: Some(waiting()), ..ExportEntry::new(record, true) }));
        let registry = Registry {
            pools: pools.collect(),
            exports: exports.collect(),
            known: state.known,
            next_export: state.next_export,
            reserved: Reserved::default(),
            left: Vec::new(),
        };
        Ok(Daemon {
            options,
            freezer: Freezer::new(dir.path()),
            dir,
            calls: HostCalls::default(),
            pools_changed: Notify::new(),
            locks: Mutex::default(),
            saving: Mutex::default(),
            registry: Mutex::new(registry),
            mounts: Mutex::default(),
            copies: Mutex::new(Copies::left(state.copies)),
            policies: Mutex::new(Policies::of(state.policies)),
            policies_changed: Notify::new(),
            sends: SendWake::default(),
            fetching: Fetching::default(),
            snapshot_changes: AtomicU64::new(0),
            events,
            access: Access::with(state.tokens),
            conditions,
            receives: Receives::default(),
            sinks,
            scrapes: Scrapes::default(),
            watches: Mutex::default(),
            stopping: watch::channel(false).0,
            ready: watch::channel(false).0,
            started: instant::now(),
        })
    }

    /// Locks the registry. Never held across an await.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mounts. Never held across an await.
    pub(super) fn mounts(&self) -> MutexGuard<'_, BTreeMap<u64, Mounted>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the full copies. Never held across an await.
    pub(super) fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the policies. Never held across an await.
    pub(super) fn policies(&self) -> MutexGuard<'_, Policies> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a command has changed something about snapshots that runs of policies may know
    /// otherwise.
    pub(super) fn snapshots_changed(&self) {
        self.snapshot_changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Writes the state file. Durable on return.
    pub(super) fn save(&self) -> Result<(), ApiError> {
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let state = {
            let registry = self.registry();
            let pools = registry.pools.values().map(|entry| entry.record.clone()).collect();
            let kept = registry.exports.values().filter(|entry| entry.kept).map(|entry| entry.record.clone()).collect();
            let mut state = State::new(registry.next_export, pools, kept, registry.known.clone());
            state.copies = self.copies().records();
            state.tokens = self.access.tokens().records();
            state.policies = self.policies().records();
            state
        };
        let path = self.dir.path().display();
        self.dir.save(&state).map_err(|e| {
            ApiError::internal(format!("cannot write the state in {path}: {e}; the change is in force but forgotten at the next start"))
        })
    }

    /// Locks the last observations of pools and exports. Never held across an await.
    pub(super) fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that turns true when the daemon begins to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Waits until every remembered pool is in service or waits for something, until the daemon
    /// stops, or for [`START_LIMIT`].
    pub async fn wait_until_ready(&self) {
        let (mut ready, mut stopping) = (self.ready.subscribe(), self.stopping.subscribe());
        tokio::select! {
            _ = ready.wait_for(|ready| *ready) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = tokio::time::sleep(START_LIMIT) => {}
        }
    }

    /// Marks every remembered pool as in service or waiting for something.
    pub(super) fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    /// Puts a shard into the entry of its pool, which is in service from now on.
    pub(super) fn put_in_service(&self, name: &str, shard: ShardHandle) {
        if let Some(entry) = self.registry().pools.get_mut(name) {
            *entry = PoolEntry { importing: Arc::clone(&entry.importing), ..PoolEntry::new(entry.record.clone(), Ok(shard)) };
        }
        self.snapshots_changed();
        self.policies_changed.notify_one();
        self.sends.look_again();
        self.pools_changed.notify_one();
    }

    /// Begins to stop the daemon: streams end.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns how long a command on the control socket may take before its client is informed that
    /// it goes on.
    pub fn command_limit(&self) -> Duration {
        self.options.deadlines.command
    }

    /// Returns the shard of a pool in service.
    pub(super) fn shard(&self, pool: &str) -> Result<ShardHandle, ApiError> {
        match self.registry().pools.get(pool) {
            None => Err(ApiError::not_found(format!("no pool '{pool}'; see 'millpond pool list', or import it"))),
            Some(PoolEntry { shard: Ok(shard), .. }) => Ok(shard.clone()),
            Some(PoolEntry { shard: Err(reason), .. }) => {
                let message = format!("pool '{pool}' is not in service: {reason}; correct that and run 'millpond pool import {pool}'");
                Err(ApiError::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Returns the shards of all pools in service, by the names of the pools.
    pub(super) fn shards(&self) -> Vec<(String, ShardHandle)> {
        let registry = self.registry();
        let open = registry.pools.iter().filter_map(|(name, entry)| Some((name.clone(), entry.shard.as_ref().ok()?.clone())));
        open.collect()
    }

    /// Divides the read-cache memory evenly among the pools in service, and gives each the budget
    /// for requests, the helper threads, and the channel for what it fetches. Call it when their number has changed. Waits for no pool.
    pub(super) fn share_read_cache(&self) {
        let shards = self.shards();
        let each = self.options.read_cache / shards.len().max(1) as u64;
        for (name, shard) in shards {
            shard.pass_fetches_to(&name, self.fetching.channel());
            shard.set_read_cache(each);
            shard.set_budget(Arc::clone(&self.options.budget));
            shard.set_helpers(Arc::clone(&self.options.helpers));
        }
    }
}
