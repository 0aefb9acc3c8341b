//! Rate limiter between protocols and pool: delays requests that exceed a volume's limits.
//!
//! A rate is tracked as the time at which the admitted requests will be paid for (the generic cell
//! rate algorithm, GCRA): a request is admitted while that time is no further ahead than the
//! allowance that may be saved. INV-QOS-1: a throttled request has not been submitted to the pool,
//! so a flush that overtakes it need not cover it (a flush covers answered requests). INV-QOS-2:
//! requests of a volume in one direction are admitted in their order.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{BufPool, Op, Payload, Request, Tag};

use crate::{Limits, Planted, Rate, Target, VolumeId, VolumeOptions};

const SECOND: u64 = 1_000_000_000;
/// Allowance that may be saved without a burst, in nanoseconds of the rate: QEMU's tenth of a
/// second. It compensates for turns and clients that are late on a busy host.
const SLACK: u64 = 100_000_000;

/// A request for the engine.
pub struct Entry<'a> {
    /// The volume or snapshot that the request is for.
    pub target: Target,
    /// The tag that its completion carries.
    pub tag: Tag,
    /// The operation and its range.
    pub request: Request,
    /// The bytes of a write.
    pub payload: Payload<'a>,
    /// The guest sees a file, so any range of bytes is possible.
    pub bytes: bool,
}

/// Effect of the limits of a volume since they were set, or its pool was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitEffect {
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests that have waited.
    pub waited: u64,
    /// Sum of the times that these waited, in nanoseconds.
    pub waited_nanos: u64,
}

/// The limits of all volumes of a pool that have any. Times are in nanoseconds of one clock that
/// never goes back.
#[derive(Default)]
pub struct Throttles {
    volumes: BTreeMap<VolumeId, Throttle>,
    /// The pool is being closed: nothing is throttled any more.
    lifted: bool,
    planted: Option<Planted>,
}

/// The limits of a volume.
struct Throttle {
    limits: Limits,
    buckets: [Bucket; 6],
    /// Throttled requests with the times when they came: reads, and all others.
    held: [VecDeque<(u64, Entry<'static>)>; 2],
    waited: u64,
    waited_nanos: u64,
    /// Throttled requests are admitted at once, because a pause or disconnect waits for them.
    hurry: bool,
}

/// State of one rate.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Time at which the admitted requests are paid for at the sustained rate, in nanoseconds.
    paid_at: u64,
    /// As `paid_at`, at the rate of a burst.
    burst_at: u64,
}

impl Bucket {
    /// Returns the time at which a request may be admitted.
    fn ready(&self, rate: &Rate) -> u64 {
        if rate.sustained == 0 {
            return 0;
        }
        if rate.burst <= rate.sustained {
            return self.paid_at.saturating_sub(SLACK);
        }
        // a burst of so many seconds takes this much more than the sustained rate pays in that time
        let more = u128::from(rate.burst - rate.sustained) * u128::from(rate.seconds.max(1)) * u128::from(SECOND);
        let saved = u64::try_from(more / u128::from(rate.sustained)).unwrap_or(u64::MAX).saturating_add(SLACK);
        self.paid_at.saturating_sub(saved).max(self.burst_at.saturating_sub(SLACK))
    }

    /// Charges an admitted request.
    fn pay(&mut self, rate: &Rate, amount: u64, now: u64) {
        let cost = |per_second: u64| match per_second {
            0 => 0,
            rate => u64::try_from(u128::from(amount) * u128::from(SECOND) / u128::from(rate)).unwrap_or(u64::MAX),
        };
        self.paid_at = self.paid_at.max(now).saturating_add(cost(rate.sustained));
        self.burst_at = self.burst_at.max(now).saturating_add(cost(rate.burst));
    }
}

/// Returns the cost of a request under each rate, in the order of [`Limits::rates`].
fn amounts(request: &Request) -> [u64; 6] {
    let bytes = request.range.length;
    match request.op {
        Op::Read => [1, 1, 0, bytes, bytes, 0],
        Op::Write => [1, 0, 1, bytes, 0, bytes],
        Op::Discard | Op::WriteZeroes { .. } => [1, 0, 1, 0, 0, 0],
        Op::Flush | Op::Cache => [0; 6],
    }
}

impl Throttle {
    fn new(limits: Limits) -> Throttle {
        Throttle { limits, buckets: [Bucket::default(); 6], held: Default::default(), waited: 0, waited_nanos: 0, hurry: false }
    }

    /// Returns the time at which a request may be admitted.
    fn ready(&self, request: &Request) -> u64 {
        let each = self.buckets.iter().zip(self.limits.rates()).zip(amounts(request));
        each.filter(|(_, amount)| *amount > 0).map(|((bucket, rate), _)| bucket.ready(rate)).max().unwrap_or(0)
    }

