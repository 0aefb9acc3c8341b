//! One of every structure, the fuzz bodies, and bytes as text.

mod dump;
mod fuzz;
mod sample;

pub use dump::{dump, undump};
pub use fuzz::{Kind, check, fuzz_structure, put_checksum_right};
pub use sample::samples;
