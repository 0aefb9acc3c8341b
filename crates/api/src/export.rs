//! Exports: volumes, snapshots and pools served to clients.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::GuestIo;
use super::words::words;

/// Request for an export. Other kinds are refused; answers have [`ExportKind`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CreateExport {
    /// Over NBD.
    Nbd(CreateNbd),
    /// Over vhost-user, to hypervisors on this machine.
    VhostUser(CreateVhostUser),
    /// As a mounted directory.
    Fuse(CreateFuse),
}

impl CreateExport {
    /// Returns the name of the pool, as it stands in the request. It is not checked here.
    pub fn pool(&self) -> &str {
        match self {
            CreateExport::Nbd(CreateNbd { name, .. }) | CreateExport::VhostUser(CreateVhostUser { name, .. }) => {
                name.split_once('/').map_or(name, |(pool, _)| pool)
            }
            CreateExport::Fuse(request) => &request.pool,
        }
    }
}

/// Request to mount a pool as a directory: one image file for each volume, and read-only snapshots
/// as `.snapshots/VOL/SNAP`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateFuse {
    /// Name of the pool.
    pub pool: String,
    /// Absolute path of an empty directory, which is created if it does not exist.
    pub dir: String,
    /// Users who may use the directory.
    #[serde(flatten, default)]
    pub access: Access,
}

/// Permissions of a mounted directory or a unix socket. By default only the daemon's user has
/// access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Access {
    /// Id of the user who owns all files; by default that of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Id of the group of all files; by default that of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Read and write permissions of files, as a number like chmod's; by default 0600. Write
    /// permission does not apply to snapshots. Users who may read files may also enter directories.
    /// For a socket, users with write permission may connect; the default is 0660 if a group is
    /// given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// For a mount: if true, users other than the daemon's may reach the directory at all. They
    /// always may if the daemon runs as root.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_other: bool,
}

/// Request for an NBD export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateNbd {
    /// `pool/volume`, or `pool/volume@snapshot` (read-only).
    pub name: String,
    /// Absolute path of a unix socket to create. If neither `unix` nor `tcp` is given, the socket
    /// is created beside the control socket.
    pub unix: Option<String>,
    /// TCP address to listen on, `host:port`.
    pub tcp: Option<String>,
    /// If true, writes are refused.
    #[serde(default)]
    pub readonly: bool,
    /// If true, the export is created although another export lets clients write to the same
    /// volume.
    #[serde(default)]
    pub force: bool,
    /// If true, the export ends with the daemon and is not restored at its next start, its socket
    /// gets a unique name, and the daemon ends it when it has had no client for a minute.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// If true, the client receives a stream into the volume, so it may use it while the receive is
    /// incomplete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receive: bool,
    /// If true, the export may serve other machines without authentication and encryption.
    #[serde(default)]
    pub insecure: bool,
    /// Encryption. Without it, STARTTLS is refused.
    #[serde(default)]
    pub tls: Option<CreateTls>,
    /// Users who may connect to the unix socket.
    #[serde(default)]
    pub access: Access,
    /// Limits for clients.
    #[serde(flatten, default)]
    pub limits: NbdLimits,
}

/// Encryption policy for clients, as requests give it. Other words are refused; answers have
/// [`ExportTlsMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TlsMode {
    /// Clients that ask for TLS get it; other clients are served without.
    Allow,
    /// Clients without TLS are refused.
    Require,
}

/// TLS configuration: a directory, or a certificate and its key, or a file of pre-shared keys.
/// Paths are absolute, on the daemon's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateTls {
    /// Encryption policy for clients.
    pub mode: TlsMode,
    /// Directory with `server-cert.pem` and `server-key.pem` (and `ca-cert.pem`), or with
    /// `keys.psk`.
    pub dir: Option<String>,
    /// PEM file of the server's certificate.
    pub cert: Option<String>,
    /// PEM file of the certificate's key.
    pub key: Option<String>,
    /// PEM file of the authority that signs clients' certificates.
    pub ca: Option<String>,
    /// If true, clients without a certificate signed by that authority are refused.
    #[serde(default)]
    pub verify_peer: bool,
    /// File of pre-shared keys, one line `identity:hexkey` each.
    pub psk: Option<String>,
    /// With `verify_peer`: names of the clients that are served. A name matches the common name of
    /// the certificate's subject, or a DNS name, mail address, URI or IP address in it. Empty: all
    /// clients.
    #[serde(default)]
    pub clients: Vec<String>,
}

/// Limits for the clients of an NBD export. A missing limit is taken from the daemon's
/// configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NbdLimits {
    /// Clients connected at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clients: Option<u32>,
    /// Requests in flight per client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u16>,
    /// Time limit for the handshake, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_seconds: Option<u32>,
}

