//! One NBD connection: phases, flow control, and the seams to the loop that drives it.
//!
//! Invariants:
//! - `INV-NBD-1` Whatever a request asks for, exactly the bytes that belong to it are taken from the stream: a refused write's
//!   payload is drained, so the next header is where the client put it.
//! - `INV-NBD-2` Every request that was read gets exactly one reply, unless the connection dies first (DISC has none).
//! - `INV-NBD-3` Memory is bounded by [`Limits`] and one input buffer, whatever lengths the client claims.
//! - `INV-NBD-4` While a receive is in flight there is nothing complete left to parse: input that cannot be parsed yet for want
//!   of room keeps the session from asking for more.

use std::fmt;

use millpond_block::{Answer, BufPool, Completion, Disk, Tag};

use crate::{ExportId, Exports};

use super::encryption::{Encryption, Secrecy};
use super::handshake::{Handshake, Step};
use super::input::{Input, RecvBuf};
use super::output::{Output, SendBatch};
use super::transmission::{Run, Transmission};

/// What one connection may hold. The defaults serve queue depth 256, and 4 MiB requests at depth 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight, at most 65,535.
    pub requests: u16,
    /// Bytes of reads and writes in flight. One request is always let in when nothing else is in flight, whatever its size.
    pub bytes: u64,
    /// Bytes of replies waiting to be sent above which no further request is let in.
    pub unsent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { requests: 256, bytes: 64 << 20, unsent: 8 << 20 }
    }
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Options are negotiated; no disk is bound. The loop applies its handshake timeout while this lasts.
    Handshake,
    /// Requests are served.
    Transmission,
    /// No more input is read; requests in flight are finished and their replies sent. The loop bounds how long it waits.
    Closing,
    /// Nothing is left to do: close the socket.
    Closed,
}

/// Why a session reads no further. Display is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client said goodbye during transmission.
    #[error("client disconnected")]
    Disconnect,
    /// The client said goodbye during the handshake.
    #[error("client aborted the handshake")]
    Abort,
    /// The stream ended between two messages.
    #[error("connection ended without a goodbye")]
    EndOfStream,
    /// The stream ended inside a message.
    #[error("connection ended in the middle of a message")]
    Truncated,
    /// The loop gave the connection up.
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
    /// An option claims more data than is worth draining, in bytes.
    #[error("option of {0} bytes")]
    OptionTooLong(u32),
    /// The handshake goes on and on.
    #[error("too many options")]
    TooManyOptions,
    /// EXPORT_NAME (which has no error reply) named no export of this server, or was malformed.
    #[error("unknown export asked for with EXPORT_NAME")]
    UnknownExport,
    /// EXPORT_NAME cannot follow the agreement on extended headers.
    #[error("EXPORT_NAME from a client with extended headers")]
    ExportNameExtended,
    /// The server is shutting down and the option has no error reply.
    #[error("server is shutting down")]
    Shutdown,
    /// EXPORT_NAME (which has no error reply) without STARTTLS before it, where that is required.
    #[error("client did not ask for TLS, which is required")]
    TlsRequired,
    /// Something came in the clear behind STARTTLS.
    #[error("bytes in the clear after STARTTLS")]
    ClearAfterStartTls,
    /// The server goes; another may take over.
    #[error("server hung up to restart")]
    HungUp,
    /// A request did not start with its magic number.
    #[error("request with magic {0:#010x}: the stream is out of step")]
    RequestMagic(u32),
    /// An extended request claims more payload than is worth draining, in bytes.
    #[error("request with a payload of {0} bytes")]
    PayloadTooLong(u64),
}

/// What a session has served so far. Refused requests count as errors alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads handed to the disk.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes handed to the disk.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Trims and zeroings.
    pub trims: u64,
    /// Replies that carried an error.
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
    /// Input may hold something complete: it was not looked at since it came, or there was no room for it.
    unparsed: bool,
    lent: bool,
    aborted: bool,
    shutting_down: bool,
    refused_in_clear: bool,
}

impl Session {
    /// A new connection; the greeting is ready to be sent. `id` goes into the upper half of every tag (see [`Session::id_of`]); it
    /// must not be given to another session while completions of this one are outstanding.
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

