//! Listening sockets from the process that started the daemon: systemd's socket activation
//! (`LISTEN_FDS`, `LISTEN_PID`, `LISTEN_FDNAMES`).
//!
//! The daemon finds them by the address to which they are bound. They outlive the daemon, so that
//! clients that connect between two daemons wait instead of being refused; the daemon never shuts
//! down or removes them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use listenfd::ListenFd;
use rustix::net::sockopt;

use super::shard::InheritedSockets;

/// The inherited sockets.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    address: Address,
    /// Name that systemd gives it.
    name: String,
    socket: Arc<OwnedFd>,
}

#[derive(Debug, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

impl Inherited {
    /// Takes the sockets that the environment lists. Descriptors that are no listening stream
    /// sockets are left alone, and logged. Call it once, before other code opens files.
    pub fn from_env() -> Inherited {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut passed = ListenFd::from_env();
        let names = names.split(':').chain(std::iter::repeat(""));
        let mut sockets = Vec::new();
        for (index, name) in (0..passed.len()).zip(names) {
            match take(&mut passed, index) {
                Ok(Some((address, socket))) => {
                    tracing::info!(%address, name, "listens on a socket that was passed on");
                    sockets.push(Socket { address, name: name.to_owned(), socket: Arc::new(socket) });
                }
                Ok(None) => tracing::warn!(index, name, "a socket that was passed on has no address or does not listen; it is not used"),
                Err(error) => tracing::warn!(index, name, %error, "a descriptor that was passed on is not used"),
            }
        }
        Inherited { sockets }
    }

    /// Returns the sockets bound to these addresses, where there are any.
    pub fn sockets(&self, unix: Option<&Path>, tcp: Option<SocketAddr>) -> InheritedSockets {
        let find = |address: Address| self.sockets.iter().find(|known| known.address == address).map(|known| Arc::clone(&known.socket));
        InheritedSockets {
            unix: unix.and_then(|path| find(Address::Unix(path.to_owned()))),
            tcp: tcp.and_then(|address| find(Address::Tcp(address))),
        }
    }

    /// Logs the sockets that nothing uses: their clients wait in vain.
    pub fn report_unused(&self) {
        for Socket { address, name, .. } in self.sockets.iter().filter(|known| Arc::strong_count(&known.socket) == 1) {
            tracing::warn!(%address, name, "a socket was passed on that no export and no control socket has; its clients wait in vain");
        }
    }
}

/// Takes a descriptor that listens at an address; `None` for any other.
fn take(passed: &mut ListenFd, index: usize) -> io::Result<Option<(Address, OwnedFd)>> {
    let found = if let Ok(Some(listener)) = passed.take_unix_listener(index) {
        let path = listener.local_addr()?.as_pathname().map(Path::to_owned);
        path.map(|path| (Address::Unix(path), OwnedFd::from(listener)))
    } else if let Some(listener) = passed.take_tcp_listener(index)? {
        Some((Address::Tcp(listener.local_addr()?), listener.into()))
    } else {
        None
    };
    let Some((address, socket)) = found else { return Ok(None) };
    if !sockopt::socket_acceptconn(socket.as_fd())? {
        return Ok(None);
    }
    // The ring's accept has to wait; on a non-blocking socket it would fail instead.
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(Some((address, socket)))
}
