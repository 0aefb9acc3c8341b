//! The server side of the NBD protocol (fixed newstyle handshake; simple, structured and extended
//! replies) as a state machine without I/O, and in [`client`] the client side.
//!
//! There is one [`Session`] per connection. The loop that owns the socket does, after every event
//! of a connection:
//!
//! ```text
//! event: bytes received    session.received(recv_buf, n)         n = 0: the peer closed its side
//!        bytes sent        session.sent(batch, n, pool)
//!        disk answered     session.complete(completion)          which session: Session::id_of(tag)
//!                          session.answer(answer)                the same, for queries
//! then:  Phase::Handshake      if let Some(id) = session.handshake(&exports) { remember the disk of export id }
//!        Phase::Transmission   session.requests(&mut disk)
//!        if let Some(batch) = session.send()     start one send of batch.slices()
//!        if let Some(recv) = session.recv(pool)  start one receive into recv.space()
//!        Phase::Closed         close the socket, session.recycle(pool)
//!        session.is_starting_tls()               encrypt and decrypt from here on; session.secured()
//! ```
//!
//! **Buffers do not move.** The destination of a receive ([`RecvBuf`]) and the source of a send
//! ([`SendBatch`]) are owned values that leave the session while the operation is in flight. Their
//! bytes are on the heap and do not move when the value moves. When a connection is torn down, the
//! loop may drop its session at once and keep the two values until the kernel has finished with
//! them.
//!
//! **Limits.** [`Limits`] bounds the requests in flight and the unsent bytes of a connection. At
//! the limit the session requests no more input, so a client that does not read its replies is
//! stopped by its own socket.
//!
//! Source: the NBD protocol document of the NetworkBlockDevice project, `doc/proto.md`.

pub mod client;
mod context;
mod encryption;
mod handshake;
mod inflight;
mod input;
mod output;
mod reply;
mod session;
mod transmission;
pub mod wire;

pub use encryption::Encryption;
pub use input::{INPUT_BYTES, RecvBuf};
pub use output::SendBatch;
pub use session::{CloseReason, Counters, Limits, Phase, Session};
pub use transmission::LARGE_WRITE;
