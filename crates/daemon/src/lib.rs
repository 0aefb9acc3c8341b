//! The daemon: pools in service, exports, and its record of them across restarts.
//!
//! *Architecture Invariant:* guest data never passes through this module, except for full copies
//! (`copies`), whose buffers go from one shard to another. A pool is a shard thread (`shard`); this
//! side sends it messages, from one current-thread runtime that serves the control socket.
#![forbid(unsafe_code)]

mod advice;
mod attached;
mod bring_up;
mod budget;
mod care;
mod closing;
mod condition;
mod copies;
mod descriptors;
mod destroy;
mod destroy_pool;
mod device_names;
mod devices;
mod discovery;
mod errors;
mod events;
mod exports;
mod fallen;
mod fuse;
mod helpers;
mod hint;
mod holds;
mod hook;
mod host;
mod host_calls;
mod import;
mod inherited;
mod jobs;
mod labels;
mod life;
mod limits;
mod locks;
mod look;
mod look_up;
mod memory;
mod metrics;
mod mount;
mod mount_table;
mod options;
mod placement;
mod places;
mod pools;
mod probe;
mod promote;
mod refusal;
mod renew;
mod replace;
mod returned;
mod room;
mod routes;
mod run;
mod scan;
mod service;
mod shard;
mod snapshots;
mod state;
mod status;
mod tls;
mod unlabel;
mod users;
mod view;
mod volumes;
mod watch;

pub use budget::Budget;
pub use descriptors::raise as raise_descriptors;
pub use exports::{check_nbd_limits, reachable, tcp_address};
pub use helpers::Helpers;
pub use hook::Hook;
pub use host::this_host;
pub use inherited::Inherited;
pub use mount::clear as clear_mount;
pub use placement::warnings as placement_warnings;
pub use pools::format_file;
pub use run::{Control, Signals, serve_until};
pub use service::{Daemon, IMPORT_WAIT, Options, READ_CACHE};
pub use shard::SocketAccess;
pub use state::StateDir;