words! {
    /// Encryption policy of an export for clients.
    pub enum ExportTlsMode {
        /// Clients that ask for TLS get it; other clients are served without.
        Allow = "allow",
        /// Clients without TLS are refused.
        Require = "require",
    }
}

impl From<TlsMode> for ExportTlsMode {
    fn from(mode: TlsMode) -> ExportTlsMode {
        match mode {
            TlsMode::Allow => ExportTlsMode::Allow,
            TlsMode::Require => ExportTlsMode::Require,
        }
    }
}

words! {
    /// Kind of credentials for TLS.
    pub enum TlsCredentials {
        /// A certificate and its key.
        Certificate = "certificate",
        /// Pre-shared keys.
        Psk = "psk",
    }
}

/// Encryption of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportTls {
    /// Encryption policy for clients.
    pub mode: ExportTlsMode,
    /// Kind of the server's credentials.
    pub credentials: TlsCredentials,
    /// True if clients need a certificate.
    pub verify_peer: bool,
    /// Paths of the certificate, key and other files.
    pub files: Vec<String>,
    /// With `psk`: the first identity in the file.
    pub identity: Option<String>,
    /// Names of the clients that are served, compared with their certificates. Empty: all clients.
    #[serde(default)]
    pub clients: Vec<String>,
}

/// Request for an export as a vhost-user-blk device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVhostUser {
    /// `pool/volume`, or `pool/volume@snapshot` (read-only).
    pub name: String,
    /// Absolute path of a unix socket to create. Without it, the socket is created beside the
    /// control socket.
    pub unix: Option<String>,
    /// Number of queues that a guest may use; by default 64.
    pub queues: Option<u16>,
    /// If true, writes are refused.
    #[serde(default)]
    pub readonly: bool,
    /// If true, the export is created although another export lets clients write to the same
    /// volume.
    #[serde(default)]
    pub force: bool,
    /// Users who may connect to the socket.
    #[serde(default)]
    pub access: Access,
}

/// A client of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportClient {
    /// Address of the peer.
    pub peer: String,
    /// Time when the client connected.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Protocol and cipher, if the connection is encrypted.
    pub tls: Option<String>,
    /// Counters of the client's requests.
    pub io: GuestIo,
}

words! {
    /// Protocol of an export.
    pub enum ExportKind {
        /// NBD.
        Nbd = "nbd",
        /// vhost-user, to hypervisors on this machine.
        VhostUser = "vhost-user",
        /// A mounted directory.
        Fuse = "fuse",
    }
}

words! {
    /// State of an export.
    pub enum ExportState {
        /// Clients are served.
        Online = "online",
        /// Its pool has stopped: clients stay connected and their writes fail.
        Stopped = "stopped",
        /// Not served.
        Unavailable = "unavailable",
    }
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Id of the export, kept across restarts.
    pub id: u64,
    /// Protocol.
    pub kind: ExportKind,
    /// `pool/volume` or `pool/volume@snapshot`; for a mount, the name of the pool.
    pub name: String,
    /// Address for clients: the path of the socket, `host:port`, or both, separated by a comma. For
    /// a mount, the directory.
    pub address: String,
    /// For NBD: URIs of the export.
    pub uris: Vec<String>,
    /// Path of the unix socket.
    pub unix: Option<String>,
    /// TCP address, `host:port`.
    pub tcp: Option<String>,
    /// True if writes are refused.
    pub readonly: bool,
    /// True if a receive made it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receive: bool,
    /// TLS configuration, if TLS is offered.
    pub tls: Option<ExportTls>,
    /// Limits for clients, as far as they were set for this export.
    #[serde(flatten)]
    pub limits: NbdLimits,
    /// Permissions of the mount or the unix socket, as far as they were set for this export.
    #[serde(flatten)]
    pub access: Access,
    /// For vhost-user: number of queues that a guest may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// State of the export.
    pub state: ExportState,
    /// Reason why the export is not online.
    pub reason: Option<String>,
    /// Number of clients connected now; for a mount, of open files.
    pub clients: u64,
    /// Clients connected now.
    pub connections: Vec<ExportClient>,
    /// Counters of all clients since the export was created or restored.
    pub io: GuestIo,
    /// For a mount: volumes and snapshots that were opened and still exist.
    #[serde(default)]
    pub volumes: Vec<ExportVolume>,
}

/// Volume or snapshot that is served as a file of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportVolume {
    /// `pool/volume` or `pool/volume@snapshot`.
    pub name: String,
    /// Path of the file.
    pub address: String,
    /// True if writes are refused.
    pub readonly: bool,
    /// Number of open file handles.
    pub clients: u64,
    /// Counters of the file's requests since the mount.
    pub io: GuestIo,
}
