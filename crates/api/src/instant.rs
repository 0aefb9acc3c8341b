//! Times and spans as users type and read them; RFC 3339 in UTC.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::failure::{Failure, Outcome};
use crate::names::describe_look_alike;

#[cfg(test)]
mod tests;

/// Returns the current time in milliseconds, the engine's resolution.
pub fn now() -> Timestamp {
    from_millis(u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0))
}

/// Converts a time of the engine, in milliseconds since the Unix epoch. Times beyond the calendar
/// become `Timestamp::MAX`.
pub fn from_millis(millis: u64) -> Timestamp {
    i64::try_from(millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok()).unwrap_or(Timestamp::MAX)
}

/// Converts to milliseconds since the Unix epoch; earlier times become 0.
pub fn to_millis(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// Formats a span in its two largest units: `45 s`, `12 min 30 s`, `3 h 20 min`, `2 d 5 h`.
pub fn show_span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(units.len() - 1);
    let mut left = seconds;
    let part = |(unit, name): &(u64, &str)| {
        let count = left / unit;
        left %= unit;
        (count > 0 || seconds == 0).then(|| format!("{count} {name}"))
    };
    units.iter().skip(first).take(2).filter_map(part).collect::<Vec<_>>().join(" ")
}

/// Parses a span: `90s`, `15m`, `24h`, `7d`, `2w`; a bare number is seconds.
///
/// # Errors
/// Wrong usage.
pub fn parse_span(text: &str) -> Outcome<Duration> {
    if let Some(hint) = describe_look_alike(text) {
        return Err(Failure::usage(format!("not a time span: {hint}")));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" | "s" => Some(1),
        "m" | "min" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        "w" => Some(7 * 86_400),
        _ => None,
    };
    number
        .parse::<u64>()
        .ok()
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .filter(|seconds| *seconds <= 1000 * 366 * 86_400)
        .map(Duration::from_secs)
        .ok_or_else(|| Failure::usage(format!("'{text}' is not a time span; give for example 90s, 15m, 24h, 7d or 2w")))
}

/// Parses a point in time: RFC 3339, a date (its first moment in UTC), or a span from now (`24h`).
///
/// # Errors
/// Wrong usage.
pub fn parse_time(text: &str, now: Timestamp) -> Outcome<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(zoned) = text.parse::<Date>().map_err(|_| ()).and_then(|date| date.to_zoned(TimeZone::UTC).map_err(|_| ())) {
        return Ok(zoned.timestamp());
    }
    let span = parse_span(text.strip_prefix('+').unwrap_or(text))
        .map_err(|_| Failure::usage(format!("'{text}' is not a time; give for example 2027-01-31T12:00:00Z, 2027-01-31 or 24h")))?;
    now.checked_add(span).map_err(|_| Failure::usage(format!("'{text}' is too far away; give an earlier time")))
}

/// Parses a point in the past: RFC 3339, a date (its first moment in UTC), or a span before now
/// (`24h`).
///
/// # Errors
/// Wrong usage.
pub fn parse_past(text: &str, now: Timestamp) -> Outcome<Timestamp> {
    match parse_span(text) {
        Ok(span) => now.checked_sub(span).map_err(|_| Failure::usage(format!("'{text}' is too long ago; give a later time"))),
        Err(_) => parse_time(text, now),
    }
}

/// Formats a span approximately: `20 min`, `3 h`, `5 days`.
pub fn about(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..5400 => format!("{} min", seconds.div_ceil(60).max(1)),
        5400..172_800 => format!("{} h", (seconds + 1800) / 3600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}
