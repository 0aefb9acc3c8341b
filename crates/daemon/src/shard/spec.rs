//! Specifications of exports over NBD and FUSE, and limits for their clients.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millpond_engine::Target;

use super::listen::SocketAccess;
use super::report::ExportId;
use crate::tls::Credentials;

/// An NBD export: its volume or snapshot, and its addresses. At least one of `unix` and `tcp` must
/// be given.
#[derive(Clone, Debug)]
pub struct NbdExport {
    /// Identity; refused when in use in this shard.
    pub id: ExportId,
    /// The NBD export name that clients may ask for; they may also ask for the default (empty)
    /// name.
    pub name: String,
    /// Free text that clients can see.
    pub description: String,
    /// The volume or snapshot that is exported.
    pub target: Target,
    /// Path of a unix socket to make. A stale socket file is replaced; a path on which another
    /// process listens is refused.
    pub unix: Option<PathBuf>,
    /// Access rights of that socket.
    pub access: SocketAccess,
    /// TCP address to listen on; port 0 lets the system choose.
    pub tcp: Option<SocketAddr>,
    /// Refuse writes. Snapshots are read-only anyway.
    pub read_only: bool,
    /// Encryption of connections; `None` for none.
    pub tls: Option<TlsOffer>,
    /// Limits for the clients of this export.
    pub limits: ClientLimits,
    /// Sockets that listen at these addresses already.
    pub inherited: InheritedSockets,
}

/// Listening sockets that outlive the export and the daemon: the process that made them holds them
/// as well. Where one is given, it is used instead of binding a new one, and is neither shut down
/// nor removed at the end.
#[derive(Clone, Debug, Default)]
pub struct InheritedSockets {
    /// For the unix path.
    pub unix: Option<Arc<OwnedFd>>,
    /// For the TCP address.
    pub tcp: Option<Arc<OwnedFd>>,
}

/// Encryption of an export.
#[derive(Clone, Debug)]
pub struct TlsOffer {
    /// Clients that do not encrypt are turned away.
    pub required: bool,
    /// The server's TLS credentials, and how it authenticates clients.
    pub credentials: Credentials,
}

/// Limits for the clients of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Most clients at a time, so that the clients of one export cannot keep out those of another.
    pub clients: u32,
    /// Most requests in flight of each client.
    pub requests: u16,
    /// Limit of a client's handshake, TLS included.
    pub handshake: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits { clients: 128, requests: 256, handshake: Duration::from_secs(10) }
    }
}

/// A mounted directory to serve the pool's images in.
#[derive(Debug)]
pub struct FuseExport {
    /// Identity; refused when in use in this shard.
    pub id: ExportId,
    /// The pool's name, as listed.
    pub name: String,
    /// The FUSE device of the mount; it is non-blocking.
    pub device: OwnedFd,
    /// Owner of all files.
    pub uid: u32,
    /// Group of all files.
    pub gid: u32,
    /// Permissions of files: reading and writing only.
    pub mode: u16,
}
