//! What happened in a world, in numbers.

use crate::oracle::ByMode;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Guest requests answered.
    pub requests: u64,
    /// Of them, refused for want of space.
    pub no_space: u64,
    /// Of them, failed.
    pub failed: u64,
    /// Commands that succeeded.
    pub commands: u64,
    /// Device operations.
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
    /// Damage that was detected: refused imports and errors when reading back.
    pub detected: u64,
    /// Checkpoints that the engine committed.
    pub checkpoints: u64,
    /// Segments that the engine cleaned.
    pub cleaned: u64,
    /// Bytes of free segments that it prepared.
    pub prepared: u64,
    /// Bytes of free segments that it gave back.
    pub given_back: u64,
    /// Comparisons judged.
    pub diffs: u64,
    /// Answers about maps judged.
    pub queries: u64,
    /// Devices that failed, were away or spoiled something, and that the pool had to do without.
    pub losses: u64,
    /// Devices replaced, added and removed.
    pub changes: u64,
    /// Spares that took a place.
    pub spares: u64,
    /// Times that as many copies were taken away as can be spared, and everything was read.
    pub trials: u64,
    /// Times that everything was destroyed and wiped, and nothing of it was found.
    pub wipes: u64,
    /// What power cuts left, by cache mode.
    pub modes: ByMode,
    /// Blocks that guests read from the cache.
    pub cached: u64,
    /// Nanoseconds of the longest turn, where the caller has a clock.
    pub longest_turn: u64,
    /// Imports refused after damage.
    pub refused_imports: u64,
    /// Of them, pools that an older checkpoint brought back.
    pub ways_back: u64,
    /// Of them, pools that one copy of an object was all there was of.
    pub lost_pools: u64,
    /// Imports that nobody asked for.
    pub starts: u64,
    /// Of them, without some of the devices.
    pub degraded: u64,
    /// Imports that the engine refused to a daemon.
    pub refused_starts: u64,
    /// Times that the pool went on from an older state.
    pub forks: u64,
    /// Of them, by itself, for the host had died before it remembered better.
    pub gaps: u64,
    /// Operations that caps held, requests that limits did, and operations that came back after a lease.
    pub held: [u64; 3],
    /// Per mille of the pool's size that was held when a write was refused, at the least.
    pub least_fill: Option<u64>,
}

impl Stats {
    /// Adds another world's numbers.
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
        self.given_back += other.given_back;
        self.diffs += other.diffs;
        self.queries += other.queries;
        self.losses += other.losses;
        self.changes += other.changes;
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
        self.held.iter_mut().zip(other.held).for_each(|(sum, count)| *sum += count);
        self.least_fill = [self.least_fill, other.least_fill].into_iter().flatten().min();
    }
}
