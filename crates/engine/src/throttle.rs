//! Between protocols and pool: holds requests back that a volume's limits do not allow yet.
//!
//! A rate is watched as the time at which what was let in will be paid for (the generic cell rate algorithm): a request is let in while that
//! is not further ahead than what may be saved up. INV-QOS-1: what is held was never seen by the pool, so a flush that passes it owes it nothing
//! (it covers what was answered). INV-QOS-2: requests of a volume in one direction are let in in their order.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{BufPool, Op, Payload, Request, Tag};

use crate::{Limits, Planted, Rate, Target, VolumeId, VolumeOptions};

const SECOND: u64 = 1_000_000_000;
/// What may be saved up without a burst, in nanoseconds of the rate: QEMU's tenth of a second. It makes up for turns and clients that come late
/// on a busy host.
const SLACK: u64 = 100_000_000;

/// A request on its way to the engine.
pub struct Entry<'a> {
    /// The volume or snapshot that it is for.
    pub target: Target,
    /// The number that its completion carries.
    pub tag: Tag,
    /// The operation and its range.
    pub request: Request,
    /// The bytes of a write.
    pub payload: Payload<'a>,
    /// It comes from a guest that sees a file.
    pub bytes: bool,
}

/// The limits of all volumes of a pool that have any. Times are those of one clock that never goes back, in nanoseconds.
#[derive(Default)]
pub struct Throttles {
    volumes: BTreeMap<VolumeId, Throttle>,
    /// The pool is being closed: nothing is held any more.
    lifted: bool,
    planted: Option<Planted>,
}

/// The limits of a volume.
struct Throttle {
    limits: Limits,
    buckets: [Bucket; 6],
    /// Reads, and everything else.
    held: [VecDeque<Entry<'static>>; 2],
    /// Requests held back are admitted at once, because a pause or disconnect waits for them.
    hurry: bool,
}

/// One rate.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// When what was let in is paid for at the sustained rate, in nanoseconds.
    paid_at: u64,
    /// The same at the rate of a burst.
    burst_at: u64,
}

impl Bucket {
    /// When something may be let in.
    fn ready(&self, rate: &Rate) -> u64 {
        if rate.sustained == 0 {
            return 0;
        }
        if rate.burst <= rate.sustained {
            return self.paid_at.saturating_sub(SLACK);
        }
        // a burst of so many seconds takes this much more than the sustained rate pays meanwhile
        let more = u128::from(rate.burst - rate.sustained) * u128::from(rate.seconds.max(1)) * u128::from(SECOND);
        let saved = u64::try_from(more / u128::from(rate.sustained)).unwrap_or(u64::MAX).saturating_add(SLACK);
        self.paid_at.saturating_sub(saved).max(self.burst_at.saturating_sub(SLACK))
    }

    /// Lets something in.
    fn pay(&mut self, rate: &Rate, amount: u64, now: u64) {
        let cost = |per_second: u64| match per_second {
            0 => 0,
            rate => u64::try_from(u128::from(amount) * u128::from(SECOND) / u128::from(rate)).unwrap_or(u64::MAX),
        };
        self.paid_at = self.paid_at.max(now).saturating_add(cost(rate.sustained));
        self.burst_at = self.burst_at.max(now).saturating_add(cost(rate.burst));
    }
}

/// The cost of a request under each rate, in the order of [`Limits::rates`].
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
        Throttle { limits, buckets: [Bucket::default(); 6], held: Default::default(), hurry: false }
    }

    /// When a request may be let in.
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

    /// The next of what is held that may be let in, reads first.
    fn release(&mut self, now: u64, lifted: bool) -> Option<Entry<'static>> {
        let all = lifted || self.hurry;
        let place = self.held.iter().position(|held| held.front().is_some_and(|front| all || self.ready(&front.request) <= now))?;
        let entry = self.held.get_mut(place)?.pop_front()?;
        self.pay(&entry.request, now);
        self.hurry &= !self.is_idle();
        Some(entry)
    }

    /// When the next of what is held may be let in.
    fn next(&self) -> Option<u64> {
        let fronts = self.held.iter().filter_map(|held| held.front());
        fronts.map(|held| if self.hurry { 0 } else { self.ready(&held.request) }).min()
    }
}

impl Throttles {
    /// Some with a known bug.
    pub fn planting(planted: Option<Planted>) -> Throttles {
        Throttles { planted, ..Throttles::default() }
    }

    /// Takes over what the pool's volumes are limited to.
    pub fn set(&mut self, options: &BTreeMap<VolumeId, VolumeOptions>) {
        for (volume, throttle) in &mut self.volumes {
            // one that is gone is kept until nothing is held: its requests are the pool's to refuse
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

    /// Takes a request; gives it back when it may be handed to the pool now. `bufs`: for a payload that
    /// has to be copied.
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
            held.push_back(Entry { target, tag, request, payload, bytes });
        }
        None
    }

    /// The next request that was held and may be handed to the pool now.
    pub fn release(&mut self, now: u64) -> Option<Entry<'static>> {
        let lifted = self.lifted;
        self.volumes.values_mut().find_map(|throttle| throttle.release(now, lifted))
    }

    /// When the next held request may be let in.
    pub fn next_release(&self) -> Option<u64> {
        self.volumes.values().filter_map(Throttle::next).min()
    }

    /// Requests of a volume (of all) that wait are let in at once: somebody waits until they are done.
    pub fn hurry(&mut self, target: Option<Target>) {
        for (volume, throttle) in &mut self.volumes {
            throttle.hurry |= target.is_none_or(|target| target == Target::Head(*volume)) && !throttle.is_idle();
        }
    }

    /// Nothing is held from now on.
    pub fn lift(&mut self) {
        self.lifted = true;
        self.hurry(None);
    }
}

/// What is let in under these limits: the same, without a bug.
fn granted(mut limits: Limits, planted: Option<Planted>) -> Limits {
    if cfg!(feature = "planted") && planted == Some(Planted::BurstTwice) {
        limits.rates_mut().into_iter().filter(|rate| rate.burst > 0).for_each(|rate| rate.seconds = 2 * rate.seconds.max(1));
    }
    limits
}

#[cfg(test)]
mod tests;
