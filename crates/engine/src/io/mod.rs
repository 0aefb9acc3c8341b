//! Device operations: those in flight, and which members they can go to.

mod health;
mod table;

pub(crate) use health::Health;
pub(crate) use table::{Ended, Failing, IoTable};
