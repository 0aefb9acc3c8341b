//! A guest under QEMU: a Debian kernel, busybox, and this program, which writes the files.

mod archive;
mod kernel;
mod machine;

pub use archive::Archive;
pub use kernel::Kernel;
pub use machine::{Guest, Mapper};
