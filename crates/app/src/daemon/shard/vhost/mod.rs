//! Exports over vhost-user: a thread that talks to the front end, and what the shard runs for it.
//!
//! The socket's messages are few, may come slowly and ask for memory to be mapped, so a thread of their own takes them ([`talk`]); what they
//! change is told to the shard as an [`order::Order`]. The shard alone touches the guest's queues (`guest`, `serve`).

mod guest;
mod order;
mod serve;
mod spec;
mod stop;
mod table;
mod talk;

pub use spec::VhostUserExport;
pub(super) use table::VhostUsers;
