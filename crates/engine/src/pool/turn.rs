//! The turn: the work that the engine does once after each group of events.

use millpond_block::{Buf, Completion, DiskError, IoDone, IoSlices, Op as RequestOp, Payload, Request, Tag};
use millpond_format::Lsn;

use super::diff::STEPS_PER_TURN;
use super::op::{BarrierKind, Owner, ReadWork, Work};
use super::requests::{Requests, SpaceWait};
use super::state::Pool;
use crate::api::Target;
use crate::io::Ended;
use crate::store::{Context, Store, Waiting, Watermark};
use crate::task::{Beside, JobTasks, checkpoint_brings_space, release_retained, step_evacuation, step_give_back};
use crate::{BucketError, Fault, Planted, PoolState, Reply, Time};

/// Checkpoints without gain after which waiting writes fail with ENOSPC.
const STARVED_CHECKPOINTS: u64 = 6;
/// Most milliseconds that writes wait for space while the cleaner moves something, or for a
/// checkpoint to begin.
pub(super) const STARVED_MILLIS: u64 = 30_000;

/// Other device operations in flight with which devices are busy enough: nothing is read ahead.
const BUSY_OPERATIONS: usize = 16;

/// Alignment of a guest's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Multiples of the logical sector that the guest sees.
    Sector,
    /// Single bytes: the guest sees a file.
    Byte,
}

impl Requests {
    /// Retries writes that wait for released space, when some was released or no more will be.
    fn wake_full_waiters(&mut self, store: &mut Store) {
        let freed = store.core.space.freed_units;
        if self.full_waiters.is_empty() || (self.full_waiters_tried == freed && self.room_comes(store)) {
            return;
        }
        self.full_waiters_tried = freed;
        for id in std::mem::take(&mut self.full_waiters) {
            self.go_on(store, id);
        }
    }

    /// Reads ahead of guests that read in order. Guests' own reads were started before, and nothing
    /// is read ahead while other operations keep the devices busy.
    fn step_read_ahead(&mut self, store: &mut Store) {
        if self.ahead.is_idle() {
            return;
        }
        self.ahead.sweep(store.now);
        while let Some(target) = self.ahead.wanting() {
            let others = store.io.in_flight().saturating_sub(self.ahead.reads() + store.io.writes_behind());
            if !may_read_ahead(store) || self.ahead.is_busy() || others >= BUSY_OPERATIONS {
                return;
            }
            let is_cached = self.cache_partition(store, target, 0).is_some();
            let size = store.geometry(target).filter(|_| is_cached).map_or(0, |(geometry, _)| geometry.size);
            let Some(range) = self.ahead.next_range(size) else { continue };
            let Some(batch) = self.ahead.begin(range) else { return };
            let request = Request { op: RequestOp::Read, range, fua: false };
            let work = ReadWork { bypass_cache: true, ..ReadWork::new(target, request) };
            let id = self.new_op(Owner::Ahead(batch), Work::Read(work), false);
            self.try_read(store, id);
        }
    }
}

/// Returns whether blocks may be read ahead: in a pool in service that does not close, while no
/// device is full and map nodes that are to be written take less than half of the memory for maps.
fn may_read_ahead(store: &Store) -> bool {
    let nodes = &store.core.nodes;
    store.state == PoolState::Online && store.closing.is_none() && !store.io.is_stalled() && nodes.dirty() * 2 < nodes.limit()
}

