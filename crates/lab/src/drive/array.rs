//! Drives combined as the kernel's device mapper and md combine them: concatenated, striped, or
//! with two parities and read-modify-write. They serve as the drives of peers where the host's
//! kernel has no device mapper or md.
//!
//! Only time is modelled, in favour of the peer: computing parity takes no time, and a write that
//! fills a row of chunks reads nothing. Two writes to the same 4 KiB row of chunks wait for each
//! other, as in the stripe cache of md.

use super::model::Drive;
use super::request::{Done, Nanos, Op, Request};
use crate::units::parse_size;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, VecDeque};
use std::str::FromStr;

/// Layout of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Concatenated.
    Linear,
    /// Striped with chunks of this many bytes.
    Stripe(u64),
    /// Striped with chunks of this many bytes, and two parities in each row.
    Raid6(u64),
}

impl Layout {
    /// Returns the minimum number of drives.
    pub fn least(self) -> usize {
        if matches!(self, Layout::Raid6(_)) { 4 } else { 1 }
    }
}

impl FromStr for Layout {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Layout> {
        if text == "linear" {
            return Ok(Layout::Linear);
        }
        let (name, chunk) = text.split_once(':').with_context(|| format!("'{text}' is neither linear, stripe:CHUNK nor raid6:CHUNK"))?;
        let chunk = parse_size(chunk)?;
        ensure!(chunk >= 4096 && chunk.is_multiple_of(4096), "a chunk is a multiple of 4096 bytes");
        Ok(match name {
            "stripe" => Layout::Stripe(chunk),
            "raid6" => Layout::Raid6(chunk),
            _ => bail!("'{text}' is neither linear, stripe:CHUNK nor raid6:CHUNK"),
        })
    }
}

/// Part of a request on one drive; offset and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    drive: usize,
    offset: u64,
    length: u64,
}

/// A request in flight.
#[derive(Debug)]
struct Job {
    id: u64,
    /// Parts of the current phase that are not done.
    left: usize,
    /// Parts to write after all reads are done.
    then: Vec<Part>,
    rows: Vec<u64>,
}

#[derive(Debug)]
struct Plan {
    request: Request,
    read: Vec<Part>,
    write: Vec<Part>,
    rows: Vec<u64>,
}

/// A simulated array; see the module.
#[derive(Debug)]
pub struct Array {
    drives: Vec<Drive>,
    layout: Layout,
    /// Bytes used of each drive.
    each: u64,
    jobs: HashMap<u64, Job>,
    /// Job of each part in flight, by the part's id.
    parts: HashMap<u64, u64>,
    made: u64,
    /// Rows with a write in flight.
    busy: Vec<u64>,
    waiting: VecDeque<Plan>,
}

const GRAIN: u64 = 4096;

impl Array {
    /// Makes an array of `drives` with `size` bytes in total.
    pub fn new(drives: Vec<Drive>, layout: Layout, size: u64) -> Array {
        let each = (size / drives.len().max(1) as u64).max(GRAIN);
        Array { drives, layout, each, jobs: HashMap::new(), parts: HashMap::new(), made: 0, busy: Vec::new(), waiting: VecDeque::new() }
    }

    /// Submits a request at a time.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        let plan = self.plan(request);
        if plan.rows.iter().any(|row| self.busy.contains(row)) {
            self.waiting.push_back(plan);
        } else {
            self.start(now, plan);
        }
    }

    /// Returns the time of the next event.
    pub fn next(&self) -> Option<Nanos> {
        self.drives.iter().filter_map(Drive::next).min()
    }

    /// Advances to a time, event by event in order of time over all drives.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        while let Some(at) = self.next().filter(|at| *at <= now) {
            let mut ended = Vec::new();
            self.drives.iter_mut().for_each(|drive| drive.advance(at, &mut ended));
            for part in ended {
                self.end(part, done);
            }
        }
    }

    fn end(&mut self, part: Done, done: &mut Vec<Done>) {
        let Some(id) = self.parts.remove(&part.id) else { return };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.left -= 1;
        if job.left > 0 {
            return;
        }
        let next = std::mem::take(&mut job.then);
        if !next.is_empty() {
            job.left = next.len();
            return self.issue(part.at, id, Op::Write, &next);
        }
        let Some(job) = self.jobs.remove(&id) else { return };
        done.push(Done { at: part.at, id: job.id });
        self.busy.retain(|row| !job.rows.contains(row));
        if let Some(index) = self.waiting.iter().position(|plan| !plan.rows.iter().any(|row| self.busy.contains(row)))
            && let Some(plan) = self.waiting.remove(index)
        {
            self.start(part.at, plan);
        }
    }

    fn start(&mut self, now: Nanos, plan: Plan) {
        let id = plan.request.id;
        let (op, parts, then) = match plan.request.op {
            Op::Write if plan.read.is_empty() => (Op::Write, plan.write, Vec::new()),
            Op::Write => (Op::Read, plan.read, plan.write),
            other => (other, plan.read, Vec::new()),
        };
        self.busy.extend(&plan.rows);
        self.jobs.insert(id, Job { id, left: parts.len(), then, rows: plan.rows });
        self.issue(now, id, op, &parts);
    }

    fn issue(&mut self, now: Nanos, job: u64, op: Op, parts: &[Part]) {
        for part in parts {
            self.made += 1;
            self.parts.insert(self.made, job);
            if let Some(drive) = self.drives.get_mut(part.drive) {
                drive.submit(now, Request { id: self.made, op, offset: part.offset, length: part.length });
            }
        }
    }

    fn plan(&self, request: Request) -> Plan {
        let count = self.drives.len();
        let whole = |drive| Part { drive, offset: 0, length: 0 };
        let plain = |parts: Vec<Part>| match request.op {
            Op::Write => Plan { request, read: Vec::new(), write: parts, rows: Vec::new() },
            _ => Plan { request, read: parts, write: Vec::new(), rows: Vec::new() },
        };
        if request.op == Op::Flush {
            return plain((0..count).map(whole).collect());
        }
        match self.layout {
            Layout::Linear => plain(self.linear(request)),
            Layout::Stripe(chunk) => plain(joined(pieces(request, chunk).map(|(index, within, length)| {
                let (row, drive) = (index / count as u64, index as usize % count);
                Part { drive, offset: row * chunk + within, length }
            }))),
            Layout::Raid6(chunk) => self.raid6(request, chunk),
        }
    }

    fn linear(&self, request: Request) -> Vec<Part> {
        let last = self.drives.len() as u64 - 1;
        let drive = (request.offset / self.each).min(last);
        vec![Part { drive: drive as usize, offset: request.offset - drive * self.each, length: request.length }]
    }

    /// Parities rotate from row to row. If a write does not fill a row, the old data and both
    /// parities of the written range are read first.
    fn raid6(&self, request: Request, chunk: u64) -> Plan {
        let count = self.drives.len() as u64;
        let data = count - 2;
        let place = |row: u64, column: u64| ((column + row) % count) as usize; // columns: data, P, Q
        let (mut read, mut write, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let all: Vec<(u64, u64, u64)> = pieces(request, chunk).collect();
        let Some((first, last)) = all.first().zip(all.last()).map(|(f, l)| (f.0 / data, l.0 / data)) else {
            return Plan { request, read, write, rows };
        };
        for row in first..=last {
            let own = || all.iter().filter(|(index, ..)| index / data == row);
            let covered: u64 = own().map(|(.., length)| length).sum();
            let from = own().map(|(_, within, _)| *within).min().unwrap_or(0);
            let to = own().map(|(_, within, length)| within + length).max().unwrap_or(0);
            let mut parts: Vec<Part> = own()
                .map(|(index, within, length)| Part { drive: place(row, index % data), offset: row * chunk + within, length: *length })
                .collect();
            if request.op == Op::Read {
                read.extend(parts);
                continue;
            }
            parts.extend([data, data + 1].map(|column| Part { drive: place(row, column), offset: row * chunk + from, length: to - from }));
            if covered < data * chunk {
                read.extend(parts.iter().copied());
            }
            write.extend(parts);
            rows.extend((from / GRAIN..to.div_ceil(GRAIN)).map(|grain| row * (chunk / GRAIN) + grain));
        }
        Plan { request, read, write, rows }
    }
}

