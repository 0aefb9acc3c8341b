//! When the cleaner has to clean: for room, for a removal, a wipe or a rebalance.

use super::Pool;
use crate::PoolState;
use crate::store::Evacuation;

impl Pool {
    /// Continues cleaning if space or a job needs it.
    pub(super) fn step_cleaner(&mut self) {
        if self.store.state != PoolState::Online && self.store.state != PoolState::Closing {
            return;
        }
        let short = self.requests.waits_for_space();
        if !self.cleaner.has_victim() {
            let wanted = self.store.closing.is_none() || short;
            let victim = if wanted && self.cleaning_needed() {
                let jobs = &mut self.jobs;
                self.cleaner.choose_victim(&mut self.store, |store| jobs.next_victim(store))
            } else {
                None
            };
            match victim {
                Some(victim) => self.cleaner.begin_victim(&mut self.store, victim),
                None => return self.cleaner.write_gathered(&mut self.store),
            }
        }
        self.cleaner.read_victim(&mut self.store, short);
    }

    fn cleaning_needed(&self) -> bool {
        self.cleaner.needs_victims(&self.store)
            || self.store.evacuation.as_ref().is_some_and(Evacuation::has_more)
            || self.jobs.has_victims()
    }
}
