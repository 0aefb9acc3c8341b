//! When a policy runs: the pure decision which instant comes next after another.
//!
//! Steps shorter than a day are multiples of local time, also after a clock change. Days have times
//! of the clock on the wall. A time that a clock change skips is moved forward by the length of the gap, and a time that
//! occurs twice is taken at its first occurrence: each date has each time once.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;

use super::keep::{Step, Unit};

#[cfg(test)]
mod tests;

/// Most days that are searched for the next run: a run every ten years is found.
const MOST_DAYS: i32 = 3700;
/// Most years between two runs.
const MOST_YEARS: u32 = 10;
/// Most times of a day.
const MOST_TIMES: usize = 24;

/// Days on which a policy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Days {
    /// The first day of each step of days, weeks, months or years.
    Each(Step),
    /// These days of the week; bit 0 is Monday.
    OfWeek(u8),
    /// These days of the month; a day that a month does not have is its last one.
    OfMonth(Vec<i8>),
}

/// When a policy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// At multiples of so many seconds of local time.
    Every(u64),
    /// On some days at some times.
    On(OnDays),
}

/// Days and times of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnDays {
    days: Days,
    times: Vec<Time>,
}

impl Schedule {
    /// Returns the schedule that runs once in each step, at its beginning.
    pub(crate) fn each(step: Step) -> Result<Schedule, String> {
        match step.unit {
            Unit::Second | Unit::Minute | Unit::Hour => Ok(Schedule::Every(step.seconds())),
            Unit::Day | Unit::Week | Unit::Month | Unit::Year if step.seconds() > u64::from(MOST_YEARS) * 31_556_952 => {
                Err(format!("a snapshot every {step} is too rare; the longest step is {MOST_YEARS} years"))
            }
            Unit::Day | Unit::Week | Unit::Month | Unit::Year => {
                Ok(Schedule::On(OnDays { days: Days::Each(step), times: vec![Time::midnight()] }))
            }
        }
    }

    /// Returns the usual time between two runs in seconds, at least 1.
    pub(crate) fn interval(&self) -> u64 {
        let (days, times) = match self {
            Schedule::Every(seconds) => return *seconds,
            Schedule::On(on) => (&on.days, on.times.len() as u64),
        };
        let of_days = match days {
            Days::Each(step) => step.seconds(),
            Days::OfWeek(mask) => 7 * 86_400 / u64::from(mask.count_ones().max(1)),
            Days::OfMonth(days) => 31_556_952 / 12 / days.len().max(1) as u64,
        };
        (of_days / times.max(1)).max(1)
    }

    /// Returns the first run after `time`; `Timestamp::MAX` at the end of the calendar.
    pub(crate) fn next_after(&self, zone: &TimeZone, time: Timestamp) -> Timestamp {
        match self {
            Schedule::Every(seconds) => Steps::of(*seconds).next_after(zone, time).unwrap_or(Timestamp::MAX),
            Schedule::On(on) => on.next_after(zone, time).unwrap_or(Timestamp::MAX),
        }
    }

    /// Counts the runs after `from` and not after `to`, up to `most`.
    pub(crate) fn count(&self, zone: &TimeZone, from: Timestamp, to: Timestamp, most: u64) -> u64 {
        if let Schedule::Every(seconds) = self {
            return Steps::of(*seconds).count(zone, from, to, most);
        }
        let mut at = from;
        for count in 0..most {
            at = self.next_after(zone, at);
            if at > to {
                return count;
            }
        }
        most
    }
}

/// Runs at multiples of a step of local time.
///
/// A clock that is set back repeats its multiples. A clock that is set forward over one or more of
/// them runs once, at the change.
struct Steps {
    /// Seconds, at least 1.
    step: i64,
}

impl Steps {
    fn of(seconds: u64) -> Steps {
        Steps { step: i64::try_from(seconds).unwrap_or(i64::MAX).max(1) }
    }

    /// Returns the first run after `time`; `None` at the end of the calendar.
    fn next_after(&self, zone: &TimeZone, time: Timestamp) -> Option<Timestamp> {
        let mut time = time;
        loop {
            let offset = i64::from(zone.to_offset(time).seconds());
            let next = (time.as_second() + offset).div_euclid(self.step).checked_add(1)?.checked_mul(self.step)? - offset;
            let change = zone.following(time).next().filter(|change| change.timestamp().as_second() <= next);
            let Some(change) = change else {
                return Timestamp::from_second(next).ok();
            };
            // the clock shows `shown` instead of `due` at the change
            let at = change.timestamp().as_second();
            let (due, shown) = (at + offset, at + i64::from(change.offset().seconds()));
            if shown.div_euclid(self.step) * self.step >= due.min(shown) {
                return Some(change.timestamp());
            }
            time = change.timestamp();
        }
    }

