//! A drive's read cache, filled by read-ahead. One stream continues while the head has no other
//! work; ranges of earlier streams are kept for a while.

use super::Nanos;
use super::request::Request;
use super::request::transfer;
use std::collections::VecDeque;

/// Number of earlier ranges that are kept.
const KEPT: usize = 16;

/// Read-ahead that began when a request ended.
#[derive(Clone, Copy, Debug)]
struct Stream {
    begin: u64,
    /// Position of the head at `time`.
    end: u64,
    time: Nanos,
}

/// The read cache of a drive; see the module.
#[derive(Debug)]
pub(super) struct Segments {
    rate: u64,
    ahead: u64,
    stream: Option<Stream>,
    kept: VecDeque<(u64, u64)>,
}

impl Segments {
    /// Makes an empty cache that reads ahead at `rate` bytes per second, at most `ahead` bytes.
    pub fn new(rate: u64, ahead: u64) -> Segments {
        Segments { rate, ahead, stream: None, kept: VecDeque::new() }
    }

    /// Returns when the head has read all of a request that is cached or that the stream reaches;
    /// `None` for other requests.
    pub fn holds(&self, request: &Request) -> Option<Nanos> {
        if self.kept.iter().any(|(begin, end)| *begin <= request.offset && request.end() <= *end) {
            return Some(0);
        }
        let stream = self.stream.filter(|s| s.begin <= request.offset && request.offset <= s.end + self.ahead)?;
        Some(if request.end() <= stream.end { 0 } else { stream.time + transfer(request.end() - stream.end, self.rate) })
    }

    /// Continues the stream from the end of a request that it served.
    pub fn took(&mut self, request: &Request) {
        if let Some(stream) = self.stream.as_mut().filter(|s| request.end() > s.end) {
            *stream =
                Stream { begin: request.offset, time: stream.time + transfer(request.end() - stream.end, self.rate), end: request.end() };
        }
    }

    /// Starts read-ahead after a read that ended at `time`.
    pub fn begin(&mut self, request: &Request, time: Nanos) {
        self.stream = Some(Stream { begin: request.offset, end: request.end(), time });
    }

    /// Stops read-ahead because the head is needed elsewhere; keeps the range.
    pub fn stop(&mut self, now: Nanos) {
        if let Some(stream) = self.stream.take() {
            let passed = u128::from(now.saturating_sub(stream.time)) * u128::from(self.rate) / 1_000_000_000;
            let read = u64::try_from(passed).unwrap_or(self.ahead).min(self.ahead);
            self.kept.push_back((stream.begin, stream.end + read));
            if self.kept.len() > KEPT {
                self.kept.pop_front();
            }
        }
    }

    /// Drops cached ranges that a write overlaps.
    pub fn forget(&mut self, offset: u64, end: u64) {
        self.kept.retain(|(from, to)| *to <= offset || end <= *from);
        if self.stream.is_some_and(|s| s.begin < end && offset < s.end + self.ahead) {
            self.stream = None;
        }
    }
}
