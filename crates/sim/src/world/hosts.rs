//! Hosts, in a quarter of the worlds: the pool is imported on another one now and then, which must be refused while it is not closed, and the one
//! that it was taken from may only have been held up.

use millpond_block::{ByteRange, Op, Payload, Request, Tag};
use millpond_device::{Io, IoDone, IoKind};
use millpond_engine::{Holder, PoolState, Time, Tuning};

use super::World;
use super::shard::{hand_over, take_ios};
use crate::fault::Armed;
use crate::machine::Machine;
use crate::oracle::{BLOCK, Verdict, Violation, broken};
use crate::rng::{Rng, mix};
use crate::shard::Shard;
use crate::system::{System, Target};

/// The tag of a request that is made of a host which was held up.
const LATE: Tag = Tag(u64::MAX);

/// The longest time for which a host is held up while the pool is taken from it, in milliseconds: longer than a lease.
const LONGEST_SLEEP: u64 = 14_000;

/// What the claims should say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The pool was in service here and was not closed.
    Yes,
    /// It was closed.
    No,
    /// A fault came between.
    Unknown,
}

/// A host that was held up: its engine, and which devices it knows at which position.
struct Ghost<S> {
    system: S,
    devices: Vec<usize>,
    target: Option<Target>,
    /// What its daemon has on the way to the devices.
    shard: Option<Shard>,
    /// What its devices have ended since it was held up.
    ended: Vec<IoDone>,
    /// It is held up until then; for ever where nothing says when that ends.
    asleep: Option<Time>,
}

/// When a host that is held up goes on: often soon, so that both are at it.
fn wakes(now: Time, rng: &mut Rng) -> Time {
    let longest = *rng.pick(&[10, 1_000, LONGEST_SLEEP]);
    Time(now.0 + rng.below(longest))
}

/// Carries out what a host has a device do that the pool was taken from: nothing but reads.
fn read_late(io: Io, devices: &[usize], machine: &Machine) -> Result<IoDone, Violation> {
    let IoKind::Read { offset, length, mut buf } = io.kind else {
        return broken(format!("a host that the pool was taken from has a device do {:?}", io.kind));
    };
    if let (Some(device), Some(to)) = (devices.get(usize::from(io.device.0)), buf.bytes_mut().get_mut(..length)) {
        machine.peek_device(*device, offset, to);
    }
    Ok(IoDone { id: io.id, result: Ok(()), buf: Some(buf) })
}

/// The hosts that see the devices.
pub(super) struct Hosts<S> {
    rng: Rng,
    here: u8,
    held: Held,
    ghost: Option<Ghost<S>>,
}

impl<S> Hosts<S> {
    /// In a quarter of the worlds of a system that knows of them.
    pub(super) fn of(seed: u64) -> Option<Hosts<S>> {
        mix(seed ^ 0x686f_7374).is_multiple_of(4).then(|| Hosts::new(seed))
    }

    /// In any world.
    pub(super) fn new(seed: u64) -> Hosts<S> {
        Hosts { rng: Rng::new(mix(seed ^ 0x686f_7374)), here: 0, held: Held::Unknown, ghost: None }
    }

    /// The same in another future.
    pub(super) fn fork(&self, label: u64) -> Hosts<S> {
        Hosts { rng: Rng::new(label), here: self.here, held: self.held, ghost: None }
    }

    fn holder(&mut self) -> Holder {
        let mut session = [0; 16];
        session.iter_mut().for_each(|byte| *byte = self.rng.next() as u8);
        Holder { host: [self.here; 16], name: format!("host{}", self.here), session }
    }
}

impl<S: System> World<S> {
    /// What the next engine is started with: another import than all before.
    pub(super) fn tuning(&mut self) -> Tuning {
        let mut tuning = self.config.tuning.clone();
        if let Some(hosts) = &mut self.hosts {
            if self.fate.is_some() && hosts.rng.percent(20) {
                // what befalls devices may befall them while the pool is taken
                hosts.here = hosts.here.wrapping_add(1);
                tuning.force = true;
            }
            // before another host may have taken it by force, and not have come through
            tuning.force |= self.fate.is_some();
            tuning.holder = Some(hosts.holder());
        }
        tuning
    }

    /// The pool is in service.
    pub(super) fn note_held(&mut self) {
        if let Some(hosts) = &mut self.hosts {
            hosts.held = Held::Yes;
        }
    }

    /// The pool was closed, or a fault may have come between that and what the claims say.
    pub(super) fn note_end(&mut self, closed: bool, certain: bool) {
        if let Some(hosts) = &mut self.hosts {
            hosts.held = match (closed, certain) {
                (true, _) => Held::No,
                (false, true) => hosts.held,
                (false, false) => Held::Unknown,
            };
        }
    }

    /// An import was interrupted: it may have claimed the pool.
    pub(super) fn note_interrupted(&mut self) {
        if let Some(hosts) = &mut self.hosts
            && hosts.held == Held::No
        {
            hosts.held = Held::Unknown;
        }
    }

    /// The host may only have been held up, not dead.
    pub(super) fn keep_ghost(&mut self) {
        let target = self.oracle.targets().into_iter().find(|target| matches!(target, Target::Head(_)));
        let World { hosts: Some(hosts), machine, fate: None, system, shard, trace, .. } = self else { return };
        if hosts.held == Held::Yes && hosts.rng.percent(if shard.is_some() { 80 } else { 50 }) {
            let devices = (0..machine.count()).map_while(|position| machine.at(position)).collect();
            let shard = shard.as_mut().map(Shard::restart);
            let mut ended = Vec::new();
            if shard.is_some() {
                // what devices were given they do, whoever is held up
                machine.armed = Armed::default();
                ended.extend(std::iter::from_fn(|| machine.finish_one(trace)));
            }
            hosts.ghost = system.take().map(|system| Ghost { system, devices, target, shard, ended, asleep: None });
        }
    }

