//! A solid-state drive, or any device defined by a rate and a latency: requests in parallel up to a
//! limit, each with the latency of an access, and one shared path for the bytes of all.

use super::request::{Done, Nanos, Op, Request, transfer};
use std::collections::BTreeSet;

/// Parameters of a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashShape {
    /// Maximum number of requests processed in parallel.
    pub units: usize,
    /// Latency of a read access.
    pub read: Nanos,
    /// Latency of a write access.
    pub write: Nanos,
    /// Time of a flush, after the writes before it are done.
    pub flush: Nanos,
    /// Bytes per second of reads.
    pub read_rate: u64,
    /// Bytes per second of writes.
    pub write_rate: u64,
}

/// A simulated solid-state drive; see the module.
#[derive(Debug)]
pub struct Flash {
    shape: FlashShape,
    /// Time at which each unit, and the shared path, becomes free.
    units: Vec<Nanos>,
    way: Nanos,
    written: Nanos,
    done: BTreeSet<(Nanos, u64)>,
}

impl Flash {
    /// Makes an idle drive.
    pub fn new(shape: FlashShape) -> Flash {
        Flash { shape, units: vec![0; shape.units.max(1)], way: 0, written: 0, done: BTreeSet::new() }
    }

    /// Submits a request at a time.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        let (access, rate) = match request.op {
            Op::Read => (self.shape.read, self.shape.read_rate),
            Op::Write => (self.shape.write, self.shape.write_rate),
            Op::Flush => {
                self.done.insert((self.written.max(now) + self.shape.flush, request.id));
                return;
            }
        };
        let Some(unit) = self.units.iter_mut().min() else { return };
        *unit = now.max(*unit) + access;
        self.way = self.way.max(*unit) + transfer(request.length, rate);
        if request.op == Op::Write {
            self.written = self.written.max(self.way);
        }
        self.done.insert((self.way, request.id));
    }

    /// Returns the time of the next completion.
    pub fn next(&self) -> Option<Nanos> {
        self.done.first().map(|(at, _)| *at)
    }

    /// Completes requests up to a time.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        while let Some((at, id)) = self.done.first().copied().filter(|(at, _)| *at <= now) {
            self.done.pop_first();
            done.push(Done { at, id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: FlashShape = FlashShape { units: 2, read: 100, write: 10, flush: 50, read_rate: 1 << 30, write_rate: 1 << 30 };

    fn run(requests: &[(Nanos, Op, u64)]) -> Vec<(u64, Nanos)> {
        let mut flash = Flash::new(SHAPE);
        for (id, (now, op, length)) in (0..).zip(requests) {
            flash.submit(*now, Request { id, op: *op, offset: 0, length: *length });
        }
        let mut done = Vec::new();
        flash.advance(Nanos::MAX, &mut done);
        assert_eq!(flash.next(), None);
        done.into_iter().map(|d| (d.id, d.at)).collect()
    }

    #[test]
    fn as_many_at_a_time_as_there_are_units() {
        assert_eq!(run(&[(0, Op::Read, 0); 3]), [(0, 100), (1, 100), (2, 200)]);
    }

    #[test]
    fn bytes_go_one_after_the_other_and_a_flush_after_them() {
        let second = 1_000_000_000;
        let done = run(&[(0, Op::Write, 1 << 30), (0, Op::Write, 1 << 30), (0, Op::Flush, 0)]);
        assert_eq!(done, [(0, second + 10), (1, 2 * second + 10), (2, 2 * second + 60)]);
    }
}
