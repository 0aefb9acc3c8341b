//! Searches for pools on files and block devices. A thread examines each, so that one that does not
//! answer delays no other.

use std::collections::BTreeSet;
use std::path::PathBuf;

use futures_util::{StreamExt, stream};

use super::host_calls::{NoAnswer, PATIENCE};
use super::labels;
use super::labels::{Labelled, Looked};
use super::service::Daemon;

/// Most devices examined at a time.
const AT_A_TIME: usize = 32;

/// Result of a search.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Pools that were found.
    pub pools: Vec<Labelled>,
    /// Devices that did not answer.
    pub silent: Vec<NoAnswer>,
    /// Devices that could not be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Given paths where there is nothing that could be a device.
    pub absent: Vec<PathBuf>,
}

/// Result of looking at one path.
enum Outcome {
    Found(Box<Looked>),
    Nothing,
    Silent(NoAnswer),
    Unreadable(PathBuf, String),
}

impl Daemon {
    /// Examines the given files and block devices, and those directly in the given directories.
    pub(super) async fn scan(&self, search: Vec<PathBuf>) -> Scan {
        let mut scan = Scan::default();
        let listed = stream::iter(search).map(async |path| (self.calls.call(&path, PATIENCE, labels::candidates).await, path));
        let listed: Vec<(Result<Vec<PathBuf>, NoAnswer>, PathBuf)> = listed.buffered(AT_A_TIME).collect().await;
        let mut paths = Vec::new();
        for candidates in listed {
            match candidates {
                (Ok(found), path) if found.is_empty() => scan.absent.push(path),
                (Ok(found), _) => paths.extend(found),
                (Err(silent), _) => scan.silent.push(silent),
            }
        }
        // a path may be in the list twice; keep the first, which is where a device was remembered
        let mut seen = BTreeSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        let looked = stream::iter(paths).map(async |path| match self.calls.call(&path, PATIENCE, labels::look).await {
            Ok(Ok(Some(looked))) => Outcome::Found(Box::new(looked)),
            Ok(Ok(None)) => Outcome::Nothing,
            Ok(Err(error)) => Outcome::Unreadable(path, error.to_string()),
            Err(silent) => Outcome::Silent(silent),
        });
        let mut found = Vec::new();
        for outcome in looked.buffered(AT_A_TIME).collect::<Vec<_>>().await {
            match outcome {
                Outcome::Found(looked) => found.push(*looked),
                Outcome::Nothing => {}
                Outcome::Silent(silent) => scan.silent.push(silent),
                Outcome::Unreadable(path, why) => scan.unreadable.push((path, why)),
            }
        }
        scan.pools = Labelled::group(found);
        scan
    }

    /// Looks for pools at the given paths; without any, at the remembered paths and on the block
    /// devices of the host.
    pub(super) async fn search(&self, given: &[String]) -> Scan {
        let search: Vec<PathBuf> = if given.is_empty() {
            let registry = self.registry();
            let unavailable = registry.pools.values().filter(|entry| entry.shard.is_err()).map(|entry| &entry.record);
            let remembered = registry.known.iter().chain(unavailable).flat_map(|record| record.paths().cloned().collect::<Vec<_>>());
            let found: Vec<PathBuf> = remembered.chain(labels::host_devices()).collect();
            drop(registry);
            let silent = self.unanswering();
            found.into_iter().filter(|path| !silent.contains(path)).collect()
        } else {
            given.iter().map(PathBuf::from).collect()
        };
        self.scan(search).await
    }
}
