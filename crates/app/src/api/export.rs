//! Exports: volumes and snapshots served to clients.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::GuestIo;

/// Asks for an export.
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
    /// The pool of what is to be served, as the request has it.
    pub fn pool(&self) -> &str {
        match self {
            CreateExport::Nbd(CreateNbd { name, .. }) | CreateExport::VhostUser(CreateVhostUser { name, .. }) => {
                name.split_once('/').map_or(name, |(pool, _)| pool)
            }
            CreateExport::Fuse(request) => &request.pool,
        }
    }
}

/// Asks for a pool to be mounted: one image file per volume, `.snapshots/VOL/SNAP` read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateFuse {
    /// The pool.
    pub pool: String,
    /// Absolute path of an empty directory; made where missing.
    pub dir: String,
    /// Who may use it.
    #[serde(flatten, default)]
    pub access: Access,
}

/// Who may use a mounted directory or connect to a unix socket; where nothing is said, who runs the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Access {
    /// User that everything belongs to, by number; that of the daemon when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permissions of files, as chmod's number: reading and writing alone; 0600 when missing. Snapshots have no write permission, directories
    /// can be entered by those who may read. Who may write to a socket may connect to it; 0660 when missing for one that a group is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// Of a mount: let others than the daemon's user reach it at all. A daemon that is root always does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_other: bool,
}

/// Asks for an NBD export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateNbd {
    /// `pool/volume`, or `pool/volume@snapshot` (read-only).
    pub name: String,
    /// Absolute path of a unix socket to make; with neither this nor `tcp`, one beside the control socket.
    pub unix: Option<String>,
    /// TCP address, `host:port`.
    pub tcp: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub readonly: bool,
    /// Also when another export lets clients write to the same volume.
    #[serde(default)]
    pub force: bool,
    /// It ends with the daemon instead of coming back with it, and its socket has a name that no other export gets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// Agree to serve other machines although nothing authenticates or encrypts them.
    #[serde(default)]
    pub insecure: bool,
    /// Encryption; without it, STARTTLS is refused.
    #[serde(default)]
    pub tls: Option<CreateTls>,
    /// Who may connect to the unix socket.
    #[serde(default)]
    pub access: Access,
    /// What clients may take.
    #[serde(flatten, default)]
    pub limits: NbdLimits,
}

/// Whether clients have to encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TlsMode {
    /// Those who ask for it are served with TLS, the others without.
    Allow,
    /// Clients without TLS are turned away.
    Require,
}

/// Asks for TLS: with a directory, or a certificate and its key, or a file of keys. Paths are absolute, of the daemon's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateTls {
    /// Whether clients have to.
    pub mode: TlsMode,
    /// Directory with `server-cert.pem` and `server-key.pem` (and `ca-cert.pem`), or with `keys.psk`.
    pub dir: Option<String>,
    /// PEM file of the server's certificate.
    pub cert: Option<String>,
    /// PEM file of its key.
    pub key: Option<String>,
    /// PEM file of the authority that signs clients' certificates.
    pub ca: Option<String>,
    /// Turn away clients without a certificate signed by that authority.
    #[serde(default)]
    pub verify_peer: bool,
    /// File of pre-shared keys, a line `identity:hexkey` for each.
    pub psk: Option<String>,
    /// With `verify_peer`: the clients that are served, by a name in their certificate (subject's common name, DNS, mail, URI or address); empty: all.
    #[serde(default)]
    pub clients: Vec<String>,
}

/// What the clients of an NBD export may take; where nothing is said, the daemon's configuration counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NbdLimits {
    /// Clients at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clients: Option<u32>,
    /// Requests in flight of each client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u16>,
    /// Seconds that a client may negotiate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_seconds: Option<u32>,
}

/// How an export is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportTls {
    /// Whether clients have to.
    pub mode: TlsMode,
    /// `certificate` or `psk`.
    pub credentials: String,
    /// Clients need a certificate.
    pub verify_peer: bool,
    /// The files.
    pub files: Vec<String>,
    /// With `psk`: the first identity of the file.
    pub identity: Option<String>,
    /// The clients that are served, by a name in their certificate; empty: all.
    #[serde(default)]
    pub clients: Vec<String>,
}

/// Asks for an export as a vhost-user-blk device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVhostUser {
    /// `pool/volume`, or `pool/volume@snapshot` (read-only).
    pub name: String,
    /// Absolute path of a unix socket to make; without it, one beside the control socket.
    pub unix: Option<String>,
    /// Queues that a guest may have; 64 when missing.
    pub queues: Option<u16>,
    /// Refuse writes.
    #[serde(default)]
    pub readonly: bool,
    /// Also when another export lets clients write to the same volume.
    #[serde(default)]
    pub force: bool,
    /// Who may connect to the socket.
    #[serde(default)]
    pub access: Access,
}

/// A client of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportClient {
    /// Address of the peer.
    pub peer: String,
    /// When it connected.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Protocol and cipher when its connection is encrypted.
    pub tls: Option<String>,
    /// What it did.
    pub io: GuestIo,
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Identity; kept across restarts.
    pub id: u64,
    /// `nbd`, `vhost-user` or `fuse`.
    pub kind: String,
    /// `pool/volume` or `pool/volume@snapshot`; of a mount, the pool.
    pub name: String,
    /// Where clients connect: the socket's path, `host:port`, or both with a comma; of a mount, the directory.
    pub address: String,
    /// NBD URIs of it, when it is one.
    pub uris: Vec<String>,
    /// Path of the unix socket.
    pub unix: Option<String>,
    /// TCP address.
    pub tcp: Option<String>,
    /// Writes are refused.
    pub readonly: bool,
    /// Encryption, where it is offered.
    pub tls: Option<ExportTls>,
    /// What clients may take, where that was said for this export.
    #[serde(flatten)]
    pub limits: NbdLimits,
    /// Who may use a mount or connect to the unix socket, where that was said.
    #[serde(flatten)]
    pub access: Access,
    /// Over vhost-user, queues that a guest may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// `online`; `stopped` with its pool: clients are connected, their writes fail; or `unavailable`.
    pub state: String,
    /// Why it is not online.
    pub reason: Option<String>,
    /// Number of clients connected now; of a mount, of open files.
    pub clients: u64,
    /// The clients.
    pub connections: Vec<ExportClient>,
    /// All clients since the export was made or restored.
    pub io: GuestIo,
    /// Of a mount, the volumes and snapshots that were opened and are still there.
    #[serde(default)]
    pub volumes: Vec<ExportVolume>,
}

/// A volume or snapshot that is served as a file of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportVolume {
    /// `pool/volume` or `pool/volume@snapshot`.
    pub name: String,
    /// Path of the file.
    pub address: String,
    /// Writes are refused.
    pub readonly: bool,
    /// How often it is open now.
    pub clients: u64,
    /// What went through it since it was mounted.
    pub io: GuestIo,
}