impl Pool {
    /// Starts a guest request, in sectors or in bytes.
    pub(crate) fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>, grain: Grain) {
        self.store.last_activity = self.store.now;
        if let Err(error) = self.admit(target, &request, grain) {
            return self.requests.completions.push_back(Completion { tag, result: Err(error) });
        }
        let owner = Owner::Guest(tag);
        let (volume, mode) = match target {
            Target::Head(volume) => (Some(volume), self.store.core.catalog.volumes.get(&volume).map(|v| v.cache).unwrap_or_default()),
            Target::Snapshot(_) => (None, millpond_block::CacheMode::default()),
        };
        let durable = mode.every_write_durable() || (request.fua && mode.honours_flush());
        match (request.op, volume) {
            (RequestOp::Read, _) if request.range.length > 0 => {
                let work = ReadWork::new(target, request);
                let id = self.requests.new_op(owner, Work::Read(work), false);
                self.requests.ahead.guest_begins(request.range.length);
                self.requests.try_read(&mut self.store, id);
                self.requests.ahead.note(target, request.range, self.store.now);
            }
            (RequestOp::Write, Some(volume)) if request.range.length > 0 => {
                self.requests.start_write(&mut self.store, owner, volume, request, payload, durable)
            }
            (RequestOp::Discard, Some(volume)) => self.requests.start_clear(&mut self.store, owner, volume, request.range, false, durable),
            (RequestOp::WriteZeroes { .. }, Some(volume)) => {
                self.requests.start_clear(&mut self.store, owner, volume, request.range, true, durable)
            }
            (RequestOp::Flush, _) => {
                let id = self.requests.new_op(owner, Work::Barrier(BarrierKind::Flush), mode.honours_flush());
                if let Some(op) = self.requests.ops.get_mut(id) {
                    // every write whose completion was delivered is in a completed batch
                    op.lsn = self.store.log.completed;
                }
                self.requests.release(&mut self.store, id);
            }
            // nothing to do: an empty range, or a hint
            _ => self.requests.completions.push_back(Completion { tag, result: Ok(IoSlices::new()) }),
        }
    }

    fn admit(&self, target: Target, request: &Request, grain: Grain) -> Result<(), DiskError> {
        let (geometry, features) = self.store.geometry(target).ok_or(DiskError::Shutdown)?;
        match grain {
            Grain::Sector => request.validate(&geometry, &features)?,
            Grain::Byte => request.validate_bytes(&geometry, &features)?,
        }
        match &self.store.state {
            PoolState::Faulted(_) if request.op != RequestOp::Read || self.lease.is_lost() => Err(DiskError::Io),
            PoolState::Online | PoolState::Faulted(_) => Ok(()),
            PoolState::Opening | PoolState::Closing | PoolState::Closed => Err(DiskError::Shutdown),
        }
    }

    /// Handles the completion of a device operation.
    pub(crate) fn io_done(&mut self, done: IoDone) {
        let ended = self.store.io.done(done, &mut self.store.bufs);
        while let Some(failing) = self.store.io.pop_failing() {
            self.device_failed(failing);
        }
        if let Some(ended) = ended {
            self.ended(ended);
        }
    }

    /// Takes the result of a request to the bucket; see [`Engine::bucket_done`](crate::Engine::bucket_done).
    pub(crate) fn bucket_done(&mut self, id: u64, result: Result<Option<Buf>, BucketError>) {
        let by_order = self.store.tuning.plants(Planted::BucketByOrder) && matches!(result, Ok(None));
        let id = self.store.bucket.oldest_create().filter(|_| by_order).unwrap_or(id);
        self.store.bucket.done(id, result, &mut self.store.bufs);
        while let Some((number, result)) = self.store.bucket.pop_created() {
            self.cleaner.uploads.created(&mut self.store, number, result);
        }
        self.end_bucket_reads();
        self.end_what_waits();
    }

    fn end_bucket_reads(&mut self) {
        while let Some(ended) = self.store.bucket.pop_ended() {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Ended<Context>) {
        if let Some(pin) = ended.pin
            && let Some(segment) = self.store.core.space.segments.get_mut(pin)
        {
            segment.pins -= 1;
        }
        match ended.context {
            Context::Batch(lsn) => self.batch_done(lsn, ended.result),
            Context::Data { op, part } => self.requests.data_read(&mut self.store, op, part, ended.result, ended.buf, ended.member),
            Context::DeadPiece(read) => self.store.piece_read(&read, ended.result, ended.buf, ended.member),
            Context::Node(read) => self.requests.node_read(&mut self.store, read, ended.result, ended.buf, ended.member),
            // a copy that cannot be repaired is found again by the next read, or its device
            // fails
            Context::Repair => self.store.repairs.under_way -= 1,
            Context::FillRead(piece) => self.resilver.fill_read(&mut self.store, piece, ended.result, ended.buf),
            Context::FillWrite(piece) => self.resilver.fill_written(piece, self.store.now),
            Context::Behind(bytes) => {
                self.store.io.ended_behind(bytes);
                // a device that is being filled is given up, and is no error
                if let Err(error) = ended.result {
                    self.fault(Fault::Log(error));
                }
            }
            Context::Job(io) => self.jobs.io_done(&mut self.store, io, ended.result, ended.buf),
            Context::FillRing(run) => self.resilver.fill_ring_done(&mut self.store, &mut self.lease, run, ended.result, ended.buf),
            Context::Flush(target) => self.flush_done(target, ended.result),
            Context::Nodes(nodes) => self.nodes_written(&nodes, ended.result),
            Context::Objects | Context::Checkpoint => self.checkpoint_io_done(ended.result),
            Context::Labels => match ended.result {
                Ok(()) => self.store.checkpoint.wanted.clear(),
                Err(error) => self.fault(Fault::Labels(error)),
            },
            Context::Cached { op, part, cache_slot } => self.cached_read(op, part, cache_slot, ended.result, ended.buf),
            Context::CacheScan(scan) => self.cache_scanned(scan, ended.result, ended.buf),
            Context::CacheWrite(scan) => self.cache_written(scan, ended.result),
            Context::Discard(segments) => self.store.given_back(&segments),
            Context::Prepare => self.preparer.prepare_done(&mut self.store, ended.result),
            Context::Claim(io) => self.lease.claim_done(&mut self.store, io, ended.result, ended.buf),
            Context::Keys => self.key_writer.keys_written(&mut self.store, ended.result),
            Context::Relabel => self.labels_written(ended.result),
            Context::LackingLabel(member, second) => self.lacking_label_written(member, second, ended.result),
            Context::CleanHeader(page, attempt) => self.cleaner.move_header_read(&mut self.store, page, attempt, ended.result, ended.buf),
            Context::Clean(chunk, identities, attempt) => {
                self.cleaner.chunk_read(&mut self.store, chunk, identities, attempt, ended.result, ended.buf)
            }
        }
        self.end_what_waits();
    }

    /// Continues requests, and the work that frees the space that they wait for.
    pub(crate) fn answer(&mut self) {
        self.requests.go_on_with_ready(&mut self.store);
        if self.store.tuning.read_only || self.lease.is_giving_back() {
            return;
        }
        if matches!(self.store.state, PoolState::Faulted(_) | PoolState::Closed) {
            return;
        }
        // requests that wait for space wait for the cleaner, which waits for its reads
        let below_target = self.store.is_below_target();
        if below_target {
            self.step_cleaner();
            self.requests.wake_full_waiters(&mut self.store);
            self.wake_space_waiters();
        }
        self.store.seal_all();
        if below_target || self.store.destages() {
            self.release_space();
        }
        self.start_flush();
    }

    /// Releases segments that nothing needs any more.
    fn release_space(&mut self) {
        let below_target = self.store.is_below_target();
        self.store.core.space.segments.stamp_emptied(Lsn(self.store.log.next.0 - 1));
        let given_up = self.jobs.gives_up_retention();
        release_retained(&mut self.store, below_target, given_up);
        (self.store.flusher.space, self.store.waiting_for_flush) = (false, Waiting::default());
        if (below_target || self.store.destages()) && self.store.state == PoolState::Online {
            self.store.release_logged();
        }
    }

    /// Runs one turn. Returns true when it wants another soon even without events.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.store.now = now.max(self.store.now);
        self.lease.at(now);
        self.watch_devices();
        let mut busy = false;
        while let Some(ended) = self.store.io.pop_idle(&mut self.store.bufs) {
            self.ended(ended);
        }
        self.end_bucket_reads();
        self.requests.comparisons = STEPS_PER_TURN;
        self.requests.codec.begin_turn(self.store.tuning.codec_at_once);
        self.requests.go_on_with_ready(&mut self.store);
        self.requests.step_read_ahead(&mut self.store);
        if self.store.tuning.read_only {
            self.close_when_read();
        } else if matches!(self.store.state, PoolState::Faulted(_) | PoolState::Closed) {
            // nothing is written any more
        } else if self.lease.is_giving_back() {
            self.lease.step_claim(&mut self.store);
            self.close_when_quiet();
        } else {
            busy |= self.reclaim();
            self.requests.retry_resizes(&mut self.store);
            self.retry_commands();
            self.store.estimate_checkpoint();
            self.step_bucket();
            self.step_cleaner();
            self.requests.wake_full_waiters(&mut self.store);
            self.wake_space_waiters();
            self.store.seal_all();
            self.requests.step_notes(&mut self.store);
            busy |= self.step_checkpoint(!self.requests.reclaimer.used_turn);
            self.end_what_waits();
            self.release_space();
            step_give_back(&mut self.store, self.preparer.is_preparing());
            self.preparer.step_prepare(&mut self.store, self.jobs.wipes());
            self.step_keys();
            self.label_writer.step_relabel(&mut self.store, &self.lease);
            self.end_what_waits();
            self.spares.step_spares(&mut self.store, &mut self.resilver);
            busy |= self.resilver.step_fill(&mut self.store, &mut self.lease);
            let mut beside = Beside {
                rejoiner: &mut self.rejoiner,
                resilver: &self.resilver,
                cleaner: &self.cleaner,
                guests_wait: self.requests.space_wait.is_some(),
            };
            busy |= step_evacuation(&mut self.store, &mut beside);
            let mut tasks = JobTasks {
                cleaner: &mut self.cleaner,
                resilver: &self.resilver,
                rejoiner: &mut self.rejoiner,
                destroys: !self.requests.destroying.is_empty(),
            };
            busy |= self.jobs.step(&mut self.store, &mut tasks);
            busy |= self.step_gather();
            busy |= self.cleaner.goes_on_with_uploads(&self.store);
            self.step_jobs();
            self.requests.step_cache(&mut self.store);
            self.lease.step_claim(&mut self.store);
            self.end_what_waits();
            self.start_flush();
            self.step_full();
            self.close_when_quiet();
        }
        self.store.bound_memory();
        busy | !self.requests.ready.is_empty()
            | self.requests.fills_are_due()
            | self.requests.waits_for_space()
            | self.store.io.has_idle()
            | self.store.bucket.has_ended()
    }

    /// Retries waiting writes when there is room, and fails them with ENOSPC when no more can come:
    /// the cleaner moves nothing and has no worthwhile victim, no segment waits to be freed, and
    /// checkpoints have released all that were freed since.
    fn wake_space_waiters(&mut self) {
        if self.requests.space_waiters.is_empty() {
            self.requests.space_wait = None;
            return;
        }
        if self.store.has_room(Watermark::Guest) {
            self.requests.space_wait = None;
            self.store.metrics.throttled += self.requests.space_waiters.len() as u64;
            for id in std::mem::take(&mut self.requests.space_waiters) {
                self.requests.go_on(&mut self.store, id);
            }
            return;
        }
        let (checkpoints, moved) = (self.store.metrics.checkpoints, self.store.metrics.cleaner_bytes);
        let space_wait = self.requests.space_wait.get_or_insert(SpaceWait { since: self.store.now, checkpoints, moved });
        if space_wait.moved != moved && self.store.now.0 < space_wait.since.0 + STARVED_MILLIS {
            (space_wait.checkpoints, space_wait.moved) = (checkpoints, moved);
        }
        let (checkpoints, patient) = (checkpoints - space_wait.checkpoints, self.store.now.0 < space_wait.since.0 + STARVED_MILLIS);
        let running = self.store.checkpoint.running();
        // a checkpoint that does not fit now may fit when more was freed, or after an exact
        // count
        let can_begin = running || (patient && !self.store.tuning.plants(Planted::CrowdTheLog)) || self.store.checkpoint_fits_with(0);
        let rests = self.store.core.space.segments.retained_count() > 0;
        let gives = running || rests || checkpoint_brings_space(&self.store, &self.cleaner) || self.store.moves_wait_for_checkpoint();
        let freeing = self.store.core.catalog.has_frees() || (self.requests.is_freeing(&self.store) && can_begin);
        // a wipe releases the space that it holds before any write is refused
        let held = self.jobs.holds_space() || self.store.holds_free_segments();
        let comes = can_begin && gives && checkpoints < STARVED_CHECKPOINTS;
        // segments with writes in flight cannot be cleaned
        let written = self.store.log.in_flight_batches() > 0 || self.store.io.writes_behind() > 0;
        if held || freeing || comes || written || !self.cleaner.idle() || self.store.io.is_stalled() {
            return;
        }
        // the log has room again once objects exist and are placed
        if self.cleaner.uploads.are_busy() {
            return;
        }
        if !self.cleaner.victim_left(&self.store) && !self.rejoiner.leave_rejoin_to_guests(&mut self.store) {
            self.requests.space_wait = None;
            for id in std::mem::take(&mut self.requests.space_waiters) {
                self.requests.fail_op(&mut self.store, id, DiskError::NoSpace);
            }
        }
    }

    /// Closes a read-only pool once everything is answered.
    fn close_when_read(&mut self) {
        if self.requests.ops.len() == 0
            && self.store.io.in_flight() == 0
            && let Some(tag) = self.store.closing.take()
        {
            self.store.state = PoolState::Closed;
            self.store.replies.push_back((tag, Ok(Reply::Done)));
        }
    }

    /// Closes a pool cleanly once everything is answered and a last checkpoint holds all state.
    fn close_when_quiet(&mut self) {
        let Some(tag) = self.store.closing else { return };
        if !self.lease.is_giving_back() {
            self.requests.keep_cache(&mut self.store);
            let clean = self.quiet()
                && !self.store.checkpoint.running()
                && self.store.log.since_checkpoint == 0
                && self.store.core.nodes.dirty() == 0;
            if !clean
                || !self.store.checkpoint.first_done
                || self.store.io.in_flight() > 0
                || self.store.labels.busy()
                || self.store.keys.is_busy()
            {
                return;
            }
        }
        // after the first of these writes another host may have the pool: nothing else is
        // written
        if self.lease.give_back_claim(&mut self.store) {
            self.store.closing = None;
            self.store.state = PoolState::Closed;
            self.store.replies.push_back((tag, Ok(Reply::Done)));
        }
    }
}
