//! Requests of guests by volume, with histograms of their latencies.
//!
//! Each client counts its own requests, so counting takes some additions and no search. When a
//! client is gone, its counts go to its volume: the counts of a volume never fall while it exists.

use millpond_api::GuestIo;
use millpond_block::{Op, Request, Tag};
use millpond_engine::{LimitEffect, Target, VolumeId, VolumeInfo};
use rustc_hash::FxHashMap;

/// Number of classes of latency, each up to the double of the one before.
pub const LATENCY_CLASSES: usize = 22;
/// Upper end of the first class, in microseconds: about the length of a turn, which is the resolution
/// of latencies.
pub const FIRST_MICROS: u64 = 16;
/// Number of operations that are timed.
pub const TIMED: usize = 4;

/// Latencies by class. Class n has those of up to 16 * 2^n microseconds; the last has all longer
/// ones, which begin at 17 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of latencies of each class.
    pub counts: [u64; LATENCY_CLASSES],
    /// Sum of the latencies in nanoseconds.
    pub nanos: u64,
}

impl Histogram {
    /// Counts a latency of `nanos` nanoseconds.
    fn count(&mut self, nanos: u64) {
        let class = (u64::BITS - (nanos / (FIRST_MICROS * 1000)).leading_zeros()) as usize;
        if let Some(count) = self.counts.get_mut(class.min(LATENCY_CLASSES - 1)) {
            *count += 1;
        }
        self.nanos = self.nanos.saturating_add(nanos);
    }

    fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.nanos = self.nanos.saturating_add(other.nanos);
    }
}

/// Operations that are timed; their order is that of [`Load::times`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards and zeroings.
    Discard,
}

impl Timed {
    fn of(op: Op) -> Option<Timed> {
        match op {
            Op::Read => Some(Timed::Read),
            Op::Write => Some(Timed::Write),
            Op::Flush => Some(Timed::Flush),
            Op::Discard | Op::WriteZeroes { .. } => Some(Timed::Discard),
            Op::Cache => None,
        }
    }
}

/// Answered requests: counters, and latencies from receipt until the reply is with the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Counters.
    pub io: GuestIo,
    /// Latencies by [`Timed`].
    pub times: [Histogram; TIMED],
}

impl Load {
    /// Counts an answered request.
    pub(super) fn count(&mut self, ended: &Ended) {
        let Ended { op, bytes, fua, nanos } = *ended;
        let io = &mut self.io;
        match op {
            Op::Read => {
                io.reads += 1;
                io.read_bytes += bytes;
                io.read_nanos += nanos;
            }
            Op::Write => {
                io.writes += 1;
                io.write_bytes += bytes;
                io.write_nanos += nanos;
                io.fua_writes += u64::from(fua);
            }
            Op::Flush => io.flushes += 1,
            Op::Discard | Op::WriteZeroes { .. } => io.discards += 1,
            Op::Cache => {}
        }
        if let Some(times) = Timed::of(op).and_then(|timed| self.times.get_mut(timed as usize)) {
            times.count(nanos);
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Load) {
        self.io.add(&other.io);
        self.times.iter_mut().zip(&other.times).for_each(|(times, more)| times.add(more));
    }

    /// Raises every count to that of `other`.
    pub fn raise(&mut self, other: &Load) {
        let GuestIo { reads, read_bytes, read_nanos, writes, write_bytes, write_nanos, flushes, fua_writes, discards, errors } = other.io;
        let io = &mut self.io;
        let counts = [
            (&mut io.reads, reads),
            (&mut io.read_bytes, read_bytes),
            (&mut io.read_nanos, read_nanos),
            (&mut io.writes, writes),
            (&mut io.write_bytes, write_bytes),
            (&mut io.write_nanos, write_nanos),
            (&mut io.flushes, flushes),
            (&mut io.fua_writes, fua_writes),
            (&mut io.discards, discards),
            (&mut io.errors, errors),
        ];
        counts.into_iter().for_each(|(count, other)| *count = other.max(*count));
        for (times, other) in self.times.iter_mut().zip(&other.times) {
            times.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count = other.max(*count));
            times.nanos = times.nanos.max(other.nanos);
        }
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub op: Op,
    pub bytes: u64,
    pub fua: bool,
    /// Nanoseconds from its start.
    pub nanos: u64,
}

/// Requests in progress, by the low 16 bits of their tags, which a session uses again only after
/// the answer.
#[derive(Default)]
pub(super) struct Started(Vec<Start>);

#[derive(Clone, Copy)]
struct Start {
    at: u64,
    bytes: u64,
    op: Op,
    fua: bool,
}

const NOTHING: Start = Start { at: 0, bytes: 0, op: Op::Cache, fua: false };

impl Started {
    /// Notes the start of a request.
    pub fn begin(&mut self, tag: Tag, request: &Request, now: u64) {
        let slot = (tag.0 & 0xffff) as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, NOTHING);
        }
        if let Some(place) = self.0.get_mut(slot) {
            *place = Start { at: now, bytes: request.range.length, op: request.op, fua: request.fua };
        }
    }

    /// Returns the request that ends at `now`.
    pub fn end(&self, tag: Tag, now: u64) -> Option<Ended> {
        let Start { at, bytes, op, fua } = *self.0.get((tag.0 & 0xffff) as usize)?;
        Some(Ended { op, bytes, fua, nanos: now.saturating_sub(at) })
    }
}

