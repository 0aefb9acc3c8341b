//! The engine in a bounded number of worlds, which every change must pass. `millpond-sim --count`
//! runs more.

use millpond_engine::Engine;
use millpond_sim::{FaultKind, Mode, Options, Stats, run};

/// Runs seeds that must be clean. Returns their counters.
fn clean(seeds: std::ops::Range<u64>, mode: Mode, options: &Options) -> Stats {
    let mut stats = Stats::default();
    for seed in seeds {
        let outcome = run::<Engine>(seed, mode, options);
        if let Some(finding) = outcome.finding {
            panic!("seed {seed} {mode:?} {options:?}: {}\n{}", finding.what, finding.tail.join("\n"));
        }
        stats.add(&outcome.stats);
    }
    stats
}

#[test]
fn worlds() {
    let stats = clean(0..84, Mode::World, &Options::default());
    assert!(stats.read_ahead_used > 0, "no guest used what was read ahead: {stats:?}");
}

/// Mirrors whose devices fail, are away, damage data, are replaced and added.
#[test]
fn worlds_of_mirrors() {
    clean(0..22, Mode::World, &Options { mirrors: true, ..Options::default() });
}

/// Parity, with the same device faults.
#[test]
fn worlds_of_parity() {
    let parity = Options { parity: true, ..Options::default() };
    clean(0..6, Mode::World, &parity);
    clean(0..1, Mode::PowerCut, &parity);
}

/// Pools of every kind with a cache, whose devices fail, corrupt data, are away, and are replaced
/// at any time.
#[test]
fn worlds_with_a_cache() {
    let caches = Options { caches: true, ..Options::default() };
    clean(0..20, Mode::World, &caches);
    clean(0..1, Mode::PowerCut, &Options { scale: 300, ..caches });
}

/// Spares that replace lost devices, and that fail, are added and removed themselves.
#[test]
fn worlds_with_spares() {
    let spares = Options { spares: true, ..Options::default() };
    clean(0..10, Mode::World, &spares);
    clean(0..4, Mode::World, &Options { parity: true, ..spares.clone() });
    clean(1..2, Mode::PowerCut, &Options { scale: 300, ..spares });
}

/// Devices removed from pools of every layout.
#[test]
fn worlds_with_removals() {
    let removals = Options { removals: true, ..Options::default() };
    clean(0..8, Mode::World, &removals);
    clean(2..3, Mode::PowerCut, &Options { scale: 300, ..removals.clone() });
    clean(0..7, Mode::World, &Options { parity: true, ..removals });
}

/// Rebalance and scrub while devices fail and come back.
#[test]
fn worlds_with_work() {
    clean(0..2, Mode::World, &Options { jobs: true, ..Options::default() });
}

/// Chunk tables that fill a good part of the log, and a device that is removed.
#[test]
fn worlds_of_long_tables() {
    clean(0..1, Mode::World, &Options { long_tables: true, ..Options::default() });
}

/// Pools of thousands of segments that run full, and whose space is then freed.
#[test]
fn worlds_of_full_pools() {
    clean(0..3, Mode::World, &Options { full: true, ..Options::default() });
}

/// Damage to pages written after a checkpoint.
#[test]
fn worlds_that_need_a_way_back() {
    clean(0..23, Mode::World, &Options { rescue: true, ..Options::default() });
}

/// Daemons that restart, and import their pool automatically or not.
#[test]
fn worlds_of_restarts() {
    clean(0..22, Mode::World, &Options { restarts: true, ..Options::default() });
}

/// Device caps, volume limits and a queue between engine and devices, with hosts that take the pool
/// from each other.
#[test]
fn worlds_with_a_gate() {
    let gate = Options { gate: true, ..Options::default() };
    clean(0..13, Mode::World, &gate);
    clean(0..1, Mode::PowerCut, &gate);
}

/// Cache modes that become stricter while requests are in flight.
#[test]
fn worlds_of_stricter_modes() {
    clean(0..8, Mode::World, &Options { strict: true, ..Options::default() });
}

/// Clones of clones, rolled back, promoted and destroyed across crashes.
#[test]
fn worlds_of_clones() {
    let clones = Options { clones: true, ..Options::default() };
    clean(0..24, Mode::World, &clones);
    clean(0..2, Mode::PowerCut, &clones);
}

/// Bases, whose blocks are fetched from a store that is late, away or lacks chunks, and clones of
/// them.
#[test]
fn worlds_of_bases() {
    let bases = Options { bases: true, ..Options::default() };
    let stats = clean(0..24, Mode::World, &bases);
    assert!(stats.fetches > 0 && stats.refused_fetches > 0 && stats.late_fetches > 0, "{stats:?}");
    clean(0..2, Mode::PowerCut, &bases);
}

