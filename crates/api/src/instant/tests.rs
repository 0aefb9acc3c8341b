//! Times and spans.

use super::*;

#[test]
fn spans_have_units() {
    for (text, seconds) in [("90", 90), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600)] {
        assert_eq!(parse_span(text), Ok(Duration::from_secs(seconds)), "{text}");
    }
    for text in ["", "h", "-1h", "1y", "1.5h", "99999999999999999999s", "99999999999w"] {
        assert!(parse_span(text).is_err(), "{text}");
    }
}

#[test]
fn times_are_absolute_or_from_now() {
    let now = from_millis(1_000_000_000_000);
    assert_eq!(parse_time("2001-09-09T01:46:40Z", now), Ok(now));
    assert_eq!(parse_time("2001-09-09T03:46:40+02:00", now), Ok(now));
    assert_eq!(parse_time("2001-09-10", now).map(|t| t.to_string()), Ok("2001-09-10T00:00:00Z".to_owned()));
    assert_eq!(parse_time("1h", now).map(to_millis), Ok(1_000_003_600_000));
    assert!(parse_time("tomorrow", now).is_err());
}

#[test]
fn milliseconds_survive_the_round_trip() {
    for millis in [0, 1, 1_764_000_000_123] {
        assert_eq!(to_millis(from_millis(millis)), millis);
    }
    assert_eq!(from_millis(u64::MAX), Timestamp::MAX);
}

#[test]
fn spans_are_shown_in_their_two_largest_units() {
    let cases =
        [(0, "0 s"), (45, "45 s"), (60, "1 min"), (750, "12 min 30 s"), (12_000, "3 h 20 min"), (3605, "1 h"), (190_800, "2 d 5 h")];
    cases.iter().for_each(|(seconds, text)| assert_eq!(show_span(*seconds), *text));
}

#[test]
fn times_that_are_over_and_rough_spans() {
    let now: Timestamp = "2027-01-02T00:00:00Z".parse().expect("a time");
    let at = |text: &str| parse_past(text, now).map(|time| time.to_string());
    assert_eq!(at("24h").as_deref(), Ok("2027-01-01T00:00:00Z"));
    assert_eq!(at("2026-12-31").as_deref(), Ok("2026-12-31T00:00:00Z"));
    assert!(at("yesterday").is_err());
    let said = [0, 61, 5399, 5400, 100_000, 200_000].map(|seconds| about(Duration::from_secs(seconds)));
    assert_eq!(said, ["1 min", "2 min", "90 min", "2 h", "28 h", "2 days"]);
}
