//! Disk images in and out. This process reads and writes them and moves the bytes over a private NBD export, so that nothing of a hostile
//! image reaches the daemon: what is wrong with it ends a command, not the service of others.

mod chain;
mod copy;
mod export;
mod format;
mod import;
mod library;
mod names;
mod passage;
mod qcow2;
mod qemu;
mod raw;
mod served;
mod source;
mod states;
mod whole;

pub use copy::Course;
pub use export::ExportImage;
pub use import::ImportImage;
pub use passage::{Passage, aside, whole as all_of};