    /// With encryption offered or required. For a new session alone.
    pub fn with_encryption(mut self, encryption: Encryption) -> Session {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.secrecy = Secrecy::Clear(encryption);
        }
        self
    }

    /// STARTTLS was accepted and its answer is sent: from here on the loop encrypts what goes and decrypts what comes. It says so with
    /// [`Session::secured`]; until then the session asks for no input.
    pub fn is_starting_tls(&self) -> bool {
        self.is_between() && self.output.unsent() == 0
    }

    /// Goes on with the handshake, on encrypted ground.
    pub fn secured(&mut self) {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.secrecy = Secrecy::Secured;
        }
    }

    /// Something that the client asked for in the clear was refused, for encryption is required.
    pub fn was_refused_in_clear(&self) -> bool {
        self.refused_in_clear
    }

    /// STARTTLS was accepted, and the loop does not encrypt yet.
    fn is_between(&self) -> bool {
        matches!(&self.state, State::Handshake(handshake) if handshake.secrecy == Secrecy::Starting) && self.reason.is_none()
    }

    /// The id of the session that submitted the request with this tag.
    pub fn id_of(tag: Tag) -> u32 {
        (tag.0 >> 32) as u32
    }

    /// Where the session is in its life.
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

    /// Why the session reads no further; `None` while it does.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.reason
    }

    /// The export that the client chose.
    pub fn bound(&self) -> Option<ExportId> {
        self.bound
    }

    /// Requests submitted to the disk (or large writes being received) that are not completed.
    pub fn in_flight(&self) -> usize {
        match &self.state {
            State::Transmission(transmission) => transmission.in_flight(),
            _ => 0,
        }
    }

    /// Bytes that requests in flight move, and of replies that are not sent yet.
    pub fn held(&self) -> u64 {
        let moved = match &self.state {
            State::Transmission(transmission) => transmission.bytes(),
            _ => 0,
        };
        moved + self.output.unsent() as u64
    }

    /// Bytes of replies that are not sent yet.
    pub fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// True when no request is in flight and every reply is sent: after [`Session::shutdown`], the moment to close.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.output.unsent() == 0
    }

    /// It is the client's turn: replies are to be read, or the rest of a message is to be sent, and the disk has nothing to do for it.
    pub fn waits_for_client(&self) -> bool {
        let receiving = self.is_inside_message();
        self.output.unsent() > 0 || (receiving && self.in_flight() <= 1)
    }

    /// What was served so far.
    pub fn counters(&self) -> Counters {
        match &self.state {
            State::Transmission(transmission) => transmission.counters,
            _ => Counters::default(),
        }
    }

    /// Where the next bytes of the client go; start one receive into [`RecvBuf::space`] and bring it back with
    /// [`Session::received`]. `None` while one is out, while the limits are exhausted, while `handshake` or `requests` has not looked
    /// at the last bytes, and when nothing more is wanted.
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

    /// Takes a buffer back with `n` new bytes in it. 0 means that the client will send no more. Call `handshake` or `requests` next.
    ///
    /// # Panics
    /// When `n` is more than there was space for, or no buffer was out: a broken loop.
    pub fn received(&mut self, recv: RecvBuf, n: usize) {
        self.give_back(recv, n);
        if n == 0 && self.reason.is_none() {
            let inside = !self.input.is_empty() || self.is_inside_message();
            self.close(if inside { CloseReason::Truncated } else { CloseReason::EndOfStream });
        }
    }

    /// Takes a buffer back into which nothing was received (the operation was cancelled or would have blocked).
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

    /// Negotiates with what was received. Returns the export that the client chose, once, when the handshake is over; from then on
    /// the loop calls [`Session::requests`] with that export's disk (at once: requests may be waiting already).
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

    /// Submits every complete request that the limits let in. Call it after `received`, and again after `complete` or `sent` made
    /// room; it costs next to nothing when there is nothing to do.
    pub fn requests(&mut self, disk: &mut dyn Disk) {
        if self.lent || !self.unparsed || self.reason.is_some() {
            return;
        }
        let State::Transmission(transmission) = &mut self.state else { return };
        match transmission.run(&mut self.input, &mut self.output, disk, self.shutting_down) {
            Run::More => self.unparsed = false,
            Run::Stalled => {}
            Run::Close(reason) => self.close(reason),
        }
    }

    /// Takes the disk's answer to a request; its reply becomes part of the next batch. False when the tag is none of the requests in
    /// flight here (the completion is dropped).
    pub fn complete(&mut self, completion: Completion) -> bool {
        let State::Transmission(transmission) = &mut self.state else { return false };
        transmission.complete(completion, &mut self.output, self.aborted)
    }

    /// Takes the disk's answer to a query, as [`Session::complete`] does.
    pub fn answer(&mut self, answer: Answer) -> bool {
        let State::Transmission(transmission) = &mut self.state else { return false };
        transmission.answer(answer, &mut self.output, self.aborted)
    }

    /// Everything that is ready to be sent, as one batch; start one send of [`SendBatch::slices`] (or as many of them as one system
    /// call takes) and bring it back with [`Session::sent`]. `None` while one is out and when nothing is ready.
    pub fn send(&mut self) -> Option<SendBatch> {
        if self.aborted { None } else { self.output.lend() }
    }

    /// Takes a batch back of which `n` further bytes were sent (0 when the operation was cancelled or would have blocked). What is
    /// left of it comes first with the next `send`; buffers of what is done go to `pool`.
    ///
    /// # Panics
    /// When `n` is more than was left, or no batch was out: a broken loop.
    pub fn sent(&mut self, batch: SendBatch, n: usize, pool: &mut BufPool) {
        self.output.take_back(batch, n, pool);
        if self.aborted {
            self.output.discard(pool);
        }
    }

    /// The connection broke (a send or receive failed) or the loop gives it up: nothing more is read or sent; the session is closed
    /// when the disk has answered what is in flight.
    pub fn abort(&mut self, pool: &mut BufPool) {
        self.aborted = true;
        self.output.discard(pool);
        if self.reason.is_none() {
            self.close(CloseReason::Aborted);
        }
    }

    /// The server is going down: requests in flight are finished, later ones get ESHUTDOWN, options get ERR_SHUTDOWN. The loop
    /// closes the connection when it [is idle](Session::is_idle), or lets the client say goodbye for a while.
    pub fn shutdown(&mut self) {
        self.shutting_down = true;
    }

    /// The server goes, but what it serves does not: requests that the disk has are finished and answered, no other is read or refused,
    /// and the session is over. To a client that reconnects this is a lost connection: what was not answered it sends again to the next
    /// server, where an error would have gone to its guest.
    pub fn hang_up(&mut self) {
        if self.reason.is_none() {
            self.close(CloseReason::HungUp);
        }
    }

    /// Ends the session and gives its buffers to `pool`. A [`RecvBuf`] or [`SendBatch`] that is out is recycled by itself.
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
