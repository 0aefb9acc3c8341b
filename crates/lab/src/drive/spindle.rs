//! A hard disk: a head that seeks, a rotating platter, a queue from which the nearest request is
//! taken, a read cache and, if it is switched on, a write cache.
//!
//! Tracks have equal length, and the skew between tracks hides track changes, so that sequential
//! requests run at the rate of the platter. "Nearest" is by time: seek and rotation together.

use super::request::{Done, Nanos, Op, Request, transfer};
use super::segments::Segments;
use super::write_cache::{Range, WriteCache};
use std::collections::VecDeque;

/// Parameters of a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpindleShape {
    /// Time of one revolution.
    pub revolution: Nanos,
    /// Transfer rate of the head in bytes per second.
    pub rate: u64,
    /// Size of the real drive in bytes. Seek distances are relative to it, however small the
    /// simulated file is.
    pub capacity: u64,
    /// Shortest seek with settling, for reads.
    pub read_settle: Nanos,
    /// Shortest seek with settling, for writes.
    pub write_settle: Nanos,
    /// Time that a full-stroke seek takes beyond the shortest one; seek time grows with the square
    /// root of the distance.
    pub full_seek: Nanos,
    /// Number of queued reads among which the drive chooses.
    pub read_depth: usize,
    /// Number of queued writes among which the drive chooses.
    pub write_depth: usize,
    /// Bytes per second between host and drive.
    pub bus: u64,
    /// Time of a request that does not touch the medium, without the transfer.
    pub command: Nanos,
    /// Time from the last byte under the head to the answer; the head works on meanwhile.
    pub answer: Nanos,
    /// Write cache, if it is on.
    pub cache: Option<CacheShape>,
}

/// Parameters of a write cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheShape {
    /// Size in bytes.
    pub bytes: u64,
    /// Time from the arrival of a write to its acknowledgement, without the transfer.
    pub accept: Nanos,
    /// Positioning time of a small write that is written sequentially to a scratch area, to be
    /// sorted when the drive is idle.
    pub aside: Nanos,
}

/// Bytes of read-ahead.
const AHEAD: u64 = 2 << 20;
/// Maximum bytes that one operation writes from the cache to the medium, so that reads are not
/// delayed for long.
const DRAIN: u64 = 2 << 20;
/// Maximum size in bytes of writes that may go to the scratch area.
const SMALL: u64 = 64 << 10;
/// Number of dirty ranges among which the drive chooses.
const SWEEP: usize = 32;
/// A request that has waited this long is served next.
const PATIENCE: Nanos = 500_000_000;
/// Tolerance for the rounding of times to whole nanoseconds: a platter position missed by less
/// counts as reached.
const NEARLY: Nanos = 1_000;

/// Current work of the head.
#[derive(Clone, Copy, Debug)]
enum Work {
    Host(Request),
    Drain(Range),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    since: Nanos,
}

/// A simulated hard disk; see the module.
#[derive(Debug)]
pub struct Spindle {
    shape: SpindleShape,
    /// Offset after the last byte under the head, and the time at which the head became free.
    head: u64,
    free: Nanos,
    active: Option<(Nanos, Work)>,
    queue: Vec<Waiting>,
    /// Requests completed, or with a known completion time.
    ready: Vec<Done>,
    cache: WriteCache,
    /// Writes for which the cache has no room yet.
    outside: VecDeque<Waiting>,
    segments: Segments,
}

impl Spindle {
    /// Makes an idle drive.
    pub fn new(shape: SpindleShape) -> Spindle {
        Spindle {
            shape,
            head: 0,
            free: 0,
            active: None,
            queue: Vec::new(),
            ready: Vec::new(),
            cache: WriteCache::default(),
            outside: VecDeque::new(),
            segments: Segments::new(shape.rate, AHEAD),
        }
    }

