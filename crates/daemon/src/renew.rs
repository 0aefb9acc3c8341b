//! Renewal of certificates and keys: when their files change, new clients get the new ones, without
//! a restart.
//!
//! The daemon examines the files every few seconds, not whenever a client connects: the thread that
//! serves all clients would then wait for a file system. A certificate and its key are two files,
//! so a look may fall between two changes; credentials that do not fit together are not used, and
//! the previous ones stay in force.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::service::Daemon;
use super::shard::ExportId;
use super::state::{Protocol, TlsRecord};
use super::tls::Credentials;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(3);

/// Identity of a file's content: device, inode, bytes, time of change in seconds and nanoseconds;
/// `None` when there is no file.
pub(crate) type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl Daemon {
    /// Renews the credentials of exports whose files have changed, as long as the daemon lives.
    pub(super) async fn renew(&self) {
        let mut seen: BTreeMap<u64, Vec<Stamp>> = BTreeMap::new();
        loop {
            let encrypted = self.encrypted();
            seen.retain(|id, _| encrypted.iter().any(|(known, ..)| known == id));
            for (id, pool, record) in encrypted {
                let before = seen.get(&id).cloned();
                let Ok((stamps, loaded)) = tokio::task::spawn_blocking(move || look(&record, before.as_deref())).await else { continue };
                // The first look has nothing to compare with: it reads the credentials in force, or
                // newer ones.
                let first = seen.insert(id, stamps).is_none();
                match loaded {
                    None => {}
                    Some(Ok(credentials)) => self.put_in_force(id, &pool, credentials, first).await,
                    Some(Err(error)) => {
                        tracing::warn!(export = id, "TLS: {error}; the previous credentials stay in force");
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn put_in_force(&self, id: u64, pool: &str, credentials: Credentials, first: bool) {
        let identity = credentials.identity().map(str::to_owned);
        let Ok(shard) = self.shard(pool) else { return };
        if shard.renew_tls(ExportId(id), credentials).await.is_err() {
            return; // the export or its pool has just ended
        }
        if let Some(entry) = self.registry().exports.get_mut(&id)
            && let Protocol::Nbd { tls: Some(record), .. } = &mut entry.record.protocol
        {
            record.identity = identity;
        }
        if !first {
            tracing::info!(export = id, "renewed TLS credentials are in force for new clients");
        }
    }

    /// Returns the exports with encryption that are served, and their pools.
    fn encrypted(&self) -> Vec<(u64, String, TlsRecord)> {
        let registry = self.registry();
        let served = registry.exports.values().filter(|entry| entry.trouble.is_none());
        let with_tls = served.filter_map(|entry| match &entry.record.protocol {
            Protocol::Nbd { tls: Some(tls), .. } => Some((entry.record.id, entry.record.pool.clone(), tls.clone())),
            _ => None,
        });
        with_tls.collect()
    }
}

/// Reads the files if they have changed. The stamps are taken first, so that the next look sees a
/// change during the read.
fn look(record: &TlsRecord, before: Option<&[Stamp]>) -> (Vec<Stamp>, Option<Result<Credentials, String>>) {
    let stamps: Vec<Stamp> = record.files.paths().into_iter().map(stamp).collect();
    if before == Some(stamps.as_slice()) {
        return (stamps, None);
    }
    let loaded = record.files.load().map(|credentials| credentials.for_clients(&record.clients)).map_err(|error| error.to_string());
    (stamps, Some(loaded))
}

pub(crate) fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()))
}
