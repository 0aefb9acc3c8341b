//! The only door to the host: block devices and files, the io_uring reactor, simulated media, clock and entropy.
//!
//! *Architecture Invariant:* the engine never calls in here to do something; it emits [`Io`] values and is told of [`IoDone`]s.

mod io;

pub use io::{DeviceError, DeviceGeometry, DeviceIndex, Io, IoDone, IoId, IoKind};