    /// Submits a request at a time.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        self.run(now);
        let waiting = Waiting { request, since: now };
        match (request.op, self.shape.cache) {
            (Op::Flush, None) => self.ready.push(Done { at: now + self.shape.command, id: request.id }),
            (Op::Flush, Some(_)) => self.cache.flush(request.id),
            (Op::Write, Some(_)) => self.outside.push_back(waiting),
            (Op::Read, _) if self.is_cached(&request) => self.hit(now, &request),
            (Op::Read, _) => match self.segments.holds(&request) {
                Some(0) => self.hit(now, &request),
                // the stream reads ahead only while the head has no work
                Some(at) if self.active.is_none() => {
                    self.hit(now.max(at), &request);
                    self.segments.took(&request);
                    (self.head, self.free) = (request.end(), at);
                }
                _ => self.queue.push(waiting),
            },
            (Op::Write, None) => self.queue.push(waiting),
        }
        self.go_on(now);
    }

    /// Returns the time of the next event; `None` while the drive is idle.
    pub fn next(&self) -> Option<Nanos> {
        self.ready.iter().map(|done| done.at).chain(self.active.map(|(ends, _)| ends)).min()
    }

    /// Advances to a time; requests completed by then are appended to `done`.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        self.run(now);
        done.extend(self.ready.iter().filter(|d| d.at <= now));
        self.ready.retain(|d| d.at > now);
    }

    fn run(&mut self, now: Nanos) {
        while let Some((ends, work)) = self.active.filter(|(ends, _)| *ends <= now) {
            self.active = None;
            self.finish(ends, work);
            self.go_on(ends);
        }
    }

    /// Whether the data of a request is in the write cache or being written from it.
    fn is_cached(&self, request: &Request) -> bool {
        let leaves = matches!(self.active, Some((_, Work::Drain(range))) if range.offset <= request.offset && request.end() <= range.end);
        leaves || self.cache.holds(request)
    }

    fn hit(&mut self, at: Nanos, request: &Request) {
        self.ready.push(Done { at: at + self.shape.command + transfer(request.length, self.shape.bus), id: request.id });
    }

    fn finish(&mut self, at: Nanos, work: Work) {
        self.free = at;
        match work {
            Work::Host(request) => {
                self.head = request.end();
                self.ready.push(Done { at: at + self.shape.answer, id: request.id });
                if request.op == Op::Read {
                    self.segments.begin(&request, at);
                }
            }
            Work::Drain(range) => {
                self.head = range.end;
                self.cache.written(range);
            }
        }
    }

    /// Admits waiting writes to the cache, completes flushes, and starts the next work of the head.
    fn go_on(&mut self, now: Nanos) {
        if let Some(cache) = self.shape.cache {
            let has_room =
                |inside: &WriteCache, write: &Waiting| inside.bytes() == 0 || inside.bytes() + write.request.length <= cache.bytes;
            while let Some(write) = self.outside.pop_front_if(|write| has_room(&self.cache, write)) {
                let (offset, end) = (write.request.offset, write.request.end());
                self.segments.forget(offset, end);
                self.cache.write(Range { offset, end });
                let at = now.max(write.since) + cache.accept + transfer(write.request.length, self.shape.bus);
                self.ready.push(Done { at, id: write.request.id });
            }
            if !matches!(self.active, Some((_, Work::Drain(_)))) {
                let at = now + self.shape.command;
                self.ready.extend(self.cache.take_flushed().into_iter().map(|id| Done { at, id }));
            }
        }
        if self.active.is_some() {
            return;
        }
        let from = self.free.max(now);
        let Some((work, takes)) = self.choose(from) else { return };
        self.segments.stop(from);
        match work {
            Work::Host(request) => {
                self.queue.retain(|w| w.request.id != request.id);
                if request.op == Op::Write {
                    self.segments.forget(request.offset, request.end());
                }
            }
            Work::Drain(range) => self.cache.take(range),
        }
        self.active = Some((from + takes, work));
    }

    /// Chooses the nearest work; returns it with its duration.
    fn choose(&self, from: Nanos) -> Option<(Work, Nanos)> {
        let cost = |w: &Waiting| {
            let settle = if w.request.op == Op::Read { self.shape.read_settle } else { self.shape.write_settle };
            (Work::Host(w.request), self.position(from, w.request.offset, settle) + transfer(w.request.length, self.shape.rate))
        };
        if let Some(oldest) = self.queue.iter().filter(|w| from.saturating_sub(w.since) > PATIENCE).min_by_key(|w| w.since) {
            return Some(cost(oldest));
        }
        let depth = |op: Op| if op == Op::Read { self.shape.read_depth } else { self.shape.write_depth };
        let of = |op: Op| self.queue.iter().filter(move |w| w.request.op == op).take(depth(op));
        let host = of(Op::Read).chain(of(Op::Write)).map(cost).min_by_key(|(_, takes)| *takes);
        let pressed = self.cache.is_flushing() || !self.outside.is_empty();
        if host.is_some() && !pressed {
            return host;
        }
        let drains = self.cache.sweep(self.head, SWEEP).map(|range| self.drain(from, range));
        host.into_iter().chain(drains).min_by_key(|(_, takes)| *takes)
    }

    fn drain(&self, from: Nanos, range: Range) -> (Work, Nanos) {
        let range = Range { offset: range.offset, end: range.end.min(range.offset + DRAIN) };
        let length = range.end - range.offset;
        let position = self.position(from, range.offset, self.shape.write_settle);
        let aside = self.shape.cache.filter(|_| length <= SMALL).map_or(Nanos::MAX, |cache| cache.aside);
        (Work::Drain(range), position.min(aside) + transfer(length, self.shape.rate))
    }

    /// Returns the time from `from` until a byte is under the head.
    fn position(&self, from: Nanos, byte: u64, settle: Nanos) -> Nanos {
        let track = transfer_bytes(self.shape.revolution, self.shape.rate);
        let (here, there) = (self.head / track, byte / track);
        let seek = if byte == self.head || here == there {
            0
        } else {
            let part = (here.abs_diff(there) * track) as f64 / self.shape.capacity.max(1) as f64;
            settle + (self.shape.full_seek as f64 * part.min(1.0).sqrt()) as Nanos
        };
        let revolution = self.shape.revolution;
        let angle = |byte: u64| transfer(byte % track, self.shape.rate) % revolution;
        // the head was at the end of the last request when it became free, and the platter has
        // turned since
        let now = (angle(self.head) + (from - self.free) + seek) % revolution;
        let wait = (angle(byte) + revolution - now) % revolution;
        seek + if wait + NEARLY >= revolution { 0 } else { wait }
    }
}

/// Returns the bytes that pass under the head in a time.
fn transfer_bytes(time: Nanos, rate: u64) -> u64 {
    u64::try_from(u128::from(time) * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests;
