//! The vhost-user back end of a virtio-blk device, without I/O: queues in the guest's memory, and
//! the messages about them on a socket.
//!
//! [`Session`] handles the messages of one front end (QEMU, cloud-hypervisor, libkrun) and makes a
//! [`Backend`] map memory and run queues. [`Device`] runs the queues: it takes requests from them,
//! submits them to a [`Disk`](millpond_block::Disk) and answers in the guest's memory. The loop
//! that owns both connects them. They may be on different threads, so that a slow front end delays
//! no other. Once per turn the loop does
//!
//! ```text
//! device.take(&mut disk)                 requests go to the disk
//! device.complete(completion, buffers)   for each answer; which device: upper half of the tag
//! device.publish(|queue| ...)            signal the queue's eventfd
//! ```
//!
//! and [`Device::listen`] before it waits; until then the guest need not kick. [`front_end`] has the
//! other side of messages and queues.
//!
//! **Hostile guests.** The guest controls all addresses, lengths and indexes, and may change them
//! at any time. Each descriptor is read once and checked against the memory map. Data of writes is
//! copied before its checksum is computed, which is why writes are not zero-copy. A chain that is
//! not a valid request is returned without a status; a queue with an impossible index stops.
//!
//! **Not supported:** packed rings (`virtio-queue` has none).
//!
//! Sources: VIRTIO 1.2, sections 2.7 and 5.2; QEMU's `docs/interop/vhost-user.rst`.

mod chain;
mod config;
mod device;
mod dirty;
mod error;
pub mod front_end;
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
pub use error::{Refusal, SessionError};
pub use inflight::InflightMemory;
pub use memory::{Memory, MemoryRegion, Outside};
pub use queue::{MAX_QUEUE_SIZE, QueueError, QueueSetup};
pub use session::{Backend, MAX_REGIONS, Reply, Session, Signal};