/// Requests in progress of a mount, whose requests are for several targets.
#[derive(Default)]
pub(super) struct FileRequests {
    started: Started,
    /// By slot, as in `started`.
    targets: Vec<Option<Target>>,
}

impl FileRequests {
    /// Notes the start of a request for a target.
    pub fn begin(&mut self, tag: Tag, target: Target, request: &Request, now: u64) {
        self.started.begin(tag, request, now);
        let slot = (tag.0 & 0xffff) as usize;
        if slot >= self.targets.len() {
            self.targets.resize(slot + 1, None);
        }
        if let Some(place) = self.targets.get_mut(slot) {
            *place = Some(target);
        }
    }

    /// Returns the request that ends at `now`, and its target.
    pub fn end(&mut self, tag: Tag, now: u64) -> Option<(Target, Ended)> {
        let target = self.targets.get_mut((tag.0 & 0xffff) as usize)?.take()?;
        Some((target, self.started.end(tag, now)?))
    }
}

/// Counts and times the requests of one connection.
#[derive(Default)]
pub(super) struct Meter {
    load: Box<Load>,
    pub started: Started,
}

impl Meter {
    /// Counts a request that has ended. Failed ones are counted by the session.
    pub fn end(&mut self, tag: Tag, success: bool, now: u64) {
        if let Some(ended) = self.started.end(tag, now).filter(|_| success) {
            self.load.count(&ended);
        }
    }

    /// Returns the counters, without errors.
    pub fn counters(&self) -> GuestIo {
        self.load.io
    }

    /// Returns the counters and latencies; `errors` is the session's count.
    pub fn load(&self, errors: u64) -> Load {
        Load { io: GuestIo { errors, ..self.load.io }, times: self.load.times }
    }
}

/// Requests of clients that are gone, and of mounts, by the volume that they were for.
#[derive(Default)]
pub(super) struct VolumeLoads {
    volumes: FxHashMap<VolumeId, Box<Load>>,
    /// Requests for volumes that do not exist any more.
    rest: Box<Load>,
}

impl VolumeLoads {
    /// Returns the counts of a volume; `None` is a volume that does not exist.
    pub fn of_mut(&mut self, volume: Option<VolumeId>) -> &mut Load {
        match volume {
            Some(volume) => self.volumes.entry(volume).or_default(),
            None => &mut self.rest,
        }
    }

