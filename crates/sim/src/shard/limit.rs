//! Checks a volume's limits: rates stay below them, and delayed requests are admitted in order and
//! in time.

use std::collections::VecDeque;

use millpond_block::{Op, Request, Tag};
use millpond_engine::{Limits, Rate};

use super::meter::{Meter, SECOND, cost};
use crate::oracle::{Verdict, broken};

/// Allowance that accumulates for a rate, in nanoseconds: a tenth of a second.
const SLACK: u64 = 100_000_000;

/// The limits of one volume.
#[derive(Debug)]
pub struct Limit {
    /// The limits in force.
    pub limits: Limits,
    /// For each rate, a meter of the rate and a meter of its burst.
    meters: Vec<[Option<Meter>; 2]>,
    /// Delayed reads, and all other delayed requests.
    held: [VecDeque<(Tag, Request)>; 2],
    /// Delayed requests are admitted regardless of the limits.
    pub hurry: bool,
}

/// Returns the amounts of a request, in the order of [`Limits::rates`].
fn counts(request: &Request) -> [u64; 6] {
    let (reads, writes) = (request.op == Op::Read, request.op == Op::Write);
    let limited = !matches!(request.op, Op::Flush | Op::Cache);
    let bytes = |counted: bool| if counted { request.range.length } else { 0 };
    let ones = [limited, reads, limited && !reads].map(u64::from);
    [ones[0], ones[1], ones[2], bytes(reads || writes), bytes(reads), bytes(writes)]
}

/// Returns the meter of a rate and that of its burst.
fn meters(rate: &Rate, now: u64) -> [Option<Meter>; 2] {
    if rate.sustained == 0 {
        return [None, None];
    }
    if rate.burst <= rate.sustained {
        return [Some(Meter::new(SLACK, now)), None];
    }
    // The amount that a burst adds to the sustained rate, as time at that rate.
    let more = u128::from(rate.burst - rate.sustained) * u128::from(rate.seconds.max(1)) * u128::from(SECOND);
    let saved = u64::try_from(more / u128::from(rate.sustained)).unwrap_or(u64::MAX).saturating_add(SLACK);
    [Some(Meter::new(saved, now)), Some(Meter::new(SLACK, now))]
}

impl Limit {
    /// Starts with full allowances.
    pub fn new(limits: Limits, now: u64) -> Limit {
        let meters = limits.rates().into_iter().map(|rate| meters(rate, now)).collect();
        Limit { limits, meters, held: Default::default(), hurry: false }
    }

    /// Changes the limits; delayed requests stay.
    pub fn set(&mut self, limits: Limits, now: u64) {
        if self.limits != limits {
            *self = Limit { held: std::mem::take(&mut self.held), hurry: self.hurry, ..Limit::new(limits, now) };
        }
    }

    /// Returns the meters that count a request, with its cost on each.
    fn run(&mut self, request: &Request) -> impl Iterator<Item = (&mut Meter, u64)> {
        let each = self.limits.rates().map(|rate| [rate.sustained, rate.burst]).into_iter().zip(counts(request));
        let each = self.meters.iter_mut().zip(each).filter(|(_, (_, amount))| *amount > 0);
        each.flat_map(|(meters, (rates, amount))| {
            meters.iter_mut().zip(rates).filter_map(move |(meter, rate)| Some((meter.as_mut()?, cost(amount, rate))))
        })
    }

    /// Returns whether requests are delayed.
    pub fn waits(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    fn place(request: &Request) -> usize {
        usize::from(request.op != Op::Read)
    }

    /// Checks a request that was admitted.
    pub fn passes(&mut self, tag: Tag, request: &Request, now: u64) -> Verdict {
        let free = counts(request) == [0; 6];
        if !free && let Some((first, _)) = self.held[Limit::place(request)].front() {
            return broken(format!("request #{} overtakes #{} at the limits of its volume", tag.0, first.0));
        }
        let hurry = self.hurry;
        let over = self.run(request).fold(false, |over, (meter, cost)| {
            let over = over | meter.is_over(now);
            meter.pay(cost, now);
            over
        });
        if over && !hurry {
            return broken(format!("request #{} passes the limits of its volume: {:?}", tag.0, self.limits));
        }
        Ok(())
    }

    /// Checks a request that is delayed.
    pub fn holds(&mut self, tag: Tag, request: Request) -> Verdict {
        if counts(&request) == [0; 6] {
            return broken(format!("request #{} is held by limits that do not count it", tag.0));
        }
        self.held[Limit::place(&request)].push_back((tag, request));
        Ok(())
    }

    /// Checks a delayed request that is admitted.
    pub fn releases(&mut self, tag: Tag, request: &Request, now: u64) -> Verdict {
        let place = Limit::place(request);
        let mut behind = std::mem::take(&mut self.held[place]);
        if behind.pop_front().map(|(tag, _)| tag) != Some(tag) {
            return broken(format!("request #{} is let in before others that were held longer", tag.0));
        }
        let verdict = self.passes(tag, request, now);
        self.held[place] = behind;
        verdict
    }

    /// Checks, after all possible admissions, that nothing is delayed too long.
    pub fn is_kept(&mut self, now: u64) -> Verdict {
        for place in [0, 1] {
            let Some((tag, request)) = self.held[place].front().copied() else { continue };
            if self.hurry || self.run(&request).all(|(meter, _)| meter.is_due(now)) {
                return broken(format!("request #{} is held although its time has come: {:?}", tag.0, self.limits));
            }
        }
        self.hurry = false;
        Ok(())
    }
}
