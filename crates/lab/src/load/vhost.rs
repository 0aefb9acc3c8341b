//! A front end of vhost-user-blk, in the roles of the hypervisor and of the guest's driver: for
//! loads, and for tests without a guest.

mod disk;
mod front;
mod message;

pub use disk::Disk;
pub use front::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, MEMORY, TABLES, descriptor};
