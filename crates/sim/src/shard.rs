//! The daemon's code between guests and engine and between engine and devices: volume limits,
//! device caps, and the queue that lets no modifying operation leave after the lease. The checks
//! beside it count independently.
//!
//! The checks require:
//! - Caps (bytes and operations) and volume limits with their bursts hold over every span of time.
//! - Delayed operations and requests leave in order and as soon as they may, however caps and
//!   limits change meanwhile.
//! - Caps delay neither claims nor flushes, and limits delay no flushes.
//! - No operation that changes a device leaves after the lease (the caller asks the engine for the
//!   lease, see `world/shard.rs`).

mod cap;
mod limit;
mod meter;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_block::{BufPool, DeviceSlot, Io, IoDone, IoId};
use millpond_device::{DeviceLimit, Gate, Lease, Planted as Bug, Queue};
use millpond_engine::{Entry, Limits, Planted, Rate, Throttles, Time, VolumeId, VolumeOptions};

use crate::oracle::{Verdict, Violation};
use crate::rng::Rng;
use crate::system::Target;
use cap::{Cap, Known};
use limit::Limit;

/// Numbers of delayed operations, of delayed requests, and of operations recalled after the lease.
pub type Counts = [u64; 3];

/// Longest duration of caps that admit almost nothing, in nanoseconds: longer than a lease.
const TINY: u64 = 25_000_000_000;
/// Longest duration of other caps, in nanoseconds.
const USUAL: u64 = 8_000_000_000;
/// Chances per thousand steps: the thread is held up, the limits of a volume change, delayed
/// requests are hurried.
const CHANCES: [u64; 3] = [3, 8, 2];

/// The daemon's shard, with its checks.
pub struct Shard {
    pub rng: Rng,
    gate: Gate,
    throttles: Throttles,
    lease: Lease,
    queue: Queue<Io>,
    bufs: BufPool,
    caps: BTreeMap<DeviceSlot, Cap>,
    limits: BTreeMap<VolumeId, Limit>,
    lifted: bool,
    /// The pool is in service: caps and limits are in force.
    serves: bool,
    /// Time of the next change of caps, in nanoseconds.
    change: u64,
    /// The current caps admit almost nothing.
    tiny: bool,
    /// A violation found where it could not be returned.
    found: Verdict,
    counts: Counts,
    planted: Option<Planted>,
}

impl Shard {
    /// Makes the shard of a pool that is not in service yet.
    pub fn new(rng: Rng, planted: Option<Planted>) -> Shard {
        let bug = match planted {
            Some(Planted::HoldClaims) => Some(Bug::HoldUrgent),
            Some(Planted::ForgetHeld) => Some(Bug::ForgetHeld),
            Some(Planted::LeaveLate) => Some(Bug::LeaveLate),
            _ => None,
        };
        Shard {
            rng,
            gate: Gate::planting(bug),
            throttles: Throttles::planting(planted),
            lease: Lease::planting(bug),
            queue: Queue::default(),
            bufs: BufPool::default(),
            caps: BTreeMap::new(),
            limits: BTreeMap::new(),
            lifted: false,
            serves: false,
            change: 0,
            tiny: false,
            found: Ok(()),
            counts: [0; 3],
            planted,
        }
    }

