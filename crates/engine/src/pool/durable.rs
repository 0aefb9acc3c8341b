//! Flushes, and everything that waits for them: requests, labels, and the stages of a checkpoint.
//!
//! These are one file because each leads to the next: a flush completes a stage of a checkpoint or
//! of the labels, whose next stage begins with writes and ends with a flush.

use millpond_block::{DeviceError, MemberId};
use millpond_format::{LogTail, Lsn, MAX_LOG_TAILS, Root};

use super::state::Pool;
use crate::log::Stream;
use crate::store::{Context, LabelStep as Step, Stage};
use crate::task::{Slice, checkpoint_due, release_retained};
use crate::{Fault, Planted, PoolState, Reply};

impl Pool {
    /// Starts the shared flush when an operation or task waits for one and none is running (group
    /// commit: requests that arrive while it runs share the next). Never starts two at a time: one
    /// could fail, and data that the other reports as stable would be lost with it.
    pub(super) fn start_flush(&mut self) {
        if self.store.flusher.running.is_some() || !self.store.flusher.wanted() {
            return;
        }
        let target = self.store.log.completed;
        self.store.flusher.running = Some(std::mem::take(&mut self.store.flusher.wants));
        if self.store.tuning.plants(Planted::SkipBarrier) {
            return self.flush_done(target, Ok(()));
        }
        if self.store.io.flush(Context::Flush(target)) {
            self.store.metrics.flushes += 1;
            self.store.stock.flushed(self.store.now);
        } else {
            // nothing was written since the last flush
            self.flush_done(target, Ok(()));
        }
    }

    /// Handles the end of the shared flush. After a failed flush it is unknown what is on the
    /// media, so the pool stops.
    pub(super) fn flush_done(&mut self, target: Lsn, result: Result<(), DeviceError>) {
        let wants = self.store.flusher.running.take().unwrap_or_default();
        if let Err(error) = result {
            return self.fault(Fault::Flush(error));
        }
        if wants.labels {
            self.relabel_done(Ok(()));
        }
        // a new pool gets labels once the space of its key table has no old bytes
        if wants.keys && self.key_writer.keys_flushed(&mut self.store) && self.store.generation == 0 {
            self.write_labels();
        }
        if self.store.labels.holds_flushes(self.store.generation) {
            let (before, checkpoint) = self.store.flusher.held.unwrap_or((target, false));
            self.store.flusher.held = Some((before.max(target), checkpoint || wants.checkpoint));
        } else {
            self.flushed(target, wants.checkpoint);
        }
        if wants.fill {
            self.resilver.fill_flushed(&mut self.store);
        }
    }

    /// Reports data as durable that was flushed while labels were written: they now say which
    /// devices count.
    fn release_held(&mut self) {
        if let Some((target, checkpoint)) = self.store.flusher.held.take() {
            self.flushed(target, checkpoint);
        }
    }

    /// Marks the log as durable up to `target`, and completes the flush of a checkpoint that waits
    /// for it.
    fn flushed(&mut self, target: Lsn, checkpoint: bool) {
        self.store.log.durable = self.store.log.durable.max(target);
        let durable = self.store.log.durable;
        let (over, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.store.flusher.waiting).into_iter().partition(|(_, lsn)| *lsn <= durable);
        self.store.flusher.waiting = waiting;
        over.into_iter().for_each(|(op, _)| self.requests.finish(&mut self.store, op));
        if checkpoint {
            self.checkpoint_io_done(Ok(()));
        }
    }

    /// Handles the end of a write of labels.
    pub(super) fn labels_written(&mut self, result: Result<(), DeviceError>) {
        self.store.labels.in_flight = self.store.labels.in_flight.saturating_sub(1);
        if result.is_err() || self.store.labels.in_flight == 0 {
            self.relabel_done(result);
        }
    }

