//! Exports and their clients: listening, accepting, negotiating, ending.

use millpond_api::GuestIo;
use millpond_block::Since;
use millpond_device::ListenerId;
use millpond_engine::Target;
use millpond_export::nbd::{Encryption, Limits, Phase, Session};
use millpond_export::{ExportInfo as Offer, Exports};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::connection::{self, Connection};
use super::error::ShardError;
use super::listen;
use super::load::Meter;
use super::message::Answer;
use super::pool::Pool;
use super::report::{ExportId, ExportInfo};
use super::shard::Shard;
use super::spec::{NbdExport, TlsOffer};
use super::table::{Export, Listener};
use super::wire::Wire;
use crate::budget::{Budget, PATIENCE, PoolBudget, Purse};
use crate::descriptors;
use crate::tls::{Credentials, Lost};

/// Most clients of a shard at a time. Each may hold its socket buffers, an input buffer of 256 KiB
/// and the data of its requests in flight.
const MAX_CLIENTS: usize = 512;
/// Descriptors of an export and its first client: two listeners, the client, and the probe whether
/// a socket is in use.
const EXPORT_DESCRIPTORS: u64 = 4;
/// Most snapshots that are listed as metadata contexts, which takes some 100 microseconds: a client
/// that asks for tens of thousands does not delay the others.
const MAX_LISTED: usize = 1000;
/// Pause of the shard, in nanoseconds, after which the idle time of clients counts anew.
const PAUSE_NANOS: u64 = 5_000_000_000;
/// How long a client whose connection ends may take to read its last replies, in nanoseconds.
pub(super) const LINGER_NANOS: u64 = 10_000_000_000;

/// Choice for the clients of a listener: one target, and the snapshots that it can be compared
/// with.
struct OneOffer<'a, P> {
    offer: Offer,
    target: Target,
    pool: &'a P,
}

impl<P: Pool> Exports for OneOffer<'_, P> {
    fn for_each(&self, visit: &mut dyn FnMut(&Offer)) {
        visit(&self.offer);
    }

    fn for_each_state(&self, _: millpond_export::ExportId, visit: &mut dyn FnMut(&str, Since)) {
        self.pool.older_states(self.target, MAX_LISTED).iter().for_each(|(name, id)| visit(name, Since(id.0)));
    }

    fn find_state(&self, _: millpond_export::ExportId, name: &str) -> Option<Since> {
        self.pool.older_state(self.target, name).map(|id| Since(id.0))
    }
}

/// Refuses an operation that would take descriptors of the reserve.
pub(super) fn need_descriptors(count: u64) -> Result<(), ShardError> {
    if descriptors::have_room(count) { Ok(()) } else { Err(ShardError::NoDescriptors) }
}

/// How the clients of an ending export are disconnected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseMode {
    /// The export will not come back: later requests are refused.
    ForGood,
    /// The next daemon will serve the same export: no request is refused, so that clients that
    /// reconnect see a pause.
    Restart,
}

impl<P: Pool> Shard<P> {
    /// Starts serving an export over NBD.
    pub(super) fn export(&mut self, spec: NbdExport) -> Result<ExportInfo, ShardError> {
        need_descriptors(EXPORT_DESCRIPTORS)?;
        if self.exports.contains_key(&spec.id) || self.vhost.contains(spec.id) || self.mounts.ids().contains(&spec.id) {
            return Err(ShardError::ExportExists(spec.id));
        }
        if spec.unix.is_none() && spec.tcp.is_none() {
            return Err(ShardError::NoAddress);
        }
        if self.pool.geometry(spec.target).is_none() {
            return Err(ShardError::NoTarget(spec.target));
        }
        let mut sockets = Vec::new();
        let mut file = None;
        if let Some(path) = &spec.unix {
            let fail = |source| ShardError::Listen { address: path.display().to_string(), source };
            if let Some(inherited) = &spec.inherited.unix {
                sockets.push((inherited.try_clone().map_err(fail)?, None, true));
            } else {
                let (socket, made) = listen::unix(path, spec.access).map_err(fail)?;
                sockets.push((socket, None, false));
                file = Some(made);
            }
        }
        if let Some(address) = spec.tcp {
            let fail = |source| ShardError::Listen { address: address.to_string(), source };
            if let Some(inherited) = &spec.inherited.tcp {
                sockets.push((inherited.try_clone().map_err(fail)?, Some(address), true));
            } else {
                let (socket, bound) = listen::tcp(address).map_err(fail)?;
                sockets.push((socket, Some(bound), false));
            }
        }
        let mut listener = |(socket, tcp, shared)| {
            let id = if shared { self.ring.listen_shared(socket) } else { self.ring.listen(socket) };
            Listener { id, tcp }
        };
        let listeners = sockets.into_iter().map(&mut listener).collect();
        let export = Export { file, listeners, past: GuestIo::default(), closing: None, spec };
        let info = export.info(&self.clients);
        self.exports.insert(export.spec.id, export);
        Ok(info)
    }

