//! `policy`: snapshots by a schedule, with thinning.

mod properties;
mod show;
mod verbs;

pub use verbs::Policy;
