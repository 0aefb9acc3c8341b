//! Contents and choices for the tests of all crates: pseudo-random numbers, and a pattern of bytes.
//!
//! Crates have this one as a dev-dependency only. Both give the same values in every run, and nothing
//! recorded depends on them.
#![forbid(unsafe_code)]

mod pattern;
mod random;

pub use pattern::pattern;
pub use random::Random;
