//! Worlds with the daemon's shard between guests, engine and devices (`--gate`). Device caps and
//! volume limits change under load, the thread is held up for longer than a lease, and operations
//! that wait when the pool goes away never reach a device.

use millpond_block::{BufSlice, DeviceError, DeviceSlot, Io, IoKind};
use millpond_engine::{CatalogCommand, Command, Entry, PoolState, VolumeId, VolumeOptions};
use millpond_format::{CLAIM_OFFSET, SECTOR_BYTES, second_area};

use super::base_store::BaseStore;
use super::object_store::ObjectStore;
use super::{IDLE_STEP, World};
use crate::config::Options;
use crate::machine::Machine;
use crate::oracle::{Verdict, broken};
use crate::rng::{Rng, mix};
use crate::shard::Shard;
use crate::system::{System, Target};
use crate::trace::{Event, Trace};
use crate::workload::Plan;

/// Longest sleep while operations or requests are delayed, in microseconds.
const SLEEP: u64 = 100_000;

/// Starts the queued operations, and returns those that are too late to the pool.
///
/// # Errors
/// When an operation that changes a device leaves after the lease that the engine reports.
pub(super) fn hand_over<S: System>(
    shard: &mut Shard,
    system: &mut S,
    machine: &mut Machine,
    trace: &mut Trace,
    mut start: impl FnMut(&mut Machine, Io, &mut Trace) -> Verdict,
) -> Verdict {
    for io in shard.recall(machine.nanos()) {
        trace.add(Event::IoDone(io.id.0, "comes back: the lease is over"));
        system.take_back(io);
    }
    while let Some(io) = shard.pop() {
        let (now, lease) = (machine.now(), system.lease());
        if io.kind.changes() && lease.is_some_and(|until| now > until) {
            return broken(format!("operation {} leaves at {} ms although the lease ended at {lease:?}", io.id.0, now.0));
        }
        start(machine, io, trace)?;
    }
    Ok(())
}

/// Takes all device operations out of the engine; `claims` recognizes those on the claim.
pub(super) fn take_ios<S: System>(shard: &mut Shard, system: &mut S, machine: &Machine, claims: impl Fn(&Io) -> bool) -> Verdict {
    let now = machine.nanos();
    shard.renew(system.lease(), machine.now(), now);
    while let Some(io) = system.pop_io() {
        let claim = claims(&io);
        shard.take(io, claim, now)?;
    }
    shard.release(now)
}

/// Returns whether an operation reads or writes the claim, judged by its place. A resilver writes
/// the first claim of its device as data, so writes do not count where devices are resilvered.
pub(super) fn is_claim(io: &Io, machine: &Machine, fills: bool) -> bool {
    let (at, length) = match &io.kind {
        IoKind::Read { offset, length, .. } => (*offset, *length),
        IoKind::Write { .. } if fills => return false,
        IoKind::Write { offset, pieces } => (*offset, pieces.iter().map(BufSlice::len).sum()),
        IoKind::Flush | IoKind::Zero { .. } | IoKind::Discard { .. } => return false,
    };
    let geometry = machine.at(io.device).and_then(|device| machine.geometry(device));
    let second = geometry.map_or(0, |geometry| second_area(geometry.size));
    length == SECTOR_BYTES && (at == CLAIM_OFFSET || at == second + CLAIM_OFFSET)
}

impl<S: System> World<S> {
    /// Adds the shard, if the options ask for it.
    pub(crate) fn with_shard(self, seed: u64, options: &Options) -> World<S> {
        let shard = || Shard::new(Rng::new(mix(seed ^ 0x6761_7465)), options.planted);
        World { shard: options.gate.then(shard), ..self }
    }

    /// Replaces the engine, and drops the contents of its shard.
    pub(super) fn start_system(&mut self, system: Option<S>) {
        self.system = system;
        self.coders.clear();
        self.store.iter_mut().for_each(BaseStore::forget);
        self.bucket.iter_mut().for_each(|store| store.forget(self.machine.nanos()));
        self.leave_shard();
    }

    /// Replaces the shard, and returns the old one with everything it holds.
    fn leave_shard(&mut self) -> Option<Shard> {
        self.shard.as_mut().map(Shard::restart)
    }

    /// Submits a request, now or when the limits of its volume admit it.
    pub(super) fn enter(&mut self, entry: Entry<'_>) {
        let now = self.machine.nanos();
        let entry = match &mut self.shard {
            Some(shard) => shard.let_in(entry, now),
            None => Some(entry),
        };
        if let (Some(system), Some(entry)) = (&mut self.system, entry) {
            system.enter(entry);
        }
    }

