//! TLS for exports: credentials from files, and the server's side of a connection as a state
//! machine without I/O.
//!
//! The library is s2n-tls, for the reasons in `docs/decisions/0006-tls.md`.

mod credentials;
mod keys;
mod names;
mod server;
mod wire;
mod work;

pub use credentials::{Credentials, TlsFiles};
pub(crate) use wire::{Lost, Pace, Received, Sent, TlsWire};
pub(crate) use work::{Done, TlsWork};
