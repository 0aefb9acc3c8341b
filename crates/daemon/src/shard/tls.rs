//! Encryption for the shard's clients by helpers.
//!
//! A connection is handed over when that is worth it: a handshake; or much to encrypt or to decrypt
//! while the client has more requests in the pool, or others have. Then the shard goes on with these
//! meanwhile. Everything else is done by the shard at once, because it takes less time than waking
//! another thread: small messages, and a client that is alone and waits for its only request.
//!
//! While a connection is away (INV-TLS-1), its session takes answers of the pool, and the client is
//! neither ended nor replaced: the buffers that are away belong to its session.

use millpond_block::BufPool;
use millpond_export::nbd::{Phase, RecvBuf, SendBatch};

use super::pool::Pool;
use super::shard::Shard;
use crate::tls::{Done, Lost, TlsWork};

/// Least bytes to encrypt or decrypt that are worth another thread: some 20 us of work.
pub(super) const LEAST_FOR_HELPER: usize = 32 << 10;

impl<P: Pool> Shard<P> {
    /// Returns whether a helper sends a batch of so many bytes.
    pub(super) fn is_sent_by_helper(&self, index: u32, bytes: usize) -> bool {
        bytes >= LEAST_FOR_HELPER && self.is_encrypted_beside(index, 0)
    }

    /// Returns whether a helper receives into this space.
    pub(super) fn is_received_by_helper(&self, index: u32, recv: &mut RecvBuf) -> bool {
        let handshake = || self.clients.get(index).is_some_and(|client| client.wire.is_tls() && client.session.phase() == Phase::Handshake);
        if recv.is_payload() && recv.space().len() >= LEAST_FOR_HELPER {
            // the request that is received counts as one in flight
            self.is_encrypted_beside(index, 1)
        } else {
            self.coders.has_helpers() && handshake()
        }
    }

    /// Returns whether the pool has work for others than a client with TLS, or for more than `own`
    /// of its requests, or had lately and will again.
    fn is_encrypted_beside(&self, index: u32, own: usize) -> bool {
        self.clients.get(index).is_some_and(|client| {
            let is_deep = || client.deep_until >= self.now;
            let beside = || self.rivals.beside(self.clients.session_of(index), self.now);
            client.wire.is_tls() && self.coders.has_helpers() && (client.session.in_flight() > own || is_deep() || beside())
        })
    }

    /// Hands a client's connection over, to send a batch, and to receive if data has come.
    pub(super) fn send_by_helper(&mut self, index: u32, batch: SendBatch) {
        let client = self.clients.get_mut(index).filter(|client| client.readable);
        let recv = client.and_then(|client| client.session.recv(self.pool.buffers()));
        self.hand_over(index, Some(batch), recv);
    }

    /// Hands a client's connection over, to send and receive.
    pub(super) fn hand_over(&mut self, index: u32, batch: Option<SendBatch>, recv: Option<RecvBuf>) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let Some(wire) = client.wire.take_away() else {
            debug_assert!(false, "a connection without TLS, or one that is away, was handed over");
            return;
        };
        let (connection, arrivals) = (client.id, client.arrivals);
        self.coders.hand_over(TlsWork { connection, wire, batch, recv, arrivals, done: Done::default() }, self.now);
    }

    /// Takes a connection back. Returns its client, which must be served, and the reason if its
    /// connection is lost; `None` if the client is gone.
    pub(super) fn take_back(&mut self, work: TlsWork) -> Option<(u32, Option<Lost>)> {
        let TlsWork { connection, wire, batch, recv, arrivals, done } = work;
        let Some((index, client)) = self.clients.by_connection(connection) else {
            recycle(batch, recv, self.pool.buffers());
            return None;
        };
        let goes_on = client.wire.take_back(wire);
        if done.sent > 0 || done.received > 0 || done.ended {
            client.moved = self.now;
        }
        if let Some(batch) = batch {
            client.session.sent(batch, done.sent, self.pool.buffers());
        }
        if let Some(recv) = recv {
            // data may have come after the helper saw that there was none
            client.readable = done.more || client.ended || client.arrivals != arrivals;
            if done.received > 0 || done.ended {
                client.session.received(recv, done.received);
            } else {
                client.session.recv_cancelled(recv);
            }
        }
        if goes_on && done.full {
            client.block(&mut self.ring);
        }
        let lost = done.lost.filter(|lost| goes_on && !matches!(lost, Lost::Nothing));
        Some((index, lost))
    }
}

/// Takes the buffers of a client that is gone.
fn recycle(batch: Option<SendBatch>, recv: Option<RecvBuf>, buffers: &mut BufPool) {
    if let Some(batch) = batch {
        batch.recycle(buffers);
    }
    if let Some(recv) = recv {
        recv.recycle(buffers);
    }
}
