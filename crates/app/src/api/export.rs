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
}

/// Asks for an NBD export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// Agree to serve other machines although nothing authenticates or encrypts them.
    #[serde(default)]
    pub insecure: bool,
}

/// A client of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportClient {
    /// Address of the peer.
    pub peer: String,
    /// When it connected.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// What it did.
    pub io: GuestIo,
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Identity; kept across restarts.
    pub id: u64,
    /// `nbd`.
    pub kind: String,
    /// `pool/volume` or `pool/volume@snapshot`.
    pub name: String,
    /// Where clients connect: the socket's path, `host:port`, or both with a comma.
    pub address: String,
    /// NBD URIs of it.
    pub uris: Vec<String>,
    /// Path of the unix socket.
    pub unix: Option<String>,
    /// TCP address.
    pub tcp: Option<String>,
    /// Writes are refused.
    pub readonly: bool,
    /// `online`, or `unavailable`.
    pub state: String,
    /// Why it is not online.
    pub reason: Option<String>,
    /// Number of clients connected now.
    pub clients: u64,
    /// The clients.
    pub connections: Vec<ExportClient>,
    /// All clients since the export was made or restored.
    pub io: GuestIo,
}
