//! Audits of the space, and destroying all versions.

use millpond_engine::{CatalogCommand, Command};

use super::World;
use super::fate::DeviceFaults;
use super::finale::MOST_PROMOTIONS;
use crate::System;
use crate::oracle::{Snapshot, Verdict, broken};

impl<S: System> World<S> {
    /// Runs the engine's own recount (I12).
    pub(super) fn audit(&mut self) -> Verdict {
        if self.fate.as_ref().is_some_and(DeviceFaults::has_damage) {
            return Ok(()); // an audit trusts every copy
        }
        self.audit_bucket()?;
        let World { system, machine, bucket, .. } = self;
        let Some(system) = system else { return Ok(()) };
        let mut objects = |name, offset, out: &mut [u8]| bucket.iter().for_each(|store| store.peek(name, offset, out));
        let problems = system.audit(&mut |slot, offset, out| machine.peek(slot, offset, out), &mut objects);
        if problems.is_empty() { Ok(()) } else { broken(format!("the accounting is wrong: {}", problems.join("; "))) }
    }

    /// Destroys all volumes and snapshots.
    pub(super) fn destroy_all(&mut self) -> Verdict {
        self.trace.note("everything is deleted");
        let holds = |s: &Snapshot| {
            let plain = (0..s.holds).map(|_| None);
            plain
                .chain(s.tags.iter().cloned().map(Some))
                .map(|tag| Command::Catalog(CatalogCommand::Release { snapshot: s.id, tag }))
                .collect::<Vec<_>>()
        };
        let releases: Vec<Command> = self.oracle.snapshots().flat_map(holds).collect();
        for release in releases {
            self.command_and_wait(release)?;
        }
        let mut promotions = 0;
        while self.oracle.volumes().next().is_some() {
            let free = self.oracle.volumes().map(|v| v.id).find(|id| !self.oracle.is_needed_by_others(*id));
            let command = match free {
                Some(volume) => Command::Catalog(CatalogCommand::DestroyVolume { volume }),
                None => match self.break_circle() {
                    Some(command) if promotions < MOST_PROMOTIONS => command,
                    _ => return broken("clones in a circle"),
                },
            };
            promotions += u32::from(matches!(command, Command::Catalog(CatalogCommand::Promote { .. })));
            let what = format!("{command:?} is refused although nothing needs what it takes");
            if !self.command_and_wait(command)? {
                return broken(what);
            }
        }
        Ok(())
    }

    /// Breaks a circle that promotions left, in which each volume starts from a snapshot of the
    /// other: destroys a snapshot without clones, or promotes a volume if only destroyed snapshots
    /// are between them.
    fn break_circle(&self) -> Option<Command> {
        let last = self.oracle.snapshots().map(|s| s.id).find(|id| self.oracle.clones(*id) == 0);
        let destroy = last.map(|id| Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: vec![id] }));
        destroy.or_else(|| {
            let clone = self.oracle.volumes().map(|v| v.id).find(|id| self.oracle.may_promote(*id));
            clone.map(|volume| Command::Catalog(CatalogCommand::Promote { volume, dry_run: false }))
        })
    }
}
