//! Between doors and pool: holds requests back that a volume's limits do not allow yet.
//!
//! A rate is watched as the time at which what was let in will be paid for (the generic cell rate algorithm): a request is let in while that
//! is not further ahead than what may be saved up. INV-QOS-1: what is held was never seen by the pool, so a flush that passes it owes it nothing
//! (it covers what was answered). INV-QOS-2: requests of a volume in one direction are let in in their order.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Buf, Op, Payload, Request, Tag};
use millpond_engine::{Limits, Rate, Target, VolumeId, VolumeOptions};

use super::pool::Pool;

const SECOND: u64 = 1_000_000_000;
/// What may be saved up without a burst, in nanoseconds of the rate: QEMU's tenth of a second. It makes up for turns and clients that come late
/// on a busy host.
const SLACK: u64 = 100_000_000;

/// The limits of all volumes of a shard that have any.
#[derive(Default)]
pub(super) struct Throttles {
    volumes: BTreeMap<VolumeId, Throttle>,
    /// The pool is being closed: nothing is held any more.
    lifted: bool,
}

/// The limits of a volume.
struct Throttle {
    limits: Limits,
    buckets: [Bucket; 6],
    /// Reads, and everything else.
    held: [VecDeque<Held>; 2],
    /// What is held is let in at once: somebody waits for it to be done.
    hurry: bool,
}

/// A request that waits, with its payload.
struct Held {
    tag: Tag,
    request: Request,
    payload: Option<Buf>,
    bytes: bool,
}

/// One rate.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// When what was let in is paid for at the sustained rate, in nanoseconds of the shard's clock.
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

/// What a request counts as, in the order of [`Limits::rates`].
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

    /// When the next of what is held may be let in.
    fn next(&self) -> Option<u64> {
        let fronts = self.held.iter().filter_map(|held| held.front());
        fronts.map(|held| if self.hurry { 0 } else { self.ready(&held.request) }).min()
    }
}

impl Throttles {
    /// Takes over what the pool's volumes are limited to.
    pub fn set(&mut self, options: &BTreeMap<VolumeId, VolumeOptions>) {
        for (volume, throttle) in &mut self.volumes {
            // one that is gone is kept until nothing is held: its requests are the pool's to refuse
            let limits = options.get(volume).map(|options| options.limits).unwrap_or_default();
            if throttle.limits != limits {
                throttle.limits = limits;
                throttle.buckets = [Bucket::default(); 6];
            }
        }
        for (volume, options) in options.iter().filter(|(_, options)| options.limits != Limits::default()) {
            self.volumes.entry(*volume).or_insert_with(|| Throttle::new(options.limits));
        }
        self.volumes.retain(|_, throttle| throttle.limits != Limits::default() || !throttle.is_idle());
    }

    /// Hands a request to the pool, now or later. `bytes`: from a guest that sees a file.
    #[expect(clippy::too_many_arguments, reason = "a request, and from where to where it goes")]
    pub fn submit<P: Pool>(
        &mut self,
        pool: &mut P,
        target: Target,
        tag: Tag,
        request: Request,
        payload: Payload<'_>,
        bytes: bool,
        now: u64,
    ) {
        let limited = if self.volumes.is_empty() || self.lifted { None } else { Some(target) };
        let Some(Target::Head(volume)) = limited else { return enter(pool, target, tag, request, payload, bytes) };
        let Some(throttle) = self.volumes.get_mut(&volume) else { return enter(pool, target, tag, request, payload, bytes) };
        let free = matches!(request.op, Op::Flush | Op::Cache);
        let place = usize::from(request.op != Op::Read);
        let waits = throttle.held.get(place).is_some_and(|held| !held.is_empty());
        if free || (!waits && throttle.ready(&request) <= now) {
            throttle.pay(&request, now);
            return enter(pool, target, tag, request, payload, bytes);
        }
        let payload = match payload {
            Payload::None => None,
            Payload::Owned(buf) => Some(buf),
            Payload::Copy(bytes) => {
                let mut buf = pool.buffers().take(bytes.len());
                if let Some(to) = buf.bytes_mut().get_mut(..bytes.len()) {
                    to.copy_from_slice(bytes);
                }
                Some(buf)
            }
        };
        if let Some(held) = throttle.held.get_mut(place) {
            held.push_back(Held { tag, request, payload, bytes });
        }
    }

    /// Lets in what may go now.
    pub fn release<P: Pool>(&mut self, pool: &mut P, now: u64) {
        for (volume, throttle) in &mut self.volumes {
            for place in [0, 1] {
                while let Some(held) = throttle.held.get(place).and_then(VecDeque::front) {
                    if !self.lifted && !throttle.hurry && throttle.ready(&held.request) > now {
                        break;
                    }
                    let request = held.request;
                    throttle.pay(&request, now);
                    let Some(Held { tag, payload, bytes, .. }) = throttle.held.get_mut(place).and_then(VecDeque::pop_front) else { break };
                    let payload = payload.map_or(Payload::None, Payload::Owned);
                    enter(pool, Target::Head(*volume), tag, request, payload, bytes);
                }
            }
            throttle.hurry = false;
        }
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

fn enter<P: Pool>(pool: &mut P, target: Target, tag: Tag, request: Request, payload: Payload<'_>, bytes: bool) {
    if bytes { pool.submit_bytes(target, tag, request, payload) } else { pool.submit(target, tag, request, payload) }
}

#[cfg(test)]
mod tests;
