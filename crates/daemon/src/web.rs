//! The console and the API over TCP: listener, TLS, names of the host, and the console's pages.
//!
//! The console is a client of the API like any other. Its pages are files of this crate that are
//! part of the binary.

pub(crate) mod hosts;
mod listener;
pub(crate) mod pages;
mod patient;
mod serve;

pub use listener::{Web, WebOptions};
pub use serve::Server;
