//! Event loop of a shard: events of the ring go to sessions, their requests to the pool, the pool's
//! operations to the ring, and its completions back.
//!
//! One turn does everything that is ready for all clients, then makes at most one system call, for
//! waiting and device operations together. Requests that arrived together are therefore submitted
//! to the pool together, and become one batch of its log.
//!
//! INV-SHARD-1: a client's slot is used again only when its session has nothing in flight, so a
//! completion never reaches the wrong client.
//! INV-SHARD-2: the loop does not sleep while there may be data to receive, data is to be sent, or
//! work waits in the pool, in the channel, or among what helpers have finished (INV-HELPER-1).

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use millpond_api::GuestIo;
use millpond_block::{Completion, Tag};
use millpond_device::{ConnectionId, Event, Gate, Lease, Ring, Wait};
use millpond_engine::{Fault, LabelsInForce, PoolState, Throttles, Time};
use millpond_export::nbd::{Phase, SendBatch, Session};
use tokio::sync::watch;

use super::clock::Clock;
use super::coders::Coders;
use super::control::{Pending, Stage};
use super::fall::Unwinding;
use super::fetches::Fetches;
use super::load::VolumeLoads;
use super::message::Message;
use super::mount::Mounts;
use super::pool::Pool;
use super::rivals::Rivals;
use super::soon::Soon;
use super::table::{Clients, ExportTable};
use super::turns::Turns;
use super::vhost::VhostUsers;
use super::wall_clock::MonotonicWallClock;
use crate::budget::{Budget, PoolBudget};
use crate::tls::{Lost, Received, Sent, TlsWork};

/// The loop wakes at least this often, so that the pool sees time pass and overdue clients are
/// noticed.
pub(super) const TICK: Duration = Duration::from_millis(500);
/// How long the loop polls for the next event before it sleeps, when one is expected soon
/// ([`Soon`]). Waking a sleeping thread costs both sides several microseconds, about the time after
/// which a client sends its next request. Measured with 4 KiB reads at depth 32: on a quiet machine
/// 20 us carry 1.25 times as many as 0, and 50 us 1.1 times as many again; where clients compete for
/// the same cores, 20 us change nothing and 50 us cost a tenth.
const SPIN: Duration = Duration::from_micros(20);
/// Replies are sent before the end of their turn once they have so many bytes, so that the client
/// works on them meanwhile. Measured as above: 1.1 times as many reads as with one send per turn;
/// below 16 KiB the system calls cost more than they gain.
const EAGER_BYTES: usize = 64 << 10;
/// Time in nanoseconds for which a client that had several requests in flight is expected to have
/// several again: longer than it takes to read its replies.
const DEEP_NANOS: u64 = 1_000_000;
/// Bytes received from one client per turn before other clients are served, and before the pool
/// works on them: the client handles the replies to one part while the next is received.
const FAIR_BYTES: usize = 256 << 10;
/// Most rounds in which completed operations are passed to the pool before other work. Devices in
/// memory complete operations when they start, and a request may need two map nodes and then its
/// data.
const ENDED_ROUNDS: u32 = 4;

/// State of the thread. [`super::ShardHandle`] has the calls to it.
pub(super) struct Shard<P: Pool> {
    pub(super) ring: Ring,
    pub(super) pool: P,
    pub(super) messages: mpsc::Receiver<Message>,
    pub(super) state: watch::Sender<PoolState>,
    labels: watch::Sender<Option<LabelsInForce>>,
    pub(super) gate: Gate,
    pub(super) throttles: Throttles,
    pub(super) clients: Clients,
    pub(super) exports: ExportTable,
    pub(super) vhost: VhostUsers,
    pub(super) mounts: Mounts,
    /// Clients to serve in this turn.
    pub(super) active: Vec<u32>,
    clock: Clock,
    /// Reading of the clock at the start of this turn, in nanoseconds.
    pub(super) now: u64,
    pub(super) wall: Time,
    wall_clock: MonotonicWallClock,
    lease: Lease,
    next_check: u64,
    soon: Soon,
    /// Calls of handles that are not answered yet.
    pub(super) pending: HashMap<Tag, Pending>,
    pub(super) last_tag: u64,
    pub(super) last_client: u64,
    /// Counters of clients of exports that have ended.
    pub(super) past: GuestIo,
    pub(super) loads: VolumeLoads,
    pub(super) stage: Stage,
    pub(super) turns: Turns,
    pub(super) memory: PoolBudget,
    pub(super) coders: Coders,
    pub(super) fetches: Fetches,
    pub(super) rivals: Rivals,
    /// Size of the read cache in bytes.
    pub(super) read_cache: u64,
}

