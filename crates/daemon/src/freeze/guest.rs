//! Guests to freeze, and the sockets of their agents.

use std::path::PathBuf;

use millpond_api::ApiError;
use millpond_engine::{Target, VolumeId};

use crate::service::Daemon;
use crate::shard::{ShardError, ShardHandle};

/// Longest path of a unix socket in bytes, by the kernel.
const MOST_PATH: usize = 107;

/// A guest to freeze: the socket of its agent, and the volume that a message names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Guest {
    /// Unix socket of the agent's channel.
    pub(crate) socket: PathBuf,
    /// `pool/volume`.
    pub(crate) volume: String,
    /// The volume has clients, so there is a guest.
    pub(crate) used: bool,
}

/// Checks a template for the sockets of agents.
///
/// # Errors
/// When it is no absolute path.
pub(crate) fn check(template: &str) -> Result<(), ApiError> {
    if !template.starts_with('/') || template.len() > 1024 || template.contains(char::is_control) {
        return Err(ApiError::usage(format!(
            "'{template}' is not the absolute path of a socket; give for example /var/run/qemu-server/{{vmid}}.qga"
        )));
    }
    Ok(())
}

/// Returns the socket of the agent of the guest that has a volume: `{pool}`, `{volume}`, and
/// `{vmid}`, the number in names like `vm-100-disk-0`, are replaced.
///
/// # Errors
/// The reason, if the name has no such number or the path is too long.
pub(super) fn socket_of(template: &str, volume: &str) -> Result<PathBuf, String> {
    let (pool, name) = volume.split_once('/').unwrap_or((volume, ""));
    let mut path = template.replace("{pool}", pool).replace("{volume}", name);
    if path.contains("{vmid}") {
        let number = ["vm-", "base-"].iter().find_map(|start| name.strip_prefix(start)?.split('-').next());
        let number = number.filter(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        path = path.replace("{vmid}", number.ok_or_else(|| format!("'{name}' has no number of a guest, as vm-100-disk-0 has"))?);
    }
    if path.len() > MOST_PATH {
        return Err(format!("{path} has more than {MOST_PATH} bytes"));
    }
    Ok(PathBuf::from(path))
}

/// Returns each guest once.
pub(super) fn merged(guests: Vec<Guest>) -> Vec<Guest> {
    let mut once: Vec<Guest> = Vec::new();
    for guest in guests {
        match once.iter_mut().find(|other| other.socket == guest.socket) {
            Some(other) => other.used |= guest.used,
            None => once.push(guest),
        }
    }
    once
}

impl Daemon {
    /// Returns the guest that has each of these volumes of a pool as a disk, by a template for the
    /// sockets of their agents, or the reason why the template gives no socket.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub(crate) async fn guests_of(
        &self,
        template: &str,
        shard: &ShardHandle,
        volumes: &[(VolumeId, String)],
    ) -> Result<Vec<Result<Guest, String>>, ShardError> {
        let (exports, open) = (shard.exports().await?, shard.open_files().await?);
        let guest = |(id, volume): &(VolumeId, String)| {
            let target = Target::Head(*id);
            let served = exports.iter().any(|export| export.target == Some(target) && !export.read_only && !export.clients.is_empty());
            let used = served || open.iter().any(|file| file.target == target);
            let socket = socket_of(template, volume).map_err(|reason| format!("{volume}: {reason}"))?;
            Ok(Guest { socket, volume: volume.clone(), used })
        };
        Ok(volumes.iter().map(guest).collect())
    }
}
