//! Cache modes that become stricter while requests are in flight. Every answer after the answer to
//! the change has the guarantee of the new mode, even if the request began before. The power fails
//! once such a request is answered.

use millpond_engine::{CatalogCommand, Command, VolumeId};

use super::World;
use crate::config::{End, LOOSE, STRICT};
use crate::oracle::Verdict;
use crate::system::{System, Target};

/// Guest requests between two changes.
const REQUESTS: u64 = 60;
/// Steps to wait for the change and for such an answer, before the world moves on.
const STEPS: u32 = 20_000;

impl<S: System> World<S> {
    pub(super) fn tightened(&mut self, times: u64) -> Verdict {
        for _ in 0..times {
            let requests = self.rng.between(5, REQUESTS);
            self.guests(requests)?;
            self.tighten()?;
            self.recover(End::Power)?;
            self.loosen()?;
        }
        self.settle_down()?;
        self.audit()?;
        self.collect();
        Ok(())
    }

    /// Makes a volume's mode stricter with requests in flight. Ends soon after one of those
    /// requests is answered after the change.
    fn tighten(&mut self) -> Verdict {
        let Some(volume) = self.volume_that(false) else { return Ok(()) };
        while self.oracle.flights() < self.config.depth && self.ask() {}
        let under_way = self.oracle.flights_of(Target::Head(volume));
        let mode = *self.rng.pick(&STRICT);
        let command = Command::Catalog(CatalogCommand::SetProperties { volume, cache: Some(mode), compression: None, read_only: None });
        let change = self.command(command, vec![volume], vec![]);
        // Guests that continue make the requests of others durable, too.
        let guests = self.rng.percent(40);
        let mut at_the_change = None;
        for _ in 0..STEPS {
            if guests {
                self.step()?;
            } else {
                let again = self.turn()?;
                if !self.finish_one()? {
                    self.machine.pass(if again { super::BUSY_STEP } else { self.idle_step() });
                }
            }
            if self.running.contains_key(&change) {
                continue;
            }
            let left = under_way.iter().filter(|tag| self.oracle.has_flight(**tag)).count();
            let before = *at_the_change.get_or_insert(left);
            if left == 0 || left < before && self.rng.percent(50) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes the mode of some volume loose again.
    fn loosen(&mut self) -> Verdict {
        let Some(volume) = self.volume_that(true).filter(|_| self.rng.percent(70) || self.volume_that(false).is_none()) else {
            return Ok(());
        };
        let mode = *self.rng.pick(&LOOSE);
        self.command(CatalogCommand::SetProperties { volume, cache: Some(mode), compression: None, read_only: None }, vec![volume], vec![]);
        self.drain()
    }

    /// Returns a volume in whose mode every write is durable (`strict`), or is not.
    fn volume_that(&mut self, strict: bool) -> Option<VolumeId> {
        let alike: Vec<VolumeId> = self.oracle.volumes().filter(|v| v.cache.every_write_durable() == strict).map(|v| v.id).collect();
        (!alike.is_empty()).then(|| *self.rng.pick(&alike))
    }
}
