//! A guest under QEMU: a Debian kernel, busybox, and this program itself, which writes files there.

mod archive;
mod kernel;
mod machine;

pub use archive::Archive;
pub use kernel::Kernel;
pub use machine::{Guest, Mapper};