/// Pools whose data moves to a bucket that is late, away and wrong. Engines end at each point of an upload.
#[test]
fn worlds_with_data_in_a_bucket() {
    let capacity = Options { capacity: true, ..Options::default() };
    let mut stats = clean(0..32, Mode::World, &capacity);
    stats.add(&clean(0..8, Mode::World, &Options { mirrors: true, ..capacity.clone() }));
    stats.add(&clean(0..4, Mode::World, &Options { removals: true, ..capacity.clone() }));
    stats.add(&clean(0..8, Mode::World, &Options { rescue: true, ..capacity.clone() }));
    stats.add(&clean(0..4, Mode::World, &Options { gate: true, ..capacity.clone() }));
    stats.add(&clean(0..8, Mode::World, &Options { clones: true, ..capacity.clone() }));
    assert!(stats.placed > 500 && stats.object_reads > 500 && stats.wrong_objects > 50 && stats.late_objects > 50, "{stats:?}");
    assert!(stats.ended_in.iter().all(|ends| *ends >= 5), "{stats:?}");
    assert!(stats.lost_objects > 0 && stats.unreadable > 0, "{stats:?}");
}

#[test]
fn power_cuts_at_every_event_of_uploads() {
    let stats = clean(0..2, Mode::PowerCut, &Options { capacity: true, ..Options::default() });
    assert!(stats.ended_in.iter().all(|ends| *ends > 0), "{stats:?}");
}

/// Changes of the key table, while devices fail, return, are replaced and removed.
#[test]
fn worlds_with_keys() {
    let keys = Options { keys: true, ..Options::default() };
    let stats = clean(0..24, Mode::World, &keys);
    assert!(stats.key_changes > 500 && stats.trials > 0, "{stats:?}");
    clean(0..4, Mode::World, &Options { parity: true, ..keys.clone() });
    clean(0..1, Mode::PowerCut, &keys);
}

/// Devices behind a page cache, which still shows pages that a failed flush dropped.
#[test]
fn worlds_of_buffered_devices() {
    clean(0..8, Mode::World, &Options { buffered: true, ..Options::default() });
}

#[test]
fn power_cuts_at_every_event() {
    clean(0..4, Mode::PowerCut, &Options::default());
}

/// Guests with files, in every world.
#[test]
fn requests_of_any_bytes() {
    let options = Options { bytes: true, ..Options::default() };
    clean(2000..2020, Mode::World, &options);
    clean(10..12, Mode::PowerCut, &options);
}

/// Entries that crashes leave in the rings of roots are never refused, lap after lap.
#[test]
fn power_cuts_in_a_full_ring() {
    clean(0..2, Mode::PowerCut, &Options { roomy: true, laps: true, ..Options::default() });
}

#[test]
fn every_kind_of_fault() {
    for kind in FaultKind::ALL {
        clean(1000..1003, Mode::World, &Options { fault: Some(kind), ..Options::default() });
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 20..24 {
        let (one, two) = (run::<Engine>(seed, Mode::World, &Options::default()), run::<Engine>(seed, Mode::World, &Options::default()));
        assert_eq!((one.digest, one.stats), (two.digest, two.stats), "seed {seed}");
    }
}

/// Tests the tests: each known bug planted in the engine is found.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use millpond_engine::Planted;
    let planted = [
        Planted::SkipBarrier,
        Planted::FreeTooEarly,
        Planted::ApplyAtCompletion,
        Planted::ForgetDeadlistEntry,
        Planted::LoseDiscardRecord,
        Planted::CleanerNewSequence,
        Planted::ReuseBeforeFlush,
        Planted::SkipLeveling,
        Planted::TrustCache,
        Planted::ReadCacheByPlace,
        Planted::ParityFromRot,
        Planted::SkimOneCopy,
        Planted::WipeOnce,
        Planted::FreePieceInUse,
        Planted::StalePiece,
        Planted::CrowdTheLog,
        Planted::NothingRests,
        Planted::DenyCapacity,
        Planted::ForgetReservations,
        Planted::NothingUnique,
        Planted::ForgetTags,
        Planted::PromoteKeepsDeadlists,
        Planted::ServeUnremembered,
        Planted::TrustAnyDevice,
        Planted::ForgetLeftBehind,
        Planted::JoinApart,
        Planted::ForgetNewLabels,
        Planted::WaitForNobody,
        Planted::LoosenUnderWay,
        Planted::TrustPageCache,
        Planted::LeaveOutUnasked,
        Planted::GatherStale,
        Planted::CodecInOrder,
        Planted::ReadAheadStale,
        Planted::BaseReadsZero,
        Planted::BaseClearNotLogged,
        Planted::BaseClearWhole,
        Planted::BaseFetchByOrder,
        Planted::BaseCompareHides,
        Planted::BaseForgotten,
        Planted::BaseCloseWaits,
        Planted::BaseEntryAsHole,
        Planted::PlacedEarly,
        Planted::BucketByOrder,
        Planted::PlacedNotLogged,
        Planted::MetaInBucket,
        Planted::TermNotLogged,
        Planted::GatheredTwice,
    ];
    for bug in planted {
        let options = Options::default().planting(bug);
        let finds = |seed, options: &Options| run::<Engine>(seed, Mode::World, options).finding.is_some();
        let found = (0..1000).find(|seed| finds(*seed, &options) && !finds(*seed, &Options { planted: None, ..options.clone() }));
        assert!(found.is_some(), "{bug:?} is not found in 1000 seeds");
    }
}
