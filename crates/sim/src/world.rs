//! One run: a seed becomes a machine, a pool, guests, crashes and faults, and the oracle's verdict.

mod answers;
mod caches;
mod fate;
mod finale;
mod full;
mod hosts;
mod jobs;
mod long;
mod recovery;
mod rescue;
mod restarts;
mod room;
mod shard;
mod spares;
mod stats;
mod strict;
mod sweep;
mod wiped;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{Buf, DiskError, Op, Payload, Tag};
use millpond_engine::{Command, CommandError, Entry, Planted, PoolId, PoolSpec, PoolState, VolumeId};

use crate::bytes::Files;
use crate::config::{Config, Kind, Options};
use crate::content::stamp;
use crate::disk::SimDevice;
use crate::fault::{Armed, FaultKind};
use crate::machine::Machine;
use crate::oracle::{Listing, Oracle, Verdict, Violation, broken};
use crate::rng::{Rng, mix};
use crate::shard::Shard;
use crate::system::{System, Target, target_name};
use crate::trace::{Event, Trace};
use crate::workload::{Ask, Plan, Workload, query};
use caches::Caches;
use fate::Fate;
use hosts::Hosts;
pub use stats::Stats;
use words::{operation, outcome, reply_kind};

/// Milliseconds of simulated time without any answer after which this is a finding. The slowest
/// operation takes 2 ms, times 10 for the tail, times 50 for a slow device.
const PATIENCE: u64 = 120_000;
/// Turns, of one event each, within which an engine without guests must come to rest. A full pool
/// on striped devices cleans for long.
const SETTLING: u32 = 100_000;
/// Turns without any answer after which this is a finding.
const PATIENCE_TURNS: u64 = 50_000;
/// Steps without requests and answers, after which the world waits for all answers.
const IDLE_STEPS: u64 = 5_000;
/// Time between two turns of an engine that wants another turn, in microseconds.
const BUSY_STEP: u64 = 50;
/// Time per step while nothing happens, in microseconds.
const IDLE_STEP: u64 = 10_000;

/// A world in progress.
pub struct World<S: System> {
    config: Config,
    rng: Rng,
    machine: Machine,
    system: Option<S>,
    oracle: Oracle,
    workload: Workload,
    /// Separate RNG for map queries, in a quarter of the seeds, so that the other seeds replay
    /// unchanged.
    curious: Option<Rng>,
    /// Guests with files, in half of the worlds with map queries.
    files: Option<Files>,
    /// Device faults, in worlds whose devices fail.
    fate: Option<Fate>,
    /// Faults of cache devices.
    caches: Option<Caches>,
    /// Hosts that see the devices, where hosts claim the pool.
    hosts: Option<Hosts<S>>,
    /// The daemon's shard between guests, engine and devices, with `--gate`.
    shard: Option<Shard>,
    /// The record of events.
    pub trace: Trace,
    /// Counters.
    pub stats: Stats,
    tags: u64,
    /// Number of requests, queries, commands and comparisons answered.
    answers: u64,
    /// The caller's clock, to time turns.
    clock: Option<fn() -> u64>,
    /// Number of writes that found no space.
    refusals: u64,
    /// The last answer to a command.
    last_reply: Option<Result<(), CommandError>>,
    waiting: Vec<Plan>,
    running: BTreeMap<u64, Plan>,
    /// Data on the media was damaged: errors are legal for ever, wrong data is still a finding.
    damaged: bool,
    /// The world ends early: nothing more can be judged in it.
    over: bool,
}

