//! One run: a seed becomes a machine, a pool, guests, crashes and faults, and the oracle's verdict.

mod answers;
mod audit;
mod base_store;
mod bases;
mod caches;
mod coders;
mod create;
mod fate;
mod fetches;
mod finale;
mod full;
mod hosts;
mod jobs;
mod keys;
mod long;
mod object_store;
mod objects;
mod recovery;
mod replies;
mod rescue;
mod restarts;
mod room;
mod service;
mod shard;
mod spares;
mod state;
mod stats;
mod step;
mod strict;
mod sweep;
mod turns;
mod uploads;
mod verify;
mod wiped;
mod words;

use std::collections::BTreeMap;

use millpond_engine::{CommandError, Planted};

use crate::bytes::Files;
use crate::config::{Config, Kind, MOST_BYTES, Options};
use crate::disk::SimDevice;
use crate::fault::{Armed, FaultKind};
use crate::machine::Machine;
use crate::oracle::{Listing, Oracle, Verdict};
use crate::rng::{Rng, mix};
use crate::shard::Shard;
use crate::system::System;
use crate::trace::Trace;
use crate::workload::{Plan, Workload};
use base_store::BaseStore;
use caches::Caches;
use coders::Coders;
use fate::DeviceFaults;
use hosts::Hosts;
use keys::KeyUser;
use object_store::ObjectStore;
use objects::Progress;

pub use stats::Stats;

/// Milliseconds of simulated time without any answer after which this is a finding. The slowest
/// operation takes 2 ms, times 10 for the tail, times 50 for a slow device.
const PATIENCE: u64 = 120_000;
/// Turns, of one event each, within which an engine without guests must come to rest. A full pool
/// on striped devices cleans for long.
const SETTLING: u32 = 100_000;
/// Turns without any answer after which this is a finding.
const PATIENCE_TURNS: u64 = 50_000;
/// Steps without requests and answers, after which the world waits for all answers.
const IDLE_STEPS: u64 = 5_000;
/// Time between two turns of an engine that wants another turn, in microseconds.
const BUSY_STEP: u64 = 50;
/// Time per step while nothing happens, in microseconds.
const IDLE_STEP: u64 = 10_000;

/// A world in progress.
pub struct World<S: System> {
    config: Config,
    rng: Rng,
    machine: Machine,
    system: Option<S>,
    oracle: Oracle,
    workload: Workload,
    /// Separate RNG for map queries, in a quarter of the seeds, so that the other seeds replay
    /// unchanged.
    query_rng: Option<Rng>,
    /// Guests with files, in half of the worlds with map queries.
    files: Option<Files>,
    /// Device faults, in worlds whose devices fail.
    fate: Option<DeviceFaults>,
    /// Faults of cache devices.
    caches: Option<Caches>,
    /// Hosts that see the devices, where hosts claim the pool.
    hosts: Option<Hosts<S>>,
    /// The daemon's shard between guests, engine and devices, with `--gate`.
    shard: Option<Shard>,
    coders: Coders,
    /// The store of bases, in worlds with bases.
    store: Option<BaseStore>,
    /// Changes of the key table, in worlds with keys.
    keys: Option<KeyUser>,
    /// The bucket of the pool, in worlds with one, and how far uploads to it have come.
    bucket: Option<ObjectStore>,
    progress: Progress,
    /// The record of events.
    pub trace: Trace,
    /// Counters.
    pub stats: Stats,
    tags: u64,
    /// Number of requests, queries, commands and comparisons answered.
    answers: u64,
    /// The caller's clock, to time turns.
    clock: Option<fn() -> u64>,
    /// Number of writes that found no space.
    refusals: u64,
    /// The last answer to a command.
    last_reply: Option<Result<(), CommandError>>,
    waiting: Vec<Plan>,
    running: BTreeMap<u64, Plan>,
    /// Data on the media was damaged: errors are legal for ever, wrong data is still a finding.
    damaged: bool,
    /// The world ends early: nothing more can be judged in it.
    over: bool,
}

impl<S: System> World<S> {
    /// Makes the world of a seed, before its first event.
    pub fn new(seed: u64, options: &Options) -> World<S> {
        let mut rng = Rng::new(seed);
        let mut config = Config::new(&mut rng, options);
        let mirrored = config.transform(seed, options);
        let queries = seed % 8 < 2 || options.bases || (mirrored && mix(seed).is_multiple_of(4));
        let query_rng = queries.then(|| Rng::new(!seed));
        // Not behind a page cache: another host has one of its own.
        let claims = S::CLAIMS && matches!(config.kind, Kind::Any) && !config.buffered;
        let hosts = claims.then(|| if options.gate { Some(Hosts::new(seed)) } else { Hosts::of(seed) }).flatten();
        let world = World { query_rng, hosts, ..World::with_config(config, rng, options) }.with_shard(seed, options);
        if (seed % 8 == 1 && matches!(world.config.kind, Kind::Any)) || options.bytes { world.with_files(Files::new(seed)) } else { world }
    }

