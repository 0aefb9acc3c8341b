//! Rules, against an implementation by groups, over clock changes, month ends and clock jumps.

use proptest::prelude::*;

use super::*;

fn keep(text: &str) -> Keep {
    text.parse().expect("rules")
}

fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("zone")
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("time")
}

/// Returns the times that stay, by grouping neighbours of one bucket.
fn twin(keep: &Keep, zone: &TimeZone, times: &[Timestamp]) -> Vec<Timestamp> {
    let mut stay = vec![false; times.len()];
    for rule in keep.rules() {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (n, time) in times.iter().enumerate() {
            let bucket = rule.every.bucket(zone, *time);
            match groups.last_mut() {
                Some(group) if rule.every.bucket(zone, times[group[0]]) == bucket => group.push(n),
                _ => groups.push(vec![n]),
            }
        }
        let skipped = groups.len().saturating_sub(rule.kept() as usize);
        groups.iter().skip(skipped).for_each(|group| stay[group[0]] = true);
    }
    if let Some(newest) = stay.last_mut() {
        *newest = true;
    }
    times.iter().zip(stay).filter(|(_, stays)| *stays).map(|(time, _)| *time).collect()
}

fn thinned(keep: &Keep, zone: &TimeZone, times: &[Timestamp]) -> Vec<Timestamp> {
    let buckets: Vec<Box<[Bucket]>> = times.iter().map(|time| keep.buckets(zone, *time)).collect();
    let taken: Vec<&[Bucket]> = buckets.iter().map(|buckets| &**buckets).collect();
    times.iter().zip(keep.superfluous(&taken)).filter(|(_, gone)| !gone).map(|(time, _)| *time).collect()
}

/// Takes a snapshot at each time, and thins after each.
fn run(keep: &Keep, zone: &TimeZone, times: &[Timestamp]) -> Vec<Timestamp> {
    let mut held: Vec<Timestamp> = Vec::new();
    for time in times {
        held.push(*time);
        held = thinned(keep, zone, &held);
    }
    held
}

fn every(step: i64, from: &str, count: i64) -> Vec<Timestamp> {
    let from = at(from).as_second();
    (0..count).map(|n| Timestamp::from_second(from + n * step).expect("time")).collect()
}

#[test]
fn rules_are_read_sorted_and_written_again() {
    assert_eq!(keep("1d:60d 1s:1h  1m:1d 1h:7d").to_string(), "1s:1h 1m:1d 1h:7d 1d:60d");
    assert_eq!(keep("1mo:1y 1y:10y 1w:3mo 5min:2h").to_string(), "5m:2h 1w:3mo 1mo:1y 1y:10y");
    assert_eq!(keep("1s:1h 1m:1d 1h:7d 1d:60d").most(), 3600 + 1440 + 168 + 60);
    assert_eq!((keep("1mo:1y").most(), keep("1d:1y").most(), keep("1y:10y").most()), (12, 366, 10));
    for (wrong, why) in [
        ("", "give 1 to 16 rules"),
        ("1h", "not a rule"),
        ("1h:30m", "keeps nothing"),
        ("0s:1h", "not a span"),
        ("1x:1h", "not a span"),
        ("1h:7d 60m:8d", "two rules"),
        ("1s:7d", "the most is 100000"),
        ("9999999999s:1d", "not a span"),
    ] {
        let error = wrong.parse::<Keep>().expect_err(wrong);
        assert!(error.contains(why), "{wrong}: {error}");
    }
}

#[test]
fn a_steady_second_by_second_policy_keeps_as_many_as_its_rules_say() {
    let keep = keep("1s:10s 5s:30s 1m:5m");
    let held = run(&keep, &TimeZone::UTC, &every(1, "2026-03-01T00:00:00Z", 600));
    let seconds: Vec<i64> = held.iter().map(|time| time.as_second() - at("2026-03-01T00:00:00Z").as_second()).collect();
    assert_eq!(seconds, [300, 360, 420, 480, 540, 570, 575, 580, 585, 590, 591, 592, 593, 594, 595, 596, 597, 598, 599]);
}