impl<P: Pool> Shard<P> {
    pub fn new(
        clock: Clock,
        ring: Ring,
        pool: P,
        messages: mpsc::Receiver<Message>,
        state: watch::Sender<PoolState>,
        labels: watch::Sender<Option<LabelsInForce>>,
    ) -> Shard<P> {
        let memory = PoolBudget::new(Arc::new(Budget::default()), ring.waker());
        let (now, wall) = (clock.nanos(), clock.wall_millis());
        Shard {
            ring,
            pool,
            messages,
            state,
            labels,
            gate: Gate::default(),
            throttles: Throttles::default(),
            clients: Clients::default(),
            exports: ExportTable::default(),
            vhost: VhostUsers::default(),
            mounts: Mounts::default(),
            active: Vec::new(),
            now,
            clock,
            wall: Time(wall),
            wall_clock: MonotonicWallClock::new(wall, now),
            lease: Lease::default(),
            next_check: 0,
            soon: Soon::default(),
            pending: HashMap::new(),
            last_tag: 0,
            last_client: 0,
            past: GuestIo::default(),
            loads: VolumeLoads::default(),
            stage: Stage::default(),
            turns: Turns::default(),
            memory,
            coders: Coders::default(),
            fetches: Fetches::default(),
            rivals: Rivals::default(),
            read_cache: 0,
        }
    }

    /// Runs until the shard has ended, or its ring fails. Everything is released before callers of
    /// the end get their answers.
    ///
    /// # Errors
    /// Description of the ring's failure.
    pub fn run(mut self) -> Result<(), String> {
        // dropped before `self` is
        let _unwinding = Unwinding(self.state.clone());
        let mut failed = Ok(());
        let mut wait = Wait::No;
        while !self.stage.is_over() {
            if let Err(error) = self.turn(wait) {
                tracing::error!(%error, "io_uring failed; the pool was stopped and must be imported again");
                failed = Err(format!("io_uring failed: {error}"));
                self.state.send_replace(PoolState::Faulted(Fault::Caller(format!("io_uring failed: {error}"))));
                break;
            }
            wait = self.next_wait();
        }
        if self.stage.is_abandoned() {
            self.await_last_operations();
        }
        let waiting = self.stage.take_answers();
        let outcome = self.stage.outcome();
        drop(self);
        for answer in waiting {
            // The caller may be gone; the shard has ended all the same.
            let _ = answer.send(outcome.clone().map_err(Into::into));
        }
        failed
    }

    fn turn(&mut self, wait: Wait) -> std::io::Result<()> {
        self.await_events(wait)?;
        if self.take_events() {
            self.take_messages();
            self.take_fetched();
            self.take_orders();
            self.wake_waiting();
        }
        if self.stage.is_abandoned() {
            return Ok(());
        }
        self.serve_requests();
        // Completions made room for requests that had to wait; these must not wait for the next
        // event.
        let late = self.flush_clients() | self.publish_to_guests();
        self.flush_mounts();
        let coded = self.code();
        for device in self.gate.holding() {
            self.pool.excuse(device);
        }
        // Clients have their completions: now the pool does its other work.
        let again = self.pool.turn(self.wall);
        let ended = self.pump();
        // Completions of that work are delivered before the loop may sleep. (Clients that have some
        // are queued.)
        let late = late | (self.vhost.has_answers() && self.publish_to_guests());
        let sealed = !(again || late || ended || coded) && self.active.is_empty() && self.help_helpers();
        self.stage.set_busy(again || late || ended || coded || sealed || self.coders.is_busy());
        if self.now >= self.next_check {
            let late = self.now - self.next_check;
            self.next_check = self.now + TICK.as_nanos() as u64;
            self.check_deadlines(late);
        }
        self.advance_ends();
        self.publish_labels();
        self.publish_state();
        Ok(())
    }

