//! Disks that are written to a pipe or read from one, in order and without gaps; and bytes of any
//! kind, where the other end delays no stop.

use std::io;

mod fill;
mod input;
mod outlet;
mod write;

pub use self::fill::{Feed, FillError, Grow, fill};
pub use self::input::{Input, InputReader};
pub use self::outlet::{Outlet, OutletWriter};
pub use self::write::write;

/// Returns the error of a stop for callers of `std` traits, which would try again after
/// `Interrupted`.
fn stop_error(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::Interrupted { io::Error::other("interrupted") } else { error }
}
