//! Disks that are written to a pipe or read from one, in order and without gaps.

mod fill;
mod input;
mod outlet;
mod write;

pub use self::fill::{Feed, FillError, Grow, fill};
pub use self::input::Input;
pub use self::outlet::Outlet;
pub use self::write::write;
