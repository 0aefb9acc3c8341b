//! Devices that hang, lack space, fail operations or damage data.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::DeviceError;

use super::Machine;
use crate::disk::SimDevice;
use crate::fault::{Effect, Touch};
use crate::rng::Rng;

/// A device that sometimes fails reads, loses writes or writes to the wrong place.
#[derive(Clone, Debug)]
pub struct FlakyDevice {
    pub device: usize,
    /// Per mille: of reads that fail, of writes that are lost, of writes that are misdirected.
    pub chances: [u64; 3],
    pub rng: Rng,
}

impl FlakyDevice {
    pub(super) fn effect(&mut self, touch: Touch) -> Effect {
        let [reads, lost, misdirected] = self.chances;
        let chance = self.rng.below(1000);
        match touch {
            Touch::Read if chance < reads => Effect::Fail(DeviceError::Failed(5)),
            Touch::Write(_) if chance < lost => Effect::Lose,
            Touch::Write(_) if chance < lost + misdirected => Effect::Misdirect,
            _ => Effect::Fine,
        }
    }
}

/// Failure of a cache device. The pool does not depend on these devices.
#[derive(Clone, Debug)]
pub enum FaultyDevice {
    /// Every operation fails.
    Fails(DeviceError),
    /// Some operations fail or go wrong.
    FlakyDevice(FlakyDevice),
}

/// A device that hangs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hang {
    /// End of the hang.
    until: u64,
    /// Result of the operations in flight at its end: an error, or `None` for as usual.
    late: Option<DeviceError>,
}

/// Time after a hang or a lack of space in which the engine may still give up the device for it, in
/// microseconds.
const AFTERMATH: u64 = 3_000_000;

impl Machine {
    /// Makes a device hang for `micros` microseconds. Operations in flight at the end of the hang
    /// then end with `late`, or as usual.
    pub fn hang(&mut self, device: usize, micros: u64, late: Option<DeviceError>) {
        self.ever.insert(device);
        self.hangs.insert(device, Hang { until: self.clock + micros, late });
    }

    /// Leaves a device without space for never written pages, for `micros` microseconds.
    pub fn fill_up(&mut self, device: usize, micros: u64) {
        self.ever.insert(device);
        self.full.insert(device, self.clock + micros);
    }

    /// Ends all hangs and lacks of space.
    pub fn relieve(&mut self) {
        let now = self.clock;
        self.hangs.values_mut().for_each(|hang| hang.until = now);
        self.full.values_mut().for_each(|until| *until = now);
        self.wake();
    }

    /// Returns whether a device fails, or gave a recent reason to be given up.
    pub fn is_bad(&self, device: usize) -> bool {
        let shaken = self.shaken.get(&device).is_some_and(|until| self.clock < *until);
        let late = || self.pending.iter().any(|pending| pending.device == device && pending.late.is_some());
        self.broken.contains_key(&device) || self.hangs.contains_key(&device) || self.full.contains_key(&device) || shaken || late()
    }

    /// Returns all such devices.
    pub fn bad(&self) -> BTreeSet<usize> {
        (0..self.devices.len()).filter(|device| self.is_bad(*device)).collect()
    }

    /// Ends the hangs and lacks of space whose time is over.
    pub(super) fn wake(&mut self) {
        let now = self.clock;
        let over: Vec<(usize, Hang)> =
            self.hangs.iter().filter(|(_, hang)| hang.until <= now).map(|(device, hang)| (*device, *hang)).collect();
        for (device, hang) in over {
            self.hangs.remove(&device);
            self.shaken.insert(device, now + AFTERMATH);
            for pending in self.pending.iter_mut().filter(|pending| pending.device == device) {
                (pending.due, pending.late) = (now, hang.late);
            }
        }
        let room: Vec<usize> = self.full.iter().filter(|(_, until)| **until <= now).map(|(device, _)| *device).collect();
        for device in room {
            self.full.remove(&device);
            self.shaken.insert(device, now + AFTERMATH);
        }
    }

    /// Forgets hangs, lacks of space and their effects.
    pub fn settle(&mut self) {
        (self.hangs, self.full, self.shaken) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    }

    /// Starts recording which pages are written.
    pub fn mark(&mut self) {
        self.devices.iter_mut().for_each(SimDevice::mark);
    }

    /// Corrupts at most `most` of the pages written since [`Machine::mark`], and returns their
    /// number.
    pub fn rot_since_mark(&mut self, most: usize) -> usize {
        let written = self.devices.iter().enumerate().flat_map(|(device, disk)| disk.since_mark().map(move |page| (device, page)));
        let mut written: Vec<(usize, usize)> = written.collect();
        self.rng.shuffle(&mut written);
        written.truncate(most);
        for (device, page) in &written {
            self.devices[*device].rot_page(*page, &mut self.rng);
        }
        written.len()
    }

    /// Corrupts one written page of a device; see [`SimDevice::rot`].
    pub fn rot(&mut self, device: usize) -> Option<String> {
        let Machine { devices, rng, .. } = self;
        devices.get_mut(device).and_then(|d| d.rot(rng))
    }
}
