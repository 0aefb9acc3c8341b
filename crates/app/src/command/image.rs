//! Import and export of disk images. This process parses the images and moves the data over a
//! private NBD export, so that a hostile image never reaches the daemon: it can end a command, but
//! not the service of other clients.

mod export;
mod import;
mod passage;

pub use export::ExportImage;
pub use import::ImportImage;
pub use passage::{Passage, aside, whole as all_of};
