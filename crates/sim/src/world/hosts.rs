//! Several hosts, in a quarter of the worlds. Another host imports the pool now and then, which
//! must be refused while the pool is not closed. The former host may only have been suspended, and
//! then continues.

mod elsewhere;

use millpond_block::{ByteRange, Io, IoDone, IoKind, Op, Payload, Request, Tag};
use millpond_engine::{Holder, Time, Tuning};

use super::World;
use super::object_store::ObjectStore;
use super::shard::{hand_over, take_ios};
use crate::fault::Armed;
use crate::machine::Machine;
use crate::oracle::{BLOCK, Verdict, Violation, broken};
use crate::rng::{Rng, mix};
use crate::shard::Shard;
use crate::system::{System, Target};

/// Tag of the write submitted on a host that was suspended.
const LATE: Tag = Tag(u64::MAX);

/// Longest suspension of a host while another takes the pool, in milliseconds: longer than a lease.
const LONGEST_SLEEP: u64 = 14_000;

/// Required content of the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The pool was in service and was not closed.
    Yes,
    /// The pool was closed.
    No,
    /// A fault may have hit the claims.
    Unknown,
}

/// A suspended host: its engine, and the devices at its positions.
struct Ghost<S> {
    system: S,
    devices: Vec<usize>,
    target: Option<Target>,
    /// The operations that its daemon has not submitted yet.
    shard: Option<Shard>,
    /// Operations that its devices have completed since it was suspended.
    ended: Vec<IoDone>,
    /// End of the suspension; `None` for no end.
    asleep: Option<Time>,
}

/// Draws the end of a suspension, often soon, so that both hosts run at the same time.
fn wakes(now: Time, rng: &mut Rng) -> Time {
    let longest = *rng.pick(&[10, 1_000, LONGEST_SLEEP]);
    Time(now.0 + rng.below(longest))
}

/// Performs an operation of a host that has lost the pool: only reads are legal.
fn read_late(io: Io, devices: &[usize], machine: &Machine) -> Result<IoDone, Violation> {
    let IoKind::Read { offset, length, mut buf } = io.kind else {
        return broken(format!("a host that the pool was taken from has a device do {:?}", io.kind));
    };
    if let (Some(device), Some(to)) = (devices.get(usize::from(io.device.0)), buf.bytes_mut().get_mut(..length)) {
        machine.peek_device(*device, offset, to);
    }
    Ok(IoDone { id: io.id, result: Ok(()), buf: Some(buf) })
}

/// Lets the bucket serve a host that was suspended.
fn serve_bucket<S: System>(bucket: Option<&mut ObjectStore>, late: &mut S, machine: &Machine) -> Verdict {
    let Some(bucket) = bucket else { return Ok(()) };
    while let Some(work) = late.pop_bucket_work() {
        let leased = late.lease().is_none_or(|until| machine.now() <= until);
        if let Some(answer) = bucket.serve_suspended(work, machine.nanos(), leased)? {
            late.bucket_done(answer.id, answer.result);
        }
    }
    Ok(())
}

/// The hosts that see the devices.
pub(super) struct Hosts<S> {
    rng: Rng,
    here: u8,
    held: Held,
    ghost: Option<Ghost<S>>,
}

impl<S> Hosts<S> {
    /// Makes hosts in a quarter of the worlds.
    pub(super) fn of(seed: u64) -> Option<Hosts<S>> {
        mix(seed ^ 0x686f_7374).is_multiple_of(4).then(|| Hosts::new(seed))
    }

    /// Makes hosts in any world.
    pub(super) fn new(seed: u64) -> Hosts<S> {
        Hosts { rng: Rng::new(mix(seed ^ 0x686f_7374)), here: 0, held: Held::Unknown, ghost: None }
    }

