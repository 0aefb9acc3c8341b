//! Vocabulary of all layers: ranges, geometry, requests, buffers, errors, operations on devices,
//! and the [`Disk`] contract.
//!
//! *Architecture Invariant:* this crate does no I/O, has no `unsafe` code, and depends on no other
//! crate of the project.
#![forbid(unsafe_code)]

mod buffer;
mod cache_mode;
mod device_space;
mod disk;
mod error;
mod geometry;
mod io;
mod query;
mod request;
mod units;

pub use buffer::{Buf, BufPool, BufSlice, IoSlices, PAGE};
pub use cache_mode::{CacheMode, UnknownCacheMode};
pub use device_space::DeviceSpace;
pub use disk::{Completion, Disk, Payload, Tag};
pub use error::DiskError;
pub use geometry::{Features, Geometry, SectorProfile, UnknownSectorProfile};
pub use io::{DeviceError, DeviceGeometry, Io, IoDone, IoId, IoKind};
pub use query::{Answer, Query, Run, Since};
pub use request::{ByteRange, MAX_REQUEST_BYTES, Op, Request};
pub use units::{DeviceSlot, MemberId};