    /// The power fails for every host: none goes on that was held up.
    pub(super) fn end_ghost(&mut self) {
        if let Some(hosts) = &mut self.hosts {
            hosts.ghost = None;
        }
    }

    /// Another host imports the pool, now and then. Whether it did, and has it or was rightly told why not.
    pub(super) fn import_elsewhere(&mut self) -> Verdict {
        let World { hosts: Some(hosts), fate: None, damaged: false, shard, .. } = self else { return Ok(()) };
        if !hosts.rng.percent(if shard.is_some() { 60 } else { 30 }) {
            hosts.ghost = None;
            return Ok(());
        }
        hosts.here = hosts.here.wrapping_add(1);
        let held = hosts.held;
        self.trace.note(format!("another host: the pool is held: {held:?}"));
        let alive = self.rouse_ghost();
        if held == Held::Yes && !alive {
            let begun = self.machine.now();
            self.machine.plug(true);
            self.import(u64::MAX)?;
            match self.state() {
                // for that reason alone: it is there when it is taken by force below
                PoolState::Faulted(_) if self.machine.now().0 >= begun.0 + 10_000 => {}
                state => return broken(format!("a pool that another host did not close is {state:?}")),
            }
            self.stop(false, false, None);
        }
        if held != Held::No {
            self.config.tuning.force = true;
        }
        self.machine.plug(true);
        let verdict = self.import(u64::MAX);
        self.config.tuning.force = false;
        verdict?;
        match self.state() {
            PoolState::Online => {}
            state => return broken(format!("taking a pool over ends {state:?}")),
        }
        self.wake_ghost()?;
        // it is imported again, as if nothing had happened
        self.note_held();
        self.stop(false, false, None);
        Ok(())
    }

    /// The host from which the pool will be taken may go on meanwhile, where it has what a daemon has. Whether it does.
    fn rouse_ghost(&mut self) -> bool {
        let World { hosts: Some(hosts), machine, .. } = self else { return false };
        let Some(ghost) = hosts.ghost.as_mut().filter(|ghost| ghost.shard.is_some()) else { return false };
        if hosts.rng.percent(60) {
            ghost.asleep = Some(wakes(machine.now(), &mut hosts.rng));
        }
        ghost.asleep.is_some()
    }

    /// The host from which the pool is being taken goes on: what it has devices do is done, until the other begins to read the pool (INV-CLAIM-1).
    pub(super) fn live_on(&mut self) -> Verdict {
        let World { hosts: Some(hosts), machine, trace, system, .. } = self else { return Ok(()) };
        let Hosts { rng, ghost: Some(ghost), .. } = hosts else { return Ok(()) };
        let Ghost { system: late, devices, shard: Some(shard), ended, asleep: Some(until), .. } = ghost else { return Ok(()) };
        if machine.now() < *until || rng.percent(50) {
            return Ok(());
        }
        if rng.percent(2) {
            *until = wakes(machine.now(), rng);
        }
        let taken = system.as_ref().is_some_and(|system| system.lease().is_some());
        hand_over(shard, late, machine, trace, |machine, io, trace| {
            if taken && io.kind.changes() {
                return broken(format!("a host has a device do {:?} while another one reads the pool", io.kind));
            }
            trace.note(format!("the host before has a device do operation {}", io.id.0));
            ended.extend(devices.get(usize::from(io.device.0)).map(|device| machine.carry_out(*device, io)));
            Ok(())
        })?;
        for done in ended.drain(..) {
            shard.done(&done, machine.nanos());
            late.io_done(done);
        }
        while let Some(entry) = shard.next_let_in(machine.nanos())? {
            late.enter(entry);
        }
        late.answer(machine.now());
        take_ios(shard, late, machine, |_| false)?;
        late.turn(machine.now());
        take_ios(shard, late, machine, |_| false)?;
        // nobody hears it any more
        while late.pop_completion().is_some() || late.pop_reply().is_some() {}
        Ok(())
    }

    /// The host that was held up goes on.
    fn wake_ghost(&mut self) -> Verdict {
        let World { hosts: Some(hosts), machine, trace, .. } = self else { return Ok(()) };
        let Some(mut ghost) = hosts.ghost.take() else { return Ok(()) };
        trace.note("the host before was only held up");
        if let Some(shard) = ghost.shard.as_mut().filter(|_| hosts.rng.percent(50)) {
            shard.lift_caps(machine.nanos());
        }
        if let Some(target) = ghost.target {
            let request = Request { op: Op::Write, range: ByteRange { offset: 0, length: BLOCK }, fua: true };
            ghost.system.submit(target, LATE, request, Payload::Copy(&vec![0xdd; BLOCK as usize]));
        }
        for _ in 0..200 {
            machine.pass(100_000);
            let Ghost { system, devices, shard, ended, .. } = &mut ghost;
            if let Some(shard) = shard {
                hand_over(shard, system, machine, trace, |machine, io, _| {
                    ended.push(read_late(io, devices, machine)?);
                    Ok(())
                })?;
                for done in ended.iter() {
                    shard.done(done, machine.nanos());
                }
            }
            ended.drain(..).for_each(|done| system.io_done(done));
            system.turn(machine.now());
            if let Some(shard) = shard {
                take_ios(shard, system, machine, |_| false)?;
            }
            while let Some(io) = system.pop_io() {
                let done = read_late(io, devices, machine)?;
                system.io_done(done);
            }
            while let Some(completion) = ghost.system.pop_completion() {
                if completion.tag == LATE && completion.result.is_ok() {
                    return broken("a host that the pool was taken from acknowledges a write");
                }
            }
        }
        Ok(())
    }
}
