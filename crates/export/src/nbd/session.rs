//! One NBD connection: phases, flow control, and the interface to the loop that drives it.
//!
//! Invariants:
//! - `INV-NBD-1` Exactly the bytes that belong to a request are taken from the stream, whatever the
//!   request. The payload of a refused write is drained, so that the next header is read at its
//!   place.
//! - `INV-NBD-2` Every request that was read gets exactly one reply, unless the connection ends
//!   first (DISC has no reply).
//! - `INV-NBD-3` Memory is bounded by [`Limits`] and one input buffer, whatever lengths the client
//!   claims.
//! - `INV-NBD-4` While a receive is in flight, the input contains no complete message. Complete
//!   messages that cannot be handled because of the limits keep the session from requesting input.

use std::fmt;

use millpond_block::{Answer, BufPool, Completion, Disk, Tag};

use crate::{ExportId, Exports};

use super::encryption::{Encryption, Secrecy};
use super::handshake::{Handshake, Step};
use super::input::{Input, RecvBuf};
use super::output::{Output, SendBatch};
use super::transmission::{Run, Transmission};

/// Limits of one connection. The defaults are enough for queue depth 256, and for 4 MiB requests at
/// depth 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests in flight, at most 65,535.
    pub requests: u16,
    /// Maximum bytes of reads and writes in flight. A request of any size is accepted if no other
    /// request is in flight.
    pub bytes: u64,
    /// Bytes of unsent replies above which no further request is accepted.
    pub unsent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { requests: 256, bytes: 64 << 20, unsent: 8 << 20 }
    }
}

/// Phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Options are negotiated; no export is chosen yet. The loop applies its handshake timeout in
    /// this phase.
    Handshake,
    /// Requests are served.
    Transmission,
    /// No more input is read; requests in flight are completed and their replies sent. The loop
    /// limits the duration of this phase.
    Closing,
    /// The session has ended: the loop closes the socket.
    Closed,
}

/// Reason for which a session has stopped reading. Display is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client sent DISC.
    #[error("client disconnected")]
    Disconnect,
    /// The client sent ABORT.
    #[error("client aborted the handshake")]
    Abort,
    /// The stream ended between two messages.
    #[error("connection ended without a goodbye")]
    EndOfStream,
    /// The stream ended inside a message.
    #[error("connection ended in the middle of a message")]
    Truncated,
    /// The loop aborted the connection.
    #[error("connection lost")]
    Aborted,
    /// The client's handshake flags are unknown.
    #[error("client sent unknown handshake flags {0:#x}")]
    ClientFlags(u32),
    /// An option did not start with its magic number.
    #[error("option with magic {0:#018x}: not an NBD client")]
    OptionMagic(u64),
    /// A client without fixed newstyle sent an option that cannot be answered.
    #[error("option {0} from a client without fixed newstyle negotiation")]
    OptionUnanswerable(u32),
    /// An option has more data than the server drains; its length in bytes.
    #[error("option of {0} bytes")]
    OptionTooLong(u32),
    /// The handshake has more options than allowed.
    #[error("too many options")]
    TooManyOptions,
    /// EXPORT_NAME (which has no error reply) named no export of this server, or was malformed.
    #[error("unknown export asked for with EXPORT_NAME")]
    UnknownExport,
    /// EXPORT_NAME was sent after extended headers were agreed on, which the protocol forbids.
    #[error("EXPORT_NAME from a client with extended headers")]
    ExportNameExtended,
    /// The server is shutting down and the option has no error reply.
    #[error("server is shutting down")]
    Shutdown,
    /// EXPORT_NAME (which has no error reply) was sent without STARTTLS before it, which is
    /// required.
    #[error("client did not ask for TLS, which is required")]
    TlsRequired,
    /// Plaintext bytes followed STARTTLS.
    #[error("bytes in the clear after STARTTLS")]
    ClearAfterStartTls,
    /// The server ends its connections for a restart; another server may take over.
    #[error("server hung up to restart")]
    HungUp,
    /// A request did not start with its magic number.
    #[error("request with magic {0:#010x}: the stream is out of step")]
    RequestMagic(u32),
    /// An extended request has more payload than the server drains; its length in bytes.
    #[error("request with a payload of {0} bytes")]
    PayloadTooLong(u64),
}

