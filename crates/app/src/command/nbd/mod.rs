//! A small NBD client, for the demo's load and for the import and export of images.

mod client;
mod status;

pub use client::Nbd;
pub use status::Extent;
