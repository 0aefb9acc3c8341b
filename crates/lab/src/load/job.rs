//! Runs a load: one thread and connection per job.

use super::client::Done;
use super::endpoint::Endpoint;
use super::link::Link;
use super::op::Op;
use super::random::{Permutation, Rng, Zipf};
use super::result::{Latency, LoadResult, Point};
use super::spec::{Access, Durability, LoadSpec, Mix};
use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

// every 4 KiB written contain their position and a stamp, so that no two are equal
const GRAIN: usize = 4096;
const MAX_ERRORS: u64 = 100; // a server that refuses this many requests will refuse the rest

/// Times that a disk is written before speeds are compared: in order, and then at random. A log writes
/// its free space before it cleans: together with the last pass in order more than the lab's pool has.
pub const PASSES: (u64, u64) = (2, 6);
/// Times that it is read at the end: caches keep what is read again.
pub const READ_PASSES: u64 = 3;
/// Seconds of each load that are not measured, where speeds are compared.
pub const WARM_UP: f64 = 1.0;

/// Runs a load until the end that its spec defines. Requests that the server refuses are counted.
///
/// # Errors
/// The server cannot be reached, the range does not fit into the export, or the connection broke.
pub fn run(endpoint: &Endpoint, spec: &LoadSpec) -> Result<LoadResult> {
    run_until(endpoint, spec, &AtomicBool::new(false))
}

/// Writes the whole range as often as [`PASSES`] says, at random in blocks of 64 KiB, and once more in
/// order; then reads as much as [`READ_PASSES`] times of it at random. Done before speeds are compared:
/// a server that writes to a log then reuses space that it had, as a server that writes in place does
/// after one pass, and memory that servers use has been used before. What first writes cost is measured
/// by the experiment `defaults`.
///
/// # Errors
/// Those of [`run`], or the server refused a request.
pub fn precondition(endpoint: &Endpoint) -> Result<()> {
    let random = |mix| move |seed| LoadSpec { once: true, ramp: 0.0, seed, ..LoadSpec::random(mix, 64 << 10, 8) };
    let passes = (0..PASSES.0).map(|_| LoadSpec::fill());
    let passes = passes.chain((0..PASSES.1).map(random(Mix::Write))).chain([LoadSpec::fill()]);
    let passes = passes.chain((0..READ_PASSES).map(random(Mix::Read)));
    for pass in passes {
        let done = run(endpoint, &pass)?;
        ensure!(done.errors == 0, "{} requests were refused", done.errors);
    }
    Ok(())
}

/// Runs a load until the end that its spec defines, or until `stop` is set.
///
/// # Errors
/// Those of [`run`].
pub fn run_until(endpoint: &Endpoint, spec: &LoadSpec, stop: &AtomicBool) -> Result<LoadResult> {
    let mut links = Vec::new();
    for _ in 0..spec.jobs.max(1) {
        links.push(Link::connect(endpoint, spec)?);
    }
    let blocks = spec.check(links.first().map_or(0, Link::size))?;
    let begin = Instant::now();
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let threads: Vec<_> = links
            .into_iter()
            .enumerate()
            .map(|(job, link)| scope.spawn(move || Job::new(link, spec, job as u64, blocks, begin).run(stop)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a job panicked")))).collect()
    });
    let elapsed = begin.elapsed();
    merge(spec, begin, elapsed, stop.load(Ordering::Relaxed), outcomes)
}

struct Outcome {
    total: u64,
    errors: u64,
    first_error: u32,
    read: Histogram<u64>,
    write: Histogram<u64>,
    series: Vec<Point>,
    cpu: Duration,
}

fn merge(spec: &LoadSpec, begin: Instant, elapsed: Duration, stopped: bool, outcomes: Vec<Result<Outcome>>) -> Result<LoadResult> {
    let ramp = Duration::from_secs_f64(spec.ramp);
    let measured = elapsed.saturating_sub(ramp).as_secs_f64();
    let secs = if spec.once || spec.ops > 0 || stopped { measured } else { spec.secs.min(measured) };
    let (mut read, mut write) = (histogram(), histogram());
    let mut result = LoadResult { secs, started: Some(begin + ramp), ..LoadResult::default() };
    let mut cpu = Duration::ZERO;
    for outcome in outcomes {
        let outcome = outcome?;
        read.add(&outcome.read).context("merging latencies")?;
        write.add(&outcome.write).context("merging latencies")?;
        result.total_ops += outcome.total;
        result.errors += outcome.errors;
        if result.first_error == 0 {
            result.first_error = outcome.first_error;
        }
        cpu += outcome.cpu;
        result.series.resize(result.series.len().max(outcome.series.len()), Point::default());
        for (sum, point) in result.series.iter_mut().zip(outcome.series) {
            sum.ops += point.ops;
            sum.sum_us += point.sum_us;
            sum.max_us = sum.max_us.max(point.max_us);
        }
    }
    if spec.series_ms > 0 {
        result.series.truncate((secs * 1000.0) as usize / spec.series_ms as usize); // the last interval is not a whole one
    }
    let count = (read.len() + write.len()) as f64;
    result.iops = count / secs.max(1e-9);
    result.mib_s = result.iops * spec.block as f64 / f64::from(1 << 20);
    result.client_cpu_us = cpu.as_secs_f64() * 1e6 / result.total_ops.max(1) as f64;
    result.read = Latency::of(&read);
    result.write = Latency::of(&write);
    Ok(result)
}