    /// Handles the end of a write of a copy that could not be written before. The other copy of the
    /// label is enough.
    pub(super) fn lacking_label_written(&mut self, member: MemberId, second: bool, result: Result<(), DeviceError>) {
        if matches!(self.store.state, PoolState::Faulted(_)) {
            return;
        }
        if result.is_ok() {
            self.store.labels.unwritten.remove(&(member, second));
        }
        self.labels_written(Ok(()));
    }

    /// Continues writing the key table, unless another task relies on it as it is.
    pub(super) fn step_keys(&mut self) {
        let filling = self.resilver.holds_keys(&self.store);
        self.key_writer.step_keys(&mut self.store, filling, self.jobs.holds_roots());
    }

    /// Handles the end of a step.
    pub(super) fn relabel_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.store.fault(Fault::Labels(error));
        }
        let step = match self.store.labels.step {
            Step::Idle => return,
            Step::Fresh => Step::FreshFlush,
            Step::FreshFlush => Step::First,
            Step::First => Step::FirstFlush,
            Step::FirstFlush => Step::Second,
            Step::Second => Step::SecondFlush,
            Step::SecondFlush => Step::Idle,
        };
        self.store.labels.step = step;
        match step {
            Step::FreshFlush | Step::FirstFlush | Step::SecondFlush => self.store.flusher.wants.labels = true,
            Step::First => self.label_writer.write_labels_again(&mut self.store, false),
            Step::Second => self.label_writer.write_labels_again(&mut self.store, true),
            Step::Fresh => {}
            Step::Idle => {
                self.store.labels.fresh.clear();
                self.label_writer.take_new_rows(&mut self.store);
                if !self.store.labels.wanted {
                    self.store.labels.filled.clear();
                    self.store.labels_durable();
                    self.store.switch();
                    self.store.let_go();
                    self.release_held();
                    self.requests.attach_caches(&mut self.store);
                }
                let tags = self.label_writer.take_commands();
                self.store.replies.extend(tags.into_iter().map(|tag| (tag, Ok(Reply::Done))));
                // with labels that are wanted again, the features are not in force yet
                if self.store.labels.turning_on.is_empty() {
                    let upgrades = std::mem::take(&mut self.store.labels.upgrading);
                    self.store.replies.extend(upgrades.into_iter().map(|(tag, on)| (tag, Ok(Reply::TurnedOn(on)))));
                }
            }
        }
    }

    /// Reserves the segments in which this import's log begins, and publishes a root that names
    /// them.
    pub(crate) fn open_log(&mut self) {
        if !self.store.reserve_streams() {
            return self.fault(Fault::NoLogSegment);
        }
        let streams = self.store.log.starts();
        self.store.log_tails.push(LogTail { incarnation: self.store.incarnation, end: LogTail::RUNNING, streams });
        // with too many log tails the pool opens with a checkpoint instead
        if self.store.log_tails.len() < MAX_LOG_TAILS {
            self.publish(Root {
                pool: self.store.config.id,
                generation: self.store.generation + 1,
                incarnation: self.store.incarnation,
                time: self.store.now.0,
                checkpoint: self.store.checkpoint_at,
                lsn: self.store.checkpoint_lsn,
                log_tails: self.store.log_tails.clone(),
            });
        }
    }

    /// Writes a root that names the current checkpoint and this import's part of the log; when it
    /// is durable the pool is in service.
    pub(crate) fn publish(&mut self, root: Root) {
        self.checkpointer.begin_root(root);
        self.next_stage(Stage::Barrier);
    }

    /// Starts a checkpoint when one is due, and continues the running one; slow work only when
    /// `turn` is true. Returns true when it wants another turn of the pool soon.
    pub(super) fn step_checkpoint(&mut self, turn: bool) -> bool {
        if matches!(self.store.state, PoolState::Faulted(_)) {
            return false;
        }
        match self.store.checkpoint.stage {
            Stage::Idle => {
                if !self.resilver.holds_roots()
                    && !self.jobs.holds_roots()
                    && self.store.labels.switching.is_empty()
                    && checkpoint_due(&self.store, &self.cleaner, self.quiet())
                {
                    self.store.estimate_again();
                    if self.store.checkpoint_fits_with(0) || self.checkpointer.counts_again(&mut self.store) {
                        self.checkpointer.seal_checkpoint(&mut self.store);
                    }
                }
                self.store.checkpoint.running()
            }
            Stage::Writing => (!turn && self.checkpointer.is_writing()) || self.write_checkpoint(),
            _ => false,
        }
    }

    /// Writes a slice of the running checkpoint. Returns true when there is more to do at once.
    fn write_checkpoint(&mut self) -> bool {
        let slice = self.checkpointer.write_on(&mut self.store);
        if slice == Slice::Written {
            self.next_stage(Stage::Barrier);
        }
        slice == Slice::More
    }

    /// Handles the end of a write of nodes.
    pub(super) fn nodes_written(&mut self, nodes: &[u32], result: Result<(), DeviceError>) {
        if result.is_ok() {
            nodes.iter().for_each(|at| self.store.core.nodes.written(*at));
        }
        self.store.checkpoint.unwritten -= nodes.len();
        self.checkpoint_io_done(result);
    }

    fn next_stage(&mut self, stage: Stage) {
        self.store.checkpoint.stage = stage;
        match stage {
            Stage::Barrier | Stage::RootBarrier | Stage::LastBarrier => {
                self.checkpointer.begin_barrier();
                self.store.flusher.wants.checkpoint = true;
                self.start_flush();
            }
            Stage::FirstRoots => self.checkpointer.write_roots(&mut self.store, false),
            Stage::SecondRoots => self.checkpointer.write_roots(&mut self.store, true),
            Stage::Idle | Stage::Writing => {}
        }
    }

    /// Handles the end of a write or barrier of the running checkpoint.
    pub(crate) fn checkpoint_io_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.store.fault(Fault::Checkpoint(error));
        }
        if !self.checkpointer.ends_stage() || matches!(self.store.state, PoolState::Faulted(_)) {
            return;
        }
        match self.store.checkpoint.stage {
            Stage::Idle | Stage::Writing => {}
            Stage::Barrier => self.next_stage(Stage::FirstRoots),
            Stage::FirstRoots => self.next_stage(Stage::RootBarrier),
            Stage::RootBarrier => self.next_stage(Stage::SecondRoots),
            Stage::SecondRoots => self.next_stage(Stage::LastBarrier),
            Stage::LastBarrier => self.commit_checkpoint(),
        }
    }

    /// Completes a checkpoint that is durable: releases everything that it replaced.
    fn commit_checkpoint(&mut self) {
        if !self.checkpointer.commit(&mut self.store) {
            return;
        }
        self.cleaner.unblock();
        if self.store.state == PoolState::Opening {
            self.opened();
        } else {
            self.store.begin_special_streams();
        }
        self.store.checkpoint.first_done = self.store.state != PoolState::Opening;
        for tag in self.checkpointer.take_commands() {
            self.store.replies.push_back((tag, Ok(Reply::Done)));
        }
    }

    /// Continues the import once its first root is durable: puts the pool in service, or opens the
    /// log first.
    fn opened(&mut self) {
        if Stream::all().any(|stream| !stream.is_special() && self.store.log.streams[stream].next.is_none()) {
            // segments that waited for a checkpoint at the crash are free only now
            let given_up = self.jobs.gives_up_retention();
            release_retained(&mut self.store, true, given_up);
            self.store.core.space.segments.stamp_emptied(Lsn(self.store.log.next.0 - 1));
            self.store.release_logged();
            return self.open_log();
        }
        self.store.state = PoolState::Online;
        let volumes: Vec<_> = self.store.core.catalog.volumes.keys().copied().collect();
        volumes.into_iter().for_each(|volume| self.requests.trim_beyond(&mut self.store, volume));
        self.resilver.fill_what_lacks(&mut self.store);
        self.jobs.resume(&self.store);
        self.requests.attach_caches(&mut self.store);
    }
}