    /// Counts the runs after `from` and not after `to`, up to `most`, without counting each.
    fn count(&self, zone: &TimeZone, from: Timestamp, to: Timestamp, most: u64) -> u64 {
        let (mut count, mut at) = (0u64, from);
        while count < most {
            let Some(first) = self.next_after(zone, at).filter(|first| *first <= to) else {
                break;
            };
            // until the next change of the clock, one run follows another after a step
            let change = zone.following(first).next().map_or(i64::MAX, |change| change.timestamp().as_second() - 1);
            let on_step = (first.as_second() + i64::from(zone.to_offset(first).seconds())) % self.step == 0;
            let more = if on_step { (to.as_second().min(change) - first.as_second()) / self.step } else { 0 };
            count = count.saturating_add(1 + more.unsigned_abs());
            at = Timestamp::from_second(first.as_second() + more * self.step).unwrap_or(Timestamp::MAX);
        }
        count.min(most)
    }
}

impl OnDays {
    fn next_after(&self, zone: &TimeZone, time: Timestamp) -> Option<Timestamp> {
        // a gap may move a time of the day before beyond midnight
        let mut date = zone.to_datetime(time).date().yesterday().ok()?;
        for _ in 0..MOST_DAYS {
            if self.days.has(date) {
                let runs = self.times.iter().filter_map(|at| zone.to_timestamp(date.to_datetime(*at)).ok());
                if let Some(next) = runs.filter(|run| *run > time).min() {
                    return Some(next);
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }
}

impl Days {
    fn has(&self, date: Date) -> bool {
        match self {
            Days::OfWeek(mask) => mask >> date.weekday().to_monday_zero_offset() & 1 == 1,
            Days::OfMonth(days) => days.iter().any(|day| (*day).min(date.days_in_month()) == date.day()),
            Days::Each(step) => {
                let is_first = match step.unit {
                    Unit::Week => date.weekday() == Weekday::Monday,
                    Unit::Month => date.day() == 1,
                    Unit::Year => date.day() == 1 && date.month() == 1,
                    Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => true,
                };
                let bucket =
                    |date: Date| TimeZone::UTC.to_timestamp(date.to_datetime(Time::midnight())).map(|at| step.bucket(&TimeZone::UTC, at));
                let before = date.yesterday().map(bucket);
                is_first && !matches!((bucket(date), before), (Ok(here), Ok(Ok(before))) if here == before)
            }
        }
    }
}

const WEEK: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl FromStr for Schedule {
    type Err = String;

    /// `hourly`, `daily 02:30`, `mon-fri 06:00,18:00`, `day 15,last 01:00`, `02:30`.
    fn from_str(text: &str) -> Result<Schedule, String> {
        let lower = text.to_lowercase();
        let words: Vec<&str> = lower.split_whitespace().collect();
        let step = |unit| Days::Each(Step { count: 1, unit });
        let (days, rest) = match words.as_slice() {
            ["minutely"] => return Ok(Schedule::Every(60)),
            ["hourly"] => return Ok(Schedule::Every(3600)),
            ["daily", rest @ ..] => (step(Unit::Day), rest),
            ["weekly", rest @ ..] => (step(Unit::Week), rest),
            ["monthly", rest @ ..] => (step(Unit::Month), rest),
            ["yearly", rest @ ..] => (step(Unit::Year), rest),
            ["day", days, rest @ ..] => (Days::OfMonth(days_of_month(days).ok_or_else(|| unknown(text))?), rest),
            [time] if time.contains(':') => (step(Unit::Day), words.as_slice()),
            [days, rest @ ..] => (Days::OfWeek(days_of_week(days).ok_or_else(|| unknown(text))?), rest),
            [] => return Err(unknown(text)),
        };
        let times = match rest {
            [] => vec![Time::midnight()],
            [times] => times.split(',').map(time_of_day).collect::<Option<Vec<Time>>>().ok_or_else(|| unknown(text))?,
            _ => return Err(unknown(text)),
        };
        if times.len() > MOST_TIMES {
            return Err(format!("'{text}' has more than {MOST_TIMES} times; give fewer, or 'hourly'"));
        }
        Ok(Schedule::On(OnDays { days, times }))
    }
}

fn unknown(text: &str) -> String {
    format!(
        "'{text}' is not a calendar time; give for example hourly, daily, 'daily 02:30', 'mon-fri 06:00,18:00', 'day 1,15 03:00', 'day last', weekly, monthly or yearly"
    )
}

fn time_of_day(word: &str) -> Option<Time> {
    let (hour, rest) = word.split_once(':')?;
    let (minute, second) = rest.split_once(':').unwrap_or((rest, "0"));
    let number = |text: &str| text.parse::<i8>().ok().filter(|_| text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit()));
    Time::new(number(hour)?, number(minute)?, number(second)?, 0).ok()
}

fn days_of_week(word: &str) -> Option<u8> {
    let day = |name: &str| WEEK.iter().position(|known| *known == name);
    let mut mask = 0u8;
    for part in word.split(',') {
        let part = part.replace("..", "-");
        let (from, to) = part.split_once('-').map_or((part.as_str(), part.as_str()), |range| range);
        let (from, to) = (day(from)?, day(to)?);
        // a range may go over the end of the week
        let length = (to + 7 - from) % 7;
        (0..=length).for_each(|n| mask |= 1 << ((from + n) % 7));
    }
    Some(mask)
}

fn days_of_month(word: &str) -> Option<Vec<i8>> {
    let day = |word: &str| match word {
        "last" => Some(31),
        number => number.parse::<i8>().ok().filter(|day| (1..=31).contains(day)),
    };
    word.split(',').map(day).collect()
}
