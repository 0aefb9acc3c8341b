//! The gate between engine and devices: counts and times operations, and throttles devices with a
//! cap.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{DeviceSlot, Io, IoDone, IoId, IoKind};
use rustc_hash::FxHashMap;

use crate::{Latencies, Planted};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Allowance that an idle device may save up, in nanoseconds: a twentieth of a second, enough to
/// make up for late turns on a busy host.
const BURST: u64 = 50_000_000;

/// Operations on one device since import, as the caller saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of the latencies of reads in nanoseconds, including the delay by a cap.
    pub read_nanos: u64,
    /// The part of `read_nanos` before the operations were passed to the device.
    pub read_queue_nanos: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of the latencies of writes in nanoseconds, including the delay by a cap.
    pub write_nanos: u64,
    /// The part of `write_nanos` before the operations were passed to the device.
    pub write_queue_nanos: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Sum of the flushes' latencies in nanoseconds.
    pub flush_nanos: u64,
    /// Discards completed.
    pub discards: u64,
    /// Nanoseconds in which at least one operation was in flight, throttled ones included.
    pub busy_nanos: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations in flight now.
    pub in_flight: u64,
}

/// Latencies of operations on one device. Their resolution is that of the caller's turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// Reads, from when they were passed to the device.
    pub reads: Latencies,
    /// Writes, from when they were passed to the device.
    pub writes: Latencies,
    /// Flushes.
    pub flushes: Latencies,
    /// Reads and writes, until they were passed to the device.
    pub queue: Latencies,
}

/// A cap on one device; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimit {
    /// Bytes per second, reads and writes together.
    pub bytes_per_second: Option<u64>,
    /// Operations per second, reads and writes together.
    pub ops_per_second: Option<u64>,
}

/// Counters and caps of all devices of a pool. All times are nanoseconds of one clock that never
/// goes back.
#[derive(Default)]
pub struct Gate {
    devices: BTreeMap<DeviceSlot, Device>,
    under_way: FxHashMap<IoId, Started>,
    /// Number of throttled operations.
    held: usize,
    planted: Option<Planted>,
}

#[derive(Default)]
struct Device {
    load: DeviceLoad,
    times: Box<DeviceTimes>,
    limit: DeviceLimit,
    /// Time when the allowance used so far is paid off, in nanoseconds.
    free_at: u64,
    held: VecDeque<Io>,
    /// When the first of the operations in flight came.
    busy_since: u64,
}

struct Started {
    device: DeviceSlot,
    at: u64,
    /// When it was passed to the device, after throttling.
    left: u64,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Read(u64),
    Write(u64),
    Flush,
    Discard,
}

impl Gate {
    /// A gate with a planted bug.
    pub fn planting(planted: Option<Planted>) -> Gate {
        Gate { planted, ..Gate::default() }
    }

    /// Takes an operation. Returns it if it may start now; otherwise [`release`](Gate::release)
    /// returns it later.
    pub fn admit(&mut self, io: Io, now: u64) -> Option<Io> {
        let what = match &io.kind {
            IoKind::Read { length, .. } => What::Read(*length as u64),
            IoKind::Write { pieces, .. } => What::Write(pieces.iter().map(|piece| piece.len() as u64).sum()),
            IoKind::Zero { length, .. } => What::Write(*length),
            IoKind::Flush => What::Flush,
            IoKind::Discard { .. } => What::Discard,
        };
        self.under_way.insert(io.id, Started { device: io.device, at: now, left: now, what });
        let device = self.devices.entry(io.device).or_default();
        if device.load.in_flight == 0 {
            device.busy_since = now;
        }
        device.load.in_flight += 1;
        // A flush covers writes that completed before it came, so it need not wait for throttled
        // ones.
        let (What::Read(bytes) | What::Write(bytes)) = what else { return Some(io) };
        // Checks of the claim overtake all waiting operations: otherwise a host that lost the pool
        // would notice too late.
        let passes = io.urgent && !Planted::HoldUrgent.is_in(self.planted);
        if passes || device.limit == DeviceLimit::default() {
            return Some(io);
        }
        if device.held.is_empty() && device.pay(bytes, now) {
            return Some(io);
        }
        device.held.push_back(io);
        self.held += 1;
        None
    }

    /// Returns the next throttled operation that may start now.
    pub fn release(&mut self, now: u64) -> Option<Io> {
        if self.held == 0 {
            return None;
        }
        let released = self.devices.values_mut().find_map(|device| {
            let bytes = match &device.held.front()?.kind {
                IoKind::Read { length, .. } => *length as u64,
                IoKind::Write { pieces, .. } => pieces.iter().map(|piece| piece.len() as u64).sum(),
                IoKind::Zero { length, .. } => *length,
                IoKind::Flush | IoKind::Discard { .. } => 0,
            };
            if device.pay(bytes, now) { device.held.pop_front() } else { None }
        })?;
        self.held -= 1;
        if let Some(started) = self.under_way.get_mut(&released.id) {
            started.left = now;
        }
        Some(released)
    }

