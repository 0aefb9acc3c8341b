//! Contents and choices for the tests of all crates: pseudo-random numbers, a pattern of bytes, and
//! pages of the documents that are made from the code.
//!
//! Crates have this one as a dev-dependency only. Numbers and pattern are the same in every run, and
//! nothing recorded depends on them.
#![forbid(unsafe_code)]

mod page;
mod pattern;
mod random;

pub use page::{cell, compare_page};
pub use pattern::pattern;
pub use random::Random;
