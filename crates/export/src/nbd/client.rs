//! The client side of the NBD protocol: messages, negotiation, a parser of replies, and a blocking
//! client over any byte stream. Clients with many requests in flight drive their own sockets and
//! take messages and parser from here.

mod blocking;
pub mod message;
mod negotiation;
pub mod reply;
mod violation;

pub use blocking::{Client, Extent};
pub use negotiation::{Export, negotiate};
pub use violation::Violation;
