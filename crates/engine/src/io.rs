//! Device operations in flight, and the members that can take them.

mod bucket;
mod health;
mod parity;
mod table;

pub(crate) use bucket::{BucketIo, Manner, Object, Pages as BucketPages};
pub(crate) use health::Health;
pub(crate) use parity::{Coders, Columns, Rebuild, Want, answers, erased};
pub(crate) use table::{Ended, Failing, IoTable, Replica};