impl<S: System> World<S> {
    /// Makes the world of a seed, before its first event.
    pub fn new(seed: u64, options: &Options) -> World<S> {
        let mut rng = Rng::new(seed);
        let mut config = Config::new(&mut rng, options);
        let mirrored = config.transform(seed, options);
        let curious = (seed % 8 < 2 || mirrored && mix(seed).is_multiple_of(4)).then(|| Rng::new(!seed));
        // Not behind a page cache: another host has one of its own.
        let claims = S::CLAIMS && matches!(config.kind, Kind::Any) && !config.buffered;
        let hosts = claims.then(|| if options.gate { Some(Hosts::new(seed)) } else { Hosts::of(seed) }).flatten();
        let world = World { curious, hosts, ..World::with_config(config, rng, options) }.with_shard(seed, options);
        if (seed % 8 == 1 && matches!(world.config.kind, Kind::Any)) || options.bytes { world.with_files(Files::new(seed)) } else { world }
    }

    /// Adds guests with files.
    pub(crate) fn with_files(self, files: Files) -> World<S> {
        World { oracle: Oracle::new(files.grid()), files: Some(files), ..self }
    }

    /// Makes a world of this configuration.
    pub fn with_config(config: Config, mut rng: Rng, options: &Options) -> World<S> {
        let device = |rng: &mut Rng, geometry, profile| SimDevice::new(geometry, profile, rng.next());
        let devices = config.devices.iter().map(|(geometry, profile)| device(&mut rng, *geometry, *profile));
        let devices = devices.map(|device| if config.buffered { device.buffered() } else { device }).collect();
        let mut machine = Machine::new(devices, config.latency, rng.fork(1));
        machine.planted = (config.tuning.planted == Some(Planted::TrustPageCache)).then_some(millpond_device::Planted::TrustPageCache);
        let limit = if config.tight { config.pool_bytes() * 2 } else { config.pool_bytes() * 6 / 10 };
        let workload = Workload::new(config.mix.clone(), config.tight, limit.min(24 << 20), rng.fork(2));
        let mut trace = Trace::default();
        trace.print = options.trace;
        let usual = matches!(config.kind, Kind::Any);
        let fate = config.mirrored.as_ref().filter(|_| usual).map(|mirrored| Fate::new(mirrored, rng.fork(3)));
        let caches = config.cached.map(|cached| Caches::new(cached, config.devices.len(), rng.fork(4)));
        World {
            config,
            rng,
            machine,
            system: None,
            oracle: Oracle::default(),
            workload,
            curious: None,
            files: None,
            fate,
            caches,
            hosts: None,
            shard: None,
            trace,
            stats: Stats::default(),
            tags: 0,
            answers: 0,
            clock: options.clock,
            refusals: 0,
            last_reply: None,
            waiting: Vec::new(),
            running: BTreeMap::new(),
            damaged: false,
            over: false,
        }
    }

