//! Import and export of disk images. This process parses the images and moves the data over a
//! private NBD export, so that a hostile image never reaches the daemon: it can end a command, but
//! not the service of other clients.

mod differences;
mod export;
mod from_pipe;
mod import;
mod incomplete;
mod into;
mod keep;
mod overlay;
mod to_pipe;
mod transient_export;

pub use differences::DiffImage;
pub use export::ExportImage;
pub(in crate::command) use export::{Unfinished, create, free, publish, with_ending};
pub use import::ImportImage;
pub use incomplete::Incomplete;
pub use keep::keep;
pub use transient_export::{
    Total, TransientExport, compared, copy_failure, interruptible, watched, whole as all_of, with_progress, written,
};