    /// Returns the counts of a volume.
    pub fn of(&self, volume: VolumeId) -> Load {
        self.volumes.get(&volume).map(|load| **load).unwrap_or_default()
    }

    /// Returns the counts of all volumes that do not exist any more, and moves those there for
    /// which `exists` is false.
    pub fn rest(&mut self, exists: impl Fn(VolumeId) -> bool) -> Load {
        let rest = &mut self.rest;
        self.volumes.retain(|volume, load| {
            let stays = exists(*volume);
            if !stays {
                rest.add(load);
            }
            stays
        });
        **rest
    }
}

/// A volume with the requests of its guests and the effect of its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    /// The volume, as listed.
    pub info: VolumeInfo,
    /// Requests for it and its snapshots since import.
    pub load: Box<Load>,
    /// Effect of its limits.
    pub limits: LimitEffect,
}

#[cfg(test)]
mod tests {
    //! Classes of latencies, and counts that outlive their clients.
    use millpond_block::ByteRange;

    use super::*;

    fn ended(op: Op, nanos: u64) -> Ended {
        Ended { op, bytes: 4096, fua: false, nanos }
    }

    #[test]
    fn each_class_ends_at_twice_the_one_before() {
        let mut histogram = Histogram::default();
        for nanos in [0, 15_999, 16_000, 31_999, 32_000, 1_000_000_000, u64::MAX] {
            histogram.count(nanos);
        }
        let mut expected = [0; LATENCY_CLASSES];
        (expected[0], expected[1], expected[2], expected[16], expected[21]) = (2, 2, 1, 1, 1);
        assert_eq!(histogram.counts, expected);
        assert_eq!(histogram.nanos, u64::MAX, "the sum does not wrap");
    }

    #[test]
    fn a_request_is_timed_from_its_start() {
        let (mut meter, range) = (Meter::default(), ByteRange { offset: 0, length: 8192 });
        for (tag, op) in [(1, Op::Read), (2, Op::Write), (3, Op::Flush), (4, Op::Discard)] {
            meter.started.begin(Tag(tag), &Request { op, range, fua: op == Op::Write }, 1000 * tag);
            meter.end(Tag(tag), true, 1000 * tag + 20_000);
        }
        meter.started.begin(Tag(5), &Request { op: Op::Read, range, fua: false }, 0);
        meter.end(Tag(5), false, 1);
        let load = meter.load(1);
        let io = load.io;
        assert_eq!((io.reads, io.writes, io.fua_writes, io.flushes, io.discards, io.errors), (1, 1, 1, 1, 1, 1));
        assert!(load.times.iter().all(|times| (times.counts[1], times.nanos) == (1, 20_000)));
    }

    #[test]
    fn the_counts_of_a_destroyed_volume_stay_in_the_sum() {
        let mut loads = VolumeLoads::default();
        loads.of_mut(Some(VolumeId(1))).count(&ended(Op::Read, 1));
        loads.of_mut(Some(VolumeId(2))).count(&ended(Op::Write, 1));
        loads.of_mut(None).count(&ended(Op::Write, 1));
        assert_eq!(loads.rest(|_| true).io.writes, 1);
        assert_eq!(loads.rest(|volume| volume == VolumeId(1)).io.writes, 2);
        assert_eq!((loads.of(VolumeId(1)).io.reads, loads.of(VolumeId(2)).io.writes), (1, 0));
    }

    #[test]
    fn raised_counts_never_fall() {
        let (mut before, mut after) = (Load::default(), Load::default());
        (0..3).for_each(|_| before.count(&ended(Op::Read, 1)));
        after.count(&ended(Op::Read, 100_000));
        after.count(&ended(Op::Write, 1));
        after.raise(&before);
        assert_eq!((after.io.reads, after.io.writes), (3, 1));
        let reads = after.times[Timed::Read as usize];
        assert_eq!((reads.counts[0], reads.counts[3], reads.nanos), (3, 1, 100_000));
    }
}
