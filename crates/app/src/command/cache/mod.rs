//! Words about cache modes.

mod advise;
mod verbs;

pub use verbs::Cache;
