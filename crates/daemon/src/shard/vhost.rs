//! Exports over vhost-user: a thread that talks to the front end, and the guest's queues, which the
//! shard runs.
//!
//! The socket's messages are few, may come slowly and request mappings of memory, so a thread of
//! their own handles them ([`talk`]). It passes the changes to the shard as an [`order::Order`].
//! Only the shard accesses the guest's queues (`guest`, `serve`).

mod error;
mod guest;
mod order;
mod serve;
mod spec;
mod stop;
mod table;
mod talk;

pub use spec::VhostUserExport;
pub(super) use table::VhostUsers;
