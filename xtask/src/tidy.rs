//! `cargo xtask tidy`: rules about the source that no compiler checks.

mod arrows;
mod book;
mod circles;
mod code;
mod floors;
mod invariants;
mod messages;
mod paths;
mod ratchet;
mod source;
mod tree;

pub use tree::{check, describe_circles, describe_floors};
