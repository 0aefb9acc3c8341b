//! The only access to the host: block devices and files, the io_uring reactor, a device in memory,
//! clock and entropy, and the gate with the caps of devices.
//!
//! *Architecture Invariant:* the engine calls nothing here to do I/O: it emits
//! [`Io`](millpond_block::Io) values and gets [`IoDone`](millpond_block::IoDone)s. `unsafe` is
//! confined to `uring` and `mapping`.
#![deny(unsafe_code)]

mod env;
mod file;
mod gate;
mod latency;
mod lease;
#[allow(unsafe_code)]
mod mapping;
mod memory;
mod page_cache;
mod planted;
mod queue;
mod serial;
mod space;
#[allow(unsafe_code)]
mod uring;

pub use env::{Deadline, Monotonic, entropy, wall_millis};
pub use file::{HostDevice, HostDeviceKind, OpenError, OpenOptions, OpenStep};
pub use gate::{DeviceLimit, DeviceLoad, DeviceTimes, Gate};
pub use latency::{Latencies, quantile};
pub use lease::Lease;
pub use mapping::Guard;
pub use memory::MemoryDevice;
pub use page_cache::{PageCache, open_through};
pub use planted::Planted;
pub use queue::Queue;
pub use uring::{ConnectionId, Event, ListenerId, Ring, Socket, Wait, Waker, WatchId};
