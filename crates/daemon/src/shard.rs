//! A shard: one thread that owns a pool's engine, its io_uring and the connections of its exports.
//!
//! The data path has no locks: other threads send messages to a shard through a [`ShardHandle`].
//! Start a shard with [`create`] or [`import`]; both return at once with the pool in `Opening`.
//! Wait with [`ShardHandle::opened`].

mod abandon;
mod clock;
mod coders;
mod connection;
mod control;
mod error;
mod fall;
mod fetches;
mod handle;
mod listen;
mod load;
mod message;
mod mount;
mod pool;
mod report;
mod rivals;
mod serve;
#[expect(clippy::module_inception, reason = "the file is named after its main type")]
mod shard;
mod soon;
mod spec;
mod start;
mod table;
mod tls;
mod tree;
mod turns;
mod vhost;
mod wall_clock;
mod wire;

pub use error::{ShardError, refused};
pub use fetches::{FetchOrder, WantedChunk};
pub use handle::{SILENCE, ShardHandle, Unseen};
pub use listen::SocketAccess;
pub use load::{FIRST_MICROS, LATENCY_CLASSES, Load, Timed, VolumeUse};
pub use mount::ImageLoad;
pub use report::{ClientInfo, ExportId, ExportInfo, ShardLook, ShardStatus};
#[allow(unused_imports, reason = "parts of what the calls take and give, for callers that name them")]
pub use report::{HostDeviceInfo, OpenFile};
pub use spec::{ClientLimits, FuseExport, InheritedSockets, NbdExport, TlsOffer};
pub use start::{create, import};
pub use vhost::VhostUserExport;

#[cfg(test)]
pub mod tests;