/// Counters of a session. Refused requests count as errors only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of reads submitted to the disk.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Number of writes submitted to the disk.
    pub writes: u64,
    /// Bytes of these writes.
    pub write_bytes: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of trims and zeroings.
    pub trims: u64,
    /// Number of error replies.
    pub errors: u64,
}

enum State {
    Handshake(Handshake),
    Transmission(Box<Transmission>),
    Ended,
}

/// The server side of one NBD connection. See the [module](super) for how a loop drives it.
///
/// # Example
/// ```
/// use millpond_block::BufPool;
/// use millpond_export::nbd::{Limits, Phase, Session};
///
/// let mut pool = BufPool::default();
/// let mut session = Session::new(7, Limits::default());
/// assert_eq!(session.phase(), Phase::Handshake);
/// let greeting = session.send().expect("the server speaks first");
/// assert_eq!(greeting.len(), 18);
/// session.sent(greeting, 18, &mut pool);
/// let mut recv = session.recv(&mut pool).expect("room for input");
/// recv.space()[..4].copy_from_slice(&3u32.to_be_bytes()); // fixed newstyle, no zeroes
/// session.received(recv, 4);
/// ```
pub struct Session {
    id: u32,
    limits: Limits,
    state: State,
    input: Input,
    output: Output,
    bound: Option<ExportId>,
    reason: Option<CloseReason>,
    /// The input may contain a complete message: it was not parsed since it arrived, or the limits
    /// did not allow it.
    unparsed: bool,
    lent: bool,
    aborted: bool,
    shutting_down: bool,
    refused_in_clear: bool,
}

impl Session {
    /// Makes a session for a new connection; its greeting is ready to be sent. `id` is the upper
    /// half of every tag (see [`Session::id_of`]). It must not be given to another session while
    /// completions of this session are outstanding.
    pub fn new(id: u32, limits: Limits) -> Session {
        let mut output = Output::default();
        Handshake::greet(&mut output);
        Session {
            id,
            limits,
            state: State::Handshake(Handshake::default()),
            input: Input::default(),
            output,
            bound: None,
            reason: None,
            unparsed: false,
            lent: false,
            aborted: false,
            shutting_down: false,
            refused_in_clear: false,
        }
    }

