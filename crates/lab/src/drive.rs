//! Simulated drives: files whose requests take as long as those of a known drive model. Any server
//! can open them, so that Millpond and its peers are measured on the same drive
//! (`docs/decisions/0014-simulated-drives.md`).
//!
//! *Architecture Invariant:* the models have no clock and no threads; the time is an input, and
//! completion times are the output.

mod array;
mod flash;
mod model;
mod request;
mod segments;
mod server;
mod spindle;
mod write_cache;

pub use array::{Array, Layout};
pub use flash::{Flash, FlashShape};
pub use model::{Drive, MODELS, Model, Sized};
pub use request::{Done, Nanos, Op, Request};
pub use server::serve;
pub use spindle::{CacheShape, Spindle, SpindleShape};
