//! Creating pools.

use std::collections::BTreeMap;

use millpond_engine::{CatalogCommand, PoolId, PoolSpec, PoolState};

use super::World;
use crate::System;
use crate::oracle::{Oracle, Verdict, broken};

impl<S: System> World<S> {
    /// Formats the devices and creates the first volumes.
    pub(super) fn create(&mut self) -> Verdict {
        self.format()?;
        if self.config.turns_features_on {
            self.turn_features_on()?;
        }
        for spec in self.config.volumes.clone() {
            let name = self.workload.name("vol");
            let (size, sector, cache, compression) = (spec.size, spec.sector, spec.cache, spec.compression);
            self.command(CatalogCommand::CreateVolume { name, size, sector, cache, compression }, vec![], vec![]);
            self.drain()?;
        }
        self.create_bases()?;
        if self.oracle.volumes().next().is_none() { broken("an empty pool has no space for a volume") } else { Ok(()) }
    }

    fn format(&mut self) -> Verdict {
        let mut id = [0u8; 16];
        id.iter_mut().for_each(|byte| *byte = self.rng.next() as u8);
        if let Some(bucket) = &mut self.bucket {
            bucket.begin(PoolId(id));
            self.oracle.allow_objects();
        }
        let (groups, extent_bytes, features) = (self.config.groups(), Some(self.config.extent), self.config.features_on);
        let spec = PoolSpec { name: "pond".to_owned(), id: PoolId(id), groups, extent_bytes, features };
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
    pub(super) fn former_pool(&mut self) -> Verdict {
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
}
