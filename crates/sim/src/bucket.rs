//! A simulated bucket: a map of names to bytes, linearizable by name, whose requests and answers are
//! lost, late, doubled and damaged as the world says.
//!
//! A request takes effect at one instant between the time at which it is sent and its answer, unless
//! its fault says otherwise. Time is a number of ticks.

use std::collections::{BTreeMap, BTreeSet};

use millpond_bucket::{Answer, ErrorKind, Operation, Part, Verb};
use millpond_format::{ObjectFolder, ObjectName};

use crate::rng::Rng;

#[cfg(test)]
mod tests;

/// Longest time until a request takes effect, and from then on until its answer, in ticks.
const TRAVEL: u64 = 10;
/// Times as long with [`BucketFault::Slow`].
const SLOW: u64 = 50;
/// Longest time until a late request takes effect, in ticks: far beyond every time limit of a host.
const LATE: u64 = 4000;
/// Age from which on every list has an object, in ticks.
const LISTED: u64 = 600;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketFault {
    /// It has no effect, and its answer is lost.
    Lost,
    /// It has its effect, and its answer is lost.
    AnswerLost,
    /// It has its effect twice.
    Twice,
    /// Its answer is lost, and it has its effect long afterwards.
    Late,
    /// A list lacks the newest objects.
    StaleList,
    /// An object that is there is reported as missing, once.
    Hidden,
    /// An object is lost for good; lists still have it.
    Gone,
    /// An object ends too early.
    Truncated,
    /// The bytes of another object are returned.
    Foreign,
    /// A bit is wrong.
    Rot,
    /// The store cannot be reached.
    Away,
    /// It takes very long.
    Slow,
    /// The store asks for fewer requests, and does nothing.
    Throttled,
    /// The store does it, and asks for fewer requests.
    ThrottledAfter,
    /// The store does not permit it.
    Denied,
    /// The store is full.
    Full,
}

impl BucketFault {
    /// All faults.
    pub const ALL: [BucketFault; 16] = [
        BucketFault::Lost,
        BucketFault::AnswerLost,
        BucketFault::Twice,
        BucketFault::Late,
        BucketFault::StaleList,
        BucketFault::Hidden,
        BucketFault::Gone,
        BucketFault::Truncated,
        BucketFault::Foreign,
        BucketFault::Rot,
        BucketFault::Away,
        BucketFault::Slow,
        BucketFault::Throttled,
        BucketFault::ThrottledAfter,
        BucketFault::Denied,
        BucketFault::Full,
    ];

    /// Whether the fault can befall an operation.
    pub fn suits(self, verb: Verb) -> bool {
        match self {
            BucketFault::StaleList => verb == Verb::List,
            BucketFault::Hidden | BucketFault::Gone | BucketFault::Truncated | BucketFault::Foreign | BucketFault::Rot => {
                verb == Verb::Read
            }
            BucketFault::Twice | BucketFault::Late => verb.changes(),
            BucketFault::Full => matches!(verb, Verb::Create | Verb::Write),
            _ => true,
        }
    }

    /// Error of a request that never reaches the store.
    fn refusal(self) -> Option<ErrorKind> {
        match self {
            BucketFault::Away => Some(ErrorKind::Away),
            BucketFault::Throttled => Some(ErrorKind::Throttled),
            BucketFault::Denied => Some(ErrorKind::Denied),
            BucketFault::Full => Some(ErrorKind::Full),
            _ => None,
        }
    }
}

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

struct Stored {
    bytes: Vec<u8>,
    /// Time at which the name was first written.
    since: u64,
}

enum Event {
    Effect { operation: Operation, fault: Option<BucketFault>, ticket: Option<Ticket> },
    Answer(Ticket, Result<Answer, ErrorKind>),
}

/// A bucket.
pub struct SimBucket {
    objects: BTreeMap<ObjectName, Stored>,
    gone: BTreeSet<ObjectName>,
    /// Events to come, by time and order.
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    rng: Rng,
}

impl SimBucket {
    /// An empty bucket.
    pub fn new(rng: Rng) -> SimBucket {
        SimBucket { objects: BTreeMap::new(), gone: BTreeSet::new(), events: BTreeMap::new(), count: 0, rng }
    }

    /// Sends a request at a time.
    pub fn send(&mut self, now: u64, operation: Operation, fault: Option<BucketFault>) -> Ticket {
        let ticket = Ticket(self.number());
        let verb = operation.verb();
        let fault = fault.filter(|fault| fault.suits(verb));
        let lost = if verb.changes() { ErrorKind::Unknown } else { ErrorKind::Away };
        let factor = if fault == Some(BucketFault::Slow) { SLOW } else { 1 };
        let at = now + self.rng.between(1, TRAVEL) * factor;
        match fault {
            Some(BucketFault::Lost) => self.plan(at, Event::Answer(ticket, Err(lost))),
            Some(BucketFault::Late) => {
                self.plan(at, Event::Answer(ticket, Err(lost)));
                let late = at + self.rng.between(TRAVEL, LATE);
                self.plan(late, Event::Effect { operation, fault: None, ticket: None });
            }
            Some(fault) if fault.refusal().is_some() => {
                self.plan(at, Event::Answer(ticket, Err(fault.refusal().unwrap_or(lost))));
            }
            _ => {
                if fault == Some(BucketFault::Twice) {
                    let again = at + self.rng.between(1, LATE);
                    self.plan(again, Event::Effect { operation: operation.clone(), fault: None, ticket: None });
                }
                self.plan(at, Event::Effect { operation, fault, ticket: Some(ticket) });
            }
        }
        ticket
    }