    /// Sets the encryption policy. Only for a new session.
    pub fn with_encryption(mut self, encryption: Encryption) -> Session {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.secrecy = Secrecy::Clear(encryption);
        }
        self
    }

    /// Returns true when STARTTLS was accepted and its answer is sent. From then on the loop
    /// encrypts sent bytes and decrypts received ones, and calls [`Session::secured`]. Until that
    /// call the session requests no input.
    pub fn is_starting_tls(&self) -> bool {
        self.is_between() && self.output.unsent() == 0
    }

    /// Continues the handshake after the loop has set up encryption.
    pub fn secured(&mut self) {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.secrecy = Secrecy::Secured;
        }
    }

    /// Returns true if a plaintext option was refused because encryption is required.
    pub fn was_refused_in_clear(&self) -> bool {
        self.refused_in_clear
    }

    /// Returns true if STARTTLS was accepted and the loop does not encrypt yet.
    fn is_between(&self) -> bool {
        matches!(&self.state, State::Handshake(handshake) if handshake.secrecy == Secrecy::Starting) && self.reason.is_none()
    }

    /// Returns the id of the session that submitted the request with this tag.
    pub fn id_of(tag: Tag) -> u32 {
        (tag.0 >> 32) as u32
    }

    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        if self.reason.is_some() {
            let drained = self.aborted || self.output.unsent() == 0;
            return if drained && self.in_flight() == 0 { Phase::Closed } else { Phase::Closing };
        }
        match self.state {
            State::Handshake(_) => Phase::Handshake,
            State::Transmission(_) => Phase::Transmission,
            State::Ended => Phase::Closing,
        }
    }

    /// Returns the reason for which the session has stopped reading; `None` while it reads.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.reason
    }

    /// Returns the export that the client chose.
    pub fn bound(&self) -> Option<ExportId> {
        self.bound
    }

    /// Returns the number of requests in flight to the disk, including large writes that are being
    /// received.
    pub fn in_flight(&self) -> usize {
        match &self.state {
            State::Transmission(transmission) => transmission.in_flight(),
            _ => 0,
        }
    }

    /// Returns the bytes that requests in flight move, plus the bytes of unsent replies.
    pub fn held(&self) -> u64 {
        let moved = match &self.state {
            State::Transmission(transmission) => transmission.bytes(),
            _ => 0,
        };
        moved + self.output.unsent() as u64
    }

    /// Returns the bytes of unsent replies.
    pub fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// Returns true if no request is in flight and every reply is sent. After [`Session::shutdown`]
    /// the loop may then close the connection.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.output.unsent() == 0
    }

    /// Returns true if the session waits for the client to read replies or to send the rest of a
    /// message, and not for the disk.
    pub fn waits_for_client(&self) -> bool {
        let receiving = self.is_inside_message();
        self.output.unsent() > 0 || (receiving && self.in_flight() <= 1)
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        match &self.state {
            State::Transmission(transmission) => transmission.counters,
            _ => Counters::default(),
        }
    }

    /// Returns the destination of the client's next bytes. The loop starts one receive into
    /// [`RecvBuf::space`] and returns the buffer with [`Session::received`]. Returns `None` while
    /// the loop has a buffer, while the limits are reached, while `handshake` or `requests` has not
    /// parsed the last bytes, and when the session reads no more.
    pub fn recv(&mut self, pool: &mut BufPool) -> Option<RecvBuf> {
        if self.lent || self.unparsed || self.reason.is_some() || self.is_between() {
            return None;
        }
        let recv = match &mut self.state {
            State::Transmission(transmission) => transmission.recv(&mut self.input, pool),
            State::Handshake(_) => self.input.lend(usize::MAX, pool),
            State::Ended => return None,
        };
        self.lent = true;
        Some(recv)
    }

    /// Takes a buffer back with `n` new bytes in it. 0 means that the client will send no more. The
    /// loop calls `handshake` or `requests` next.
    ///
    /// # Panics
    /// When `n` exceeds the space, or the loop had no buffer: a bug in the loop.
    pub fn received(&mut self, recv: RecvBuf, n: usize) {
        self.give_back(recv, n);
        if n == 0 && self.reason.is_none() {
            let inside = !self.input.is_empty() || self.is_inside_message();
            self.close(if inside { CloseReason::Truncated } else { CloseReason::EndOfStream });
        }
    }

    /// Takes a buffer back without new bytes: the receive was cancelled or would have blocked.
    pub fn recv_cancelled(&mut self, recv: RecvBuf) {
        self.give_back(recv, 0);
    }

    fn give_back(&mut self, recv: RecvBuf, n: usize) {
        assert!(self.lent, "a receive buffer came back that was not out");
        self.lent = false;
        self.unparsed |= n > 0;
        if recv.is_payload() {
            if let State::Transmission(transmission) = &mut self.state {
                transmission.payload_received(recv, n);
            }
        } else {
            self.input.take_back(recv, n);
        }
    }

    fn is_inside_message(&self) -> bool {
        match &self.state {
            State::Handshake(handshake) => handshake.is_inside_message(),
            State::Transmission(transmission) => transmission.is_inside_message(),
            State::Ended => false,
        }
    }

    /// Handles the received options. When the handshake ends, returns the export that the client
    /// chose, once. From then on the loop calls [`Session::requests`] with that export's disk; the
    /// first time at once, because requests may have arrived already.
    pub fn handshake(&mut self, exports: &dyn Exports) -> Option<ExportId> {
        if self.lent || self.reason.is_some() {
            return None;
        }
        let State::Handshake(handshake) = &mut self.state else { return None };
        if handshake.secrecy == Secrecy::Starting {
            return None;
        }
        let step = handshake.run(&mut self.input, &mut self.output, exports, self.limits.unsent, self.shutting_down);
        self.refused_in_clear |= handshake.refused_in_clear;
        match step {
            Step::More => self.unparsed = false,
            Step::Stalled => self.unparsed = true,
            Step::Close(reason) => self.close(reason),
            Step::StartTls if self.input.is_empty() => self.unparsed = false,
            Step::StartTls => self.close(CloseReason::ClearAfterStartTls),
            Step::Bound(export, terms) => {
                self.unparsed = true;
                self.bound = Some(export);
                self.state = State::Transmission(Box::new(Transmission::new(self.id, self.limits, terms)));
                return Some(export);
            }
        }
        None
    }

    /// Submits every complete request that the limits allow. The loop calls it after `received`,
    /// and again after `complete` or `sent` have made room. A call without work costs almost
    /// nothing.
    pub fn requests(&mut self, disk: &mut dyn Disk) {
        if self.lent || !self.unparsed || self.reason.is_some() {
            return;
        }
        let State::Transmission(transmission) = &mut self.state else { return };
        transmission.expect(&self.input, disk);
        match transmission.run(&mut self.input, &mut self.output, disk, self.shutting_down) {
            Run::More => self.unparsed = false,
            Run::Stalled => {}
            Run::Close(reason) => self.close(reason),
        }
    }

    /// Handles the disk's answer to a request; its reply becomes part of the next batch. Returns
    /// false and drops the completion if no request in flight has this tag.
    pub fn complete(&mut self, completion: Completion) -> bool {
        let State::Transmission(transmission) = &mut self.state else { return false };
        transmission.complete(completion, &mut self.output, self.aborted)
    }

    /// Handles the disk's answer to a query, like [`Session::complete`].
    pub fn answer(&mut self, answer: Answer) -> bool {
        let State::Transmission(transmission) = &mut self.state else { return false };
        transmission.answer(answer, &mut self.output, self.aborted)
    }

    /// Returns all bytes that are ready to be sent, as one batch. The loop starts one send of
    /// [`SendBatch::slices`], or of as many as one system call takes, and returns the batch with
    /// [`Session::sent`]. Returns `None` while the loop has a batch, and when no bytes are ready.
    pub fn send(&mut self) -> Option<SendBatch> {
        if self.aborted { None } else { self.output.lend() }
    }

    /// Takes a batch back of which `n` more bytes were sent (0 when the send was cancelled or would
    /// have blocked). The next `send` begins with the unsent bytes; buffers that were sent go to
    /// `pool`.
    ///
    /// # Panics
    /// When `n` exceeds the unsent bytes, or the loop had no batch: a bug in the loop.
    pub fn sent(&mut self, batch: SendBatch, n: usize, pool: &mut BufPool) {
        self.output.take_back(batch, n, pool);
        if self.aborted {
            self.output.discard(pool);
        }
    }

    /// Aborts the connection, because a send or receive failed or the loop gives it up. Nothing
    /// more is read or sent. The session is closed when the disk has answered all requests in
    /// flight.
    pub fn abort(&mut self, pool: &mut BufPool) {
        self.aborted = true;
        self.output.discard(pool);
        if self.reason.is_none() {
            self.close(CloseReason::Aborted);
        }
    }

    /// Returns whether the connection was aborted.
    pub fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Starts a shutdown of the server: requests in flight are completed, later ones get ESHUTDOWN,
    /// and options get ERR_SHUTDOWN. The loop closes the connection when it [is
    /// idle](Session::is_idle), or waits some time for the client to disconnect.
    pub fn shutdown(&mut self) {
        self.shutting_down = true;
    }

    /// Ends the session while its export continues elsewhere: requests in flight are completed and
    /// answered; no other request is read or refused. A client that reconnects sees a lost
    /// connection and sends its unanswered requests again to the next server. Error replies would
    /// reach its guest.
    pub fn hang_up(&mut self) {
        if self.reason.is_none() {
            self.close(CloseReason::HungUp);
        }
    }

    /// Ends the session and returns its buffers to `pool`. A [`RecvBuf`] or [`SendBatch`] that the
    /// loop has is recycled by the loop.
    pub fn recycle(mut self, pool: &mut BufPool) {
        self.output.discard(pool);
        self.input.recycle(pool);
        if let State::Transmission(transmission) = self.state {
            transmission.recycle(pool);
        }
    }

    fn close(&mut self, reason: CloseReason) {
        self.reason = Some(reason);
        self.unparsed = false;
        match &mut self.state {
            State::Handshake(_) => self.state = State::Ended,
            State::Transmission(transmission) => transmission.stop_receiving(),
            State::Ended => {}
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("phase", &self.phase())
            .field("bound", &self.bound)
            .field("in_flight", &self.in_flight())
            .field("unsent", &self.unsent())
            .field("reason", &self.reason)
            .finish()
    }
}

#[cfg(test)]
mod tests;
