//! Searches for pools on files and block devices. A thread examines each, so that one that does not
//! answer delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use futures_util::{StreamExt, stream};
use millpond_api::{ApiError, ErrorKind, Found, FoundState};
use millpond_format::{FormatError, PoolId};

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
    /// Devices of pools that this version does not know, with id and name of the pool, and why.
    pub foreign: Vec<(PathBuf, PoolId, String, FormatError)>,
    /// Paths where there is nothing that could be a device. An error that does not say so makes a path
    /// unreadable.
    pub absent: Vec<PathBuf>,
}

impl Scan {
    /// Returns why a pool is not used that has such devices and no others.
    pub(super) fn newer(&self, wanted: &str) -> Option<ApiError> {
        let is_wanted = |id: &PoolId, name: &str| name == wanted || id.to_string() == wanted;
        if self.pools.iter().any(|pool| is_wanted(&pool.id, &pool.name)) {
            return None;
        }
        let (path, .., why) = self.foreign.iter().find(|(_, id, name, _)| is_wanted(id, name))?;
        Some(ApiError::new(ErrorKind::Unavailable, newer(path, why)))
    }

    /// Returns the pools that have such devices and no others.
    pub(super) fn newer_pools(&self) -> Vec<Found> {
        let mut found: BTreeMap<PoolId, Found> = BTreeMap::new();
        for (path, id, name, why) in self.foreign.iter().filter(|(_, id, ..)| self.pools.iter().all(|pool| pool.id != *id)) {
            let pool = found.entry(*id).or_insert_with(|| Found {
                name: name.clone(),
                id: id.to_string(),
                state: FoundState::Newer,
                devices: Vec::new(),
                missing: Vec::new(),
                missing_devices: Vec::new(),
                checkpoint: None,
                lost: None,
                warning: Some(newer(path, why)),
                used_by: None,
                used_at: None,
            });
            pool.devices.push(path.display().to_string());
        }
        found.into_values().collect()
    }

    /// Notes the devices of each pool whose labels this version does not know, by the pool's id.
    fn note_foreign(&mut self) {
        for pool in &mut self.pools {
            let of_pool = self.foreign.iter().filter(|(_, id, ..)| *id == pool.id);
            pool.foreign = of_pool.map(|(path, .., why)| (path.clone(), *why)).collect();
        }
    }
}

/// Checks that this version knows the label of every device of a pool that was found.
///
/// # Errors
/// When it does not: a device with such a label may have the newest state of the pool.
pub(super) fn check_readable(pool: &Labelled) -> Result<(), ApiError> {
    match pool.foreign.first() {
        Some((path, why)) => Err(ApiError::new(ErrorKind::Unavailable, newer(path, why))),
        None => Ok(()),
    }
}

/// Returns the message about a device of a pool of another version.
pub(super) fn newer(path: &Path, why: &FormatError) -> String {
    format!(
        "{} has a label of a newer version of Millpond ({why}); install that version or a later one, nothing was changed",
        path.display()
    )
}

/// Result of looking at one path.
enum Outcome {
    Found(Box<Looked>),
    Foreign(PathBuf, PoolId, String, FormatError),
    Nothing,
    Silent(NoAnswer),
    Unreadable(PathBuf, String),
    Absent(PathBuf),
}

impl Outcome {
    fn failed(path: PathBuf, error: &io::Error) -> Outcome {
        if labels::is_absent(error) { Outcome::Absent(path) } else { Outcome::Unreadable(path, error.to_string()) }
    }
}

impl Daemon {
    /// Examines the given files and block devices, and those directly in the given directories.
    pub(super) async fn scan(&self, search: Vec<PathBuf>) -> Scan {
        let mut scan = Scan::default();
        let listed = stream::iter(search).map(async |path| (self.calls.call(&path, PATIENCE, labels::candidates).await, path));
        let listed: Vec<_> = listed.buffered(AT_A_TIME).collect().await;
        let mut paths = Vec::new();
        for candidates in listed {
            match candidates {
                (Ok(Ok(found)), path) if found.is_empty() => scan.absent.push(path),
                (Ok(Ok(found)), _) => paths.extend(found),
                (Ok(Err(error)), path) => scan.unreadable.push((path, error.to_string())),
                (Err(silent), _) => scan.silent.push(silent),
            }
        }
        // a path may be in the list twice; keep the first, which is where a device was remembered
        let mut seen = BTreeSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        let looked = stream::iter(paths).map(async |path| match self.calls.call(&path, PATIENCE, labels::look).await {
            Ok(Ok(Some(looked))) => Outcome::Found(Box::new(looked)),
            Ok(Ok(None)) => match self.calls.call(&path, PATIENCE, labels::of_other_program).await {
                Ok(Ok(Some((pool, name, why)))) => Outcome::Foreign(path, pool, name, why),
                Ok(Ok(None)) => Outcome::Nothing,
                Ok(Err(error)) => Outcome::failed(path, &error),
                Err(silent) => Outcome::Silent(silent),
            },
            Ok(Err(error)) => Outcome::failed(path, &error),
            Err(silent) => Outcome::Silent(silent),
        });
        let mut found = Vec::new();
        for outcome in looked.buffered(AT_A_TIME).collect::<Vec<_>>().await {
            match outcome {
                Outcome::Found(looked) => found.push(*looked),
                Outcome::Foreign(path, pool, name, why) => scan.foreign.push((path, pool, name, why)),
                Outcome::Nothing => {}
                Outcome::Silent(silent) => scan.silent.push(silent),
                Outcome::Unreadable(path, why) => scan.unreadable.push((path, why)),
                Outcome::Absent(path) => scan.absent.push(path),
            }
        }
        scan.pools = Labelled::group(found);
        scan.note_foreign();
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
