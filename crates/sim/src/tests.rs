//! Tests the simulator on the reference system: without a bug no finding, each bug is found, and a
//! seed repeats its world.

use crate::config::Options;
use crate::reference::{BUG, Bug, Reference};
use crate::runner::{Mode, Outcome, run};

/// Short worlds, because the reference system never reuses space.
fn options() -> Options {
    Options { scale: 200, append_only: true, ..Options::default() }
}

fn try_seed(bug: Bug, seed: u64, mode: Mode) -> Outcome {
    BUG.set(bug);
    run::<Reference>(seed, mode, &options())
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 0..10 {
        let (one, two) = (try_seed(Bug::None, seed, Mode::World), try_seed(Bug::None, seed, Mode::World));
        assert_eq!(one.digest, two.digest, "seed {seed}");
        assert_eq!(one.stats, two.stats, "seed {seed}");
        assert_ne!(one.digest, try_seed(Bug::None, seed + 1000, Mode::World).digest);
    }
}

#[test]
fn a_system_that_keeps_its_promises_is_clean() {
    for seed in 0..100 {
        let outcome = try_seed(Bug::None, seed, Mode::World);
        if let Some(finding) = outcome.finding {
            panic!("seed {seed}: {}\n{}", finding.what, finding.tail.join("\n"));
        }
    }
}

/// Caps, limits and the queue change none of the promises.
#[test]
fn a_system_behind_a_gate_is_clean() {
    BUG.set(Bug::None);
    for seed in 0..20 {
        let outcome = run::<Reference>(seed, Mode::World, &Options { gate: true, ..options() });
        if let Some(finding) = outcome.finding {
            panic!("seed {seed}: {}\n{}", finding.what, finding.tail.join("\n"));
        }
    }
}

#[test]
fn a_system_that_keeps_its_promises_survives_every_power_cut() {
    // worlds that mostly read, to be read ahead of, have few operations and few cuts
    let mut many = 0;
    for seed in 0..3 {
        let outcome = try_seed(Bug::None, seed, Mode::PowerCut);
        if let Some(finding) = outcome.finding {
            panic!("seed {seed}: {}\n{}", finding.what, finding.tail.join("\n"));
        }
        many += u64::from(outcome.stats.cuts > 20);
    }
    assert!(many >= 2, "{many} of 3 worlds have more than 20 cuts");
}

/// Number of seeds within which each bug must be found.
const REACH: u64 = 400;

fn is_caught(bug: Bug) {
    let caught = (0..REACH).find(|seed| try_seed(bug, *seed, Mode::World).finding.is_some());
    let Some(seed) = caught else { panic!("{bug:?} is not found in {REACH} seeds") };
    assert!(try_seed(Bug::None, seed, Mode::World).finding.is_none(), "seed {seed} finds something without the bug");
}

macro_rules! caught {
    ($($name:ident: $bug:ident,)*) => { $(#[test] fn $name() { is_caught(Bug::$bug); })* };
}

caught! {
    a_flush_that_does_nothing_is_caught: FlushNothing,
    a_flush_of_one_device_only_is_caught: FlushFirstDevice,
    fua_that_is_not_durable_is_caught: FuaNotDurable,
    acknowledging_from_memory_is_caught: AckFromMemory,
    applying_at_completion_is_caught: ApplyAtCompletion,
    a_discard_that_is_not_logged_is_caught: ForgetDiscard,
    a_torn_request_is_caught: TornRequest,
    a_group_snapshot_at_two_instants_is_caught: SplitGroupSnapshot,
    a_snapshot_that_changes_is_caught: SnapshotNotFrozen,
    a_reply_before_it_is_durable_is_caught: ReplyTooEarly,
    replay_behind_a_gap_is_caught: SkipGaps,
    replay_without_checksums_is_caught: NoChecksum,
    a_lost_answer_is_caught: LoseAnswer,
    misplaced_blocks_are_caught: SwapBlocks,
    data_that_comes_back_after_a_discard_is_caught: StaleAfterDiscard,
    data_that_comes_back_after_a_resize_is_caught: ShrinkKeepsData,
    a_rollback_that_forgets_the_head_is_caught: RollbackForgetsHead,
    a_hold_that_is_ignored_is_caught: HoldIgnored,
    a_tag_that_is_not_logged_is_caught: TagNotLogged,
    a_release_that_takes_the_holds_of_others_is_caught: ReleaseTakesAll,
    a_read_error_taken_for_the_end_of_the_log_is_caught: ReadErrorIsEnd,
    a_read_of_what_a_kill_may_lose_is_caught: EarlyRead,
    a_difference_without_holes_is_caught: DiffMissesHoles,
    a_hole_where_data_is_is_caught: HoleTooMany,
    bytes_beside_a_request_that_change_are_caught: NeighbourLost,
}