#[test]
fn days_are_local_and_an_hour_that_occurs_twice_is_two_hours() {
    let zone = berlin();
    // from 48 hours before the change of autumn: a day of 25 hours has 25 hours and is one day
    let hours = every(3600, "2026-10-23T22:00:00Z", 24 * 4 + 1);
    assert_eq!(thinned(&keep("1h:200h"), &zone, &hours).len(), 97);
    let days = thinned(&keep("1d:60d"), &zone, &hours);
    // midnights of Berlin, and the newest one
    let wanted = ["2026-10-23T22:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z", "2026-10-27T22:00:00Z"];
    assert_eq!(days, wanted.map(at));
    // spring: a day of 23 hours
    let days = thinned(&keep("1d:60d"), &zone, &every(3600, "2026-03-27T23:00:00Z", 24 * 3));
    assert_eq!(days, ["2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"].map(at));
}

#[test]
fn months_and_years_end_with_the_calendar() {
    let days = every(86_400, "2027-12-30T12:00:00Z", 430);
    let months = thinned(&keep("1mo:2y"), &TimeZone::UTC, &days);
    let first_ones: Vec<String> = months.iter().map(|time| time.strftime("%m-%d").to_string()).take(5).collect();
    assert_eq!(first_ones, ["12-30", "01-01", "02-01", "03-01", "04-01"], "2028 is a leap year");
    assert_eq!(thinned(&keep("1y:10y"), &TimeZone::UTC, &days).len(), 4, "2027, 2028, 2029, and the newest");
}

#[test]
fn neither_a_downtime_nor_a_clock_jump_destroys_old_snapshots_at_once() {
    let keep = keep("1h:1d 1d:7d");
    let mut held = run(&keep, &TimeZone::UTC, &every(3600, "2026-01-01T00:00:00Z", 24 * 10));
    let before = held.clone();
    // five years later; then back
    for later in ["2031-01-01T00:30:00Z", "2026-01-11T00:30:00Z"] {
        held.push(at(later));
        held = thinned(&keep, &TimeZone::UTC, &held);
    }
    let lost = before.iter().filter(|time| !held.contains(time)).count();
    assert!(lost <= 4, "{lost} of {} are lost", before.len());
    assert_eq!(held.last(), Some(&at("2026-01-11T00:30:00Z")));
}

fn any_rules() -> impl Strategy<Value = Keep> {
    let step = proptest::sample::subsequence(
        vec!["1s:7s", "5s:40s", "1m:6m", "15m:2h", "1h:9h", "6h:2d", "1d:5d", "2d:9d", "1w:3w", "1mo:4mo", "1y:3y"],
        1..6,
    );
    step.prop_map(|rules| keep(&rules.join(" ")))
}

/// Gaps between snapshots: seconds to months, and backwards.
fn any_gap(back: bool) -> impl Strategy<Value = i64> {
    let least: i64 = if back { -100_000 } else { 0 };
    prop_oneof![8 => 0..3i64, 6 => 1..120i64, 4 => 60..7200i64, 3 => 3600..400_000i64, 1 => 1_000_000..40_000_000i64, 1 => least..1i64]
}

fn times(gaps: Vec<i64>) -> Vec<Timestamp> {
    let mut second = at("2026-10-24T20:00:00Z").as_second();
    gaps.into_iter()
        .map(|gap| {
            second += gap;
            Timestamp::from_second(second).expect("time")
        })
        .collect()
}

proptest! {
    #[test]
    fn the_decision_is_that_of_the_twin(keep in any_rules(), gaps in prop::collection::vec(any_gap(true), 0..120)) {
        let times = times(gaps);
        prop_assert_eq!(thinned(&keep, &berlin(), &times), twin(&keep, &berlin(), &times));
    }

    #[test]
    fn thinning_after_each_snapshot_is_thinning_once(keep in any_rules(), gaps in prop::collection::vec(any_gap(false), 0..120)) {
        let times = times(gaps);
        // all but the newest, which stays in any case, so that its place in a bucket does not
        // matter
        prop_assert_eq!(run(&keep, &berlin(), &times), thinned(&keep, &berlin(), &times));
    }

    #[test]
    fn one_more_snapshot_costs_at_most_one_of_each_rule(keep in any_rules(), gaps in prop::collection::vec(any_gap(true), 1..120)) {
        let times = times(gaps);
        let (newest, earlier) = times.split_last().expect("one");
        let held = thinned(&keep, &berlin(), earlier);
        let mut after = held.clone();
        after.push(*newest);
        let after = thinned(&keep, &berlin(), &after);
        // and the one that was kept as the newest
        prop_assert!(held.len() <= after.len() + keep.rules().len());
        prop_assert_eq!(after.last(), Some(newest));
        prop_assert!(after.len() as u64 <= keep.most() + 1);
    }
}