    /// Stops serving in an orderly way; `answer` is sent when that is done.
    pub(super) fn unexport(&mut self, id: ExportId, close_mode: CloseMode, answer: Option<Answer<()>>) {
        if self.vhost.contains(id) {
            return self.unexport_vhost(id, answer);
        }
        let Err(answer) = self.unmount(id, answer) else { return };
        let Some(export) = self.exports.get_mut(&id) else {
            if let Some(answer) = answer {
                let _ = answer.send(Err(ShardError::NoExport(id)));
            }
            return;
        };
        if let Some(waiting) = &mut export.closing {
            return waiting.extend(answer);
        }
        export.closing = Some(answer.into_iter().collect());
        self.throttles.hurry(Some(export.spec.target));
        // The path goes first: clients that look for it from now on find nothing.
        export.file = None;
        export.listeners.iter().for_each(|listener| self.ring.close_listener(listener.id));
        for index in self.clients.indexes() {
            if let Some(client) = self.clients.get_mut(index)
                && client.export == id
            {
                match close_mode {
                    CloseMode::ForGood => client.session.shutdown(),
                    CloseMode::Restart => client.session.hang_up(),
                }
                client.deadline = Some(self.now + LINGER_NANOS);
                self.enqueue(index);
            }
        }
    }

    /// Ends the connections of the clients of a target. Its exports stay, and serve the clients that
    /// connect again.
    pub(super) fn hang_up(&mut self, target: Target) {
        for index in self.clients.indexes() {
            if let Some(client) = self.clients.get_mut(index)
                && client.target == target
            {
                client.session.hang_up();
                client.deadline = Some(self.now + LINGER_NANOS);
                self.enqueue(index);
            }
        }
    }

    /// Removes a listener that has ended.
    pub(super) fn unlistened(&mut self, id: ListenerId) {
        for export in self.exports.values_mut() {
            export.listeners.retain(|listener| listener.id != id);
        }
    }

    /// Removes the exports that are closing and have neither listeners nor clients, and sends their
    /// answers.
    pub(super) fn remove_ended_exports(&mut self) {
        let ended = |export: &Export| export.closing.is_some() && export.listeners.is_empty() && !export.has_clients(&self.clients);
        let ids: Vec<ExportId> = self.exports.values().filter(|export| ended(export)).map(|export| export.spec.id).collect();
        for id in ids {
            let Some(export) = self.exports.remove(&id) else { continue };
            self.past.add(&export.past);
            for answer in export.closing.into_iter().flatten() {
                let _ = answer.send(Ok(()));
            }
        }
    }

