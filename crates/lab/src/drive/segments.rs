//! A drive's read cache: what it read ahead. One stream goes on while nothing else wants the head; what earlier ones left is kept for a while.

use super::Nanos;
use super::request::Request;
use super::request::transfer;
use std::collections::VecDeque;

/// Pieces that are kept.
const KEPT: usize = 16;

/// Bytes that pass under the head since a request ended.
#[derive(Clone, Copy, Debug)]
struct Stream {
    begin: u64,
    /// Where the head was at `time`.
    end: u64,
    time: Nanos,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Segments {
    rate: u64,
    ahead: u64,
    stream: Option<Stream>,
    kept: VecDeque<(u64, u64)>,
}

impl Segments {
    /// At this rate in bytes per second, at most so many bytes ahead.
    pub fn new(rate: u64, ahead: u64) -> Segments {
        Segments { rate, ahead, stream: None, kept: VecDeque::new() }
    }

    /// When the head has read the whole of a request that is kept or that the stream reaches; `None` for others.
    pub fn holds(&self, request: &Request) -> Option<Nanos> {
        if self.kept.iter().any(|(begin, end)| *begin <= request.offset && request.end() <= *end) {
            return Some(0);
        }
        let stream = self.stream.filter(|s| s.begin <= request.offset && request.offset <= s.end + self.ahead)?;
        Some(if request.end() <= stream.end { 0 } else { stream.time + transfer(request.end() - stream.end, self.rate) })
    }

    /// The host took a request from the stream: it may go on from there.
    pub fn took(&mut self, request: &Request) {
        if let Some(stream) = self.stream.as_mut().filter(|s| request.end() > s.end) {
            *stream =
                Stream { begin: request.offset, time: stream.time + transfer(request.end() - stream.end, self.rate), end: request.end() };
        }
    }

    /// A read ended here at this time; the head goes on reading.
    pub fn begin(&mut self, request: &Request, time: Nanos) {
        self.stream = Some(Stream { begin: request.offset, end: request.end(), time });
    }

    /// The head is wanted elsewhere.
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

    /// What is written is not kept.
    pub fn forget(&mut self, offset: u64, end: u64) {
        self.kept.retain(|(from, to)| *to <= offset || end <= *from);
        if self.stream.is_some_and(|s| s.begin < end && offset < s.end + self.ahead) {
            self.stream = None;
        }
    }
}