    /// Runs the world to its end.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(&mut self) -> Verdict {
        let outcome = self.live();
        self.stats.operations = self.machine.completed;
        self.stats.held = self.shard.as_ref().map_or([0; 3], Shard::counts);
        outcome
    }

    fn live(&mut self) -> Verdict {
        self.trace.note(format!("{:?}", self.config));
        if self.config.second_hand {
            self.former_pool()?;
        }
        self.create()?;
        match self.config.kind {
            Kind::Long(long) => return self.long_tables(long),
            Kind::Full(full) => return self.full_pool(full),
            Kind::Rescue => return self.endangered(),
            Kind::Restarts(plan) => return self.restarts(plan),
            Kind::Strict(times) => return self.tightened(times),
            Kind::Any => {}
        }
        for index in 0..self.config.eras.len() {
            self.era(index)?;
            if self.over {
                return Ok(());
            }
        }
        self.finale()
    }

    /// Formats the devices and creates the first volumes.
    pub(crate) fn create(&mut self) -> Verdict {
        self.format()?;
        for spec in self.config.volumes.clone() {
            let name = self.workload.name("vol");
            let (size, sector, cache, compression) = (spec.size, spec.sector, spec.cache, spec.compression);
            self.command(Command::CreateVolume { name, size, sector, cache, compression }, vec![], vec![]);
            self.drain()?;
        }
        if self.oracle.volumes().next().is_none() { broken("an empty pool has no space for a volume") } else { Ok(()) }
    }

    fn format(&mut self) -> Verdict {
        let mut id = [0u8; 16];
        id.iter_mut().for_each(|byte| *byte = self.rng.next() as u8);
        let spec =
            PoolSpec { name: "pond".to_owned(), id: PoolId(id), groups: self.config.groups(), extent_bytes: Some(self.config.extent) };
        // A small device meant for a cache or spare would be a bad one for data.
        let spares = self.config.mirrored.as_ref().is_some_and(|mirrored| mirrored.spares > 0);
        let devices = self.machine.plug(self.config.cached.is_none() && !spares);
        self.trace.note("format");
        let tuning = self.tuning();
        match S::create(spec, devices, tuning, self.machine.now()) {
            Ok(system) => self.start_system(Some(system)),
            Err(error) => return broken(format!("the pool cannot be made: {error}")),
        }
        self.wait_open(u64::MAX)?;
        match self.state() {
            PoolState::Online => {
                self.note_held();
                self.judge_size()
            }
            state => broken(format!("a new pool is {state:?}")),
        }
    }

    /// Runs another pool on the devices first. Its content must never appear in the new pool.
    fn former_pool(&mut self) -> Verdict {
        self.create()?;
        self.guests(60)?;
        self.drain()?;
        self.trace.note("another pool is made on the same devices");
        self.start_system(None);
        self.machine.kill();
        self.oracle = Oracle::new(self.oracle.grid());
        (self.waiting, self.running) = (Vec::new(), BTreeMap::new());
        Ok(())
    }

    /// Runs the time until the next crash, the crash, and the recovery.
    fn era(&mut self, index: usize) -> Verdict {
        let era = self.config.eras[index];
        self.trace.note(format!("era {index}: {era:?}"));
        let fault = self.config.fault.clone().filter(|f| f.era as usize == index);
        if let Some(fault) = &fault {
            self.trace.note(format!("armed: {fault:?}"));
        }
        self.machine.armed = Armed::new(fault);
        self.guests(era.requests)?;
        let struck = self.machine.armed.kind();
        let rots = self.machine.armed.fault().is_some_and(|f| f.kind == FaultKind::Rot);
        if struck.is_some_and(FaultKind::needs_checkpoint) || rots {
            return self.damaged_end(era.end);
        }
        if self.machine.armed.fault().is_some_and(|f| f.kind.needs_checkpoint()) {
            self.machine.armed = Armed::default(); // its effect in the recovery could not be judged
        }
        self.recover(era.end)
    }

    /// Runs guests and operators for this number of requests.
    pub(crate) fn guests(&mut self, requests: u64) -> Verdict {
        let (mut left, mut idle, mut answered) = (requests, 0, self.answers);
        while left > 0 && !matches!(self.state(), PoolState::Faulted(_)) {
            let made = self.step()?;
            left = left.saturating_sub(made);
            idle = if made > 0 || self.answers != answered { 0 } else { idle + 1 };
            answered = self.answers;
            if idle > IDLE_STEPS {
                self.drain()?; // a finding if no answer comes
                idle = 0;
            }
        }
        Ok(())
    }

    /// Runs one step of the scheduler; returns the number of requests made.
    pub(crate) fn step(&mut self) -> Result<u64, Violation> {
        let mut made = 0;
        if self.oracle.flights() < self.config.depth && self.rng.percent(60) {
            let burst = self.rng.between(1, (self.config.depth - self.oracle.flights()).min(8) as u64);
            for _ in 0..burst {
                made += u64::from(self.ask());
            }
        }
        made += u64::from(self.question());
        self.befall()?;
        self.befall_cache();
        self.befall_shard();
        if let Some(plan) = self.workload.plan(&self.oracle, &self.busy())
            && self.waiting.len() + self.running.len() < 4
        {
            self.waiting.push(plan);
        }
        self.start_waiting();
        if self.rng.percent(self.config.eager) {
            self.turn()?;
        }
        for _ in 0..self.rng.below(3) {
            self.finish_one()?;
        }
        self.machine.pass(self.rng.below(100));
        if made == 0 && self.is_idle() {
            let busy = self.turn()?;
            if !busy && self.is_idle() {
                self.machine.pass(IDLE_STEP);
                made += u64::from(self.oracle.flights() == 0); // no progress is possible: let the era end
                if self.oracle.flights() > 0 {
                    self.drain()?;
                }
            }
        } else if self.shard.is_some() && self.machine.idle() {
            self.machine.pass(self.idle_step());
        }
        Ok(made)
    }

    fn busy(&self) -> BTreeSet<VolumeId> {
        self.waiting.iter().chain(self.running.values()).flat_map(|p| p.volumes.iter().copied()).collect()
    }

    fn quiet(&self) -> BTreeSet<Target> {
        self.waiting.iter().chain(self.running.values()).flat_map(|p| p.quiet.iter().copied()).collect()
    }

    fn ask(&mut self) -> bool {
        let taken = self.quiet();
        let Some(mut ask) = self.workload.ask(&self.oracle, &taken) else { return false };
        if let Some(files) = &mut self.files {
            files.take_over(&mut ask, &self.oracle);
        }
        self.submit(ask);
        true
    }

    /// Submits a map query, sometimes. Returns whether it did.
    fn question(&mut self) -> bool {
        let Some(mut rng) = self.curious.take() else { return false };
        let due = rng.percent(30) && self.oracle.flights() < self.config.depth + 3;
        let asked = if due { query(&mut rng, &self.oracle, &self.quiet()) } else { None };
        self.curious = Some(rng);
        let Some((target, query)) = asked else { return false };
        let tag = self.tag();
        let name = if query.since.is_some() { "changes" } else { "holes" };
        let at = self.trace.add(Event::Submit(tag, target_name(target), name, query.range.offset, query.range.length, 0));
        self.oracle.ask(tag, target, query, at);
        if let Some(system) = &mut self.system {
            system.query(target, Tag(tag), query);
        }
        true
    }

    fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    /// Submits a guest request; returns its tag.
    pub(crate) fn submit(&mut self, ask: Ask) -> u64 {
        let tag = self.tag();
        let Ask { target, request, zeroes, bytes } = ask;
        let (op, serial) = if request.op == Op::Write { self.oracle.number(target) } else { (0, 0) };
        let value = if zeroes { 0 } else { op };
        let name = if request.fua { "fua" } else { operation(request.op) };
        let event = Event::Submit(tag, target_name(target), name, request.range.offset, request.range.length, value);
        let at = self.trace.add(event);
        self.oracle.begin(tag, target, request, bytes, value, at);
        if self.system.is_none() {
            return tag;
        }
        let entry = |payload| Entry { target, tag: Tag(tag), request, payload, bytes };
        if request.op != Op::Write {
            self.enter(entry(Payload::None));
            return tag;
        }
        let length = request.range.length as usize;
        let mut buf = Buf::zeroed(length);
        let grid = self.oracle.grid();
        if value != 0 && grid.covers(request.range) {
            for (cell, place) in grid.places(request.range) {
                stamp(value, serial, cell, &mut buf.bytes_mut()[place]);
            }
        }
        if self.rng.percent(50) {
            self.enter(entry(Payload::Owned(buf)));
        } else {
            self.enter(entry(Payload::Copy(&buf.bytes()[..length])));
        }
        tag
    }

    /// Submits a command; returns its tag.
    pub(crate) fn command(&mut self, command: Command, volumes: Vec<VolumeId>, quiet: Vec<Target>) -> u64 {
        self.start(Plan { command: Some(command), diff: None, volumes, quiet })
    }

    fn start(&mut self, plan: Plan) -> u64 {
        let tag = self.tag();
        if let Some(command) = &plan.command {
            let at = self.trace.add(Event::Command(tag, format!("{command:?}")));
            self.oracle.issue(tag, command.clone(), at);
            if let Some(system) = &mut self.system {
                system.command(Tag(tag), command.clone());
            }
        } else if let (Some((older, newer)), Some(system)) = (plan.diff, &mut self.system) {
            self.trace.add(Event::Command(tag, format!("difference of {newer} to {older:?}")));
            system.start_diff(Tag(tag), older.map(Target::Snapshot), Target::Snapshot(newer));
        }
        self.running.insert(tag, plan);
        tag
    }

    /// Submits the waiting commands whose targets have no requests in flight any more.
    fn start_waiting(&mut self) {
        for plan in std::mem::take(&mut self.waiting) {
            if plan.quiet.iter().any(|target| self.oracle.flies(*target)) {
                self.waiting.push(plan);
            } else {
                self.start(plan);
            }
        }
    }

    pub(crate) fn state(&self) -> PoolState {
        self.system.as_ref().map_or(PoolState::Closed, S::state)
    }

    /// Gives the engine a turn; returns true if it wants another one soon.
    pub(crate) fn turn(&mut self) -> Result<bool, Violation> {
        self.before_turn()?;
        let now = self.machine.now();
        self.trace.add(Event::Turn(now.0));
        // Imports are not timed: they build all of the state, and no request waits for them.
        let begun = self.clock.filter(|_| self.state() == PoolState::Online).map(|clock| clock());
        let again = self.system.as_mut().is_some_and(|s| s.turn(now));
        if let (Some(clock), Some(begun)) = (self.clock, begun) {
            self.stats.longest_turn = self.stats.longest_turn.max(clock().saturating_sub(begun));
        }
        self.pump()?;
        self.after_turn();
        Ok(again)
    }

    /// Ends one device operation; returns false if there is none.
    pub(crate) fn finish_one(&mut self) -> Result<bool, Violation> {
        let Some(done) = self.machine.finish_one(&mut self.trace) else { return Ok(false) };
        if let Some(shard) = &mut self.shard {
            shard.done(&done, self.machine.nanos());
        }
        if let Some(system) = &mut self.system {
            system.io_done(done);
        }
        self.pump()?;
        Ok(true)
    }

    /// Takes all operations, completions and replies out of the engine.
    fn pump(&mut self) -> Verdict {
        let Some(mut system) = self.system.take() else { return Ok(()) };
        let verdict = self.pump_from(&mut system);
        self.system = Some(system);
        verdict
    }

    fn pump_from(&mut self, system: &mut S) -> Verdict {
        self.oracle.errors_allowed |= self.machine.armed.kind().is_some();
        if let Some(shard) = &mut self.shard {
            let (machine, fills) = (&self.machine, self.fate.is_some());
            shard::take_ios(shard, system, machine, |io| S::CLAIMS && shard::is_claim(io, machine, fills))?;
        }
        while let Some(io) = system.pop_io() {
            if let Err(what) = self.machine.start(io, &mut self.trace) {
                return broken(format!("a device operation that no device can do: {what}"));
            }
        }
        while let Some(completion) = system.pop_completion() {
            let tag = completion.tag.0;
            let at = self.trace.add(Event::Complete(tag, outcome(&completion.result.as_ref().map(|_| ()).map_err(|e| *e))));
            self.oracle.complete(tag, &completion.result, at)?;
            self.stats.requests += 1;
            self.answers += 1;
            match completion.result {
                Ok(data) => system.recycle(data),
                Err(DiskError::NoSpace) => {
                    self.stats.no_space += 1;
                    self.workload.no_space();
                    self.judge_refusal(system)?;
                }
                Err(_) => self.stats.failed += 1,
            }
        }
        while let Some(answer) = system.pop_answer() {
            let at = self.trace.add(Event::Complete(answer.tag.0, if answer.result.is_ok() { "answered" } else { "not answered" }));
            self.oracle.answered(&answer, at)?;
            self.stats.queries += 1;
            self.answers += 1;
        }
        while let Some((tag, result)) = system.pop_reply() {
            let at = self.trace.add(Event::Reply(tag.0, reply_kind(&result), format!("{result:?}")));
            self.running.remove(&tag.0);
            self.answers += 1;
            self.oracle.reply(tag.0, &result, &listing(system), at)?;
            self.stats.commands += u64::from(result.is_ok());
            self.last_reply = Some(result.map(|_| ()));
            if let (Some(shard), Some(options)) = (&mut self.shard, system.options()) {
                shard.limit(options, self.machine.nanos());
            }
        }
        while let Some((tag, result)) = system.pop_diff() {
            self.trace.add(Event::Reply(tag.0, reply_kind(&result), "difference".to_owned()));
            let plan = self.running.remove(&tag.0);
            self.answers += 1;
            match (plan.and_then(|p| p.diff), result) {
                (Some((older, newer)), Ok(extents)) => {
                    self.stats.diffs += 1;
                    self.oracle.judge_diff(older, newer, &extents)?;
                }
                (Some(_), Err(_)) if self.oracle.errors_allowed => {}
                (Some(_), Err(error)) => return broken(format!("a difference fails: {error}")),
                (None, _) => return broken("an answer to a difference that nobody asked for"),
            }
        }
        if let PoolState::Faulted(reason) = system.state()
            && !self.oracle.errors_allowed
        {
            return broken(format!("the pool stops without a cause: {reason}"));
        }
        Ok(())
    }

    /// Runs until every request and command is answered.
    pub(crate) fn drain(&mut self) -> Verdict {
        let (mut since, mut turns, mut answered) = (self.machine.now().0, 0u64, self.answers);
        while self.oracle.flights() > 0 || !self.running.is_empty() || !self.waiting.is_empty() {
            self.start_waiting();
            let again = self.turn()?;
            let ended = self.finish_one()?;
            turns += 1;
            if !ended && self.machine.idle() {
                // An engine that wants another turn soon gets it soon, but time passes all the
                // same.
                self.machine.pass(if again && turns < 1000 { BUSY_STEP } else { self.idle_step() });
            }
            if self.answers != answered {
                (since, turns, answered) = (self.machine.now().0, 0, self.answers);
            }
            if self.machine.now().0 > since + PATIENCE || turns > PATIENCE_TURNS {
                let (requests, commands) = (self.oracle.flights(), self.running.len());
                let waited = self.machine.now().0 - since;
                let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
                return broken(format!(
                    "{requests} requests and {commands} commands are not answered in {waited} ms and {turns} turns; {space}"
                ));
            }
        }
        Ok(())
    }

    /// Runs until every request is answered and the engine is at rest.
    pub(crate) fn settle_down(&mut self) -> Verdict {
        self.drain()?;
        let mut still = 0;
        for _ in 0..SETTLING {
            let again = self.turn()?;
            let ended = self.finish_one()?;
            still = if again || ended || !self.is_idle() { 0 } else { still + 1 };
            if still == 3 {
                return Ok(());
            }
            let waits = still > 0 || (self.machine.idle() && !self.is_idle());
            self.machine.pass(if waits { self.idle_step() } else { BUSY_STEP });
        }
        let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
        broken(format!("the engine does not come to rest in {SETTLING} turns without guests; {space}"))
    }

    /// Submits a command and waits for its answer; returns whether it succeeded.
    pub(crate) fn command_and_wait(&mut self, command: Command) -> Result<bool, Violation> {
        let before = self.stats.commands;
        self.command(command, vec![], vec![]);
        self.drain()?;
        Ok(self.stats.commands > before)
    }
}

pub(crate) fn listing<S: System>(system: &S) -> Listing {
    Listing { volumes: system.volumes(), snapshots: system.snapshots() }
}