    /// Accepts a client, or turns it away.
    pub(super) fn accept(&mut self, listener: ListenerId, socket: OwnedFd) {
        let found = self.exports.values().find_map(|export| {
            let listener = export.listeners.iter().find(|known| known.id == listener)?;
            Some((export, listener.tcp.is_some()))
        });
        let Some((export, is_tcp)) = found else { return };
        if export.closing.is_some() {
            return;
        }
        if !descriptors::may_keep(&socket) {
            tracing::warn!(export = %export.spec.id, "a client was turned away: {}", descriptors::refusal());
            return;
        }
        let of_export = self.clients.iter().filter(|client| client.export == export.spec.id).count();
        let most = export.spec.limits;
        if self.clients.len() >= MAX_CLIENTS || of_export >= most.clients as usize {
            tracing::warn!(export = %export.spec.id, of_export, limit = most.clients, "a client was turned away: too many are connected");
            return;
        }
        let encryption = match &export.spec.tls {
            None => Encryption::Off,
            Some(TlsOffer { required: false, .. }) => Encryption::Allowed,
            Some(TlsOffer { required: true, .. }) => Encryption::Required,
        };
        let peer = listen::prepare(&socket, is_tcp);
        let (id, target, read_only) = (export.spec.id, export.spec.target, export.spec.read_only);
        tracing::debug!(export = %id, peer, "client connected");
        let connection = self.ring.connect(socket);
        self.last_client += 1;
        let deadline = self.now.saturating_add(u64::try_from(most.handshake.as_nanos()).unwrap_or(u64::MAX));
        let (number, since) = (self.last_client, self.wall);
        let limits = Limits { requests: most.requests, ..Limits::default() };
        let index = self.clients.add(connection, |session| Connection {
            id: connection,
            number,
            session: Session::new(session, limits).with_encryption(encryption),
            wire: Wire::Plain,
            export: id,
            target,
            read_only,
            peer,
            since,
            meter: Meter::default(),
            readable: false,
            arrivals: 0,
            deep_until: 0,
            ended: false,
            blocked: false,
            queued: false,
            deadline: Some(deadline),
            purse: Purse::new(self.memory.asker()),
            moved: self.now,
        });
        self.enqueue(index);
    }

    /// Continues a client's handshake, when it is in one.
    pub(super) fn negotiate(&mut self, index: u32) {
        let Some(client) = self.clients.get_mut(index) else { return };
        if client.session.phase() != Phase::Handshake {
            return;
        }
        let Some(export) = self.exports.get(&client.export) else { return };
        let (geometry, features) = connection::offer(&self.pool, client.target, client.read_only);
        let offer = Offer {
            id: millpond_export::ExportId(export.spec.id.0),
            name: export.spec.name.clone(),
            description: export.spec.description.clone(),
            geometry,
            features,
            // One engine serves every connection: a flush covers all requests that it has answered,
            // on any connection.
            multi_conn: true,
            default: true,
        };
        let (target, pool) = (client.target, &self.pool);
        if client.session.handshake(&OneOffer { offer, target, pool }).is_some() {
            client.deadline = None;
        }
    }

    /// Replaces the credentials for new clients.
    pub(super) fn renew_tls(&mut self, id: ExportId, credentials: Credentials) -> Result<(), ShardError> {
        let offer = self.exports.get_mut(&id).and_then(|export| export.spec.tls.as_mut());
        offer.ok_or(ShardError::NoExport(id))?.credentials = credentials;
        Ok(())
    }

