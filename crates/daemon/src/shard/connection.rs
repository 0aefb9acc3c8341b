//! One client: its session, its disk, and its counters.

use std::sync::Arc;

use millpond_api::GuestIo;
use millpond_block::{Buf, ByteRange, Disk, Features, Geometry, Op, Payload, Query, Request, SectorProfile, Tag};
use millpond_device::{ConnectionId, Guard, Ring};
use millpond_engine::{Entry, Target, Throttles, Time};
use millpond_export::nbd::Session;

use super::load::{Load, Meter};
use super::pool::Pool;
use super::report::{ClientInfo, ExportId};
use super::wire::Wire;
use crate::budget::{PoolBudget, Purse};

/// A connected client.
pub(super) struct Connection {
    pub id: ConnectionId,
    /// Number shown to people.
    pub number: u64,
    pub session: Session,
    pub wire: Wire,
    pub export: ExportId,
    pub target: Target,
    pub read_only: bool,
    pub peer: String,
    pub since: Time,
    pub meter: Meter,
    /// The socket may have data to receive.
    pub readable: bool,
    /// Number of times that the ring reported data.
    pub arrivals: u64,
    /// Until when it counts as one with several requests in flight, in nanoseconds of the shard's
    /// clock.
    pub deep_until: u64,
    /// The peer sends no more: receive until the end is seen.
    pub ended: bool,
    /// The socket has no room; the ring reports when it has.
    pub blocked: bool,
    /// It is on the list of connections to handle in this turn.
    pub queued: bool,
    /// When it is disconnected unless it has made progress by then, in nanoseconds of the shard's
    /// clock.
    pub deadline: Option<u64>,
    /// The memory that its requests hold.
    pub purse: Purse,
    /// When it last sent or read something.
    pub moved: u64,
}

impl Connection {
    /// Returns the session and the disk behind it, for requests received at `now`.
    pub fn disk<'a, P: Pool>(
        &'a mut self,
        pool: &'a mut P,
        throttles: &'a mut Throttles,
        now: u64,
        memory: &'a PoolBudget,
    ) -> (&'a mut Session, ConnectionDisk<'a, P>) {
        let Connection { session, meter, target, read_only, purse, .. } = self;
        (session, ConnectionDisk { pool, throttles, meter, target: *target, read_only: *read_only, now, guards: &[], purse, memory })
    }

    /// Stops sending until the socket has room.
    pub fn block(&mut self, ring: &mut Ring) {
        self.blocked = true;
        ring.watch_writable(self.id);
    }

    pub fn counters(&self) -> GuestIo {
        GuestIo { errors: self.session.counters().errors, ..self.meter.counters() }
    }

    /// Returns the requests, with their latencies.
    pub fn load(&self) -> Load {
        self.meter.load(self.session.counters().errors)
    }

    pub fn info(&self) -> ClientInfo {
        let (peer, tls) = (self.peer.clone(), self.wire.agreed().map(|words| words.to_string()));
        ClientInfo { id: self.number, peer, since: self.since, tls, counters: self.counters() }
    }
}

/// The [`Disk`] that a session submits to: one target of the pool.
pub(super) struct ConnectionDisk<'a, P> {
    pub pool: &'a mut P,
    pub throttles: &'a mut Throttles,
    pub meter: &'a mut Meter,
    pub target: Target,
    pub read_only: bool,
    pub now: u64,
    /// Guards of the guest memory that payloads are copied from.
    pub guards: &'a [Arc<Guard>],
    /// Memory that the client holds; `memory` is where more comes from.
    pub purse: &'a mut Purse,
    pub memory: &'a PoolBudget,
}

impl<P: Pool> ConnectionDisk<'_, P> {
    fn offer(&self) -> (Geometry, Features) {
        offer(self.pool, self.target, self.read_only)
    }
}

/// Returns geometry and features of a target behind an export. A target that is gone has no bytes,
/// so every request is out of its bounds.
pub(super) fn offer<P: Pool>(pool: &P, target: Target, read_only: bool) -> (Geometry, Features) {
    let gone = (Geometry { size: 0, sector: SectorProfile::default() }, Features { read_only: true, write_cache: false });
    let (geometry, features) = pool.geometry(target).unwrap_or(gone);
    (geometry, Features { read_only: features.read_only || read_only, ..features })
}

impl<P: Pool> Disk for ConnectionDisk<'_, P> {
    fn geometry(&self) -> Geometry {
        self.offer().0
    }

    fn features(&self) -> Features {
        self.offer().1
    }

    fn expect(&mut self, ranges: &[ByteRange]) {
        self.pool.expect(self.target, ranges);
    }

    fn submit(&mut self, tag: Tag, mut request: Request, payload: Payload<'_>) {
        if request.op == Op::Write && self.guards.iter().any(|guard| guard.is_broken()) {
            // the copy may be an empty page instead of the guest's, and must not be written: this
            // offset makes the request fail
            request.range.offset = u64::MAX;
        }
        self.meter.started.begin(tag, &request, self.now);
        let entry = Entry { target: self.target, tag, request, payload, bytes: false };
        if let Some(entry) = self.throttles.admit(entry, self.now, self.pool.buffers()) {
            self.pool.enter(entry);
        }
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        self.purse.weigh(self.pool.memory_times(self.target));
        self.purse.take(self.memory, bytes)
    }

    fn query(&mut self, tag: Tag, query: Query) {
        self.pool.query(self.target, tag, query);
    }

    fn buffer(&mut self, bytes: usize) -> Buf {
        self.pool.buffers().take(bytes)
    }
}
