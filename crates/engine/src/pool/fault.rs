//! Failures: of the pool, and of a device that it can do without. A device that does not answer is
//! given up like one that failed.

use millpond_block::DiskError;

use super::requests::Requests;
use super::state::Pool;
use crate::io::{Failing, Replica};
use crate::store::Store;
use crate::{CommandError, DeviceTrouble, Fault, Planted, PoolState};

impl Requests {
    /// Fails waiting destroys when the pool stops.
    fn abandon_destroys(&mut self, store: &mut Store) {
        for work in std::mem::take(&mut self.destroying) {
            self.fail_op(store, work.op, DiskError::Io);
        }
    }
}

impl Pool {
    /// Stops the pool: reads go on where they can, and nothing is written any more.
    pub(super) fn fault(&mut self, why: Fault) {
        self.store.fault(why);
        self.end_what_waits();
    }

    /// Ends the requests and commands that wait in a pool that has just stopped. To be called after
    /// work of a task that may stop it.
    pub(super) fn end_what_waits(&mut self) {
        if !std::mem::take(&mut self.store.has_stopped) {
            return;
        }
        let PoolState::Faulted(why) = &self.store.state else { return };
        let why = why.clone();
        let mut held: Vec<u32> = self.store.log.abandon().into_iter().flat_map(|batch| batch.waiters).collect();
        for stream in self.store.log.streams.values_mut() {
            if let Some(batch) = stream.batch.take() {
                held.extend(batch.waiters);
            }
        }
        held.extend(
            self.requests.space_waiters.drain(..).chain(self.requests.full_waiters.drain(..)).chain(self.requests.record_waiters.drain(..)),
        );
        // after a lost lease, another host may change what they would read
        held.extend(self.requests.fetches.readers());
        held.extend(self.requests.locks.values_mut().flat_map(|waiting| waiting.drain(..)));
        for op in held {
            self.requests.fail_op(&mut self.store, op, DiskError::Io);
        }
        self.requests.abandon_destroys(&mut self.store);
        self.cleaner.uploads.give_up(&mut self.store);
        let store = &mut self.store;
        let tags = std::mem::take(&mut store.checkpoint.wanted).into_iter().chain(self.checkpointer.take_commands());
        let upgrades = std::mem::take(&mut store.labels.upgrading).into_iter().map(|(tag, _)| tag);
        let labels = std::mem::take(&mut store.labels.waiting).into_iter().chain(upgrades);
        let keys = store.keys.take_commands().into_iter().chain(self.key_writer.take_command());
        let tags = tags.chain(labels).chain(keys).chain(self.label_writer.take_commands()).chain(store.closing.take());
        for tag in tags.collect::<Vec<_>>() {
            self.store.replies.push_back((tag, Err(CommandError::Faulted(why.clone()))));
        }
        for (tag, _) in std::mem::take(&mut self.requests.parked_commands) {
            self.store.replies.push_back((tag, Err(CommandError::Faulted(why.clone()))));
        }
        for (tag, _, _) in std::mem::take(&mut self.requests.resizes) {
            self.store.replies.push_back((tag, Err(CommandError::Faulted(why.clone()))));
        }
        let over: Vec<u32> = self.store.flusher.waiting.drain(..).map(|(op, _)| op).collect();
        let reads: Vec<u32> = self.requests.read_waiters.drain(..).map(|(_, op)| op).collect();
        for op in over.into_iter().chain(reads) {
            if let Some(found) = self.requests.ops.get_mut(op) {
                found.error = Some(DiskError::Io);
            }
            self.requests.finish(&mut self.store, op);
        }
    }

    /// Handles the failure of a device that the pool can do without: it is out of date from now on.
    /// Reads and writes go on; flushed data is durable once the labels say so (INV-LABEL-1).
    pub(super) fn device_failed(&mut self, failing: Failing) {
        if failing.replica == Replica::Replacement {
            return self.resilver.replacement_failed(&mut self.store, failing.member);
        }
        if self.store.labels.switching.contains_key(&failing.member) {
            return; // the old device was about to go, and its replacement has everything
        }
        self.resilver.stop_filling(&mut self.store, failing.member, Replica::Current);
        self.requests.cache.detach(failing.member, &mut self.store.bufs);
        self.store.config.shape.lose(failing.member);
        self.spares.lost(failing.member, self.store.now, self.store.io.mark());
        self.store.relabel(None);
    }

    /// Checks whether devices answer. A silent device that is given up counts as failed: the labels
    /// record that before anything relies on it (INV-LABEL-1). A pool that is being opened
    /// continues without devices only where it may be imported without them. A read-only pool that
    /// closes waits for silent devices only briefly: all that is in flight then was read ahead.
    pub(super) fn watch_devices(&mut self) {
        let least = self.store.tuning.silence_millis;
        self.store.io.at(self.store.now, least);
        if self.store.io.find_silent(self.store.tuning.reread_millis) {
            self.store.io.read_elsewhere(&self.store.core.space.layout, &mut self.store.bufs);
        }
        let read_only_closes = self.store.tuning.read_only && self.store.closing.is_some();
        let (closing, opening) = (self.lease.is_giving_back() || read_only_closes, self.store.state == PoolState::Opening);
        if opening {
            self.store.io.give_up_incomplete(least);
        }
        let may = !opening || self.store.tuning.degraded || self.store.tuning.plants(Planted::LeaveOutUnasked);
        let alive = matches!(self.store.state, PoolState::Online | PoolState::Closing | PoolState::Opening);
        let patience = if read_only_closes { self.store.tuning.reread_millis } else { least };
        self.store.io.give_up_silent(patience, alive && may && !self.store.tuning.read_only && !closing, closing);
        while let Some(failing) = self.store.io.pop_failing() {
            if opening && failing.why == DeviceTrouble::Silent && failing.replica == Replica::Current {
                self.unanswered.extend(self.store.io.slot_of(failing.member));
            }
            self.device_failed(failing);
        }
        if opening {
            let silent = self.store.io.unanswered(least);
            if !silent.is_empty() {
                self.unanswered.extend(&silent);
                self.fault(Fault::NoAnswer { devices: silent });
            }
        }
    }
}