    /// Encrypts a connection from here on, after the client got the permission to start TLS.
    pub(super) fn start_tls(&mut self, index: u32) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let Some(TlsOffer { credentials, .. }) = self.exports.get(&client.export).and_then(|export| export.spec.tls.as_ref()) else {
            return;
        };
        let Some(socket) = self.ring.socket(client.id) else { return };
        client.wire.start_tls(credentials, socket);
        client.session.secured();
        // The client's first encrypted bytes may have arrived already.
        client.readable = true;
        self.enqueue(index);
    }

    /// Handles a broken connection: nothing more is read or sent.
    pub(super) fn lose(&mut self, index: u32, lost: &Lost) {
        let Some(client) = self.clients.get_mut(index) else { return };
        if let Lost::Tls(error) = lost {
            tracing::warn!(export = %client.export, peer = client.peer, "a client was turned away: {error}");
            // Send what is left, so that the client may learn the reason.
            let _ = client.wire.flush();
        }
        client.wire.give_up();
        client.session.abort(self.pool.buffers());
        self.enqueue(index);
    }

    /// Removes a client whose session has nothing in flight.
    pub(super) fn end_client(&mut self, index: u32) {
        let Some(mut client) = self.clients.remove(index) else { return };
        client.purse.empty(&self.memory);
        client.wire.close();
        self.ring.close(client.id);
        let counters = client.counters();
        self.loads.of_mut(self.pool.volume_of(client.target)).add(&client.load());
        match self.exports.get_mut(&client.export) {
            Some(export) => export.past.add(&counters),
            None => self.past.add(&counters),
        }
        let reason = client.session.close_reason().map_or_else(|| "the export goes".to_owned(), |reason| reason.to_string());
        if client.session.was_refused_in_clear() && client.session.bound().is_none() {
            tracing::warn!(export = %client.export, peer = client.peer, "a client was turned away: it did not ask for TLS, which is required");
        }
        tracing::debug!(export = %client.export, peer = client.peer, reason, "client gone");
        client.session.recycle(self.pool.buffers());
    }

    /// Gives a client whose session takes no more requests a limited time to read its replies.
    pub(super) fn bound_closing(&mut self, index: u32) {
        let until = self.now + LINGER_NANOS;
        if let Some(client) = self.clients.get_mut(index) {
            client.deadline.get_or_insert(until);
        }
    }

    /// Queues the clients that wait for memory: some may be free now.
    pub(super) fn wake_waiting(&mut self) {
        for index in self.clients.indexes() {
            if self.clients.get_mut(index).is_some_and(|client| client.purse.waits()) {
                self.enqueue(index);
            }
        }
        // guests whose requests wait are polled, and served in each turn
        self.wake_waiting_mounts();
    }

    /// Pays for requests from `budget` from now on. Memory that clients hold from the previous
    /// budget is returned to that, and counts in no budget until it is freed.
    pub(super) fn set_budget(&mut self, budget: Arc<Budget>) {
        if Arc::ptr_eq(self.memory.of_daemon(), &budget) {
            return;
        }
        let before = std::mem::replace(&mut self.memory, PoolBudget::new(budget, self.ring.waker()));
        for index in self.clients.indexes() {
            if let Some(client) = self.clients.get_mut(index) {
                client.purse.empty(&before);
                client.purse = Purse::new(self.memory.asker());
            }
        }
        self.set_budget_of_guests(&before);
        self.set_budget_of_mounts(&before);
        // clients that waited for the old budget ask again
        self.clients.indexes().into_iter().for_each(|index| self.enqueue(index));
    }

    /// Disconnects clients that took too long to negotiate or to end, and clients that hold memory
    /// which others may need and neither send nor read. After a pause of `late` nanoseconds the
    /// idle time counts anew, because no client had a chance to do either.
    pub(super) fn check_deadlines(&mut self, late: u64) {
        let patience = u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
        for index in self.clients.indexes() {
            if late > PAUSE_NANOS
                && let Some(client) = self.clients.get_mut(index)
            {
                client.moved = self.now;
            }
            if let Some(client) = self.clients.get_mut(index)
                && client.purse.holds_shared()
                && client.session.waits_for_client()
                && self.now.saturating_sub(client.moved) > patience
                && client.deadline.is_none()
            {
                tracing::warn!(
                    export = %client.export, peer = client.peer, bytes = client.session.held(),
                    "a client is broken off: it holds memory of requests and has neither read nor sent anything for {} s", PATIENCE.as_secs()
                );
                client.deadline = Some(self.now);
            }
            if let Some(client) = self.clients.get_mut(index)
                && client.deadline.is_some_and(|deadline| deadline <= self.now)
            {
                client.deadline = None;
                client.session.abort(self.pool.buffers());
                client.wire.give_up();
                self.enqueue(index);
            }
        }
        self.end_fetches_of_gone();
    }
}