    /// Time of the next event, if there is one.
    pub fn next_event(&self) -> Option<u64> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// Lets time pass; returns the answers that have arrived, in order.
    pub fn advance(&mut self, now: u64) -> Vec<(Ticket, Result<Answer, ErrorKind>)> {
        let mut answers = Vec::new();
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), event) = entry.remove_entry();
            match event {
                Event::Answer(ticket, answer) => answers.push((ticket, answer)),
                Event::Effect { operation, fault, ticket } => {
                    let changes = operation.verb().changes();
                    let mut answer = self.apply(at, operation, fault);
                    match fault {
                        Some(BucketFault::AnswerLost) => answer = Err(if changes { ErrorKind::Unknown } else { ErrorKind::Away }),
                        Some(BucketFault::ThrottledAfter) => answer = Err(ErrorKind::Throttled),
                        _ => {}
                    }
                    let factor = if fault == Some(BucketFault::Slow) { SLOW } else { 1 };
                    let back = at + self.rng.between(1, TRAVEL) * factor;
                    if let Some(ticket) = ticket {
                        self.plan(back, Event::Answer(ticket, answer));
                    }
                }
            }
        }
        answers
    }

    /// Content of an object, as it is in the store.
    #[cfg(test)]
    pub fn content(&self, name: ObjectName) -> Option<&[u8]> {
        self.objects.get(&name).map(|stored| &stored.bytes[..])
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn plan(&mut self, at: u64, event: Event) {
        let order = self.number();
        self.events.insert((at, order), event);
    }

    /// Carries out an operation at one instant.
    fn apply(&mut self, now: u64, operation: Operation, fault: Option<BucketFault>) -> Result<Answer, ErrorKind> {
        match operation {
            Operation::Put { name, create, object } => {
                if create && self.objects.contains_key(&name) {
                    return Err(ErrorKind::Exists);
                }
                let since = self.objects.get(&name).map_or(now, |stored| stored.since);
                self.objects.insert(name, Stored { bytes: object, since });
                Ok(Answer::Written)
            }
            Operation::Get { name, part } => self.read(name, part, fault),
            Operation::List { folder, after, most } => {
                let age = if fault == Some(BucketFault::StaleList) { LISTED } else { 0 };
                Ok(self.list(folder, after, most, now.saturating_sub(age)))
            }
            Operation::Delete { names } => {
                names.iter().for_each(|name| drop(self.objects.remove(name)));
                Ok(Answer::Deleted)
            }
        }
    }

    fn read(&mut self, name: ObjectName, part: Part, fault: Option<BucketFault>) -> Result<Answer, ErrorKind> {
        if fault == Some(BucketFault::Gone) && self.objects.contains_key(&name) {
            self.gone.insert(name);
        }
        let stored = self.objects.get(&name).filter(|_| !self.gone.contains(&name) && fault != Some(BucketFault::Hidden));
        let mut whole = stored.ok_or(ErrorKind::Missing)?.bytes.clone();
        if fault == Some(BucketFault::Foreign) {
            let others: Vec<&Stored> = self.objects.iter().filter(|(other, _)| **other != name).map(|(_, stored)| stored).collect();
            if !others.is_empty() {
                whole.clone_from(&others[self.rng.index(others.len())].bytes);
            }
        }
        if fault == Some(BucketFault::Truncated) {
            whole.truncate(self.rng.index(whole.len()));
        }
        let length = whole.len();
        let range = match part {
            Part::Whole => 0..length,
            Part::Range { offset, length: bytes } => {
                let from = usize::try_from(offset).unwrap_or(length).min(length);
                from..from.saturating_add(usize::try_from(bytes).unwrap_or(length)).min(length)
            }
            Part::Tail(bytes) => length.saturating_sub(usize::try_from(bytes).unwrap_or(length))..length,
        };
        let mut bytes = whole.get(range).unwrap_or_default().to_vec();
        if fault == Some(BucketFault::Rot) && !bytes.is_empty() {
            let at = self.rng.index(bytes.len());
            bytes[at] ^= 1 << self.rng.below(8);
        }
        Ok(Answer::Read { bytes, length: length as u64 })
    }

    fn list(&self, folder: ObjectFolder, after: Option<ObjectName>, most: usize, newest: u64) -> Answer {
        let (folder, after) = (folder.to_string(), after.map(|name| name.to_string()));
        let is_listed = |(name, stored): &(&ObjectName, &Stored)| {
            let text = name.to_string();
            stored.since <= newest && text.starts_with(&folder) && after.as_ref().is_none_or(|after| text > *after)
        };
        let mut names: Vec<ObjectName> = self.objects.iter().filter(is_listed).map(|(name, _)| *name).collect();
        names.sort_by_key(ToString::to_string);
        let more = names.len() > most;
        names.truncate(most);
        Answer::Names { names, more }
    }
}