    /// Returns when the next throttled operation may start.
    pub fn next_release(&self) -> Option<u64> {
        if self.held == 0 {
            return None;
        }
        self.devices.values().filter(|device| !device.held.is_empty()).map(|device| device.free_at).min()
    }

    /// Devices on which every operation in flight is throttled.
    pub fn holding(&self) -> impl Iterator<Item = DeviceSlot> + '_ {
        let held = |device: &Device| !device.held.is_empty() && device.load.in_flight == device.held.len() as u64;
        let devices = (self.held > 0).then(|| self.devices.iter()).into_iter().flatten();
        devices.filter(move |(_, device)| held(device)).map(|(index, _)| *index)
    }

    /// Counts the completion of an operation.
    pub fn done(&mut self, done: &IoDone, now: u64) {
        let Some(Started { device, at, left, what }) = self.under_way.remove(&done.id) else { return };
        let Some(device) = self.devices.get_mut(&device) else { return };
        device.ended(now);
        let load = &mut device.load;
        if done.result.is_err() {
            load.errors += 1;
            return;
        }
        let (nanos, queue) = (now.saturating_sub(at), left.saturating_sub(at));
        let on_device = nanos.saturating_sub(queue);
        match what {
            What::Read(bytes) => {
                load.reads += 1;
                load.read_bytes += bytes;
                load.read_nanos += nanos;
                load.read_queue_nanos += queue;
                device.times.reads.count(on_device);
                device.times.queue.count(queue);
            }
            What::Write(bytes) => {
                load.writes += 1;
                load.write_bytes += bytes;
                load.write_nanos += nanos;
                load.write_queue_nanos += queue;
                device.times.writes.count(on_device);
                device.times.queue.count(queue);
            }
            What::Flush => {
                load.flushes += 1;
                load.flush_nanos += nanos;
                device.times.flushes.count(on_device);
            }
            What::Discard => load.discards += 1,
        }
    }

    /// Removes an operation that was not carried out and goes back to the pool; it is not counted.
    pub fn undone(&mut self, id: IoId, now: u64) {
        let Some(started) = self.under_way.remove(&id) else { return };
        if let Some(device) = self.devices.get_mut(&started.device) {
            device.ended(now);
        }
    }

    /// Sets the cap of a device.
    pub fn limit(&mut self, device: DeviceSlot, limit: DeviceLimit) {
        let device = self.devices.entry(device).or_default();
        device.limit = limit;
        device.free_at = 0;
        if Planted::ForgetHeld.is_in(self.planted) && limit == DeviceLimit::default() && device.held.pop_front().is_some() {
            self.held -= 1;
        }
    }

    /// Forgets a device that the pool has let go, with its counters and its cap. Returns its
    /// throttled operations in their order: the caller ends them with an error and starts none of
    /// them.
    #[must_use]
    pub fn forget(&mut self, device: DeviceSlot) -> VecDeque<Io> {
        // completions that are still to come must not count on a later device at this position
        self.under_way.retain(|_, started| started.device != device);
        let held = self.devices.remove(&device).map(|device| device.held).unwrap_or_default();
        self.held -= held.len();
        held
    }

    /// Returns counters, latencies and cap of a device, at a time that is not before the last call.
    pub fn of(&self, device: DeviceSlot, now: u64) -> (DeviceLoad, DeviceTimes, DeviceLimit) {
        let Some(device) = self.devices.get(&device) else { return Default::default() };
        let busy = if device.load.in_flight > 0 { now.saturating_sub(device.busy_since) } else { 0 };
        (DeviceLoad { busy_nanos: device.load.busy_nanos + busy, ..device.load }, *device.times, device.limit)
    }
}

impl Device {
    /// Counts the end of an operation in flight.
    fn ended(&mut self, now: u64) {
        let load = &mut self.load;
        load.in_flight = load.in_flight.saturating_sub(1);
        if load.in_flight == 0 {
            load.busy_nanos += now.saturating_sub(self.busy_since);
        }
    }

    /// Uses the allowance for one operation; false when there is not enough.
    fn pay(&mut self, bytes: u64, now: u64) -> bool {
        if self.free_at > now {
            return false;
        }
        let per = |amount: u64, rate: Option<u64>| match rate {
            Some(rate) => u64::try_from(u128::from(amount) * u128::from(SECOND) / u128::from(rate.max(1))).unwrap_or(u64::MAX),
            None => 0,
        };
        let cost = per(bytes, self.limit.bytes_per_second).max(per(1, self.limit.ops_per_second));
        self.free_at = self.free_at.max(now.saturating_sub(BURST)).saturating_add(cost);
        true
    }
}

#[cfg(test)]
mod tests;
