//! The record of a world's events: a digest of all of them, a ring of the last ones, and the
//! oracle's clock.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::rng::mix;

/// Events kept for the report of a finding.
const KEPT: usize = 4096;

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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A guest request is submitted: tag, target, operation, offset, length, number of the write.
    Submit(u64, String, &'static str, u64, u64, u64),
    /// A guest request is answered: tag, outcome.
    Complete(u64, &'static str),
    /// A command is submitted.
    Command(u64, String),
    /// A command is answered.
    Reply(u64, String),
    /// A device operation starts: id, device, kind, offset, length, hash of the content.
    Io(u64, usize, &'static str, u64, u64, u64),
    /// A device operation ends: id, outcome.
    IoDone(u64, &'static str),
    /// The engine gets a turn: time in milliseconds.
    Turn(u64),
    /// A remark about the world: crash, import, phase.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Submit(tag, target, op, offset, length, number) => {
                write!(f, "  -> #{tag} {target} {op} {offset}+{length} (op {number})")
            }
            Event::Complete(tag, outcome) => write!(f, "  <- #{tag} {outcome}"),
            Event::Command(tag, text) => write!(f, "  => #{tag} {text}"),
            Event::Reply(tag, text) => write!(f, "  <= #{tag} {text}"),
            Event::Io(id, device, kind, offset, length, hash) => {
                write!(f, "       io {id} dev{device} {kind} {offset:#x}+{length:#x} [{:08x}]", *hash as u32)
            }
            Event::IoDone(id, outcome) => write!(f, "       io {id} {outcome}"),
            Event::Turn(now) => write!(f, "     turn at {now} ms"),
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
        event.hash(&mut self.digest);
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

    /// Returns the hash of all events so far.
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
