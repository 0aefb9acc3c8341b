//! Disks that are written to a pipe, in order and without gaps.

mod outlet;
mod write;

pub use self::outlet::Outlet;
pub use self::write::write;