    /// Does the work of the shard's loop before the engine's turn.
    pub(super) fn before_turn(&mut self) -> Verdict {
        let World { shard: Some(shard), system: Some(system), machine, trace, .. } = self else { return Ok(()) };
        shard.verdict()?;
        let count = machine.plugged().len();
        if let Some(words) = shard.change_caps(count, machine.nanos()) {
            trace.note(words);
        }
        hand_over(shard, system, machine, trace, |machine, io, trace| {
            machine.start(io, trace).or_else(|what| broken(format!("a device operation that no device can do: {what}")))
        })?;
        while let Some(entry) = shard.next_let_in(machine.nanos())? {
            trace.note(format!("#{} is let in", entry.tag.0));
            system.enter(entry);
        }
        system.answer(machine.now());
        self.pump()?;
        let World { shard: Some(shard), system: Some(system), .. } = self else { return Ok(()) };
        shard.holding().into_iter().for_each(|device| system.excuse(device));
        Ok(())
    }

    /// Lets a device go that has left the pool, as the shard does: throttled operations on it end
    /// with an error. Those that have left the gate are in flight, and may still start.
    pub(super) fn let_device_go(&mut self, device: usize) {
        let World { shard, system, machine, trace, .. } = self;
        let slots = (0..u16::MAX).map(DeviceSlot).map_while(|slot| machine.at(slot).map(|there| (slot, there)));
        let slot = slots.into_iter().find(|(_, there)| *there == device).map(|(slot, _)| slot);
        let queued = shard.as_mut().zip(slot).map(|(shard, slot)| {
            for io in shard.forget(slot) {
                trace.add(Event::IoDone(io.id.0, "FAILS: it was held, and the device has left the pool"));
                if let Some(system) = system.as_mut() {
                    system.io_done(io.fail(DeviceError::Gone));
                }
            }
            shard.queued(slot)
        });
        machine.let_go.entry(device).or_insert(queued.unwrap_or_default());
    }

    /// Does the work of the shard's loop after the engine's turn.
    pub(super) fn after_turn(&mut self) {
        let World { shard: Some(shard), system: Some(system), machine, .. } = self else { return };
        if shard.serve(*system.state() == PoolState::Online) {
            shard.limit(system.options(), machine.nanos());
        }
    }

    /// Injects the events of a step into the shard.
    pub(super) fn befall_shard(&mut self) {
        if self.state() != PoolState::Online {
            return;
        }
        let Some(shard) = &mut self.shard else { return };
        let (held_up, limited, hurried) = shard.befalls();
        if held_up > 0 {
            self.trace.note(format!("the thread is held up for {held_up} us"));
            self.machine.pass(held_up);
        }
        let volumes: Vec<VolumeId> = self.oracle.volumes().map(|volume| volume.id).collect();
        if volumes.is_empty() {
            return;
        }
        if hurried {
            let target = Target::Head(*shard.rng.pick(&volumes));
            shard.hurry(shard.rng.clone().percent(70).then_some(target));
        }
        if limited && S::OPTIONS && self.system.is_some() && self.waiting.len() + self.running.len() < 4 {
            let busy = self.busy();
            let Some(shard) = &mut self.shard else { return };
            let volume = *shard.rng.pick(&volumes);
            if busy.contains(&volume) {
                return;
            }
            let options = VolumeOptions { limits: shard.random_limits(), ..VolumeOptions::default() };
            let command = Some(Command::Catalog(CatalogCommand::SetOptions { volume, options }));
            self.waiting.push(Plan { command, diff: None, volumes: vec![volume], quiet: vec![] });
        }
    }

    /// Returns whether operations are in flight only on devices that hang, nothing is asked of stores, and
    /// nothing waits in the shard.
    pub(super) fn is_idle(&self) -> bool {
        let stores = self.store.as_ref().is_none_or(BaseStore::is_idle);
        let bucket = self.bucket.as_ref().is_none_or(ObjectStore::is_idle);
        stores && bucket && self.machine.idle() && self.coders.is_idle() && self.shard.as_ref().is_none_or(Shard::is_idle)
    }

    /// Returns the time to wait while nothing happens, in microseconds: until a delayed operation
    /// or request may leave, or a store answers, if there is one.
    pub(super) fn idle_step(&self) -> u64 {
        let answer = self.store.as_ref().and_then(BaseStore::next);
        let object = self.bucket.as_ref().and_then(ObjectStore::next);
        let next = self.shard.as_ref().and_then(Shard::next).into_iter().chain(answer).chain(object).min();
        next.map_or(IDLE_STEP, |next| (next.saturating_sub(self.machine.nanos()) / 1000 + 1).min(SLEEP))
    }
}
