//! Turns of the engine, and the requests and commands that they carry out.

use millpond_block::{Buf, Op, Payload, Tag};
use millpond_engine::{Command, Entry, PoolState, VolumeId};

use super::SETTLING;
use super::words::operation;
use super::{BUSY_STEP, PATIENCE, PATIENCE_TURNS, World};
use crate::content::stamp;
use crate::oracle::{Verdict, Violation, broken};
use crate::system::target_name;
use crate::trace::Event;
use crate::workload::{Ask, Plan, query};
use crate::{System, Target};

impl<S: System> World<S> {
    /// Submits a guest request; returns its tag.
    pub(super) fn submit(&mut self, ask: Ask) -> u64 {
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

    /// Submits a command; returns its tag.
    pub(super) fn command(&mut self, command: impl Into<Command>, volumes: Vec<VolumeId>, quiet: Vec<Target>) -> u64 {
        self.start(Plan { command: Some(command.into()), diff: None, volumes, quiet })
    }

    /// Submits the waiting commands whose targets have no requests in flight any more.
    pub(super) fn start_waiting(&mut self) {
        for plan in std::mem::take(&mut self.waiting) {
            if plan.quiet.iter().any(|target| self.oracle.flies(*target)) {
                self.waiting.push(plan);
            } else {
                self.start(plan);
            }
        }
    }

    pub(super) fn ask(&mut self) -> bool {
        let taken = self.quiet();
        let Some(mut ask) = self.workload.ask(&self.oracle, &taken) else { return false };
        if let Some(files) = &mut self.files {
            files.take_over(&mut ask, &self.oracle);
        }
        self.submit(ask);
        true
    }

    /// Submits a map query, sometimes. Returns whether it did.
    pub(super) fn question(&mut self) -> bool {
        let Some(mut rng) = self.query_rng.take() else { return false };
        let due = rng.percent(30) && self.oracle.flights() < self.config.depth + 3;
        let asked = if due { query(&mut rng, &self.oracle, &self.quiet()) } else { None };
        self.query_rng = Some(rng);
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

    /// Ends one device operation, one compression or decompression, one fetch, or one work of the bucket;
    /// returns false if there is none.
    pub(crate) fn finish_one(&mut self) -> Result<bool, Violation> {
        if let (Some(system), Some(work)) = (&mut self.system, self.coders.finish_one(self.machine.idle())) {
            self.stats.coded += work.blocks() as u64;
            system.codec_done(work);
            self.pump()?;
            return Ok(true);
        }
        if self.answer_fetch() || self.answer_bucket() {
            self.pump()?;
            return Ok(true);
        }
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

    /// Gives the engine a turn; returns true if it wants another one soon.
    pub(crate) fn turn(&mut self) -> Result<bool, Violation> {
        self.before_turn()?;
        self.tell_bucket()?;
        let now = self.machine.now();
        self.trace.add(Event::Turn(now.0));
        // Imports are not timed: they build all of the state, and no request waits for them.
        let begun = self.clock.filter(|_| self.state() == PoolState::Online).map(|clock| clock());
        let again = self.system.as_mut().is_some_and(|system| {
            system.answer(now);
            system.turn(now)
        });
        if let (Some(clock), Some(begun)) = (self.clock, begun) {
            self.stats.longest_turn = self.stats.longest_turn.max(clock().saturating_sub(begun));
        }
        self.pump()?;
        self.after_turn();
        self.note_placed();
        Ok(again)
    }

    /// Runs until every request and command is answered.
    pub(super) fn drain(&mut self) -> Verdict {
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

    /// Submits a command and waits for its answer; returns whether it succeeded.
    pub(super) fn command_and_wait(&mut self, command: impl Into<Command>) -> Result<bool, Violation> {
        let before = self.stats.commands;
        self.command(command, vec![], vec![]);
        self.drain()?;
        Ok(self.stats.commands > before)
    }

    /// Runs until every request is answered and the engine is at rest.
    pub(super) fn settle_down(&mut self) -> Verdict {
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
}
