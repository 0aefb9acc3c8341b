//! Calendar times, against a search through every minute of local time.

use jiff::ToSpan;
use jiff::civil::DateTime;
use proptest::prelude::*;

use super::*;

fn schedule(text: &str) -> Schedule {
    text.parse().expect("schedule")
}

fn each(text: &str) -> Schedule {
    Schedule::each(text.parse().expect("step")).expect("schedule")
}

fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("zone")
}

fn runs(schedule: &Schedule, zone: &TimeZone, after: &str, count: usize) -> Vec<String> {
    let mut at: Timestamp = after.parse().expect("time");
    (0..count)
        .map(|_| {
            at = schedule.next_after(zone, at);
            at.to_string()
        })
        .collect()
}

#[test]
fn a_time_that_a_clock_change_skips_or_repeats_is_once_a_day() {
    let nightly = schedule("daily 02:30");
    assert_eq!(
        runs(&nightly, &berlin(), "2026-03-27T12:00:00Z", 3),
        ["2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        "02:30 is skipped, so 03:30 of summer time"
    );
    assert_eq!(runs(&nightly, &berlin(), "2026-10-24T12:00:00Z", 2), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"], "the first of two");
    // at the time of the first of two, the next is on the next day
    assert_eq!(runs(&nightly, &berlin(), "2026-10-25T01:00:00Z", 1), ["2026-10-26T01:30:00Z"]);
    // the hours of the clock change are 25
    assert_eq!(
        schedule("hourly").count(
            &berlin(),
            "2026-10-24T22:00:00Z".parse().expect("time"),
            "2026-10-25T23:00:00Z".parse().expect("time"),
            99
        ),
        25
    );
}

#[test]
fn days_of_months_and_weeks() {
    assert_eq!(
        runs(&schedule("day last 23:00"), &TimeZone::UTC, "2028-01-15T00:00:00Z", 4),
        ["2028-01-31T23:00:00Z", "2028-02-29T23:00:00Z", "2028-03-31T23:00:00Z", "2028-04-30T23:00:00Z"]
    );
    assert_eq!(
        runs(&schedule("day 15,30"), &TimeZone::UTC, "2027-02-01T00:00:00Z", 3),
        ["2027-02-15T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-15T00:00:00Z"]
    );
    // 2026-11-26 is a Thursday
    assert_eq!(
        runs(&schedule("sat-mon,wed 06:00,18:00"), &TimeZone::UTC, "2026-11-26T00:00:00Z", 7),
        [
            "2026-11-28T06:00:00Z",
            "2026-11-28T18:00:00Z",
            "2026-11-29T06:00:00Z",
            "2026-11-29T18:00:00Z",
            "2026-11-30T06:00:00Z",
            "2026-11-30T18:00:00Z",
            "2026-12-02T06:00:00Z"
        ]
    );
    assert_eq!(runs(&each("2w"), &TimeZone::UTC, "2026-11-26T00:00:00Z", 2), ["2026-11-30T00:00:00Z", "2026-12-14T00:00:00Z"]);
    assert_eq!(runs(&each("1mo"), &berlin(), "2026-11-26T00:00:00Z", 2), ["2026-11-30T23:00:00Z", "2026-12-31T23:00:00Z"]);
    assert_eq!(runs(&schedule("yearly"), &TimeZone::UTC, "2026-11-26T00:00:00Z", 1), ["2027-01-01T00:00:00Z"]);
}

#[test]
fn nonsense_is_refused() {
    for wrong in [
        "",
        "sometimes",
        "daily 25:00",
        "daily 2:3:4:5",
        "fry 02:00",
        "day 32",
        "day 0",
        "mon 02:00 03:00",
        "daily 02:",
        "02:60",
        "hourly 02:00",
    ] {
        assert!(wrong.parse::<Schedule>().is_err(), "{wrong}");
    }
    assert!(Schedule::each("11y".parse().expect("step")).is_err());
}

#[test]
fn seconds_are_counted_without_counting_each() {
    let zone = TimeZone::UTC;
    let time = |text: &str| text.parse::<Timestamp>().expect("time");
    let each = each("1s");
    assert_eq!(each.count(&zone, time("2026-01-01T00:00:00.5Z"), time("2026-01-02T00:00:00.4Z"), u64::MAX), 86_400);
    assert_eq!(each.count(&zone, time("2026-01-01T00:00:00Z"), time("2026-01-01T00:00:00.9Z"), 9), 0);
    assert_eq!(each.count(&zone, time("2026-01-02T00:00:00Z"), time("2026-01-01T00:00:00Z"), 9), 0);
    assert_eq!(schedule("daily").count(&zone, time("2026-01-01T00:00:00Z"), time("2026-01-09T00:00:00Z"), 99), 8);
}

/// Returns the runs after `from` and not after `to`.
fn runs_until(step: &str, zone: &TimeZone, from: &str, to: &str) -> Vec<String> {
    let (schedule, to) = (each(step), to.parse::<Timestamp>().expect("time"));
    let mut at = schedule.next_after(zone, from.parse().expect("time"));
    let mut runs = Vec::new();
    while at <= to {
        runs.push(at.to_string());
        at = schedule.next_after(zone, at);
    }
    assert_eq!(schedule.count(zone, from.parse().expect("time"), to, 999), runs.len() as u64);
    runs
}

#[test]
fn steps_stay_on_the_clock_on_the_wall_over_its_changes() {
    // 00:00, 06:00, 12:00 in Berlin; set back from 03:00 to 02:00 at 01:00Z
    assert_eq!(
        runs_until("6h", &berlin(), "2028-10-28T21:59:59Z", "2028-10-29T11:00:00Z"),
        ["2028-10-28T22:00:00Z", "2028-10-29T05:00:00Z", "2028-10-29T11:00:00Z"]
    );
    // 02:00 occurs twice, hours and steps of two hours run twice
    assert_eq!(
        runs_until("1h", &berlin(), "2028-10-28T23:59:59Z", "2028-10-29T02:00:00Z"),
        ["2028-10-29T00:00:00Z", "2028-10-29T01:00:00Z", "2028-10-29T02:00:00Z"]
    );
    assert_eq!(
        runs_until("2h", &berlin(), "2028-10-28T22:00:00Z", "2028-10-29T03:00:00Z"),
        ["2028-10-29T00:00:00Z", "2028-10-29T01:00:00Z", "2028-10-29T03:00:00Z"]
    );
    // set forward from 02:00 to 03:00 at 01:00Z: the run of 02:00 is there, the next is at 04:00
    assert_eq!(
        runs_until("2h", &berlin(), "2026-03-28T23:00:00Z", "2026-03-29T02:00:00Z"),
        ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]
    );
    assert_eq!(
        runs_until("6h", &berlin(), "2026-03-28T22:59:59Z", "2026-03-29T10:00:00Z"),
        ["2026-03-28T23:00:00Z", "2026-03-29T04:00:00Z", "2026-03-29T10:00:00Z"]
    );
}

#[test]
fn a_midnight_that_the_clock_skips_runs_at_the_change() {
    // Santiago goes from 24:00 of September 5 to 01:00 of September 6, at 04:00Z
    let santiago = TimeZone::get("America/Santiago").expect("zone");
    assert_eq!(
        runs_until("12h", &santiago, "2026-09-05T16:00:00Z", "2026-09-06T15:00:00Z"),
        ["2026-09-06T04:00:00Z", "2026-09-06T15:00:00Z"]
    );
}

/// Returns the first run after `time` by looking at every minute of local time within 40 days.
fn twin(zone: &TimeZone, due: impl Fn(DateTime) -> bool, time: Timestamp) -> Option<Timestamp> {
    let mut local = zone.to_datetime(time).date().checked_sub(2.days()).ok()?.to_datetime(Time::midnight());
    let mut first: Option<Timestamp> = None;
    for _ in 0..40 * 1440 {
        if due(local) {
            let at = zone.to_timestamp(local).ok()?;
            if at > time {
                first = Some(first.map_or(at, |first| first.min(at)));
            }
        }
        local = local.checked_add(1.minutes()).ok()?;
    }
    first
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_next_run_is_that_of_the_twin(
        // around both changes, a leap day and the end of a year
        around in prop::sample::select(vec!["2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z", "2028-02-27T12:00:00Z", "2026-12-30T12:00:00Z"]),
        ahead in 0..200_000i64,
        hour in 0..24i8,
        minute in 0..60i8,
        mask in 1..128u8,
        by_month in any::<bool>(),
        day in 1..32i8,
    ) {
        let time = around.parse::<Timestamp>().expect("time") + ahead.seconds();
        let days = if by_month { Days::OfMonth(vec![day]) } else { Days::OfWeek(mask) };
        let schedule = Schedule::On(OnDays { days, times: vec![Time::new(hour, minute, 0, 0).expect("time")] });
        let due = |local: DateTime| {
            let of_month = local.day() == day || (day > local.days_in_month() && local.day() == local.days_in_month());
            let of_week = mask & (1 << local.weekday().to_monday_zero_offset()) != 0;
            local.hour() == hour && local.minute() == minute && if by_month { of_month } else { of_week }
        };
        prop_assert_eq!(Some(schedule.next_after(&berlin(), time)), twin(&berlin(), due, time));
    }

    #[test]
    fn each_run_comes_after_the_one_before(
        // half of them in the two days before a clock change
        from in prop::sample::select(vec![1_760_000_000i64, 1_792_800_000, 1_856_304_000]),
        seconds in 0..172_800i64,
        days in 0..1000i64,
        near in any::<bool>(),
        text in prop::sample::select(vec!["1s", "7s", "90s", "1h", "6h", "1d", "3d", "1w", "1mo", "1y"]),
    ) {
        let schedule = each(text);
        let time = Timestamp::from_second(from + seconds + if near { 0 } else { days * 86_400 }).expect("time");
        let next = schedule.next_after(&berlin(), time);
        prop_assert!(next > time);
        // nothing lies in between: just before the run, it is the next one
        prop_assert_eq!(schedule.next_after(&berlin(), next - 1.milliseconds()), next);
        prop_assert_eq!(schedule.count(&berlin(), time, next, 9), 1);
        // counted at once or one by one over a change of the clock
        let mut at = time;
        (0..200).for_each(|_| at = schedule.next_after(&berlin(), at));
        prop_assert_eq!(schedule.count(&berlin(), time, at, u64::MAX), 200);
    }
}
