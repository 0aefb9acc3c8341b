//! The computer below the engine: devices, operations in flight, and the clock.

mod crash;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::rc::Rc;

use millpond_block::{BufSlice, DeviceError, DeviceGeometry, DeviceSlot, Io, IoDone, IoId, IoKind};
use millpond_device::{Planted, open_through};
use millpond_engine::Time;

use crate::disk::{PAGE, Page, SimDevice, WriteNo};
use crate::fault::{Armed, Effect, Touch};
use crate::rng::Rng;
use crate::trace::{Digest, Event, Trace};
use trouble::Hang;

pub use trouble::{FaultyDevice, FlakyDevice};

/// Duration of device operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Minimum, in microseconds.
    pub base: u64,
    /// Random addition up to this, in microseconds.
    pub spread: u64,
    /// Percent of operations that take ten times as long.
    pub tail: u64,
    /// Reads take 1/N of the time.
    pub read_part: u64,
}

#[derive(Debug)]
enum Job {
    Read,
    Write(WriteNo),
    Flush(u64),
    Discard(WriteNo),
}

#[derive(Debug)]
struct Pending {
    io: Io,
    /// Index in the machine, not the engine's numbering.
    device: usize,
    due: u64,
    job: Job,
    /// The error with which the operation ends, after a hang.
    late: Option<DeviceError>,
}

/// The devices and their operations in flight.
#[derive(Debug)]
pub struct Machine {
    devices: Vec<SimDevice>,
    order: Vec<usize>,
    pending: Vec<Pending>,
    clock: u64,
    writes: WriteNo,
    latency: Latency,
    rng: Rng,
    /// The armed fault.
    pub armed: Armed,
    /// Devices on which every operation fails, with the error.
    pub broken: BTreeMap<usize, DeviceError>,
    /// Devices that hang.
    hangs: BTreeMap<usize, Hang>,
    /// Devices without space for never written pages, with the time when that ends.
    full: BTreeMap<usize, u64>,
    /// Devices that ever gave a reason to be given up.
    pub ever: BTreeSet<usize>,
    /// Devices whose hang or lack of space is over; until this time the engine may still see its
    /// effects.
    shaken: BTreeMap<usize, u64>,
    /// The member device that damages data.
    pub sick: Option<FlakyDevice>,
    /// Failures of cache devices.
    pub faulty: BTreeMap<usize, FaultyDevice>,
    /// Devices that have left the pool, and their operations behind the gate; others are findings.
    pub let_go: BTreeMap<usize, BTreeSet<IoId>>,
    /// Number of completed operations.
    pub completed: u64,
    /// Bug to plant into how devices are opened.
    pub planted: Option<Planted>,
}

const SECOND: u64 = 1_000_000_000;
/// The wall clock at the start of a world, in milliseconds.
const START: u64 = 1_800_000_000_000;

impl Machine {
    pub fn new(devices: Vec<SimDevice>, latency: Latency, rng: Rng) -> Machine {
        let order = (0..devices.len()).collect();
        Machine {
            devices,
            order,
            pending: Vec::new(),
            clock: 0,
            writes: 0,
            latency,
            rng,
            armed: Armed::default(),
            broken: BTreeMap::new(),
            hangs: BTreeMap::new(),
            full: BTreeMap::new(),
            ever: BTreeSet::new(),
            shaken: BTreeMap::new(),
            sick: None,
            faulty: BTreeMap::new(),
            let_go: BTreeMap::new(),
            completed: 0,
            planted: None,
        }
    }

    /// Returns a machine with the same devices and no pending operations. Writes in flight on the
    /// devices may still survive in part.
    pub fn fork(&mut self, label: u64) -> Machine {
        Machine {
            devices: self.devices.clone(),
            order: self.order.clone(),
            pending: Vec::new(),
            clock: self.clock,
            writes: self.writes,
            latency: self.latency,
            rng: Rng::new(label),
            armed: Armed::default(),
            broken: self.broken.clone(),
            hangs: BTreeMap::new(),
            full: BTreeMap::new(),
            ever: self.ever.clone(),
            shaken: BTreeMap::new(),
            sick: self.sick.clone(),
            faulty: self.faulty.clone(),
            let_go: BTreeMap::new(),
            completed: 0,
            planted: self.planted,
        }
    }

