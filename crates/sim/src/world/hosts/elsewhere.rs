//! Imports of the pool on another host.

use millpond_engine::PoolState;

use super::Held;
use crate::System;
use crate::oracle::{Verdict, broken};
use crate::world::World;

impl<S: System> World<S> {
    /// Imports the pool on another host, sometimes. While the pool is held, the import must be
    /// refused unless it is forced.
    pub(crate) fn import_elsewhere(&mut self) -> Verdict {
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
                // Refused because of the claim alone: the forced import below succeeds.
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
        // The first host imports the pool again as if nothing had happened.
        self.note_held();
        self.stop(false, false, None);
        Ok(())
    }
}
