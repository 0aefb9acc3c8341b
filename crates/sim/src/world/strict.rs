//! Cache modes that become stricter while requests are under way: from the answer to the change on every answer promises what the new mode does, also
//! to requests that were begun before. The power fails when one of those has been answered.

use millpond_engine::{Command, VolumeId};

use super::World;
use crate::config::{End, LOOSE, STRICT};
use crate::oracle::Verdict;
use crate::system::{System, Target};

/// Guest requests between two changes.
const REQUESTS: u64 = 60;
/// Steps after which a change that nobody notices counts as one.
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

    /// A volume's mode becomes stricter with requests under way. Ends soon after one of those was answered that the change was answered before.
    fn tighten(&mut self) -> Verdict {
        let Some(volume) = self.volume_that(false) else { return Ok(()) };
        while self.oracle.flights() < self.config.depth && self.ask() {}
        let under_way = self.oracle.flights_of(Target::Head(volume));
        let mode = *self.rng.pick(&STRICT);
        let command = Command::SetProperties { volume, cache: Some(mode), compression: None, read_only: None };
        let change = self.command(command, vec![volume], vec![]);
        // guests who go on make others' requests durable, too
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

    /// Some volume's mode is loose again.
    fn loosen(&mut self) -> Verdict {
        let Some(volume) = self.volume_that(true).filter(|_| self.rng.percent(70) || self.volume_that(false).is_none()) else {
            return Ok(());
        };
        let mode = *self.rng.pick(&LOOSE);
        self.command(Command::SetProperties { volume, cache: Some(mode), compression: None, read_only: None }, vec![volume], vec![]);
        self.drain()
    }

    /// A volume in whose mode every write is durable, or not.
    fn volume_that(&mut self, strict: bool) -> Option<VolumeId> {
        let alike: Vec<VolumeId> = self.oracle.volumes().filter(|v| v.cache.every_write_durable() == strict).map(|v| v.id).collect();
        (!alike.is_empty()).then(|| *self.rng.pick(&alike))
    }
}