    /// Submits the operations that were started, waits for events, and reads the clocks.
    fn await_events(&mut self, wait: Wait) -> std::io::Result<()> {
        let idle = wait != Wait::No;
        let since = if idle { self.clock.nanos() } else { 0 };
        let (vhost, coders) = (&mut self.vhost, &self.coders);
        let devices_work = self.ring.io_in_flight() > 0 || coders.under_way() > 0;
        if !(idle && self.soon.expects(devices_work) && self.ring.spin(SPIN, || vhost.has_more() || coders.has_finished())?) {
            let offered = idle && (vhost.listen() | !coders.may_sleep());
            self.ring.turn(if offered { Wait::No } else { wait })?;
            coders.awake();
        }
        let begun = std::mem::replace(&mut self.now, self.clock.nanos());
        // a turn ends when the loop waits or, without a wait, when the next turn begins
        self.turns.count(if idle { since } else { self.now }.saturating_sub(begun));
        if idle {
            self.soon.waited(devices_work, self.now - since);
        }
        self.pool.pass(self.now / 1_000_000);
        self.wall = Time(self.wall_clock.at(self.clock.wall_millis(), self.now));
        Ok(())
    }

    /// Handles the ring's events. Returns true if another thread has woken the shard.
    fn take_events(&mut self) -> bool {
        let mut woken = false;
        while let Some(event) = self.ring.pop() {
            match event {
                Event::Io(done) => {
                    self.gate.done(&done, self.now);
                    self.pool.io_done(done);
                }
                Event::Unsent(io) => {
                    self.gate.undone(io.id, self.now);
                    self.pool.take_back(io);
                }
                Event::Readable { connection, ended } => self.wake_client(connection, |client| {
                    client.readable = true;
                    client.arrivals += 1;
                    client.ended |= ended;
                }),
                Event::Writable(id) => self.wake_client(id, |client| client.blocked = false),
                Event::Accepted { listener, socket } => self.accept(listener, socket),
                Event::Unlistened(listener) => self.unlistened(listener),
                Event::Signalled(watch) => self.kicked(watch),
                Event::Closed(_) => {}
                Event::Woken => woken = true,
            }
        }
        woken
    }

    /// Hands the requests of clients, guests and mounts to the pool, and continues them while
    /// operations of devices end at once.
    fn serve_requests(&mut self) {
        while let Some(entry) = self.throttles.release(self.now) {
            self.pool.enter(entry);
        }
        self.take_connections_back();
        for index in std::mem::take(&mut self.active) {
            if let Some(client) = self.clients.get_mut(index) {
                client.queued = false;
            }
            self.serve(index);
        }
        self.take_from_guests();
        self.serve_mounts();
        self.pool.answer(self.wall);
        let mut ended = self.pump();
        for _ in 0..ENDED_ROUNDS {
            if !ended {
                break;
            }
            self.pool.answer(self.wall);
            ended = self.pump();
        }
    }

    /// Does some of the pool's compression and decompression, and hands what is finished to the pool.
    /// Returns whether there was any.
    fn code(&mut self) -> bool {
        let finished = self.coders.work();
        if finished.is_empty() {
            return false;
        }
        finished.into_iter().for_each(|work| self.pool.codec_done(work));
        self.pool.answer(self.wall);
        self.pump();
        true
    }

    /// Takes back the connections that helpers are done with.
    fn take_connections_back(&mut self) {
        for work in self.coders.take_tls() {
            self.come_back(work);
        }
    }

    /// Does a connection's work for which no helper had time. Returns whether there was any.
    fn help_helpers(&mut self) -> bool {
        let Some(work) = self.coders.work_for_tls(self.now) else { return false };
        self.come_back(work);
        true
    }

    /// Serves the client of a connection that comes back.
    fn come_back(&mut self, work: TlsWork) {
        let Some((index, lost)) = self.take_back(work) else { return };
        self.enqueue(index);
        if let Some(lost) = lost {
            self.lose(index, &lost);
        }
        // requests are taken from the session at the end of the turn at the latest, options are not
        self.negotiate(index);
    }

    /// Publishes the pool's state when it has changed.
    fn publish_state(&mut self) {
        let state = self.pool.state();
        let changed = self.state.send_if_modified(|known| {
            let differs = known != state;
            if differs {
                known.clone_from(state);
            }
            differs
        });
        if changed {
            self.throttles.set(self.pool.options());
        }
    }

    /// Publishes the labels in force when they have changed, so that the daemon saves them.
    fn publish_labels(&self) {
        let generation = self.pool.label_generation();
        if generation.is_some() && generation != self.labels.borrow().as_ref().map(|labels| labels.generation) {
            self.labels.send_replace(self.pool.labels_in_force());
        }
    }

