//! A single-threaded io_uring reactor: device operations, sockets and wake-ups of one shard, with one system call per turn.
//!
//! *Ownership.* Every byte that the kernel may touch is owned by the [`Ring`] from the call that starts an operation until its completion
//! is handed back as an [`Event`]: buffers are given by value and returned by value. INV-URING-1: the slot of an operation is freed when its
//! last completion has been seen, never before; so a connection, a listener or the ring itself may be dropped at any time. A ring that
//! cannot get its operations back when dropped leaks their memory rather than free it.
//!
//! *Sockets.* Bytes are received and sent at once, by a system call into and out of borrowed memory, so that nothing of theirs is ever in
//! flight; the ring tells when it is time to. One poll per connection serves its whole life. The same goes for `/dev/fuse`, which hands out
//! one message per read and takes one per write.
//!
//! *Signals.* Eventfds of others are watched by one multishot poll each and never read.
//!
//! *Memory.* Operations on files in memory are carried out when they are submitted (`instant`); their ends are events as all others.
//!
//! *Needs* Linux 6.0 (multishot accept); `SINGLE_ISSUER`, `DEFER_TASKRUN` and `COOP_TASKRUN` are used where the kernel has them.

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
pub use wake::Waker;

#[cfg(test)]
mod tests;
