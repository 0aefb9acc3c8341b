//! Listening sockets that whoever started the daemon has made: systemd's socket activation (`LISTEN_FDS`, `LISTEN_PID`, `LISTEN_FDNAMES`).
//!
//! They are found by the address that they are bound to. They outlive the daemon, so that clients who come between two daemons wait
//! instead of being refused; they are never shut down or removed here.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use listenfd::ListenFd;
use rustix::net::sockopt;

use super::shard::InheritedSockets;

/// What was passed on.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    address: Address,
    /// What systemd calls it.
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
    /// What the environment says. Descriptors that are no listening stream sockets are left alone, with a line in the log. To be called
    /// once, before others open files.
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

    /// The sockets for these addresses, as far as there are any.
    pub fn sockets(&self, unix: Option<&Path>, tcp: Option<SocketAddr>) -> InheritedSockets {
        let find = |address: Address| self.sockets.iter().find(|known| known.address == address).map(|known| Arc::clone(&known.socket));
        InheritedSockets {
            unix: unix.and_then(|path| find(Address::Unix(path.to_owned()))),
            tcp: tcp.and_then(|address| find(Address::Tcp(address))),
        }
    }

    /// Says which sockets nobody uses: those whose clients wait for nothing.
    pub fn report_unused(&self) {
        for Socket { address, name, .. } in self.sockets.iter().filter(|known| Arc::strong_count(&known.socket) == 1) {
            tracing::warn!(%address, name, "a socket was passed on that no export and no control socket has; its clients wait in vain");
        }
    }
}

/// Takes a descriptor over, when it listens at an address.
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
    // An accept of the ring waits, which on a socket that must not block it would not.
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(Some((address, socket)))
}
