//! Work for a TLS connection that any thread can do: seal and send replies, receive and open
//! requests.
//!
//! INV-TLS-1: exactly one thread has the state of a TLS connection. It moves with the work and back,
//! so records are sealed, sent, received and opened in the order of the connection.

use millpond_device::ConnectionId;
use millpond_export::nbd::{RecvBuf, SendBatch};

use super::wire::{Lost, Pace, Received, Sent, TlsWire};

/// Bytes received in one go: what a shard receives from a client in one turn.
const MOST_RECEIVED: usize = 256 << 10;

/// A TLS connection that is handed to another thread, with what that is to do. None of it waits.
pub(crate) struct TlsWork {
    pub connection: ConnectionId,
    pub wire: Box<TlsWire>,
    /// Bytes to send.
    pub batch: Option<SendBatch>,
    /// Space to receive into.
    pub recv: Option<RecvBuf>,
    /// Number of times that the ring had reported data when this was handed over.
    pub arrivals: u64,
    pub done: Done,
}

/// Results of the work.
#[derive(Default)]
pub(crate) struct Done {
    /// Bytes of the batch that were taken.
    pub sent: usize,
    /// The socket has no room; watch for it to become writable.
    pub full: bool,
    /// Bytes received.
    pub received: usize,
    /// The client sends no more.
    pub ended: bool,
    /// There may be more to receive now.
    pub more: bool,
    /// The connection broke; after what was received.
    pub lost: Option<Lost>,
}

impl TlsWork {
    /// Sends, then receives.
    pub fn run(&mut self, pace: &Pace) {
        if let Err(lost) = self.send(pace).and_then(|()| self.receive()).and_then(|()| self.flush()) {
            self.done.lost = Some(lost);
        }
    }

    fn send(&mut self, pace: &Pace) -> Result<(), Lost> {
        let Some(batch) = &self.batch else { return Ok(()) };
        let Sent { count, full } = self.wire.send(batch.slices(), pace)?;
        (self.done.sent, self.done.full) = (count, full);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Lost> {
        let Some(recv) = &mut self.recv else { return Ok(()) };
        let space = recv.space();
        let end = space.len().min(MOST_RECEIVED);
        while let Some(rest) = space.get_mut(self.done.received..end)
            && !rest.is_empty()
        {
            match self.wire.receive(rest) {
                Ok(Received { count: 0, .. }) => {
                    // The session gets the bytes before the end first.
                    (self.done.ended, self.done.more) = (self.done.received == 0, self.done.received > 0);
                    return Ok(());
                }
                Ok(Received { count, more }) => {
                    self.done.received += count;
                    self.done.more = more;
                }
                Err(Lost::Nothing) => {
                    self.done.more = false;
                    return Ok(());
                }
                Err(lost) => return Err(lost),
            }
        }
        Ok(())
    }

    /// Sends what TLS itself has to send, such as messages of the handshake.
    fn flush(&mut self) -> Result<(), Lost> {
        self.done.full |= !self.wire.flush()?;
        Ok(())
    }
}
