//! The NBD server protocol (fixed newstyle handshake, simple and structured replies) as a state machine without I/O.
//!
//! One [`Session`] per connection. The loop that owns the socket does, after every event of a connection:
//!
//! ```text
//! event: bytes came        session.received(recv_buf, n)         n = 0: the peer closed its side
//!        bytes went out    session.sent(batch, n, pool)
//!        disk answered     session.complete(completion)          which session: Session::id_of(tag)
//!                          session.answer(answer)                the same, for queries
//! then:  Phase::Handshake     if let Some(id) = session.handshake(&exports) { remember the disk of export id }
//!        Phase::Transmission  session.requests(&mut disk)
//!        if let Some(batch) = session.send()     start one send of batch.slices()
//!        if let Some(recv) = session.recv(pool)  start one receive into recv.space()
//!        Phase::Closed        close the socket, session.recycle(pool)
//!        session.is_starting_tls()               what comes and goes is encrypted from here on; session.secured()
//! ```
//!
//! **Buffers stay put.** What a receive writes to ([`RecvBuf`]) and what a send reads from ([`SendBatch`]) are owned values that leave
//! the session for as long as the operation is in flight; their bytes live on the heap and do not move when the value does. A
//! connection that is torn down may drop its session at once and keep the two values until the kernel has let go of them.
//!
//! **Limits.** [`Limits`] bounds what a connection may have in flight and unsent; beyond it the session stops asking for input, so a
//! client that does not read its replies is stopped by its own socket.
//!
//! Source: the NBD protocol document of the NetworkBlockDevice project, `doc/proto.md`.

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
