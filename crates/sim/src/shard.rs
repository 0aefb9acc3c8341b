//! What the daemon has between guests and engine and between engine and devices: the limits of volumes, the caps of devices, and the queue from which
//! nothing that changes a device leaves after the lease. It is the daemon's own code; the judges beside it count for themselves.
//!
//! What is judged:
//! - a cap is kept, in bytes and operations, over every span of time; the limits of volumes and their bursts are;
//! - what is held leaves in its order and as soon as it may, whatever caps and limits are changed to meanwhile;
//! - claims and flushes are held by no cap, flushes by no limit;
//! - nothing that changes a device leaves for it after the lease (the caller asks the engine for it, see `world/shard.rs`).

mod cap;
mod limit;
mod meter;

use std::collections::BTreeMap;

use millpond_block::BufPool;
use millpond_device::{DeviceIndex, DeviceLimit, Gate, Io, IoDone, Lease, Planted as Bug, Queue};
use millpond_engine::{Entry, Limits, Planted, Rate, Throttles, Time, VolumeId, VolumeOptions};

use crate::oracle::{Verdict, Violation};
use crate::rng::Rng;
use crate::system::Target;
use cap::{Cap, Known};
use limit::Limit;

/// How many operations and requests were held, and how many operations came back after the lease.
pub type Counts = [u64; 3];

/// The longest time that a cap stays which lets hardly anything through, in nanoseconds: longer than a lease.
const TINY: u64 = 25_000_000_000;
/// The same of others.
const USUAL: u64 = 8_000_000_000;
/// Per thousand of steps: the thread is held up, the limits of a volume are changed, what waits is hurried.
const CHANCES: [u64; 3] = [3, 8, 2];

/// See the module.
pub struct Shard {
    /// Its chance.
    pub rng: Rng,
    gate: Gate,
    throttles: Throttles,
    lease: Lease,
    queue: Queue<Io>,
    bufs: BufPool,
    caps: BTreeMap<DeviceIndex, Cap>,
    limits: BTreeMap<VolumeId, Limit>,
    lifted: bool,
    /// The pool is in service: caps and limits are in force.
    serves: bool,
    /// When the caps are others.
    change: u64,
    /// They let hardly anything through.
    tiny: bool,
    /// What was found where nobody could be told.
    found: Verdict,
    counts: Counts,
    planted: Option<Planted>,
}

impl Shard {
    /// One for a pool that is not in service yet.
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

    /// Leaves all that it has, with a pool that is gone or goes on elsewhere; a new one is in its place.
    pub fn restart(&mut self) -> Shard {
        let next = Shard { counts: self.counts, ..Shard::new(self.rng.fork(0), self.planted) };
        std::mem::replace(self, next)
    }

    /// See [`Counts`].
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// True when nothing waits here.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.next().is_none()
    }

    /// When something that is held may leave.
    pub fn next(&self) -> Option<u64> {
        self.gate.next_release().into_iter().chain(self.throttles.next_release()).min()
    }

    /// What was found where nobody could be told.
    pub fn verdict(&mut self) -> Verdict {
        std::mem::replace(&mut self.found, Ok(()))
    }

    fn find(&mut self, verdict: Verdict) {
        if self.found.is_ok() {
            self.found = verdict;
        }
    }

    /// The pool is in service, or is not yet. True when that is new.
    pub fn serve(&mut self, serves: bool) -> bool {
        let new = serves && !self.serves;
        self.serves = serves;
        new
    }

    /// A request of a guest: given back when it may enter the pool now.
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

    /// The next request that was held and may enter now.
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

    /// Volumes are limited to this from now on.
    pub fn limit(&mut self, options: &BTreeMap<VolumeId, VolumeOptions>, now: u64) {
        self.throttles.set(options);
        for (volume, limit) in &mut self.limits {
            limit.set(options.get(volume).map(|options| options.limits).unwrap_or_default(), now);
        }
        for (volume, options) in options {
            self.limits.entry(*volume).or_insert_with(|| Limit::new(options.limits, now));
        }
    }

    /// Somebody waits for what a volume's guests have asked for, or all.
    pub fn hurry(&mut self, target: Option<Target>) {
        self.throttles.hurry(target);
        for (volume, limit) in &mut self.limits {
            limit.hurry |= target.is_none_or(|target| target == Target::Head(*volume)) && limit.waits();
        }
    }

    /// The pool is being closed: requests are not held any more.
    pub fn lift(&mut self) {
        self.throttles.lift();
        self.lifted = true;
    }

    /// The pool has said until when its devices may be changed.
    pub fn renew(&mut self, lease: Option<Time>, wall: Time, now: u64) {
        self.lease.renew(lease.map(|until| until.0), wall.0, now);
    }

    /// An operation of the pool, which may be one of its claim.
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

    /// Queues what was held and may leave now.
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

    /// Operations that must not leave any more, because the lease is over.
    pub fn recall(&mut self, now: u64) -> Vec<Io> {
        if !self.lease.is_over(now) {
            return Vec::new();
        }
        let back = self.queue.recall(|io| io.kind.changes());
        back.iter().for_each(|io| self.gate.undone(io.id));
        self.counts[2] += back.len() as u64;
        back
    }

    /// The next operation that leaves.
    pub fn pop(&mut self) -> Option<Io> {
        self.queue.pop()
    }

    /// An operation has ended.
    pub fn done(&mut self, done: &IoDone, now: u64) {
        self.gate.done(done, now);
    }

    /// Devices of which every operation is held back.
    pub fn holding(&self) -> Vec<DeviceIndex> {
        self.gate.holding().collect()
    }

    /// Caps so many devices anew when it is time to; says how.
    pub fn change_caps(&mut self, devices: usize, now: u64) -> Option<String> {
        if !self.serves || now < self.change {
            return None;
        }
        // guests have to get on
        let kind = self.rng.weighted(&[30, 40, if self.tiny { 0 } else { 30 }]);
        self.tiny = kind == 2;
        self.change = now + 1 + self.rng.below(if self.tiny { TINY } else { USUAL });
        let mut words = Vec::new();
        for device in (0..devices).filter_map(|device| u16::try_from(device).ok()).map(DeviceIndex) {
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

    /// No device is capped from now on.
    pub fn lift_caps(&mut self, now: u64) {
        let capped: Vec<DeviceIndex> = self.caps.keys().copied().collect();
        capped.into_iter().for_each(|device| self.cap(device, DeviceLimit::default(), now));
        self.change = u64::MAX;
    }

    fn cap(&mut self, device: DeviceIndex, limit: DeviceLimit, now: u64) {
        self.gate.limit(device, limit);
        self.caps.entry(device).or_insert_with(|| Cap::new(limit, now)).set(limit, now);
    }

    /// What befalls it in a step: the thread is held up for so many microseconds, a volume is to be limited, all is hurried.
    pub fn befalls(&mut self) -> (u64, bool, bool) {
        let [held_up, limited, hurried] = CHANCES.map(|chance| self.rng.below(1000) < chance);
        let longest = if self.rng.percent(50) { 1_000_000 } else { 14_000_000 };
        (if held_up { self.rng.below(longest) } else { 0 }, limited, hurried)
    }

    /// Limits for a volume, often none.
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
