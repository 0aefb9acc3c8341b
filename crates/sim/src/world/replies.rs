//! Replies and completions of the engine, handed to the oracle.

use millpond_block::DiskError;
use millpond_engine::PoolState;

use super::words::{outcome, reply_kind};
use super::{World, listing, shard};
use crate::System;
use crate::oracle::{Verdict, broken};
use crate::trace::Event;

impl<S: System> World<S> {
    /// Takes all operations, completions and replies out of the engine.
    pub(super) fn pump(&mut self) -> Verdict {
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
        while let Some(work) = system.pop_codec_work() {
            self.coders.add(work);
        }
        self.take_fetches(system)?;
        self.take_bucket_works(system)?;
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
            if let Some(shard) = &mut self.shard {
                shard.limit(system.options(), self.machine.nanos());
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
}
