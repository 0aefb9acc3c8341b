//! Two hosts that fight for the terms of a bucket (`--buckets`).
//!
//! Each host imports with [`TermClaim`], continues from the newest anchor before its term, commits
//! anchors with [`AnchorCommit`], crashes, resumes its term, and is paused at any event for any time,
//! while requests and answers are lost, late and damaged. An anchor has the whole history of the
//! pool, as a list of writes.
//!
//! The oracle knows two rules. A term has one holder (INV-BUCKET-3). The histories of all committed
//! anchors are beginnings of one history: no acknowledged write is lost, and no other history counts
//! (INV-BUCKET-2, INV-BUCKET-4).
//!
//! An object is hidden only from the host that was just answered that it exists: all of this rests on
//! a store that shows an object once it was written.

mod host;
mod oracle;

use millpond_bucket::{Operation, Planted, Verb};
use millpond_format::ObjectName;

use crate::bucket::{BucketFault, SimBucket};
use crate::rng::Rng;
use host::{Happened, Host};
use oracle::Oracle;

#[cfg(test)]
mod tests;

/// Steps of a world with faults, and most steps of its end without any.
const STEPS: u64 = 1500;
const LAST_STEPS: u64 = 4000;
/// Last lines of a trace that are kept.
const TAIL: usize = 40;

/// Options of these worlds.
#[derive(Clone, Debug, Default)]
pub struct TermOptions {
    /// Keep every event.
    pub trace: bool,
    /// A bug that the worlds must find.
    pub planted: Option<Planted>,
}

/// Counts of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TermStats {
    /// Requests.
    pub requests: u64,
    /// Faults of requests.
    pub faults: u64,
    /// Terms that were taken.
    pub terms: u64,
    /// Imports that another one forestalled.
    pub lost: u64,
    /// Terms that were resumed after a crash.
    pub resumed: u64,
    /// Anchors that were committed.
    pub commits: u64,
    /// Hosts that found a later term.
    pub fenced: u64,
    /// Crashes.
    pub crashes: u64,
    /// Pauses.
    pub pauses: u64,
}

impl TermStats {
    /// Adds the counts of another world.
    pub fn add(&mut self, other: &TermStats) {
        self.requests += other.requests;
        self.faults += other.faults;
        self.terms += other.terms;
        self.lost += other.lost;
        self.resumed += other.resumed;
        self.commits += other.commits;
        self.fenced += other.fenced;
        self.crashes += other.crashes;
        self.pauses += other.pauses;
    }
}

/// Result of a world.
#[derive(Debug)]
pub struct TermOutcome {
    /// Violation of a rule, if there is one.
    pub finding: Option<String>,
    /// The last events, or all of them.
    pub trace: Vec<String>,
    /// Counts of events.
    pub stats: TermStats,
}

/// Runs the world of a seed.
pub fn run_terms(seed: u64, options: &TermOptions) -> TermOutcome {
    let mut rng = Rng::new(seed);
    let bucket = SimBucket::new(rng.fork(1));
    let hosts = [Host::new(0, options.planted), Host::new(1, options.planted)];
    let percent = *rng.pick(&[0, 5, 20, 40]);
    let world = World {
        now: 0,
        rng,
        bucket,
        hosts,
        oracle: Oracle::default(),
        stats: TermStats::default(),
        trace: Vec::new(),
        percent,
        era: None,
        keep: options.trace,
    };
    world.run()
}

struct World {
    now: u64,
    rng: Rng,
    bucket: SimBucket,
    hosts: [Host; 2],
    oracle: Oracle,
    stats: TermStats,
    trace: Vec<String>,
    /// Requests of 100 that have a fault.
    percent: u64,
    /// A fault of all requests, and the time of its end.
    era: Option<(BucketFault, u64)>,
    keep: bool,
}

impl World {
    fn run(mut self) -> TermOutcome {
        let mut finding = (0..STEPS).find_map(|_| self.step(true).err());
        if finding.is_none() {
            finding = self.end().err();
        }
        let from = if self.keep { 0 } else { self.trace.len().saturating_sub(TAIL) };
        TermOutcome { finding, trace: self.trace.split_off(from), stats: self.stats }
    }

    /// One host imports without faults, and has everything that was committed.
    ///
    /// # Errors
    /// It does not, or not in time.
    fn end(&mut self) -> Result<(), String> {
        (self.percent, self.era) = (0, None);
        self.hosts.iter_mut().for_each(|host| host.crash(self.now));
        let [_, other] = &mut self.hosts;
        other.pause(u64::MAX);
        let before = self.oracle.commits();
        for _ in 0..LAST_STEPS {
            self.step(false)?;
            if self.oracle.commits() > before {
                return Ok(());
            }
        }
        Err("a host alone, without faults, commits nothing".to_owned())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if !self.keep && self.trace.len() >= TAIL * 2 {
            self.trace.drain(..TAIL);
        }
        let line = line();
        self.trace.push(format!("{:>7} {line}", self.now));
    }