/// Splits a request by chunks: number of the chunk, offset in it, length.
fn pieces(request: Request, chunk: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    (request.offset / chunk..request.end().div_ceil(chunk)).map(move |index| {
        let from = request.offset.max(index * chunk);
        (index, from - index * chunk, request.end().min((index + 1) * chunk) - from)
    })
}

/// Joins parts that are adjacent on a drive.
fn joined(parts: impl Iterator<Item = Part>) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        match all.iter_mut().find(|p| p.drive == part.drive && p.offset + p.length == part.offset) {
            Some(before) => before.length += part.length,
            None => all.push(part),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::Model;
    use super::*;

    fn array(model: &str, size: u64) -> Array {
        let Drive::Joined(array) = Drive::new(&model.parse::<Model>().unwrap(), size) else { panic!("{model} is joined") };
        *array
    }

    fn write(id: u64, offset: u64, length: u64) -> Request {
        Request { id, op: Op::Write, offset, length }
    }

    #[test]
    fn a_small_write_reads_three_and_writes_three() {
        let plan = array("6*nvme/raid6:64k", 1 << 30).plan(write(1, 4096, 4096));
        let expected = [0, 4, 5].map(|drive| Part { drive, offset: 4096, length: 4096 });
        assert_eq!((plan.read.as_slice(), plan.write.as_slice()), (&expected[..], &expected[..]));
        let next_row = array("6*nvme/raid6:64k", 1 << 30).plan(write(1, 4 * 65536, 4096));
        assert_eq!(next_row.write.iter().map(|p| p.drive).collect::<Vec<_>>(), [1, 5, 0], "parities go round");
    }

    #[test]
    fn a_whole_row_reads_nothing() {
        let plan = array("6*nvme/raid6:64k", 1 << 30).plan(write(1, 0, 4 * 65536));
        assert!(plan.read.is_empty());
        assert_eq!(plan.write.len(), 6);
    }

    #[test]
    fn writes_to_one_row_wait_for_each_other() {
        let mut array = array("4*cap:1m/raid6:4k", 1 << 20);
        let mut done = Vec::new();
        array.submit(0, write(1, 0, 4096));
        array.submit(0, write(2, 4096, 4096)); // the other data column of the same row
        array.advance(Nanos::MAX, &mut done);
        let grain = 4_096_000; // 4096 bytes at 1 MB/s
        assert_eq!(done, [Done { at: 2 * grain, id: 1 }, Done { at: 4 * grain, id: 2 }]);
    }

    #[test]
    fn a_stripe_keeps_all_drives_busy_and_linear_one() {
        for (model, seconds) in [("4*cap:50m/stripe:64k", 1), ("4*cap:50m/linear", 4)] {
            let mut array = array(model, 1 << 30);
            let (block, mut done) = (500_000 / 4096 * 4096, Vec::new());
            for n in 0..200_000_000 / block {
                array.submit(0, write(n, n * block, block));
            }
            array.advance(Nanos::MAX, &mut done);
            let last = done.iter().map(|d| d.at).max().unwrap();
            assert!(last.abs_diff(seconds * 1_000_000_000) < 20_000_000, "{model}: {last} ns");
        }
    }
}
