//! The other side of vhost-user: a front end, and the guest's driver of a queue. For loads and
//! tests without a hypervisor.
//!
//! [`FrontEnd`] exchanges the messages over any [`Channel`]; sockets and eventfds belong to the
//! caller. [`Ring`] is the driver's side of a split queue in memory. It does what it is asked to,
//! also against the protocol, so that both a load generator and a hostile guest can use it.

mod connection;
pub mod message;
mod ring;
#[cfg(test)]
mod tests;
mod violation;

pub use connection::{Channel, FrontEnd, Signals};
pub use ring::{INDIRECT, NEXT, Ring, RingPlaces, STATUS_AT, Segment, WRITE, chain, descriptor, request_header};
pub use violation::Violation;
