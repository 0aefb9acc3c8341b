//! vhost-user-blk in the roles of the hypervisor and of the guest's driver, for loads and for tests
//! without a guest: a front end of `millpond-export` with a socket, eventfds and memory.
//!
//! [`Disk`] is fast and keeps to the protocol. [`FrontEnd`] writes into the queue what its caller
//! wants, as a hostile guest does.

mod disk;
mod front;
mod socket;

pub use disk::Disk;
pub use front::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, MEMORY, TABLES};