    /// Plugs in the devices, in a new order if `shuffle`. Returns their geometries in that order.
    pub fn plug(&mut self, shuffle: bool) -> Vec<DeviceGeometry> {
        if shuffle {
            self.rng.shuffle(&mut self.order);
        }
        self.geometries()
    }

    /// Plugs in all but one of `needed`, and returns their geometries.
    pub fn plug_without_one(&mut self, needed: Vec<usize>) -> Vec<DeviceGeometry> {
        self.order = needed;
        self.rng.shuffle(&mut self.order);
        self.order.pop();
        self.geometries()
    }

    /// Plugs in one more device and returns its slot.
    pub fn add(&mut self, device: SimDevice) -> DeviceSlot {
        self.devices.push(device);
        self.order.push(self.devices.len() - 1);
        DeviceSlot(self.order.len() as u16 - 1)
    }

    /// Plugs in these devices and no others, and returns their geometries.
    pub fn plug_these(&mut self, devices: Vec<usize>) -> Vec<DeviceGeometry> {
        self.order = devices;
        self.geometries()
    }

    /// Number of pages that exist only in page caches.
    pub fn only_shown(&self) -> usize {
        self.devices.iter().map(SimDevice::only_shown).sum()
    }

    /// Returns the number of devices, plugged in or not.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Returns the device in a slot.
    pub fn at(&self, slot: DeviceSlot) -> Option<usize> {
        self.order.get(slot.index()).copied()
    }

    /// Returns the devices that are plugged in, by slot.
    pub fn plugged(&self) -> &[usize] {
        &self.order
    }

    /// Returns the geometry of a device.
    pub fn geometry(&self, device: usize) -> Option<DeviceGeometry> {
        self.devices.get(device).map(SimDevice::geometry)
    }

    /// Plugs in all devices, in their original order.
    pub fn plug_all(&mut self) {
        self.order = (0..self.devices.len()).collect();
    }

    /// Opens the devices that are plugged in, and returns their geometries.
    fn geometries(&mut self) -> Vec<DeviceGeometry> {
        for device in &self.order {
            if let Some(disk) = self.devices.get_mut(*device).filter(|disk| disk.is_buffered()) {
                disk.evict(self.rng.below(40), &mut self.rng);
                open_through(disk, self.planted);
            }
        }
        self.order.iter().filter_map(|d| self.devices.get(*d)).map(SimDevice::geometry).collect()
    }

    /// Returns the wall clock, as the engine sees it.
    pub fn now(&self) -> Time {
        Time(START + self.clock / 1000)
    }

    /// Returns a monotonic clock, in nanoseconds. It starts late enough for every allowance to be
    /// full.
    pub fn nanos(&self) -> u64 {
        SECOND + self.clock * 1000
    }

    /// Advances the clock by `micros` microseconds.
    pub fn pass(&mut self, micros: u64) {
        self.clock += micros;
    }

    /// Returns whether the only operations in flight are on devices that hang.
    pub fn idle(&self) -> bool {
        self.pending.iter().all(|pending| self.hangs.contains_key(&pending.device))
    }

    /// Returns the devices with operations in flight.
    pub fn busy(&self) -> BTreeSet<usize> {
        self.pending.iter().map(|pending| pending.device).collect()
    }

