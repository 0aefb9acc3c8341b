//! Tests of the estimate, the target and the surplus.

use super::Stock;
use crate::{ReadySpace, Time};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn bounds() -> ReadySpace {
    ReadySpace::default()
}

/// Logs `bytes` per second for some seconds, with ten updates in each.
fn log(stock: &mut Stock, now: &mut u64, seconds: u64, bytes: u64) {
    for _ in 0..seconds * 10 {
        *now += 100;
        stock.count(bytes / 10);
        stock.at(Time(*now), 0);
    }
}

#[test]
fn the_target_jumps_up_at_once_and_falls_by_a_tenth_a_minute() {
    let (mut stock, mut now) = (Stock::new(Time(0)), 0);
    let target = |stock: &Stock| stock.target(&bounds(), 1 << 40, false, false);
    stock.at(Time(0), 0);
    assert_eq!(target(&stock), 256 * MIB);
    log(&mut stock, &mut now, 3, 200 * MIB);
    assert_eq!(target(&stock), 1200 * MIB, "three seconds of a minute");
    log(&mut stock, &mut now, 10, 200 * MIB);
    let full = target(&stock);
    assert_eq!(full, 5200 * MIB);
    // the minute of the writes ends
    now += 60_000;
    stock.at(Time(now), 0);
    assert_eq!(target(&stock), full);
    now += 60_000;
    stock.at(Time(now), 0);
    let fallen = target(&stock);
    assert!(fallen.abs_diff(full / 10 * 9) < MIB, "{fallen} after {full}");
    now += 600 * 60_000;
    stock.at(Time(now), 0);
    assert_eq!(target(&stock), 256 * MIB);
}

#[test]
fn the_target_keeps_within_its_bounds() {
    let (mut stock, mut now) = (Stock::new(Time(0)), 0);
    log(&mut stock, &mut now, 10, GIB);
    let target = |pool, rests, short| stock.target(&bounds(), pool, rests, short);
    assert_eq!(target(1 << 40, false, false), 8 * GIB);
    assert_eq!(target(4 * GIB, false, false), 2 * GIB, "half of the pool");
    assert_eq!(target(GIB / 4, false, false), 128 * MIB, "also where that is less than the least");
    assert_eq!(target(1 << 40, true, false), 256 * MIB, "at rest");
    assert_eq!(target(1 << 40, false, true), 2 * GIB, "on a host that is nearly full");
}

#[test]
fn what_the_log_gets_back_is_not_taken() {
    let mut stock = Stock::new(Time(0));
    for tenth in 1..=30 {
        stock.at(Time(tenth * 100), GIB + tenth * MIB);
    }
    assert_eq!(stock.taken_per_second(), 10 * MIB);
    for tenth in 31..=60 {
        stock.count(100 * MIB);
        stock.at(Time(tenth * 100), GIB);
    }
    assert_eq!(stock.taken_per_second(), 0, "it writes to what it gets back");
}

#[test]
fn the_end_of_a_burst_is_seen_within_its_second() {
    let mut stock = Stock::new(Time(0));
    for tenth in 1..=3 {
        stock.count(100 * MIB);
        stock.at(Time(tenth * 100), tenth * 100 * MIB);
    }
    assert_eq!(stock.logged_per_second(), 1000 * MIB);
    for tenth in 4..=6 {
        stock.count(MIB);
        stock.at(Time(tenth * 100), 300 * MIB);
    }
    assert_eq!(stock.logged_per_second(), 10 * MIB);
    assert_eq!(stock.taken_per_second(), 300 * MIB, "the second of the burst is not over");
}

#[test]
fn flushes_are_frequent_when_little_is_written_between_them() {
    let mut stock = Stock::new(Time(0));
    assert!(stock.flushes_often());
    // 40 MiB per second with 4,000 flushes
    for milli in 1..=3000 {
        stock.count(40 << 10);
        (0..4).for_each(|_| stock.flushed(Time(milli)));
        stock.at(Time(milli), 0);
        assert!(stock.flushes_often(), "millisecond {milli}");
    }
    // 40 MiB per second with the three flushes of a checkpoint in some seconds
    for milli in 3001..=9000 {
        stock.count(40 << 10);
        if milli % 4000 < 3 {
            stock.flushed(Time(milli));
        }
        stock.at(Time(milli), 0);
        assert!(!stock.flushes_often() || milli < 3030, "millisecond {milli}");
    }
    // flushes begin again
    for milli in 9001..=11_100 {
        stock.count(40 << 10);
        (0..4).for_each(|_| stock.flushed(Time(milli)));
        stock.at(Time(milli), 0);
    }
    assert!(stock.flushes_often());
}

#[test]
fn a_burst_counts_from_its_beginning() {
    let mut stock = Stock::new(Time(0));
    stock.at(Time(60_000), 0);
    stock.count(100 * MIB);
    stock.at(Time(60_020), 100 * MIB);
    assert_eq!(stock.logged_per_second(), 500 * MIB, "no window has ended");
}

#[test]
fn only_what_was_surplus_without_a_break_is_due() {
    let mut stock = Stock::new(Time(0));
    let mut see = |minute: u64, surplus: u64| {
        stock.see_surplus(Time(minute * 60_000), surplus, 600_000);
        stock.due
    };
    assert_eq!(see(0, 100), 0);
    assert_eq!(see(5, 40), 0, "the least counts");
    assert_eq!(see(9, 300), 0);
    assert_eq!(see(10, 300), 40);
    assert_eq!(see(11, 260), 40, "some of it may have gone: what is left is due");
    assert_eq!(see(12, 0), 0, "a break");
    assert_eq!(see(13, 500), 0);
    assert_eq!(see(22, 500), 0);
    assert_eq!(see(23, 500), 500);
}

#[test]
fn a_sixteenth_of_the_growth_may_be_prepared() {
    let mut stock = Stock::new(Time(0));
    stock.count(GIB);
    stock.at(Time(0), GIB);
    assert_eq!(stock.allowance, 0, "what was taken before the first turn does not count");
    stock.count(GIB);
    stock.at(Time(1), GIB);
    assert_eq!(stock.allowance, 0, "the log got back all that it took");
    stock.at(Time(2), GIB + 32 * MIB);
    assert_eq!(stock.allowance, 2 << 20);
    stock.charge(4 * MIB);
    assert_eq!(stock.allowance, -(2 << 20));
    stock.at(Time(3), 64 * GIB);
    assert_eq!(stock.allowance, 16 << 20, "no more than that is saved up");
    stock.at(Time(4), GIB);
    assert_eq!(stock.allowance, -(16 << 20), "a bound in the other direction");
}

#[test]
fn a_host_that_had_no_space_counts_as_full_for_a_while() {
    let mut stock = Stock::new(Time(0));
    stock.found_full(Time(1_000));
    assert!(stock.is_short(Time(60_999)) && !stock.is_short(Time(61_000)));
    stock.short = true;
    assert!(stock.is_short(Time(1 << 40)));
}