    /// Passes operations that completed at once to the pool. Returns false when there are none.
    fn take_ended(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.ring.pop_io() {
            self.gate.done(&done, self.now);
            self.pool.io_done(done);
            any = true;
        }
        any
    }

    fn wake_client(&mut self, id: ConnectionId, change: impl FnOnce(&mut super::connection::Connection)) {
        let Some((index, client)) = self.clients.by_connection(id) else { return self.wake_mount(id) };
        change(client);
        self.enqueue(index);
    }

    /// Queues a client for this turn (or, when its list was worked off, for the next).
    pub(super) fn enqueue(&mut self, index: u32) {
        if let Some(client) = self.clients.get_mut(index)
            && !client.queued
        {
            client.queued = true;
            self.active.push(index);
        }
    }

    /// Receives data from a client and hands its requests to the pool.
    fn serve(&mut self, index: u32) {
        let mut budget = FAIR_BYTES;
        loop {
            self.negotiate(index);
            let Some(client) = self.clients.get_mut(index) else { return };
            let (session, mut disk) = client.disk(&mut self.pool, &mut self.throttles, self.now, &self.memory);
            session.requests(&mut disk);
            if !client.readable || client.wire.is_away() {
                break;
            }
            let Some(mut recv) = client.session.recv(self.pool.buffers()) else { break };
            if self.is_received_by_helper(index, &mut recv) {
                self.hand_over(index, None, Some(recv));
                break;
            }
            let Some(client) = self.clients.get_mut(index) else { return };
            let space = recv.space();
            match client.wire.receive(&mut self.ring, client.id, space) {
                Ok(Received { count, more }) => {
                    // When nothing is left, the ring reports when more has come.
                    client.readable = more || client.ended;
                    client.session.received(recv, count);
                    client.moved = self.now;
                    budget = budget.saturating_sub(count);
                }
                Err(lost) => {
                    client.readable = false;
                    client.session.recv_cancelled(recv);
                    if !matches!(lost, Lost::Nothing) {
                        self.lose(index, &lost);
                        break;
                    }
                }
            }
            if budget == 0 {
                break;
            }
        }
        self.enqueue(index);
    }

    /// Sets in the ring until when the pool's devices may be changed (INV-CLAIM-1). `now` was read
    /// before `wall`.
    fn pass_lease_on(&mut self) {
        self.lease.renew(self.pool.lease().map(|until| until.0), self.wall.0, self.now);
        self.ring.set_lease(self.lease.end().map(|nanos| self.clock.deadline(nanos)));
    }

    /// Hands the pool's operations to the ring, and its completions to the requesters. True when
    /// operations were completed meanwhile.
    fn pump(&mut self) -> bool {
        self.pass_lease_on();
        let mut ended = false;
        while let Some(io) = self.pool.pop_io() {
            if let Some(io) = self.gate.admit(io, self.now) {
                self.ring.submit(io);
            }
            // Data that was read at once is checked and sent while it is in the processor's cache.
            if self.take_ended() {
                ended = true;
                self.deliver();
            }
        }
        while let Some(io) = self.gate.release(self.now) {
            self.ring.submit(io);
        }
        while let Some(work) = self.pool.pop_codec_work() {
            self.coders.add(work);
        }
        self.pass_fetches_on();
        ended |= self.take_ended();
        self.deliver();
        while let Some((tag, result)) = self.pool.pop_reply() {
            self.replied(tag, result);
        }
        while let Some((tag, result)) = self.pool.pop_diff() {
            self.compared(tag, result);
        }
        ended
    }

    fn deliver(&mut self) {
        while let Some(completion) = self.pool.pop_completion() {
            self.completed(completion);
        }
        while let Some(answer) = self.pool.pop_answer() {
            if Self::is_mounts(answer.tag) {
                self.mount_answered(answer);
            } else if let Some((index, client)) = self.clients.by_session(Session::id_of(answer.tag)) {
                client.session.answer(answer);
                self.enqueue(index);
            }
        }
    }

