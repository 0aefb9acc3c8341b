//! A small NBD client: for the demo's load, and for images that go in and out.

mod client;
mod status;

pub use client::Nbd;
pub use status::Extent;
