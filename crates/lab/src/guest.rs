//! A guest under QEMU: a Debian kernel, busybox, and this program, which writes the files.

mod archive;
mod console;
mod kernel;
mod machine;

pub use archive::Archive;
pub use console::Console;
pub use kernel::Kernel;
pub use machine::{Guest, Mapper};
