//! Worlds with the daemon's shard between guests, engine and devices (`--gate`): caps of devices and limits of volumes change under load, the thread
//! is held up for longer than a lease, and what waits when the pool goes never reaches a device.

use millpond_block::Piece;
use millpond_device::{Io, IoKind};
use millpond_engine::{Command, Entry, PoolState, VolumeId, VolumeOptions};
use millpond_format::{CLAIM_OFFSET, SECTOR_BYTES, second_area};

use super::{IDLE_STEP, World};
use crate::config::Options;
use crate::machine::Machine;
use crate::oracle::{Verdict, broken};
use crate::rng::{Rng, mix};
use crate::shard::Shard;
use crate::system::{System, Target};
use crate::trace::{Event, Trace};
use crate::workload::Plan;

/// The longest sleep while something is held, in microseconds.
const SLEEP: u64 = 100_000;

/// Starts what waits for the system call, and gives what comes too late back to the pool.
///
/// # Errors
/// When something that changes a device leaves for it after the lease, by what the engine says itself.
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

/// Takes everything out of the engine that is for a device; `claims` tells what of it is about whose the pool is.
pub(super) fn take_ios<S: System>(shard: &mut Shard, system: &mut S, machine: &Machine, claims: impl Fn(&Io) -> bool) -> Verdict {
    let now = machine.nanos();
    shard.renew(system.lease(), machine.now(), now);
    while let Some(io) = system.pop_io() {
        let claim = claims(&io);
        shard.take(io, claim, now)?;
    }
    shard.release(now)
}

/// Does an operation look at the claim or keep it? Told by where it is. Where devices are filled these get their first claim as a part of that.
pub(super) fn is_claim(io: &Io, machine: &Machine, fills: bool) -> bool {
    let (at, length) = match &io.kind {
        IoKind::Read { offset, length, .. } => (*offset, *length),
        IoKind::Write { .. } if fills => return false,
        IoKind::Write { offset, pieces } => (*offset, pieces.iter().map(Piece::len).sum()),
        IoKind::Flush | IoKind::Zero { .. } | IoKind::Discard { .. } => return false,
    };
    let geometry = machine.at(usize::from(io.device.0)).and_then(|device| machine.geometry(device));
    let second = geometry.map_or(0, |geometry| second_area(geometry.size));
    length == SECTOR_BYTES && (at == CLAIM_OFFSET || at == second + CLAIM_OFFSET)
}

impl<S: System> World<S> {
    /// With the shard, where that is asked for.
    pub(crate) fn with_shard(self, seed: u64, options: &Options) -> World<S> {
        let shard = || Shard::new(Rng::new(mix(seed ^ 0x6761_7465)), options.planted);
        World { shard: options.gate.then(shard), ..self }
    }

    /// The pool is another one from now on, or none; what its shard had is gone.
    pub(super) fn start_system(&mut self, system: Option<S>) {
        self.system = system;
        self.leave_shard();
    }

    /// The shard with all that it has, of a pool that is gone or goes on elsewhere.
    pub(super) fn leave_shard(&mut self) -> Option<Shard> {
        self.shard.as_mut().map(Shard::restart)
    }

    /// A request goes in, now or when the limits of its volume let it.
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

    /// What the shard's loop does before the engine's turn.
    pub(super) fn before_turn(&mut self) -> Verdict {
        let World { shard: Some(shard), system: Some(system), machine, trace, .. } = self else { return Ok(()) };
        shard.verdict()?;
        let count = (0..).map_while(|position| machine.at(position)).count();
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

    /// What it does after it.
    pub(super) fn after_turn(&mut self) {
        let World { shard: Some(shard), system: Some(system), machine, .. } = self else { return };
        if shard.serve(system.state() == PoolState::Online)
            && let Some(options) = system.options()
        {
            shard.limit(options, machine.nanos());
        }
    }

    /// What befalls the shard in a step.
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
        let knows = self.system.as_ref().is_some_and(|system| system.options().is_some());
        if limited && knows && self.waiting.len() + self.running.len() < 4 {
            let busy = self.busy();
            let Some(shard) = &mut self.shard else { return };
            let volume = *shard.rng.pick(&volumes);
            if busy.contains(&volume) {
                return;
            }
            let options = VolumeOptions { limits: shard.random_limits(), ..VolumeOptions::default() };
            let command = Some(Command::SetOptions { volume, options });
            self.waiting.push(Plan { command, diff: None, volumes: vec![volume], quiet: vec![] });
        }
    }

    /// True when nothing is under way but on devices that do not answer, and nothing waits for its time.
    pub(crate) fn is_idle(&self) -> bool {
        self.machine.idle() && self.shard.as_ref().is_none_or(Shard::is_idle)
    }

    /// How long to wait while nothing happens, in microseconds: until something that is held may leave, where anything is.
    pub(super) fn idle_step(&self) -> u64 {
        let next = self.shard.as_ref().and_then(Shard::next);
        next.map_or(IDLE_STEP, |next| (next.saturating_sub(self.machine.nanos()) / 1000 + 1).min(SLEEP))
    }
}
