//! A single-threaded io_uring reactor: device operations, sockets and wake-ups of one shard, with
//! one system call per turn.
//!
//! *Ownership.* The [`Ring`] owns all memory that the kernel may access, from the call that starts
//! an operation until its completion is returned as an [`Event`]: buffers are passed in by value
//! and returned by value. INV-URING-1: the slot of an operation is freed after its last completion
//! was seen, never before; so a connection, a listener or the ring itself may be dropped at any
//! time. A ring that cannot get its operations back when it is dropped leaks their memory.
//!
//! *Sockets.* Data is received and sent at once, by system calls on borrowed memory, so no such
//! buffer is ever in flight; the ring reports when a socket is ready. One poll per connection
//! serves for its whole life. The same goes for `/dev/fuse`, which takes and returns one message
//! per call.
//!
//! *Signals.* Eventfds of other programs are watched by one multishot poll each and never read.
//!
//! *Memory.* Operations on files in memory are carried out when they are submitted (`instant`);
//! their completions are events like all others.
//!
//! *Needs* Linux 6.0 (multishot accept); `SINGLE_ISSUER`, `DEFER_TASKRUN` and `COOP_TASKRUN` are
//! used where the kernel has them.

mod device;
mod event;
mod instant;
mod message;
mod ring;
mod slots;
mod socket;
mod wake;
mod watch;

pub use event::{ConnectionId, Event, ListenerId, Wait, WatchId};
pub use ring::Ring;
pub use socket::Socket;
pub use wake::Waker;

#[cfg(test)]
mod tests;