    fn pay(&mut self, request: &Request, now: u64) {
        for ((bucket, rate), amount) in self.buckets.iter_mut().zip(self.limits.rates()).zip(amounts(request)) {
            if amount > 0 {
                bucket.pay(rate, amount, now);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.held.iter().all(VecDeque::is_empty)
    }

    /// Returns the next throttled request that may be admitted, reads first.
    fn release(&mut self, now: u64, lifted: bool) -> Option<Entry<'static>> {
        let all = lifted || self.hurry;
        let place = self.held.iter().position(|held| held.front().is_some_and(|(_, front)| all || self.ready(&front.request) <= now))?;
        let (since, entry) = self.held.get_mut(place)?.pop_front()?;
        self.waited += 1;
        self.waited_nanos += now.saturating_sub(since);
        self.pay(&entry.request, now);
        self.hurry &= !self.is_idle();
        Some(entry)
    }

    /// Returns the time at which the next throttled request may be admitted.
    fn next(&self) -> Option<u64> {
        let fronts = self.held.iter().filter_map(|held| held.front());
        fronts.map(|(_, held)| if self.hurry { 0 } else { self.ready(&held.request) }).min()
    }
}

impl Throttles {
    /// Creates throttles with a planted bug.
    pub fn planting(planted: Option<Planted>) -> Throttles {
        Throttles { planted, ..Throttles::default() }
    }

    /// Sets the limits of the pool's volumes.
    pub fn set(&mut self, options: &BTreeMap<VolumeId, VolumeOptions>) {
        for (volume, throttle) in &mut self.volumes {
            // a volume that was destroyed is kept while it has throttled requests: the pool must
            // answer those
            let limits = options.get(volume).map(|options| granted(options.limits, self.planted)).unwrap_or_default();
            if throttle.limits != limits {
                throttle.limits = limits;
                throttle.buckets = [Bucket::default(); 6];
            }
        }
        for (volume, options) in options.iter().filter(|(_, options)| options.limits != Limits::default()) {
            self.volumes.entry(*volume).or_insert_with(|| Throttle::new(granted(options.limits, self.planted)));
        }
        self.volumes.retain(|_, throttle| throttle.limits != Limits::default() || !throttle.is_idle());
    }

    /// Takes a request; returns it if it may be submitted to the pool now, else keeps it. `bufs`:
    /// for a payload that has to be copied.
    pub fn admit<'a>(&mut self, entry: Entry<'a>, now: u64, bufs: &mut BufPool) -> Option<Entry<'a>> {
        let Target::Head(volume) = entry.target else { return Some(entry) };
        if self.lifted {
            return Some(entry);
        }
        let Some(throttle) = self.volumes.get_mut(&volume) else { return Some(entry) };
        let request = &entry.request;
        let free = matches!(request.op, Op::Flush | Op::Cache);
        let place = usize::from(request.op != Op::Read);
        let waits = throttle.held.get(place).is_some_and(|held| !held.is_empty());
        if free || (!waits && throttle.ready(request) <= now) {
            throttle.pay(request, now);
            return Some(entry);
        }
        let Entry { target, tag, request, payload, bytes } = entry;
        let payload = match payload {
            Payload::None => Payload::None,
            Payload::Owned(buf) => Payload::Owned(buf),
            Payload::Copy(bytes) => {
                let mut buf = bufs.take(bytes.len());
                if let Some(to) = buf.bytes_mut().get_mut(..bytes.len()) {
                    to.copy_from_slice(bytes);
                }
                Payload::Owned(buf)
            }
        };
        if let Some(held) = throttle.held.get_mut(place) {
            held.push_back((now, Entry { target, tag, request, payload, bytes }));
        }
        None
    }

    /// Returns the next throttled request that may be submitted to the pool now.
    pub fn release(&mut self, now: u64) -> Option<Entry<'static>> {
        let lifted = self.lifted;
        self.volumes.values_mut().find_map(|throttle| throttle.release(now, lifted))
    }

    /// Returns the time at which the next throttled request may be admitted.
    pub fn next_release(&self) -> Option<u64> {
        self.volumes.values().filter_map(Throttle::next).min()
    }

    /// Returns the effect of the limits of a volume; zeroes without limits.
    pub fn effect(&self, volume: VolumeId) -> LimitEffect {
        let Some(throttle) = self.volumes.get(&volume) else { return LimitEffect::default() };
        let waiting = throttle.held.iter().map(|held| held.len() as u64).sum();
        LimitEffect { waiting, waited: throttle.waited, waited_nanos: throttle.waited_nanos }
    }

    /// Admits all waiting requests of a volume (`None`: of all volumes) at once, because a pause or
    /// disconnect waits for them.
    pub fn hurry(&mut self, target: Option<Target>) {
        for (volume, throttle) in &mut self.volumes {
            throttle.hurry |= target.is_none_or(|target| target == Target::Head(*volume)) && !throttle.is_idle();
        }
    }

    /// Stops throttling for good.
    pub fn lift(&mut self) {
        self.lifted = true;
        self.hurry(None);
    }
}

/// Returns the limits as enforced: unchanged, except with a planted bug.
fn granted(mut limits: Limits, planted: Option<Planted>) -> Limits {
    if cfg!(feature = "planted") && planted == Some(Planted::BurstTwice) {
        limits.rates_mut().into_iter().filter(|rate| rate.burst > 0).for_each(|rate| rate.seconds = 2 * rate.seconds.max(1));
    }
    limits
}

#[cfg(test)]
mod tests;
