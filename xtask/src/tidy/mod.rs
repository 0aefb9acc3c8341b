//! `cargo xtask tidy`: rules about the source that no compiler checks.

mod arrows;
mod paths;
mod source;
mod tree;

pub use tree::check;
