//! The `cache` commands.

mod advise;
mod verbs;

pub use verbs::Cache;
