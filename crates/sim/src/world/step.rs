//! A step of the workload: a request, a command, or something that befalls devices.

use millpond_engine::PoolState;

use super::{IDLE_STEP, IDLE_STEPS, World};
use crate::System;
use crate::oracle::{Verdict, Violation};

impl<S: System> World<S> {
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
        self.inject()?;
        self.change_keys();
        self.befall_cache();
        self.befall_shard();
        self.befall_store();
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
        } else if (self.shard.is_some() || (made == 0 && self.has_store())) && self.machine.idle() {
            self.machine.pass(self.idle_step());
        }
        Ok(made)
    }

    /// Runs guests and operators for this number of requests.
    pub(super) fn guests(&mut self, requests: u64) -> Verdict {
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
}
