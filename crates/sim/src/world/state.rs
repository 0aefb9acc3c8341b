//! Parts of a world that everything else uses: the engine's state, what its devices hold, and forks.

use std::collections::{BTreeMap, BTreeSet};

use millpond_engine::{Looked, PoolState, VolumeId};
use millpond_format::SECTOR_BYTES;

use super::World;
use super::coders::Coders;
use crate::bytes::Files;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::{Stats, System, Target};

impl<S: System> World<S> {
    pub(super) fn state(&self) -> PoolState {
        self.system.as_ref().map_or(PoolState::Closed, |system| system.state().clone())
    }

    pub(super) fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    /// Adds guests with files.
    pub(crate) fn with_files(self, files: Files) -> World<S> {
        World { oracle: Oracle::new(files.grid()), files: Some(files), ..self }
    }

    pub(super) fn quiet(&self) -> BTreeSet<Target> {
        self.waiting.iter().chain(self.running.values()).flat_map(|p| p.quiet.iter().copied()).collect()
    }

    pub(super) fn busy(&self) -> BTreeSet<VolumeId> {
        self.waiting.iter().chain(self.running.values()).flat_map(|p| p.volumes.iter().copied()).collect()
    }

    /// Adds the engine's counters to the statistics, before the engine is dropped.
    pub(super) fn collect(&mut self) {
        if let Some(system) = &self.system {
            let metrics = system.metrics();
            self.stats.checkpoints += metrics.checkpoints;
            self.stats.cleaned += metrics.segments_cleaned;
            self.stats.prepared += metrics.prepared_bytes;
            self.stats.gathered += metrics.gathered_bytes;
            self.stats.read_ahead += metrics.read_ahead_bytes;
            self.stats.read_ahead_used += metrics.read_ahead_used_bytes;
            self.stats.given_back += metrics.given_back_bytes;
            self.stats.cached += metrics.cache_hits;
        }
    }

    /// Returns a world with the same devices and past, with its own RNG and without an engine.
    pub(crate) fn fork(&mut self, label: u64) -> World<S> {
        let label = self.trace.now() << 8 | label;
        let (progress, ended_in) = self.uploads_at_end().unwrap_or_else(|| (self.progress.clone(), [0; 4]));
        World {
            config: self.config.clone(),
            rng: Rng::new(label),
            machine: self.machine.fork(label),
            system: None,
            oracle: self.oracle.clone(),
            workload: self.workload.clone(),
            query_rng: None,
            files: None,
            fate: self.fate.as_ref().map(|fate| fate.fork(label)),
            caches: self.caches.as_ref().map(|caches| caches.fork(label)),
            hosts: self.hosts.as_ref().map(|hosts| hosts.fork(label)),
            shard: None,
            coders: Coders::new(Rng::new(label)),
            store: self.store.as_ref().map(|store| store.fork(label)),
            keys: None,
            bucket: self.bucket.as_ref().map(|store| store.fork(label, self.machine.nanos())),
            progress,
            trace: self.trace.fork(60),
            stats: Stats { ended_in, ..Stats::default() },
            tags: self.tags,
            answers: 0,
            clock: None,
            refusals: 0,
            last_reply: None,
            waiting: Vec::new(),
            running: BTreeMap::new(),
            damaged: false,
            over: false,
        }
    }

    /// The contents of a device.
    pub(super) fn look_at(&self, device: usize) -> Option<Looked<usize>> {
        let size = self.machine.geometry(device)?.size;
        let read = |offset| {
            let mut sector = [0; SECTOR_BYTES];
            self.machine.peek_device(device, offset, &mut sector);
            Ok::<_, ()>(sector)
        };
        Looked::read_knowing(device, size, self.config.tuning.features, read).ok().flatten()
    }
}
