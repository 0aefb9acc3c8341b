//! The counters of a world.

use crate::oracle::ByMode;

/// Counters of one world, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Guest requests answered.
    pub requests: u64,
    /// Guest requests refused for lack of space.
    pub no_space: u64,
    /// Guest requests that failed otherwise.
    pub failed: u64,
    /// Commands that succeeded.
    pub commands: u64,
    /// Device operations completed.
    pub operations: u64,
    /// Daemon kills.
    pub kills: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Clean shutdowns.
    pub closes: u64,
    /// Recoveries that were themselves interrupted.
    pub interrupted: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Detected damage: refused imports, and errors when reading back.
    pub detected: u64,
    /// Checkpoints that the engine committed.
    pub checkpoints: u64,
    /// Segments that the engine cleaned.
    pub cleaned: u64,
    /// Bytes of free segments that the engine prepared.
    pub prepared: u64,
    /// Bytes of blocks that the engine wrote again next to each other.
    pub gathered: u64,
    /// Bytes of blocks that the engine read ahead of guests.
    pub read_ahead: u64,
    /// Bytes of these blocks that guests used.
    pub read_ahead_used: u64,
    /// Compressions and decompressions by threads of the host.
    pub coded: u64,
    /// Bytes of free segments that the engine released to the host.
    pub given_back: u64,
    /// Comparisons judged.
    pub diffs: u64,
    /// Map queries judged.
    pub queries: u64,
    /// Chunks of bases that were fetched, or refused by the store.
    pub fetches: u64,
    /// The refused ones.
    pub refused_fetches: u64,
    /// Fetches of chunks that the same engine was given before.
    pub fetched_again: u64,
    /// Chunks that were fetched before a guest read them.
    pub fetches_ahead: u64,
    /// Answers of the store that came twice, or after the end of the pool's service.
    pub late_fetches: u64,
    /// Objects that the engine asked its bucket to create.
    pub uploads: u64,
    /// Objects whose chunks it placed there.
    pub placed: u64,
    /// Reads of parts of objects.
    pub object_reads: u64,
    /// Reads of objects that were answered wrongly.
    pub wrong_objects: u64,
    /// Answers of the bucket that came twice, or after the end of the pool's service.
    pub late_objects: u64,
    /// Ends of an engine with a create out, with an object that was created and not placed, and after
    /// which the next import lacked an object that was placed, or had one.
    pub ended_in: [u64; 4],
    /// Objects that were lost for good.
    pub lost_objects: u64,
    /// Requests that failed because of lost objects.
    pub unreadable: u64,
    /// Device faults: devices that failed, were away, hung or damaged data.
    pub losses: u64,
    /// Devices replaced, added and removed, and jobs requested.
    pub changes: u64,
    /// Changes of the key table requested.
    pub key_changes: u64,
    /// Spares that replaced a device.
    pub spares: u64,
    /// Trials: as many devices as possible were taken away, and everything was read.
    pub trials: u64,
    /// Wipes after which no destroyed data was found.
    pub wipes: u64,
    /// Losses in power cuts, by cache mode.
    pub modes: ByMode,
    /// Blocks that guests read from the cache.
    pub cached: u64,
    /// Duration of the longest turn in nanoseconds, if the caller has a clock.
    pub longest_turn: u64,
    /// Imports refused after damage.
    pub refused_imports: u64,
    /// Refused imports after which an older checkpoint brought the pool back.
    pub ways_back: u64,
    /// Refused imports with no way back: the damage hit the only copy of an object.
    pub lost_pools: u64,
    /// Automatic imports.
    pub starts: u64,
    /// Automatic imports without some of the devices.
    pub degraded: u64,
    /// Automatic imports that the engine refused.
    pub refused_starts: u64,
    /// Times that the pool continued from an older state.
    pub forks: u64,
    /// Times that this was automatic, because the host had died before it recorded the newer state.
    pub gaps: u64,
    /// Older states that the daemon took to complete an import of the user.
    pub completed_imports: u64,
    /// Operations delayed by caps, requests delayed by limits, operations recalled after a lease.
    pub held: [u64; 3],
    /// Least content of the pool when a write was refused, in per mille of its size.
    pub least_fill: Option<u64>,
}

impl Stats {
    /// Adds the counters of another world.
    pub fn add(&mut self, other: &Stats) {
        self.requests += other.requests;
        self.no_space += other.no_space;
        self.failed += other.failed;
        self.commands += other.commands;
        self.operations += other.operations;
        self.kills += other.kills;
        self.cuts += other.cuts;
        self.closes += other.closes;
        self.interrupted += other.interrupted;
        self.faults += other.faults;
        self.detected += other.detected;
        self.checkpoints += other.checkpoints;
        self.cleaned += other.cleaned;
        self.prepared += other.prepared;
        self.gathered += other.gathered;
        self.read_ahead += other.read_ahead;
        self.read_ahead_used += other.read_ahead_used;
        self.coded += other.coded;
        self.given_back += other.given_back;
        self.diffs += other.diffs;
        self.queries += other.queries;
        self.fetches += other.fetches;
        self.refused_fetches += other.refused_fetches;
        self.fetched_again += other.fetched_again;
        self.fetches_ahead += other.fetches_ahead;
        self.late_fetches += other.late_fetches;
        self.uploads += other.uploads;
        self.placed += other.placed;
        self.object_reads += other.object_reads;
        self.wrong_objects += other.wrong_objects;
        self.late_objects += other.late_objects;
        self.ended_in.iter_mut().zip(other.ended_in).for_each(|(sum, count)| *sum += count);
        self.lost_objects += other.lost_objects;
        self.unreadable += other.unreadable;
        self.losses += other.losses;
        self.changes += other.changes;
        self.key_changes += other.key_changes;
        self.spares += other.spares;
        self.trials += other.trials;
        self.wipes += other.wipes;
        self.modes.iter_mut().zip(&other.modes).for_each(|(sum, count)| sum.add(count));
        self.cached += other.cached;
        self.longest_turn = self.longest_turn.max(other.longest_turn);
        self.refused_imports += other.refused_imports;
        self.ways_back += other.ways_back;
        self.lost_pools += other.lost_pools;
        self.starts += other.starts;
        self.degraded += other.degraded;
        self.refused_starts += other.refused_starts;
        self.forks += other.forks;
        self.gaps += other.gaps;
        self.completed_imports += other.completed_imports;
        self.held.iter_mut().zip(other.held).for_each(|(sum, count)| *sum += count);
        self.least_fill = [self.least_fill, other.least_fill].into_iter().flatten().min();
    }
}
