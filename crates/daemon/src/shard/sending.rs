//! Sends replies to clients of NBD, and decides how each goes on after its turn.

use millpond_export::nbd::{Phase, SendBatch};

use super::pool::Pool;
use super::shard::Shard;
use crate::tls::Sent;

impl<P: Pool> Shard<P> {
    /// Sends what is ready, as far as the socket has room.
    pub(super) fn send(&mut self, index: u32) {
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
    pub(super) fn flush_clients(&mut self) -> bool {
        let mut late = false;
        for index in std::mem::take(&mut self.active) {
            let Some(client) = self.clients.get_mut(index) else { continue };
            client.queued = false;
            self.send(index);
            let Some(client) = self.clients.get_mut(index) else { continue };
            client.purse.shrink(&self.memory.budget, client.session.held());
            let before = client.session.in_flight();
            let (session, mut disk) = client.disk(&mut self.pool, &mut self.throttles, self.now, &self.memory);
            session.requests(&mut disk);
            late |= client.session.in_flight() > before;
            client.purse.settle(&self.memory.budget);
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
}