    fn completed(&mut self, completion: Completion) {
        let tag = completion.tag;
        self.rivals.seen(Session::id_of(tag), self.now);
        if VhostUsers::owns(tag) {
            return self.completed_for_guest(completion);
        }
        if Self::is_mounts(tag) {
            return self.mount_completed(completion);
        }
        let Some((index, client)) = self.clients.by_session(Session::id_of(tag)) else {
            return self.answered(completion);
        };
        let success = completion.result.is_ok();
        if client.session.in_flight() > 1 {
            client.deep_until = self.now + DEEP_NANOS;
        }
        if client.session.complete(completion) {
            client.meter.end(tag, success, self.now);
        }
        if client.session.unsent() >= EAGER_BYTES && !client.blocked {
            if client.wire.is_away() && self.coders.has_finished_tls() {
                self.take_connections_back();
            }
            self.send(index);
        }
        self.enqueue(index);
    }

    /// Sends what is ready, as far as the socket has room.
    fn send(&mut self, index: u32) {
        let Some(client) = self.clients.get_mut(index) else { return };
        if client.wire.is_away() {
            return;
        }
        if !client.blocked && !client.wire.is_empty() {
            match client.wire.flush() {
                Ok(true) => {}
                Ok(false) => client.block(&mut self.ring),
                Err(lost) => return self.lose(index, &lost),
            }
        }
        while let Some(client) = self.clients.get_mut(index).filter(|client| !client.blocked)
            && let Some(batch) = client.session.send()
        {
            if self.is_sent_by_helper(index, batch.len()) {
                return self.send_by_helper(index, batch);
            }
            if !self.send_batch(index, batch) {
                return;
            }
        }
        if self.clients.get(index).is_some_and(|client| client.session.is_starting_tls()) {
            self.start_tls(index);
        }
    }

    /// Sends a batch as far as the socket has room. Returns false if the client is lost.
    fn send_batch(&mut self, index: u32, batch: SendBatch) -> bool {
        let Some(client) = self.clients.get_mut(index) else { return false };
        match client.wire.send(&mut self.ring, client.id, batch.slices()) {
            Ok(Sent { count, full }) => {
                if count > 0 {
                    client.moved = self.now;
                }
                client.session.sent(batch, count, self.pool.buffers());
                if full {
                    client.block(&mut self.ring);
                }
                true
            }
            Err(lost) => {
                client.session.sent(batch, 0, self.pool.buffers());
                self.lose(index, &lost);
                false
            }
        }
    }

    /// Sends what is ready, submits requests that had to wait for room, ends clients that are done.
    /// True when requests were submitted meanwhile.
    fn flush_clients(&mut self) -> bool {
        let mut late = false;
        for index in std::mem::take(&mut self.active) {
            let Some(client) = self.clients.get_mut(index) else { continue };
            client.queued = false;
            self.send(index);
            let Some(client) = self.clients.get_mut(index) else { continue };
            client.purse.shrink(&self.memory, client.session.held());
            let before = client.session.in_flight();
            let (session, mut disk) = client.disk(&mut self.pool, &mut self.throttles, self.now, &self.memory);
            session.requests(&mut disk);
            late |= client.session.in_flight() > before;
            client.purse.settle(&self.memory);
            self.settle(index);
        }
        late
    }

    /// Decides how a client goes on after its turn: it is served again, waits, or ends.
    fn settle(&mut self, index: u32) {
        let Some(client) = self.clients.get_mut(index) else { return };
        match client.session.phase() {
            Phase::Closed if client.wire.is_empty() => self.end_client(index),
            Phase::Closed | Phase::Closing => self.bound_closing(index),
            Phase::Handshake | Phase::Transmission => {
                if self.exports.get(&client.export).is_none_or(|export| export.closing.is_some()) {
                    if client.session.is_idle() && client.wire.is_empty() {
                        self.end_client(index);
                    }
                    return;
                }
                // There may be more to receive, unless the session is at its limits: then a
                // completion queues the client again.
                if client.readable
                    && !client.wire.is_away()
                    && let Some(recv) = client.session.recv(self.pool.buffers())
                {
                    client.session.recv_cancelled(recv);
                    self.enqueue(index);
                }
            }
        }
    }

    fn next_wait(&self) -> Wait {
        if !self.active.is_empty() || !self.mounts.is_idle() || self.stage.is_busy() {
            return Wait::No;
        }
        match self.gate.next_release().into_iter().chain(self.throttles.next_release()).min() {
            Some(when) => Wait::AtMost(Duration::from_nanos(when.saturating_sub(self.now)).min(TICK)),
            None => Wait::AtMost(TICK),
        }
    }
}
