//! Makes a pool of the state that an import read, and begins the log of this import.

use millpond_block::BufPool;
use millpond_format::{FeatureSet, Root};

use super::Import;
use crate::PoolState;
use crate::io::{Health, IoTable};
use crate::log::Log;
use crate::open::ring::Rings;
use crate::pool::Pool;
use crate::store::Store;
use crate::task::Lease;

impl Import {
    pub(super) fn take_pool(&mut self) -> Option<Pool> {
        let (core, replay) = (self.core.take()?, self.replay.take()?);
        let lease = self.lease_of_import();
        let (config, root, checkpoint) = (self.config.take()?, self.root.take()?, self.checkpoint.take()?);
        let mut io = IoTable::new(self.slots.clone(), Health::of(&config.shape)).after(&self.io);
        io.inherit_trouble(&self.io);
        self.replacements.iter().for_each(|(member, slot)| io.set_replacement(*member, Some(*slot)));
        let mut pool = Pool::new(Store::new(config, core, Log::new(replay.end), io, BufPool::default(), self.tuning.clone(), self.now));
        pool.lease = lease;
        pool.store.keys = self.keys.take();
        pool.unanswered.clone_from(&self.silent);
        pool.store.log.small_write_index = replay.small_write_index;
        pool.store.metrics.replayed_batches = replay.batches;
        pool.store.log.since_checkpoint = replay.bytes;
        pool.store.lifespan = checkpoint.lifespan;
        pool.store.incarnation = root.incarnation + 1;
        pool.store.generation = root.generation;
        pool.store.checkpoint_at = root.checkpoint;
        pool.store.checkpoint_lsn = root.lsn;
        pool.store.past_roots = self.rings.as_ref().map(Rings::times).unwrap_or_default();
        pool.store.core.space.segments.outlive(root.generation);
        pool.store.checkpoint.parts = std::mem::take(&mut self.parts);
        pool.store.checkpoint.sealed_chunk = pool.store.core.next_chunk;
        pool.store.log_tails.clone_from(&root.log_tails);
        if let Some(last) = pool.store.log_tails.last_mut() {
            last.end = replay.end;
        }
        // in a damaged log, batches after the sound part do not count any more
        pool.store.log_tails.iter_mut().for_each(|log_tail| log_tail.end = log_tail.end.min(replay.end));
        if pool.store.core.clock == 0 {
            // nothing was ever written to it
            pool.store.prepare_first();
        }
        pool.fell_back = self.refused.take().map(|why| why.to_string());
        if self.tuning.read_only {
            pool.store.state = PoolState::Online;
            return Some(pool);
        }
        if self.rewound.is_none() {
            // objects of later checkpoints may follow an older checkpoint
            pool.store.checkpoint.continue_objects(root.checkpoint, &mut pool.store.core.space);
        }
        // INV-LABEL-3: a copy that could not be written may lack all of them
        let failed = std::mem::take(&mut self.label_repair.failed);
        let all = if failed.is_empty() { FeatureSet::default() } else { pool.store.config.features };
        pool.store.labels.turning_on = self.turning_on.with(all);
        failed.iter().for_each(|(member, second)| pool.store.label_copy_failed(*member, *second));
        if self.relabel || (self.label_repair.optional && failed.is_empty()) {
            pool.store.relabel(None);
        }
        if !pool.store.streams_fit() {
            // segments that waited for a checkpoint at the crash are free once this root's
            // checkpoint is certain to be valid: the log goes on after that
            let (generation, log_tails) = (root.generation + 1, pool.store.log_tails.clone());
            pool.publish(Root { generation, time: self.now.0, log_tails, ..root });
        } else {
            pool.open_log();
        }
        Some(pool)
    }

    /// Returns the lease that the opened pool holds by its claim.
    fn lease_of_import(&mut self) -> Lease {
        let Some(seen) = self.claims.seen else { return Lease::default() };
        Lease::new(self.claims.mine.take(), seen)
    }
}