    /// Makes a world of this configuration.
    pub fn with_config(config: Config, mut rng: Rng, options: &Options) -> World<S> {
        let device = |rng: &mut Rng, geometry, profile| SimDevice::new(geometry, profile, rng.next());
        let devices = config.devices.iter().map(|(geometry, profile)| device(&mut rng, *geometry, *profile));
        let devices = devices.map(|device| if config.buffered { device.buffered() } else { device }).collect();
        let mut machine = Machine::new(devices, config.latency, rng.fork(1));
        machine.planted = (config.tuning.planted == Some(Planted::TrustPageCache)).then_some(millpond_device::Planted::TrustPageCache);
        let limit = if config.tight { config.pool_bytes() * 2 } else { config.pool_bytes() * 6 / 10 };
        let limit = if config.bases.is_some() { MOST_BYTES } else { limit.min(24 << 20) };
        let workload = Workload::new(config.mix.clone(), config.tight, limit, rng.fork(2));
        let mut trace = Trace::default();
        trace.print = options.trace;
        let usual = matches!(config.kind, Kind::Any);
        let fate = config.mirrored.as_ref().filter(|_| usual).map(|mirrored| DeviceFaults::new(mirrored, rng.fork(3)));
        let coders = Coders::new(rng.clone().fork(5));
        let caches = config.cached.map(|cached| Caches::new(cached, config.devices.len(), rng.fork(4)));
        let store = config.bases.map(|bases| BaseStore::new(bases, rng.fork(6)));
        let keys = (config.key_changes > 0).then(|| KeyUser::new(rng.clone().fork(7)));
        let bucket = config.capacity.map(|capacity| ObjectStore::new(capacity, rng.clone().fork(8)));
        World {
            config,
            rng,
            machine,
            system: None,
            oracle: Oracle::default(),
            workload,
            query_rng: None,
            files: None,
            fate,
            caches,
            hosts: None,
            shard: None,
            coders,
            store,
            keys,
            bucket,
            progress: Progress::default(),
            trace,
            stats: Stats::default(),
            tags: 0,
            answers: 0,
            clock: options.clock,
            refusals: 0,
            last_reply: None,
            waiting: Vec::new(),
            running: BTreeMap::new(),
            damaged: false,
            over: false,
        }
    }

    /// Runs the world to its end.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(&mut self) -> Verdict {
        let outcome = self.live();
        self.stats.operations = self.machine.completed;
        self.stats.held = self.shard.as_ref().map_or([0; 3], Shard::counts);
        outcome
    }

    fn live(&mut self) -> Verdict {
        self.trace.note(format!("{:?}", self.config));
        if self.config.second_hand {
            self.former_pool()?;
        }
        self.create()?;
        match self.config.kind {
            Kind::Long(long) => return self.long_tables(long),
            Kind::Full(full) => return self.full_pool(full),
            Kind::Rescue => return self.endangered(),
            Kind::Restarts(plan) => return self.restarts(plan),
            Kind::Strict(times) => return self.tightened(times),
            Kind::Any => {}
        }
        for index in 0..self.config.eras.len() {
            self.era(index)?;
            if self.over {
                return Ok(());
            }
        }
        self.finale()
    }

    /// Runs the time until the next crash, the crash, and the recovery.
    fn era(&mut self, index: usize) -> Verdict {
        let era = self.config.eras[index];
        self.trace.note(format!("era {index}: {era:?}"));
        let fault = self.config.fault.clone().filter(|f| f.era as usize == index);
        if let Some(fault) = &fault {
            self.trace.note(format!("armed: {fault:?}"));
        }
        self.machine.armed = Armed::new(fault);
        self.guests(era.requests)?;
        if !self.approach(era.end)? {
            self.live_without_store()?;
        }
        let struck = self.machine.armed.kind();
        let rots = self.machine.armed.fault().is_some_and(|f| f.kind == FaultKind::Rot);
        if struck.is_some_and(FaultKind::needs_checkpoint) || rots {
            return self.damaged_end(era.end);
        }
        if self.machine.armed.fault().is_some_and(|f| f.kind.needs_checkpoint()) {
            self.machine.armed = Armed::default(); // its effect in the recovery could not be judged
        }
        self.recover(era.end)
    }
}

pub(crate) fn listing<S: System>(system: &S) -> Listing {
    Listing { volumes: system.volumes(), snapshots: system.snapshots() }
}