    /// Starts a device operation.
    ///
    /// # Errors
    /// If the operation is illegal: outside the device, or not whole pages.
    pub fn start(&mut self, io: Io, trace: &mut Trace) -> Result<(), String> {
        let device = usize::from(io.device.0);
        let Some(device) = self.order.get(device).copied() else {
            return Err(format!("operation for device {device}, which is not there"));
        };
        // an operation that was queued starts once
        if self.let_go.get_mut(&device).is_some_and(|queued| !queued.remove(&io.id)) {
            return Err(format!("operation for device {device}, which has left the pool"));
        }
        let pages = self.devices.get(device).map_or(0, SimDevice::pages) as u64;
        let (offset, length, name, hash) = match &io.kind {
            IoKind::Read { offset, length, buf } => {
                if buf.size() < *length {
                    return Err(format!("read of {length} bytes into a buffer of {}", buf.size()));
                }
                (*offset, *length as u64, "read", 0)
            }
            IoKind::Write { offset, pieces } => {
                if let Some(piece) = pieces.iter().find(|p| p.len() % PAGE != 0) {
                    return Err(format!("write of a piece of {} bytes", piece.len()));
                }
                let mut digest = Digest::default();
                pieces.iter().for_each(|p| digest.write(p.bytes()));
                (*offset, pieces.iter().map(|p| p.len() as u64).sum(), "write", digest.finish())
            }
            IoKind::Zero { offset, length } => (*offset, *length, "zero", 0),
            IoKind::Flush => (0, 0, "flush", 0),
            IoKind::Discard { offset, length } => (*offset, *length, "discard", 0),
        };
        let page = PAGE as u64;
        if offset % page != 0 || length % page != 0 || offset.checked_add(length).is_none_or(|end| end > pages * page) {
            return Err(format!("{name} of {length} bytes at {offset} on a device of {} bytes", pages * page));
        }
        trace.add(Event::Io(io.id.0, device, name, offset, length, hash));
        let job = self.begin(&io, device, (offset / page) as usize, (length / page) as usize);
        let mut micros = self.latency.base + self.rng.below(self.latency.spread + 1);
        if self.rng.percent(self.latency.tail) {
            micros *= 10;
        }
        if matches!(io.kind, IoKind::Read { .. }) {
            micros /= self.latency.read_part;
        }
        let due = self.clock + micros * self.armed.slowness(device);
        self.pending.push(Pending { io, device, due, job, late: None });
        Ok(())
    }

    fn begin(&mut self, io: &Io, device: usize, first: usize, count: usize) -> Job {
        self.writes += 1;
        let no = self.writes;
        let disk = &mut self.devices[device];
        match &io.kind {
            IoKind::Read { .. } => Job::Read,
            IoKind::Flush => Job::Flush(disk.flush_mark()),
            IoKind::Zero { .. } => {
                let zeros = Rc::new([0; PAGE]);
                disk.begin_write(no, first, vec![zeros; count]);
                Job::Write(no)
            }
            IoKind::Discard { .. } => {
                disk.begin_discard(no, first, count);
                Job::Discard(no)
            }
            IoKind::Write { pieces, .. } => {
                let chunks = pieces.iter().flat_map(|p| p.bytes().chunks_exact(PAGE));
                let pages: Vec<Page> = chunks.filter_map(|chunk| <[u8; PAGE]>::try_from(chunk).ok().map(Rc::new)).collect();
                disk.begin_write(no, first, pages);
                Job::Write(no)
            }
        }
    }

    /// Performs an operation of another host at once.
    pub fn carry_out(&mut self, device: usize, io: Io) -> IoDone {
        let (offset, length) = match &io.kind {
            IoKind::Read { offset, length, .. } => (*offset, *length),
            IoKind::Write { offset, pieces } => (*offset, pieces.iter().map(BufSlice::len).sum()),
            IoKind::Flush => (0, 0),
            IoKind::Zero { offset, length } | IoKind::Discard { offset, length } => (*offset, *length as usize),
        };
        let first = offset as usize / PAGE;
        let job = self.begin(&io, device, first, length / PAGE);
        let Machine { devices, rng, .. } = self;
        let disk = &mut devices[device];
        match job {
            Job::Read => {}
            Job::Write(no) | Job::Discard(no) => disk.finish(no),
            Job::Flush(mark) => disk.finish_flush(mark),
        }
        let buf = match io.kind {
            IoKind::Read { mut buf, .. } => {
                disk.read(first, &mut buf.bytes_mut()[..length], rng);
                Some(buf)
            }
            _ => None,
        };
        IoDone { id: io.id, result: Ok(()), buf }
    }

    /// Returns whether an operation has reached its end time.
    pub fn is_due(&self) -> bool {
        self.pending.iter().any(|pending| pending.due <= self.clock && !self.hangs.contains_key(&pending.device))
    }

