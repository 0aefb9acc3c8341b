//! The front end of vhost-user-blk, as a hypervisor and the driver of its guest would be: for loads, and for tests that need no guest.

mod disk;
mod front;
mod message;

pub use disk::Disk;
pub use front::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, MEMORY, TABLES, descriptor};
pub use message::{code, message};
