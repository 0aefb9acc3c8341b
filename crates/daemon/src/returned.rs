//! Devices that are back while their pool goes on without them: the daemon reports where they are,
//! and how to use them again.
//!
//! *Architecture Invariant:* the daemon never uses such a device by itself. The device is out of
//! date, and its pool has gone on without it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use millpond_api::EventKind;
use millpond_format::{DeviceId, FEATURES, FormatError, MemberState, PoolId};
use tokio::time::sleep;

use super::device_health::Found;
use super::events::Happened;
use super::host_calls::PATIENCE;
use super::labels;
use super::service::Daemon;
use super::shard::ShardHandle;

/// Time between two looks at the last paths of missing devices.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two looks at all block devices of the host: a disk that is plugged in again has
/// another name.
const ALL: Duration = Duration::from_secs(30);
/// Most devices examined at a time.
const AT_A_TIME: usize = 32;

impl Daemon {
    /// Looks for devices that pools in service lack, as long as the daemon lives.
    pub(super) async fn watch_returned(&self) {
        let mut due = Instant::now();
        loop {
            sleep(LOOK).await;
            let everywhere = due <= Instant::now();
            if everywhere {
                due = Instant::now() + ALL;
            }
            for (name, shard) in self.shards() {
                self.look_for_returned(&name, &shard, everywhere).await;
            }
        }
    }

    async fn look_for_returned(&self, name: &str, shard: &ShardHandle, everywhere: bool) {
        let Ok(status) = shard.status().await else { return };
        let Some(record) = self.registry().pools.get(name).map(|entry| entry.record.clone()) else { return };
        let names = self.device_names(name, &status);
        let down = status.pool.devices.iter().filter(|device| device.state == MemberState::Down && device.replacement.is_none());
        let lacking: BTreeMap<DeviceId, (String, String, Option<PathBuf>)> = down
            .map(|device| {
                let id = names.get(device.member, false).map(|named| named.id.clone()).unwrap_or_default();
                (device.id, (id, names.member(device.member), record.last_path(device.member).cloned()))
            })
            .collect();
        let mut found = BTreeMap::new();
        if !lacking.is_empty() {
            let open: Vec<&PathBuf> = status.devices.iter().flatten().map(|host| &host.path).collect();
            let last = lacking.values().filter_map(|(_, _, path)| path.clone());
            let others = if everywhere { labels::host_devices() } else { Vec::new() };
            let silent = self.unanswering();
            let paths: BTreeSet<PathBuf> = last.chain(others).chain(self.known_returned(name)).collect();
            let paths = paths.into_iter().filter(|path| !open.contains(&path) && !silent.contains(path));
            let labelled = self.labelled(status.pool.id, paths).await;
            let (known, unnamed): (Vec<_>, Vec<_>) = labelled.into_iter().partition(|(label, _)| label.device.is_some());
            for (Label { device, newer }, path) in known {
                if let Some((id, called, _)) = device.and_then(|device| lacking.get(&device)) {
                    found.entry(id.clone()).or_insert(Found { called: called.clone(), path, newer });
                }
            }
            for (Label { newer, .. }, path) in unnamed {
                // its id is unknown: it is taken for the one that was last there, or else for any
                let was_there = lacking.values().find(|(_, _, last)| last.as_ref() == Some(&path));
                if let Some((id, called, _)) = was_there.or_else(|| lacking.values().find(|(id, ..)| !found.contains_key(id))) {
                    found.entry(id.clone()).or_insert(Found { called: called.clone(), path, newer });
                }
            }
        }
        let news = {
            let mut registry = self.registry();
            let Some(entry) = registry.pools.get_mut(name) else { return };
            entry.device_health.found_again(name, &found)
        };
        for (called, message) in news {
            self.report(Happened::to_device(EventKind::DeviceReturned, name, &called, message));
        }
    }

    /// Returns the paths where devices were found that the pool does not use.
    fn known_returned(&self, name: &str) -> Vec<PathBuf> {
        self.registry().pools.get(name).map(|entry| entry.device_health.returned()).unwrap_or_default()
    }

    /// Returns the labels of a pool at some paths.
    async fn labelled(&self, pool: PoolId, paths: impl Iterator<Item = PathBuf>) -> Vec<(Label, PathBuf)> {
        let look = |path: PathBuf| async move {
            let looked = self.calls.call(&path, PATIENCE, move |path: &Path| Label::at(path, pool)).await;
            Some((looked.ok()?.ok()??, path))
        };
        stream::iter(paths).map(look).buffered(AT_A_TIME).filter_map(async |found| found).collect().await
    }
}

/// A label of a pool.
#[derive(Debug, PartialEq, Eq)]
struct Label {
    /// Its device; `None` if this version cannot read it.
    device: Option<DeviceId>,
    /// Reason why this version does not use the device, if a later one wrote the label.
    newer: Option<FormatError>,
}

impl Label {
    /// Reads the label of a device; `None` if it is not of the pool.
    ///
    /// # Errors
    /// I/O errors of the host, when the device cannot be opened or read.
    fn at(path: &Path, pool: PoolId) -> io::Result<Option<Label>> {
        if let Some(label) = labels::read(path)? {
            // what only a later version may write to was in service there: it may have newer data
            let newer = label.unknown_to_writers(FEATURES).map(FormatError::Incompatible);
            return Ok((label.pool == pool).then_some(Label { device: Some(label.device), newer }));
        }
        let newer = labels::of_other_program(path)?.filter(|(of, ..)| *of == pool);
        Ok(newer.map(|(.., why)| Label { device: None, newer: Some(why) }))
    }
}
