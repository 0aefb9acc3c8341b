//! Address of a server, and the byte stream to it.

use anyhow::{Context, Result};
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An export of a server: `nbd:/path/to/socket[?export]`, `nbd:host:port[?export]`, or
/// `vhost-user:/path/to/socket[?poll]`, where `poll` means to poll the queue instead of sleeping
/// until the back end notifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    address: Address,
    export: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Tcp(String),
    Vhost { socket: PathBuf, poll: bool },
}

impl Endpoint {
    /// The export of this name behind a unix socket.
    pub fn unix(socket: &Path, export: &str) -> Endpoint {
        Endpoint { address: Address::Unix(socket.to_owned()), export: export.to_owned() }
    }

    /// The disk of a vhost-user back end; `poll` as in the text form.
    pub fn vhost_user(socket: &Path, poll: bool) -> Endpoint {
        Endpoint { address: Address::Vhost { socket: socket.to_owned(), poll }, export: String::new() }
    }

    /// Socket of a vhost-user back end, and whether its queue is polled; `None` for NBD.
    pub(super) fn vhost(&self) -> Option<(&Path, bool)> {
        match &self.address {
            Address::Vhost { socket, poll } => Some((socket, *poll)),
            Address::Unix(_) | Address::Tcp(_) => None,
        }
    }

    /// Name of the export.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// Returns the address in the form of `qemu-img`, `nbdinfo`, `nbdcopy` and `fio`.
    pub fn uri(&self) -> String {
        match &self.address {
            Address::Unix(path) => format!("nbd+unix:///{}?socket={}", self.export, path.display()),
            Address::Tcp(address) => format!("nbd://{address}/{}", self.export),
            Address::Vhost { .. } => self.to_string(), // none of these tools supports vhost-user
        }
    }

    /// The unix socket; `None` for TCP.
    pub fn socket(&self) -> Option<&Path> {
        match &self.address {
            Address::Unix(path) | Address::Vhost { socket: path, .. } => Some(path),
            Address::Tcp(_) => None,
        }
    }

    pub(super) fn open(&self) -> io::Result<Stream> {
        let stream = match &self.address {
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let tcp = TcpStream::connect(address)?;
                tcp.set_nodelay(true)?;
                Stream::Tcp(tcp)
            }
            Address::Vhost { .. } => return Err(io::Error::new(io::ErrorKind::Unsupported, "vhost-user is no byte stream")),
        };
        // holds a deep queue of large writes, so that sending rarely blocks
        const SOCKET_BUFFER: usize = 4 << 20;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET_BUFFER)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SOCKET_BUFFER)?;
        Ok(stream)
    }
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Endpoint> {
        if let Some(rest) = text.strip_prefix("vhost-user:") {
            return Ok(Endpoint::vhost_user(rest.trim_end_matches("?poll").as_ref(), rest.ends_with("?poll")));
        }
        let rest = text.strip_prefix("nbd:").with_context(|| {
            format!("'{text}' is not an endpoint; write nbd:/socket?export, nbd:host:port?export or vhost-user:/socket[?poll]")
        })?;
        let (address, export) = rest.split_once('?').unwrap_or((rest, ""));
        let address = if address.starts_with('/') { Address::Unix(address.into()) } else { Address::Tcp(address.to_owned()) };
        Ok(Endpoint { address, export: export.to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(path) => write!(f, "nbd:{}?{}", path.display(), self.export),
            Address::Tcp(address) => write!(f, "nbd:{address}?{}", self.export),
            Address::Vhost { socket, poll } => write!(f, "vhost-user:{}{}", socket.display(), if *poll { "?poll" } else { "" }),
        }
    }
}

pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) => s.as_fd(),
            Stream::Tcp(s) => s.as_fd(),
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(buf),
            Stream::Tcp(s) => s.read(buf),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.write(buf),
            Stream::Tcp(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
