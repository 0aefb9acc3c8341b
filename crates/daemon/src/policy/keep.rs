//! The rules of a policy, and the pure decision which of its snapshots are superfluous.
//!
//! A rule `1h:7d` divides time into hours and keeps the first snapshot of each of the newest 168
//! hours that have one. It counts hours that have a snapshot, not hours of the clock: after a
//! downtime, or when the clock jumps, a snapshot goes only when a newer one takes its place. Order
//! is the order in which snapshots were taken, which no clock changes.
//!
//! INV-POLICY-1: the newest snapshot of a policy is never superfluous, and one new snapshot makes
//! at most one old representative of each rule superfluous.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::tz::TimeZone;

#[cfg(test)]
mod tests;

/// Most snapshots that the rules of a policy keep of one volume: a day of seconds fits.
pub(crate) const MOST_KEPT: u64 = 100_000;
/// Most rules of a policy.
const MOST_RULES: usize = 16;
/// Largest number of units in a step or a span.
const MOST_UNITS: u32 = 1_000_000;

/// Unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    const ALL: [(&'static str, Unit); 8] = [
        ("s", Unit::Second),
        ("m", Unit::Minute),
        ("min", Unit::Minute),
        ("h", Unit::Hour),
        ("d", Unit::Day),
        ("w", Unit::Week),
        ("mo", Unit::Month),
        ("y", Unit::Year),
    ];

    /// Returns its length in seconds; of months and years, the mean of the Gregorian calendar.
    fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3600,
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 31_556_952 / 12,
            Unit::Year => 31_556_952,
        }
    }
}

/// A number of units of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) count: u32,
    pub(crate) unit: Unit,
}

impl Step {
    /// Returns its length in seconds, of months and years the mean one.
    pub(crate) fn seconds(self) -> u64 {
        u64::from(self.count) * self.unit.seconds()
    }

    /// Returns the bucket of a time: the number of the step in local time. The offset from UTC
    /// belongs to buckets shorter than a day, so an hour that a clock change repeats is another
    /// hour.
    pub(crate) fn bucket(self, zone: &TimeZone, at: Timestamp) -> Bucket {
        let offset = zone.to_offset(at).seconds();
        let local = at.as_second() + i64::from(offset);
        let count = i64::from(self.count);
        let days = local.div_euclid(86_400);
        match self.unit {
            Unit::Second | Unit::Minute | Unit::Hour => {
                let seconds = i64::try_from(self.seconds()).unwrap_or(i64::MAX);
                Bucket { number: local.div_euclid(seconds), offset }
            }
            Unit::Day => Bucket { number: days.div_euclid(count), offset: 0 },
            // the epoch is a Thursday, weeks begin on Monday
            Unit::Week => Bucket { number: (days + 3).div_euclid(7).div_euclid(count), offset: 0 },
            Unit::Month | Unit::Year => {
                let date = zone.to_datetime(at).date();
                let year = i64::from(date.year());
                let number = if self.unit == Unit::Year { year } else { year * 12 + i64::from(date.month()) - 1 };
                Bucket { number: number.div_euclid(count), offset: 0 }
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Unit::ALL.iter().find(|(_, unit)| *unit == self.unit).map_or("", |(word, _)| word);
        write!(f, "{}{word}", self.count)
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, word) = text.split_at(digits);
        let unit = Unit::ALL.iter().find(|(known, _)| *known == word).map(|(_, unit)| *unit);
        let count = number.parse::<u32>().ok().filter(|count| (1..=MOST_UNITS).contains(count));
        match (count, unit) {
            (Some(count), Some(unit)) => Ok(Step { count, unit }),
            _ => Err(format!("'{text}' is not a span; give for example 1s, 15m, 1h, 1d, 1w, 1mo or 1y")),
        }
    }
}

/// A step of local time that a time is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    number: i64,
    offset: i32,
}

/// One rule: the first snapshot of each step is kept, for the newest steps that have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) every: Step,
    pub(crate) span: Step,
}

impl Rule {
    /// Returns the number of steps.
    pub(crate) fn kept(self) -> u64 {
        self.span.seconds().div_ceil(self.every.seconds().max(1))
    }
}

/// The rules of a policy, finest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep(Vec<Rule>);

impl Keep {
    /// Returns, for things of one kind that were made at these times, in this order, which ones are
    /// superfluous. Days are those of the host's time zone.
    pub fn superfluous_of(&self, made: &[Timestamp]) -> Vec<bool> {
        let zone = TimeZone::system();
        let buckets: Vec<Box<[Bucket]>> = made.iter().map(|at| self.buckets(&zone, *at)).collect();
        self.superfluous(&buckets.iter().map(|one| &**one).collect::<Vec<_>>())
    }

    /// Returns the rules, finest first; there is at least one.
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// Returns the step of the finest rule.
    pub(crate) fn finest(&self) -> Step {
        self.0.first().map_or(Step { count: 1, unit: Unit::Day }, |rule| rule.every)
    }

    /// Returns the most snapshots that are kept of one volume.
    pub(crate) fn most(&self) -> u64 {
        self.0.iter().map(|rule| rule.kept()).sum()
    }

    /// Returns the buckets of a time, one for each rule.
    pub(crate) fn buckets(&self, zone: &TimeZone, at: Timestamp) -> Box<[Bucket]> {
        self.0.iter().map(|rule| rule.every.bucket(zone, at)).collect()
    }

    /// Returns, for the snapshots of one volume in the order they were taken, which ones are
    /// superfluous. Each is given by its buckets.
    pub(crate) fn superfluous(&self, taken: &[&[Bucket]]) -> Vec<bool> {
        let mut superfluous = vec![true; taken.len()];
        if let Some(newest) = superfluous.last_mut() {
            *newest = false;
        }
        for (of_rule, rule) in self.0.iter().enumerate() {
            let bucket = |at: usize| taken.get(at).and_then(|buckets| buckets.get(of_rule));
            let mut left = rule.kept();
            for at in (0..taken.len()).rev() {
                let is_first = at == 0 || bucket(at - 1) != bucket(at);
                if !is_first {
                    continue;
                }
                if left == 0 {
                    break;
                }
                left -= 1;
                superfluous.get_mut(at).into_iter().for_each(|one| *one = false);
            }
        }
        superfluous
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.0.iter().map(|rule| format!("{}:{}", rule.every, rule.span)).collect();
        f.write_str(&rules.join(" "))
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        let mut rules = Vec::new();
        for word in text.split_whitespace() {
            let Some((every, span)) = word.split_once(':') else {
                return Err(format!("'{word}' is not a rule; give EVERY:FOR, for example 1h:7d"));
            };
            let rule = Rule { every: every.parse()?, span: span.parse()? };
            if rule.span.seconds() < rule.every.seconds() {
                return Err(format!("'{word}' keeps nothing, because {span} is shorter than {every}; give a longer span"));
            }
            if rules.iter().any(|other: &Rule| other.every.seconds() == rule.every.seconds()) {
                return Err(format!("two rules are for every {every}; give one of them"));
            }
            rules.push(rule);
        }
        if rules.is_empty() || rules.len() > MOST_RULES {
            return Err(format!("give 1 to {MOST_RULES} rules, for example '1h:7d 1d:60d'"));
        }
        rules.sort_by_key(|rule| rule.every.seconds());
        let keep = Keep(rules);
        match keep.most() {
            most if most > MOST_KEPT => {
                Err(format!("'{text}' keeps up to {most} snapshots of a volume, the most is {MOST_KEPT}; give shorter spans"))
            }
            _ => Ok(keep),
        }
    }
}
