//! The vhost-user back end of a virtio-blk device, without I/O: queues in the guest's memory, and the talk about them over a socket.
//!
//! [`Session`] takes the messages of one front end (QEMU, cloud-hypervisor, libkrun) and asks a [`Backend`] to map memory and to run queues.
//! [`Device`] is what runs: it takes requests off the queues, hands them to a [`Disk`](millpond_block::Disk) and answers in the guest's
//! memory. The two meet in the loop that owns both: they may live on different threads, so that a front end that talks slowly holds nobody
//! up. Once per turn that loop does
//!
//! ```text
//! device.take(&mut disk)                 requests go to the disk
//! device.complete(completion, buffers)   for each answer; which device: upper half of the tag
//! device.publish(|queue| ...)            signal the queue's eventfd
//! ```
//!
//! and before it waits, [`Device::listen`]; until then the guest need not kick.
//!
//! **Hostile guests.** All addresses, lengths and indexes are the guest's, and may change while they are looked at. Each descriptor is read
//! once and checked against the memory map; data of writes is copied before it is checksummed, which is why writes are not
//! zero-copy. A chain that is no request goes back unanswered; a ring with an impossible index stands still.
//!
//! **Not here:** packed rings (`virtio-queue` has none).
//!
//! Sources: VIRTIO 1.2, sections 2.7 and 5.2; QEMU's `docs/interop/vhost-user.rst`.

mod chain;
mod config;
mod device;
mod dirty;
mod inflight;
mod memory;
mod queue;
mod request;
mod session;
mod slots;
pub mod wire;

pub use config::Offer;
pub use device::{Counters, Device, Limits, SERIAL, Taken};
pub use dirty::DirtyLog;
pub use inflight::InflightMemory;
pub use memory::{Memory, MemoryRegion};
pub use queue::{MAX_QUEUE_SIZE, QueueError, QueueSetup};
pub use session::{Backend, MAX_REGIONS, Reply, Session, SessionError, Signal};