    /// Goes on to the next event.
    fn step(&mut self, faults: bool) -> Result<(), String> {
        let wakes = self.hosts.iter().filter_map(Host::wakes_at);
        let Some(next) = wakes.chain(self.bucket.next_event()).min() else { return Err("nothing is going to happen".to_owned()) };
        self.now = self.now.max(next);
        for (ticket, answer) in self.bucket.advance(self.now) {
            if let Some(host) = self.hosts.iter_mut().find(|host| host.waits_for(ticket)) {
                host.deliver(answer);
            }
        }
        if faults {
            self.disturb();
        }
        let first = self.rng.index(2);
        for index in [first, 1 - first] {
            self.turn(index)?;
        }
        Ok(())
    }

    /// Crashes and pauses hosts, and begins eras.
    fn disturb(&mut self) {
        let index = self.rng.index(2);
        match self.rng.below(400) {
            0..4 => {
                self.hosts[index].crash(self.now + self.rng.between(1, 300));
                self.stats.crashes += 1;
                self.note(|| format!("host {index} crashes"));
            }
            4..14 => {
                let ticks = *self.rng.pick(&[20, 200, 2000, 8000]);
                let until = self.now + self.rng.between(1, ticks);
                self.hosts[index].pause(until);
                self.stats.pauses += 1;
                self.note(|| format!("host {index} is paused until {until}"));
            }
            14..16 => {
                let faults = [
                    BucketFault::Away,
                    BucketFault::Slow,
                    BucketFault::Throttled,
                    BucketFault::ThrottledAfter,
                    BucketFault::Denied,
                    BucketFault::Full,
                ];
                let (fault, until) = (*self.rng.pick(&faults), self.now + self.rng.between(50, 1500));
                self.era = Some((fault, until));
                self.note(|| format!("all requests: {fault:?} until {until}"));
            }
            _ => {}
        }
    }

    /// Lets a host go on until it waits.
    fn turn(&mut self, index: usize) -> Result<(), String> {
        while let Some(happened) = self.hosts[index].turn(self.now, &mut self.rng) {
            match happened {
                Happened::Request(operation) => self.send(index, operation),
                Happened::Held(term, session) => {
                    self.stats.terms += 1;
                    self.note(|| format!("host {index} has term {term}"));
                    self.oracle.held(term, session)?;
                }
                Happened::Resumed(term) => {
                    self.stats.resumed += 1;
                    self.note(|| format!("host {index} resumes term {term}"));
                }
                Happened::Committed(term, number, history) => {
                    self.stats.commits += 1;
                    self.note(|| format!("host {index} has committed {} with {} writes", ObjectName::Root(term, number), history.len()));
                    self.oracle.committed(&history)?;
                }
                Happened::Lost => self.stats.lost += 1,
                Happened::Fenced => {
                    self.stats.fenced += 1;
                    self.note(|| format!("host {index} is fenced"));
                }
                Happened::GaveUp(why) => self.note(|| format!("host {index} gives up: {why}")),
            }
        }
        Ok(())
    }

    fn send(&mut self, index: usize, operation: Operation) {
        let fault = self.fault(index, &operation);
        self.stats.requests += 1;
        self.stats.faults += u64::from(fault.is_some());
        self.note(|| {
            format!(
                "host {index}: {} {} {}",
                operation.verb(),
                operation.subject(),
                fault.map_or(String::new(), |fault| format!("({fault:?})"))
            )
        });
        let ticket = self.bucket.send(self.now, operation, fault);
        self.hosts[index].sent(ticket);
    }

    fn fault(&mut self, index: usize, operation: &Operation) -> Option<BucketFault> {
        if let Some((fault, until)) = self.era {
            if self.now < until {
                return fault.suits(operation.verb()).then_some(fault);
            }
            self.era = None;
        }
        // a list is behind more often than not
        if operation.verb() == Verb::List && self.percent > 0 && self.rng.percent(60) {
            return Some(BucketFault::StaleList);
        }
        if !self.rng.percent(self.percent) {
            return None;
        }
        let may_hide = matches!(operation, Operation::Get { name, .. } if self.hosts[index].is_in_doubt(*name));
        let suits = |fault: &&BucketFault| {
            let hides = matches!(fault, BucketFault::Hidden);
            fault.suits(operation.verb()) && **fault != BucketFault::Gone && (!hides || may_hide)
        };
        let choice: Vec<BucketFault> = BucketFault::ALL.iter().filter(suits).copied().collect();
        (!choice.is_empty()).then(|| *self.rng.pick(&choice))
    }
}
