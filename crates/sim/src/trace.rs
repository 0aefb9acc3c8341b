//! The record of a world's events: a digest of all of them, a ring of the last ones, and the
//! oracle's clock.

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;

use crate::rng::mix;

/// Events kept for the report of a finding.
const KEPT: usize = 4096;

/// Outcome of a command that succeeded.
pub const DONE: &str = "done";

/// A position in the history of a world: each event has its own, and later events have larger ones.
pub type Moment = u64;

/// A moment that never comes.
pub const NEVER: Moment = u64::MAX;

/// A running 64-bit hash, the same on every machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9E37_79B9_7F4A_7C15) * u128::from(0xA076_1D64_78BD_642F_u64);
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(word.rotate_left(29));
    }
    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A guest request is submitted: tag, target, operation, offset, length, number of the write.
    Submit(u64, String, &'static str, u64, u64, u64),
    /// A guest request is answered: tag, outcome.
    Complete(u64, &'static str),
    /// A command is submitted.
    Command(u64, String),
    /// A command is answered: tag, outcome, result or message.
    Reply(u64, &'static str, String),
    /// A device operation starts: id, device, kind, offset, length, hash of the content.
    Io(u64, usize, &'static str, u64, u64, u64),
    /// A device operation ends: id, outcome.
    IoDone(u64, &'static str),
    /// The engine gets a turn: time in milliseconds.
    Turn(u64),
    /// A chunk of a base is to be fetched: id, base, chunk.
    Fetch(u64, u64, u64),
    /// A fetch is answered: id, outcome.
    Fetched(u64, &'static str),
    /// The bucket has to create or read an object: id, kind, name, offset, length, hash of the content.
    Bucket(u64, &'static str, String, u64, u64, u64),
    /// That is answered: id, outcome.
    BucketDone(u64, &'static str),
    /// A remark about the world: crash, import, phase.
    Note(String),
}

impl Event {
    /// Adds the event to a digest.
    ///
    /// Wording does not count, so that a message, a remark or the name of a type may change:
    /// remarks are left out, commands and results count by their numbers, refusals by their kind.
    fn digest(&self, digest: &mut Digest) {
        let (kind, words, fields, result): (u64, [&str; 2], [u64; 5], &str) = match self {
            Event::Submit(tag, target, op, offset, length, number) => (1, [target, op], [*tag, *offset, *length, *number, 0], ""),
            Event::Complete(tag, outcome) => (2, [outcome, ""], [*tag, 0, 0, 0, 0], ""),
            Event::Command(tag, text) => (3, ["", ""], [*tag, 0, 0, 0, 0], text),
            Event::Reply(tag, outcome, text) => (4, [outcome, ""], [*tag, 0, 0, 0, 0], if *outcome == DONE { text } else { "" }),
            Event::Io(id, device, kind, offset, length, hash) => (5, [kind, ""], [*id, *device as u64, *offset, *length, *hash], ""),
            Event::IoDone(id, outcome) => (6, [outcome, ""], [*id, 0, 0, 0, 0], ""),
            Event::Turn(now) => (7, ["", ""], [*now, 0, 0, 0, 0], ""),
            Event::Fetch(id, base, chunk) => (8, ["", ""], [*id, *base, *chunk, 0, 0], ""),
            Event::Fetched(id, outcome) => (9, [outcome, ""], [*id, 0, 0, 0, 0], ""),
            Event::Bucket(id, kind, name, offset, length, hash) => (10, [kind, name], [*id, *offset, *length, *hash, 0], ""),
            Event::BucketDone(id, outcome) => (11, [outcome, ""], [*id, 0, 0, 0, 0], ""),
            Event::Note(_) => return,
        };
        digest.write_u64(kind);
        words.iter().for_each(|word| digest.write(word.as_bytes()));
        fields.iter().for_each(|field| digest.write_u64(*field));
        let numbers = result.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
        numbers.for_each(|number| digest.write(number.as_bytes()));
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Submit(tag, target, op, offset, length, number) => {
                write!(f, "  -> #{tag} {target} {op} {offset}+{length} (op {number})")
            }
            Event::Complete(tag, outcome) => write!(f, "  <- #{tag} {outcome}"),
            Event::Command(tag, text) => write!(f, "  => #{tag} {text}"),
            Event::Reply(tag, _, text) => write!(f, "  <= #{tag} {text}"),
            Event::Io(id, device, kind, offset, length, hash) => {
                write!(f, "       io {id} dev{device} {kind} {offset:#x}+{length:#x} [{:08x}]", *hash as u32)
            }
            Event::IoDone(id, outcome) => write!(f, "       io {id} {outcome}"),
            Event::Turn(now) => write!(f, "     turn at {now} ms"),
            Event::Fetch(id, base, chunk) => write!(f, "       fetch {id} of chunk {chunk} of vol{base}"),
            Event::Fetched(id, outcome) => write!(f, "       fetch {id} {outcome}"),
            Event::Bucket(id, kind, name, offset, length, hash) => {
                write!(f, "       bucket {id} {kind} {name} {offset:#x}+{length:#x} [{:08x}]", *hash as u32)
            }
            Event::BucketDone(id, outcome) => write!(f, "       bucket {id} {outcome}"),
            Event::Note(text) => write!(f, "-- {text}"),
        }
    }
}

/// The trace of one world.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    now: Moment,
    digest: Digest,
    last: VecDeque<(Moment, Event)>,
    /// Prints every event as it happens.
    pub print: bool,
}

impl Trace {
    /// Records an event and returns its moment.
    pub fn add(&mut self, event: Event) -> Moment {
        self.now += 1;
        event.digest(&mut self.digest);
        if self.print {
            print_line(self.now, &event);
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((self.now, event));
        self.now
    }

    /// Records a remark and returns its moment.
    pub fn note(&mut self, text: impl Into<String>) -> Moment {
        self.add(Event::Note(text.into()))
    }

    /// Returns the moment of the last event.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Returns a silent trace that continues from here and keeps the last `count` events.
    pub fn fork(&self, count: usize) -> Trace {
        let last = self.last.iter().skip(self.last.len().saturating_sub(count)).cloned().collect();
        Trace { now: self.now, digest: self.digest.clone(), last, print: false }
    }

    /// Returns the hash of all events so far; see [`Event::digest`] for its extent.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Returns the last `count` events, oldest first, one line each.
    pub fn tail(&self, count: usize) -> Vec<String> {
        self.last.iter().skip(self.last.len().saturating_sub(count)).map(|(at, event)| format!("{at:>7} {event}")).collect()
    }
}

/// Prints to standard output, because the trace is for people.
#[allow(clippy::print_stdout, clippy::disallowed_macros)]
fn print_line(now: Moment, event: &Event) {
    println!("{now:>7} {event}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(events: &[Event]) -> u64 {
        let mut trace = Trace::default();
        for event in events {
            trace.add(event.clone());
        }
        trace.digest()
    }

    #[test]
    fn wording_is_not_part_of_a_digest() {
        let reply = |outcome, text: &str| digest(&[Event::Note(text.to_owned()), Event::Reply(1, outcome, text.to_owned())]);
        assert_eq!(reply("busy", "wait for scrub 1"), reply("busy", "scrub 2 is not done"));
        assert_eq!(reply(DONE, "Ok(Volume(3))"), reply(DONE, "Ok(New { volume: 3 })"));
        assert_ne!(reply(DONE, "Ok(Volume(3))"), reply(DONE, "Ok(Volume(4))"));
        assert_ne!(reply("busy", ""), reply("invalid", ""));
        let command = |text: &str| digest(&[Event::Command(7, text.to_owned())]);
        assert_eq!(command("Remove { member: 12 }"), command("Devices(Remove(12))"));
        assert_ne!(command("Remove { member: 12 }"), command("Remove { member: 1, 2 }"));
    }

    #[test]
    fn every_field_is_part_of_a_digest() {
        let io = |id, device, kind, offset, length, hash| digest(&[Event::Io(id, device, kind, offset, length, hash)]);
        let all = [
            io(1, 2, "write", 3, 4, 5),
            io(0, 2, "write", 3, 4, 5),
            io(1, 0, "write", 3, 4, 5),
            io(1, 2, "read", 3, 4, 5),
            io(1, 2, "write", 0, 4, 5),
            io(1, 2, "write", 3, 0, 5),
            io(1, 2, "write", 3, 4, 0),
            digest(&[Event::IoDone(1, "done")]),
            digest(&[Event::IoDone(1, "FAILS")]),
            digest(&[Event::Complete(1, "done")]),
            digest(&[Event::Submit(1, "vol1".to_owned(), "read", 0, 0, 0)]),
            digest(&[Event::Submit(1, "vol2".to_owned(), "read", 0, 0, 0)]),
            digest(&[Event::Turn(1)]),
            digest(&[Event::Turn(1), Event::Turn(1)]),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
