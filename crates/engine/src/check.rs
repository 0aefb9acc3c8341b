//! The audit: checks that space is counted exactly (I12), and that every block has its identity
//! (I5, I6).

mod audit;

pub use audit::{Audit, Media, Objects};
