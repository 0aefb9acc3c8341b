//! What a shard is asked to serve: exports over NBD and mounts, and what their clients may take.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millpond_engine::Target;

use super::handle::ExportId;
use super::listen::SocketAccess;
use crate::daemon::tls::Credentials;

/// An NBD export: its volume or snapshot, and its addresses. At least one of `unix` and `tcp` must be given.
#[derive(Clone, Debug)]
pub struct NbdExport {
    /// Identity; refused when in use in this shard.
    pub id: ExportId,
    /// The NBD export name that clients may ask for; they may also ask for the default (empty) name.
    pub name: String,
    /// Free text that clients can see.
    pub description: String,
    /// The volume or snapshot that is exported.
    pub target: Target,
    /// Path of a unix socket to make. A stale socket file is replaced; one that somebody listens on is refused.
    pub unix: Option<PathBuf>,
    /// Who may connect to it.
    pub access: SocketAccess,
    /// TCP address to listen on; port 0 lets the system choose.
    pub tcp: Option<SocketAddr>,
    /// Refuse writes. Snapshots are read-only anyway.
    pub read_only: bool,
    /// How connections are encrypted; `None`: not at all.
    pub tls: Option<TlsOffer>,
    /// Limits for the clients of this export.
    pub limits: ClientLimits,
    /// Sockets that listen at these addresses already.
    pub inherited: InheritedSockets,
}

/// Listening sockets that outlive the export, and the daemon: whoever made them holds them as well. They are used where they are given,
/// instead of binding, and are neither shut down nor removed at the end.
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
    /// Clients without it are turned away.
    pub required: bool,
    /// The server's TLS credentials, and how it authenticates clients.
    pub credentials: Credentials,
}

/// Limits for the clients of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Clients at a time, so that those of one export cannot keep those of another out.
    pub clients: u32,
    /// Requests in flight of each.
    pub requests: u16,
    /// How long a client may negotiate, TLS included.
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
    /// The FUSE device of the mount; reading it does not wait.
    pub device: OwnedFd,
    /// To which user everything belongs.
    pub uid: u32,
    /// And to which group.
    pub gid: u32,
    /// Permissions of files: reading and writing.
    pub mode: u16,
}