fn histogram() -> Histogram<u64> {
    // 1 ns to one hour with three significant digits
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("constant bounds are valid")
}

#[derive(Clone, Copy)]
struct InFlight {
    op: Op,
    since: Instant,
    flushing: bool,
}

struct Job<'a> {
    link: Link,
    spec: &'a LoadSpec,
    picker: Picker,
    slots: Vec<InFlight>,
    stamp: u64,
    begin: Instant,
    outcome: Outcome,
}

impl<'a> Job<'a> {
    fn new(mut link: Link, spec: &'a LoadSpec, job: u64, blocks: u64, begin: Instant) -> Job<'a> {
        for slot in 0..spec.depth {
            Rng::new(spec.seed ^ (job << 32 | slot as u64)).fill(link.data(slot));
        }
        Job {
            link,
            spec,
            picker: Picker::new(spec, job, blocks),
            slots: vec![InFlight { op: Op::Read, since: begin, flushing: false }; spec.depth],
            stamp: job << 48,
            begin,
            outcome: Outcome {
                total: 0,
                errors: 0,
                first_error: 0,
                read: histogram(),
                write: histogram(),
                series: Vec::new(),
                cpu: Duration::ZERO,
            },
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Result<Outcome> {
        let ramp_end = self.begin + Duration::from_secs_f64(self.spec.ramp);
        let end = if self.spec.once { None } else { Some(ramp_end + Duration::from_secs_f64(self.spec.secs)) };
        let mut in_flight = 0;
        for slot in 0..self.spec.depth {
            in_flight += usize::from(self.start(slot, self.begin)?);
        }
        self.link.kick()?;
        let mut done = Vec::with_capacity(self.spec.depth);
        while in_flight > 0 {
            done.clear();
            self.link.wait(&mut done)?;
            let now = Instant::now();
            let ending = end.is_some_and(|end| now >= end) || stop.load(Ordering::Relaxed) || self.outcome.errors > MAX_ERRORS;
            for Done { slot, error } in done.drain(..) {
                self.note_error(error);
                let current = self.slots[slot];
                if current.op == Op::Write && self.spec.durability == Durability::Flush && !current.flushing {
                    self.slots[slot].flushing = true;
                    self.link.submit(slot, Op::Flush, 0, 0)?;
                    continue;
                }
                self.outcome.total += 1;
                if now >= ramp_end && end.is_none_or(|end| now <= end) {
                    self.record(current, now, ramp_end);
                }
                if ending || !self.start(slot, now)? {
                    in_flight -= 1;
                }
            }
            self.link.kick()?;
        }
        self.outcome.cpu = thread_cpu();
        Ok(self.outcome)
    }

    /// Queues the next request in a free slot; false if there are no more requests.
    fn start(&mut self, slot: usize, now: Instant) -> Result<bool> {
        let Some((op, block)) = self.picker.next() else { return Ok(false) };
        let offset = self.spec.offset + block * self.spec.block as u64;
        if op == Op::Write {
            self.stamp += 1;
            mark(self.link.data(slot), offset, self.stamp);
        }
        self.slots[slot] = InFlight { op, since: now, flushing: false };
        self.link.submit(slot, op, offset, self.spec.block)?;
        Ok(true)
    }

    fn note_error(&mut self, error: u32) {
        if error != 0 {
            self.outcome.errors += 1;
            if self.outcome.first_error == 0 {
                self.outcome.first_error = error;
            }
        }
    }

    fn record(&mut self, request: InFlight, now: Instant, measured_from: Instant) {
        let nanoseconds = u64::try_from(now.duration_since(request.since).as_nanos()).unwrap_or(u64::MAX);
        let histogram = if request.op == Op::Read { &mut self.outcome.read } else { &mut self.outcome.write };
        histogram.saturating_record(nanoseconds);
        if self.spec.series_ms > 0 {
            let index =
                usize::try_from(now.duration_since(measured_from).as_millis() / u128::from(self.spec.series_ms)).unwrap_or(usize::MAX);
            if index >= self.outcome.series.len() {
                self.outcome.series.resize(index + 1, Point::default());
            }
            let point = &mut self.outcome.series[index];
            point.ops += 1;
            point.sum_us += nanoseconds as f64 / 1e3;
            point.max_us = point.max_us.max(nanoseconds as f64 / 1e3);
        }
    }
}

fn mark(data: &mut [u8], offset: u64, stamp: u64) {
    for (index, grain) in data.chunks_mut(GRAIN).enumerate() {
        if let Some(head) = grain.get_mut(..16) {
            head[..8].copy_from_slice(&(offset + (index * GRAIN) as u64).to_le_bytes());
            head[8..].copy_from_slice(&stamp.to_le_bytes());
        }
    }
}

/// CPU time of the calling thread; zero if the kernel does not report it.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// Chooses operation and block of each request.
struct Picker {
    mix: Mix,
    access: Access,
    once: bool,
    limit: u64,
    first: u64,
    count: u64,
    order: Permutation,
    zipf: Option<Zipf>,
    rng: Rng,
    issued: u64,
}

impl Picker {
    fn new(spec: &LoadSpec, job: u64, blocks: u64) -> Picker {
        let share = blocks / spec.jobs as u64;
        let own_part = spec.access == Access::Sequential || spec.once;
        let (first, count) = if own_part { (share * job, share) } else { (0, blocks) };
        Picker {
            mix: spec.mix,
            access: spec.access,
            once: spec.once,
            limit: match (spec.once, spec.ops) {
                (true, 0) => count,
                (true, ops) => ops.min(count),
                (false, 0) => u64::MAX,
                (false, ops) => ops,
            },
            first,
            count,
            order: Permutation::new(count, if spec.once { spec.seed ^ job << 32 } else { 0x6D69_6C6C }), // skew stays on the same blocks from run to run
            zipf: if let Access::Zipf(exponent) = spec.access { Some(Zipf::new(count, exponent)) } else { None },
            rng: Rng::new(spec.seed ^ (job + 1).wrapping_mul(0xD1B5_4A32_D192_ED03)),
            issued: 0,
        }
    }

    fn next(&mut self) -> Option<(Op, u64)> {
        if self.issued >= self.limit {
            return None;
        }
        let index = self.issued;
        self.issued += 1;
        let block = match self.access {
            Access::Sequential => index % self.count,
            _ if self.once => self.order.at(index),
            Access::Uniform => self.rng.below(self.count),
            Access::HotSet { part, share } => {
                let hot = ((self.count as f64 * part) as u64).clamp(1, self.count);
                let in_hot = hot == self.count || self.rng.unit() < share;
                self.order.at(if in_hot { self.rng.below(hot) } else { hot + self.rng.below(self.count - hot) })
            }
            Access::Zipf(_) => self.order.at(self.zipf.as_ref().map_or(0, |z| z.sample(&mut self.rng))),
        };
        let op = match self.mix {
            Mix::Read => Op::Read,
            Mix::Write => Op::Write,
            Mix::Trim => Op::Trim,
            Mix::Both(reads) if self.rng.below(100) < u64::from(reads) => Op::Read,
            Mix::Both(_) => Op::Write,
        };
        Some((op, self.first + block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_covers_the_range_over_all_jobs() {
        for access in [Access::Sequential, Access::Uniform] {
            let spec = LoadSpec { access, jobs: 3, once: true, ..LoadSpec::default() };
            let mut seen = vec![0; 999];
            for job in 0..3 {
                let mut picker = Picker::new(&spec, job, 999);
                while let Some((_, block)) = picker.next() {
                    seen[block as usize] += 1;
                }
            }
            assert!(seen.iter().all(|n| *n == 1), "{access:?}");
        }
    }

    #[test]
    fn a_hot_set_takes_its_share() {
        let spec = LoadSpec { access: Access::HotSet { part: 0.2, share: 0.8 }, ops: 100_000, ..LoadSpec::default() };
        let mut picker = Picker::new(&spec, 0, 1000);
        let mut counts = vec![0u32; 1000];
        while let Some((_, block)) = picker.next() {
            counts[block as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = counts[..200].iter().sum();
        assert!((79_000..81_000).contains(&hot), "{hot}");
    }
}