    /// Ends the operation with the earliest end time, if there is one, and advances the clock to
    /// it.
    pub fn finish_one(&mut self, trace: &mut Trace) -> Option<IoDone> {
        self.wake();
        let answers = |i: &usize| !self.hangs.contains_key(&self.pending[*i].device);
        let next = (0..self.pending.len()).filter(answers).min_by_key(|i| (self.pending[*i].due, self.pending[*i].io.id))?;
        let Pending { io, device, due, job, late } = self.pending.swap_remove(next);
        self.clock = self.clock.max(due);
        self.completed += 1;
        let touch = self.touch(device, &io, &job);
        let effect = match (self.broken.get(&device), &mut self.sick, self.faulty.get_mut(&device)) {
            (Some(error), ..) => Effect::Fail(*error),
            _ if late.is_some() => late.map_or(Effect::Fine, Effect::Fail),
            _ if touch == Touch::Write(true) && self.full.contains_key(&device) => Effect::Fail(DeviceError::Full),
            (None, Some(sick), _) if sick.device == device => sick.effect(touch),
            (_, _, Some(FaultyDevice::Fails(DeviceError::Full))) if !matches!(touch, Touch::Write(_)) => Effect::Fine,
            (_, _, Some(FaultyDevice::Fails(error))) => Effect::Fail(*error),
            (_, _, Some(FaultyDevice::FlakyDevice(sick))) => sick.effect(touch),
            _ => self.armed.effect(device, touch),
        };
        let disk = &mut self.devices[device];
        let rng = &mut self.rng;
        match (&job, effect) {
            (Job::Write(no) | Job::Discard(no), Effect::Fine) => disk.finish(*no),
            (Job::Write(no) | Job::Discard(no), Effect::Lose) => disk.lose(*no),
            (Job::Write(no), Effect::Misdirect) => {
                let by = 1 + rng.index(disk.pages().saturating_sub(1));
                disk.misdirect(*no, by);
            }
            (Job::Write(no) | Job::Discard(no), Effect::Fail(DeviceError::Failed(_))) => disk.fail(*no, rng),
            (Job::Write(no) | Job::Discard(no), _) => disk.lose(*no),
            (Job::Flush(mark), Effect::Fine) => disk.finish_flush(*mark),
            (Job::Flush(mark), Effect::FailAndDrop) => disk.drop_unflushed(*mark, rng),
            (Job::Flush(_) | Job::Read, _) => {}
        }
        let result = match effect {
            Effect::Fail(error) => Err(error),
            Effect::FailAndDrop => Err(DeviceError::Failed(5)),
            Effect::Fine | Effect::Lose | Effect::Misdirect => Ok(()),
        };
        let outcome = match effect {
            Effect::Fine => "done",
            Effect::Fail(DeviceError::Failed(_)) => "FAILS",
            Effect::Fail(DeviceError::Full) => "FAILS, full",
            Effect::Fail(DeviceError::Gone) => "FAILS, gone",
            Effect::FailAndDrop => "FAILS and drops",
            Effect::Lose => "done (LOST)",
            Effect::Misdirect => "done (MISDIRECTED)",
        };
        trace.add(Event::IoDone(io.id.0, outcome));
        let buf = match io.kind {
            IoKind::Read { offset, length, mut buf } => {
                if result.is_ok() {
                    disk.read(offset as usize / PAGE, &mut buf.bytes_mut()[..length], rng);
                }
                Some(buf)
            }
            _ => None,
        };
        Some(IoDone { id: io.id, result, buf })
    }

    fn touch(&self, device: usize, io: &Io, job: &Job) -> Touch {
        let touch = |offset: u64, bytes: usize| {
            let first = offset as usize / PAGE;
            Touch::Write((first..first + bytes / PAGE).any(|page| self.devices[device].untouched(page)))
        };
        match (job, &io.kind) {
            (Job::Write(_), IoKind::Write { offset, pieces }) => touch(*offset, pieces.iter().map(BufSlice::len).sum()),
            (Job::Write(_), IoKind::Zero { offset, length }) => touch(*offset, *length as usize),
            (Job::Flush(_), _) => Touch::Flush,
            (Job::Discard(_), _) => Touch::Discard,
            _ => Touch::Read,
        }
    }

    /// Reads a plugged-in device, bypassing all faults: for audits, with nothing in flight.
    pub fn peek(&self, slot: DeviceSlot, offset: u64, out: &mut [u8]) {
        if let Some(device) = self.at(slot).and_then(|d| self.devices.get(d)) {
            device.read(offset as usize / PAGE, out, &mut Rng::new(0));
        }
    }

    /// Reads a device, plugged in or not, bypassing all faults.
    pub fn peek_device(&self, device: usize, offset: u64, out: &mut [u8]) {
        if let Some(device) = self.devices.get(device) {
            device.read(offset as usize / PAGE, out, &mut Rng::new(0));
        }
    }

    /// From now on no device returns discarded content.
    pub fn discard_for_good(&mut self) {
        self.devices.iter_mut().for_each(SimDevice::discard_for_good);
    }
}
