//! A sample of each structure, the functions that fuzzers run, and bytes as text.

mod dump;
mod fuzz;
mod sample;

pub use dump::{dump, undump};
pub use fuzz::{Kind, check, fuzz_structure, put_checksum_right};
pub use sample::samples;