    /// Replaces the shard by a new one, and returns the old one with everything it holds.
    pub fn restart(&mut self) -> Shard {
        let next = Shard { counts: self.counts, ..Shard::new(self.rng.fork(0), self.planted) };
        std::mem::replace(self, next)
    }

    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns whether nothing waits in the shard.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.next().is_none()
    }

    /// Returns the time at which the next delayed operation or request may leave.
    pub fn next(&self) -> Option<u64> {
        self.gate.next_release().into_iter().chain(self.throttles.next_release()).min()
    }

    /// Takes a violation found where it could not be returned.
    pub fn verdict(&mut self) -> Verdict {
        std::mem::replace(&mut self.found, Ok(()))
    }

    fn find(&mut self, verdict: Verdict) {
        if self.found.is_ok() {
            self.found = verdict;
        }
    }

    /// Records whether the pool is in service. Returns true if that is new.
    pub fn serve(&mut self, serves: bool) -> bool {
        let new = serves && !self.serves;
        self.serves = serves;
        new
    }

    /// Submits a guest request to the limits; returns it if it may enter the pool now.
    pub fn let_in<'a>(&mut self, entry: Entry<'a>, now: u64) -> Option<Entry<'a>> {
        let (target, tag, request) = (entry.target, entry.tag, entry.request);
        let entered = self.throttles.admit(entry, now, &mut self.bufs);
        self.counts[1] += u64::from(entered.is_none());
        let verdict = match (self.limit_of(target), &entered) {
            (Some(limit), Some(_)) => limit.passes(tag, &request, now),
            (Some(limit), None) => limit.holds(tag, request),
            (None, Some(_)) => Ok(()),
            (None, None) => Err(Violation(format!("request #{} is held, and nothing limits it", tag.0))),
        };
        self.find(verdict);
        entered
    }

    /// Returns the next delayed request that may enter the pool now.
    pub fn next_let_in(&mut self, now: u64) -> Result<Option<Entry<'static>>, Violation> {
        let Some(entry) = self.throttles.release(now) else {
            if !self.lifted {
                self.limits.values_mut().try_for_each(|limit| limit.is_kept(now))?;
            }
            return Ok(None);
        };
        if let Some(limit) = self.limit_of(entry.target) {
            limit.releases(entry.tag, &entry.request, now)?;
        }
        Ok(Some(entry))
    }

    fn limit_of(&mut self, target: Target) -> Option<&mut Limit> {
        match target {
            Target::Head(volume) if !self.lifted => self.limits.get_mut(&volume),
            _ => None,
        }
    }

    /// Sets the limits of volumes.
    pub fn limit(&mut self, options: &BTreeMap<VolumeId, VolumeOptions>, now: u64) {
        self.throttles.set(options);
        for (volume, limit) in &mut self.limits {
            limit.set(options.get(volume).map(|options| options.limits).unwrap_or_default(), now);
        }
        for (volume, options) in options {
            self.limits.entry(*volume).or_insert_with(|| Limit::new(options.limits, now));
        }
    }

    /// Admits delayed requests of one volume, or of all, regardless of limits.
    pub fn hurry(&mut self, target: Option<Target>) {
        self.throttles.hurry(target);
        for (volume, limit) in &mut self.limits {
            limit.hurry |= target.is_none_or(|target| target == Target::Head(*volume)) && limit.waits();
        }
    }

    /// Stops delaying requests, because the pool is being closed.
    pub fn lift(&mut self) {
        self.throttles.lift();
        self.lifted = true;
    }

    /// Sets the time until which devices may be changed, as the pool reports it.
    pub fn renew(&mut self, lease: Option<Time>, wall: Time, now: u64) {
        self.lease.renew(lease.map(|until| until.0), wall.0, now);
    }

    /// Submits an operation of the pool to the caps; `claim` if it reads or writes the claim.
    pub fn take(&mut self, io: Io, claim: bool, now: u64) -> Verdict {
        let (device, known, urgent) = (io.device, Known::of(&io, claim), io.urgent);
        let cap = self.caps.entry(device).or_insert_with(|| Cap::new(DeviceLimit::default(), now));
        match self.gate.admit(io, now) {
            Some(io) => {
                self.queue.push(io, urgent);
                cap.passes(known, now)
            }
            None => {
                self.counts[0] += 1;
                cap.holds(known)
            }
        }
    }

    /// Queues delayed operations that may leave now.
    pub fn release(&mut self, now: u64) -> Verdict {
        while let Some(io) = self.gate.release(now) {
            let known = Known::of(&io, false);
            if let Some(cap) = self.caps.get_mut(&io.device) {
                cap.releases(known, now)?;
            }
            self.queue.push(io, false);
        }
        let next = self.gate.next_release();
        self.caps.values_mut().try_for_each(|cap| cap.is_kept(now, next))
    }

    /// Takes back operations that must not leave because the lease is over.
    pub fn recall(&mut self, now: u64) -> Vec<Io> {
        if !self.lease.is_over(now) {
            return Vec::new();
        }
        let back = self.queue.recall(|io| io.kind.changes());
        back.iter().for_each(|io| self.gate.undone(io.id, now));
        self.counts[2] += back.len() as u64;
        back
    }

    /// Forgets a device that has left the pool, and returns its delayed operations.
    pub fn forget(&mut self, device: DeviceSlot) -> VecDeque<Io> {
        self.caps.remove(&device);
        self.gate.forget(device)
    }

    /// Returns the operations of a device that have left the gate and wait for their start.
    pub fn queued(&self, device: DeviceSlot) -> BTreeSet<IoId> {
        self.queue.iter().filter(|io| io.device == device).map(|io| io.id).collect()
    }

    /// Returns the next operation to start.
    pub fn pop(&mut self) -> Option<Io> {
        self.queue.pop()
    }

    /// Records the end of an operation.
    pub fn done(&mut self, done: &IoDone, now: u64) {
        self.gate.done(done, now);
    }

    /// Returns the devices all of whose operations are delayed.
    pub fn holding(&self) -> Vec<DeviceSlot> {
        self.gate.holding().collect()
    }

    /// Changes the caps of the devices when it is time; returns a description.
    pub fn change_caps(&mut self, devices: usize, now: u64) -> Option<String> {
        if !self.serves || now < self.change {
            return None;
        }
        // Guests must make progress: caps that admit almost nothing never follow each other.
        let kind = self.rng.weighted(&[30, 40, if self.tiny { 0 } else { 30 }]);
        self.tiny = kind == 2;
        self.change = now + 1 + self.rng.below(if self.tiny { TINY } else { USUAL });
        let mut words = Vec::new();
        for device in (0..devices).filter_map(|device| u16::try_from(device).ok()).map(DeviceSlot) {
            let limit = if kind == 0 || self.rng.percent(25) { DeviceLimit::default() } else { self.random_cap() };
            self.cap(device, limit, now);
            words.push(format!("{:?}/{:?}", limit.bytes_per_second, limit.ops_per_second));
        }
        Some(format!("caps: {}", words.join(" ")))
    }

    fn random_cap(&mut self) -> DeviceLimit {
        let rng = &mut self.rng;
        let (bytes, ops) = if self.tiny {
            (rng.between(4 << 10, 64 << 10), rng.between(1, 10))
        } else {
            (rng.between(1 << 20, 64 << 20), rng.between(100, 5_000))
        };
        let which = rng.below(3);
        DeviceLimit { bytes_per_second: (which != 0).then_some(bytes), ops_per_second: (which != 1).then_some(ops) }
    }

    /// Removes all caps for good.
    pub fn lift_caps(&mut self, now: u64) {
        let capped: Vec<DeviceSlot> = self.caps.keys().copied().collect();
        capped.into_iter().for_each(|device| self.cap(device, DeviceLimit::default(), now));
        self.change = u64::MAX;
    }

    fn cap(&mut self, device: DeviceSlot, limit: DeviceLimit, now: u64) {
        self.gate.limit(device, limit);
        self.caps.entry(device).or_insert_with(|| Cap::new(limit, now)).set(limit, now);
    }

    /// Draws the events of a step: microseconds for which the thread is held up, whether to limit a
    /// volume, whether to hurry.
    pub fn befalls(&mut self) -> (u64, bool, bool) {
        let [held_up, limited, hurried] = CHANCES.map(|chance| self.rng.below(1000) < chance);
        let longest = if self.rng.percent(50) { 1_000_000 } else { 14_000_000 };
        (if held_up { self.rng.below(longest) } else { 0 }, limited, hurried)
    }

    /// Draws limits for a volume, often none.
    pub fn random_limits(&mut self) -> Limits {
        let rng = &mut self.rng;
        let mut limits = Limits::default();
        if rng.percent(25) {
            return limits;
        }
        for (place, rate) in limits.rates_mut().into_iter().enumerate() {
            if rng.percent(70) {
                continue;
            }
            let sustained = if place < 3 { rng.between(10, 800) } else { rng.between(128 << 10, 16 << 20) };
            let burst = if rng.percent(50) { 0 } else { sustained * rng.between(1, 5) };
            *rate = Rate { sustained, burst, seconds: rng.below(4) as u32 };
        }
        limits
    }
}