    /// The same state with another future.
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
    /// Returns the tuning of the next engine, with a new session for each import.
    pub(super) fn tuning(&mut self) -> Tuning {
        let mut tuning = self.config.tuning.clone();
        if let Some(hosts) = &mut self.hosts {
            if self.fate.is_some() && hosts.rng.percent(20) {
                // Takes the pool by force while device faults occur.
                hosts.here = hosts.here.wrapping_add(1);
                tuning.force = true;
            }
            // An earlier import by another host may have taken the pool by force without
            // completing.
            tuning.force |= self.fate.is_some();
            tuning.holder = Some(hosts.holder());
        }
        tuning
    }

    /// Records that the pool is in service.
    pub(super) fn note_held(&mut self) {
        if let Some(hosts) = &mut self.hosts {
            hosts.held = Held::Yes;
        }
    }

    /// Records the end of service. Not `certain`: a fault may have hit the claims.
    pub(super) fn note_end(&mut self, closed: bool, certain: bool) {
        if let Some(hosts) = &mut self.hosts {
            hosts.held = match (closed, certain) {
                (true, true) => Held::No,
                (false, true) => hosts.held,
                (_, false) => Held::Unknown,
            };
        }
    }

    /// Records an interrupted import, which may have claimed the pool.
    pub(super) fn note_interrupted(&mut self) {
        if let Some(hosts) = &mut self.hosts
            && hosts.held == Held::No
        {
            hosts.held = Held::Unknown;
        }
    }

    /// Suspends the host instead of killing it, sometimes.
    pub(super) fn keep_ghost(&mut self) {
        let target = self.oracle.targets().into_iter().find(|target| matches!(target, Target::Head(_)));
        let World { hosts: Some(hosts), machine, fate: None, system, shard, trace, coders, .. } = self else { return };
        if hosts.held == Held::Yes && hosts.rng.percent(if shard.is_some() { 80 } else { 50 }) {
            let devices = machine.plugged().to_vec();
            let shard = shard.as_mut().map(Shard::restart);
            let mut ended = Vec::new();
            if shard.is_some() {
                // Devices complete the operations they have, even if the host is suspended.
                machine.armed = Armed::default();
                ended.extend(std::iter::from_fn(|| machine.finish_one(trace)));
            }
            // Threads finish what they have.
            if let Some(system) = system {
                coders.finish_all(system);
            }
            hosts.ghost = system.take().map(|system| Ghost { system, devices, target, shard, ended, asleep: None });
        }
    }

    /// Drops a suspended host, because the power failed for every host.
    pub(super) fn end_ghost(&mut self) {
        if let Some(hosts) = &mut self.hosts {
            hosts.ghost = None;
        }
    }

    /// Lets the suspended host continue while the pool is taken from it, if it has a shard. Returns
    /// whether it does.
    fn rouse_ghost(&mut self) -> bool {
        let World { hosts: Some(hosts), machine, .. } = self else { return false };
        let Some(ghost) = hosts.ghost.as_mut().filter(|ghost| ghost.shard.is_some()) else { return false };
        if hosts.rng.percent(60) {
            ghost.asleep = Some(wakes(machine.now(), &mut hosts.rng));
        }
        ghost.asleep.is_some()
    }

    /// Runs the host from which the pool is being taken. Its operations take effect until the other
    /// host begins to read the pool (INV-CLAIM-1).
    pub(super) fn live_on(&mut self) -> Verdict {
        let World { hosts: Some(hosts), machine, trace, system, coders, bucket, .. } = self else { return Ok(()) };
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
        coders.finish_new(late);
        late.answer(machine.now());
        late.turn(machine.now());
        take_ios(shard, late, machine, |_| false)?;
        serve_bucket(bucket.as_mut(), late, machine)?;
        // Its answers reach no guest.
        while late.pop_completion().is_some() || late.pop_reply().is_some() {}
        Ok(())
    }

    /// Runs the suspended host after it has lost the pool.
    fn wake_ghost(&mut self) -> Verdict {
        let World { hosts: Some(hosts), machine, trace, coders, bucket, .. } = self else { return Ok(()) };
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
            system.answer(machine.now());
            coders.finish_new(system);
            system.turn(machine.now());
            if let Some(shard) = shard {
                take_ios(shard, system, machine, |_| false)?;
            }
            serve_bucket(bucket.as_mut(), system, machine)?;
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
