//! Removes the labels from the devices of a pool that is destroyed: from all that are present, even
//! when one of them fails. A pool that is not in service is examined first.

use std::path::PathBuf;
use std::time::Duration;

use millpond_api::{ApiError, ErrorKind, LeftDevice};
use millpond_engine::Aim;

use super::destroy_pool::{Doomed, needs_newer, refuse_read_only};
use super::import::How;
use super::labels;
use super::pools::parse_id;
use super::scan::{Scan, newer};
use super::service::Daemon;
use super::state::PoolRecord;

/// How long a device may take to lose its label.
const PATIENCE: Duration = Duration::from_secs(30);

impl Daemon {
    /// Checks that a pool that is not in service may be destroyed, and reads its content. A pool of
    /// which no device is found is only forgotten: it has no content, and no device loses its label.
    ///
    /// # Errors
    /// When another host holds it, a newer version wrote one of its labels or turned on features that
    /// this one lacks, its snapshots are locked, or it cannot be opened to find that out (INV-HOLD-2).
    pub(super) async fn examine_to_destroy(&self, name: &str) -> Result<Doomed, ApiError> {
        let during = format!("cannot destroy pool '{name}'");
        let record = self.registry().pools.get(name).map(|entry| entry.record.clone());
        let record = record.ok_or_else(|| ApiError::internal(format!("pool '{name}' has no record")))?;
        let id = parse_id(&record.id);
        let scan = self.scan(record.paths().cloned().chain(labels::host_devices()).collect()).await;
        if let Some((path, .., why)) = scan.foreign.iter().find(|(_, of, ..)| Some(*of) == id) {
            return Err(ApiError::new(ErrorKind::Unavailable, newer(path, why)).during(during));
        }
        let Some(found) = scan.pools.iter().find(|pool| Some(pool.id) == id) else {
            return Ok(Doomed::default().read_from(Vec::new()));
        };
        if let Some((_, unknown)) = found.unknown.first() {
            return Err(needs_newer(name, unknown));
        }
        refuse_read_only(name, record.read_only)?;
        let me = self.options.tuning.holder.as_ref().map(|holder| holder.host);
        if let Some(claim) = found.claim.as_ref().filter(|claim| !claim.released && Some(claim.holder.host) != me) {
            return Err(ApiError::busy(format!(
                "pool '{name}' was not closed by host '{}'; destroy it there, or take it over first with 'millpond pool import {name} --force'",
                claim.holder.name
            )));
        }
        let shard = self.open(found, &How::reading(Aim::Newest)).await.map_err(|failed| {
            let ApiError { message, .. } = failed.error;
            let why = format!(
                "{during}: it cannot be read whether its snapshots are locked ({message}); bring all its devices back, or export it and \
                 overwrite them with 'millpond pool create -f'"
            );
            ApiError::new(ErrorKind::Unavailable, why)
        })?;
        let doomed = Doomed::of(name, &shard).await;
        // nothing was written to it, so its end cannot fail in a way that matters
        let _ = shard.shutdown().await;
        Ok(doomed?.read_from(found.devices()))
    }

    /// Overwrites the labels on all devices of a pool that are present, at whatever path; with
    /// `examined`, only on these. Returns the devices that keep their labels: absent ones, and those
    /// of newer versions.
    ///
    /// # Errors
    /// When the label of a present device cannot be overwritten; those of the others are overwritten
    /// all the same.
    pub(super) async fn take_labels(&self, record: &PoolRecord, examined: Option<&[PathBuf]>) -> Result<Vec<LeftDevice>, ApiError> {
        let name = &record.name;
        let id = parse_id(&record.id).ok_or_else(|| ApiError::internal(format!("pool '{name}' has no valid id")))?;
        let remembered: Vec<PathBuf> = record.paths().cloned().collect();
        let scan = self.scan(remembered.iter().cloned().chain(labels::host_devices()).collect()).await;
        let pool = scan.pools.iter().find(|pool| pool.id == id);
        let found = pool.map(labels::Labelled::devices).unwrap_or_default();
        let left = left(record, &scan, &found, examined);
        let is_left = |path: &PathBuf| left.iter().any(|(other, _)| other == path);
        let present = remembered.iter().filter(|path| !scan.absent.contains(path));
        let elsewhere = found.iter().filter(|path| !remembered.contains(path));
        let mut failed = Vec::new();
        for path in present.chain(elsewhere).filter(|path| !is_left(path)) {
            let wiped = self.calls.call(path, PATIENCE, move |path| labels::wipe(path, id, |_| true)).await;
            match wiped {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => failed.push(format!("{}: {error}", path.display())),
                Err(silent) => failed.push(silent.to_string()),
            }
        }
        let left = left.into_iter().map(|(path, reason)| LeftDevice { path: path.display().to_string(), reason });
        let left: Vec<LeftDevice> = left.collect();
        if failed.is_empty() {
            return Ok(left);
        }
        failed.extend(left.iter().map(|left| format!("{}: {}", left.path, left.reason)));
        Err(ApiError::internal(format!(
            "pool '{name}' is no longer in service, but these devices still have labels: {}; reconnect them and overwrite them with 'millpond pool create -f'",
            failed.join("; ")
        )))
    }
}

/// Returns the devices of a pool that keep their labels when it is destroyed, and why. `found` are
/// those with labels that this version knows; of these, only the `examined` ones lose them.
fn left(record: &PoolRecord, scan: &Scan, found: &[PathBuf], examined: Option<&[PathBuf]>) -> Vec<(PathBuf, String)> {
    let id = parse_id(&record.id);
    let pool = scan.pools.iter().find(|pool| Some(pool.id) == id);
    // a device that has moved was found at its new path
    let moved = |at: usize| pool.is_some_and(|pool| pool.members.get(at).is_some_and(Option::is_some));
    let members = record.devices.iter().enumerate().filter(|(at, path)| !moved(*at) && !path.as_os_str().is_empty()).map(|(_, path)| path);
    let mut left: Vec<(PathBuf, String)> = Vec::new();
    for path in members.chain(&record.replacements).filter(|path| scan.absent.contains(path)) {
        left.push((path.clone(), "the device is not there".to_owned()));
    }
    let newer = scan.foreign.iter().filter(|(_, of, ..)| Some(*of) == id);
    left.extend(newer.map(|(path, .., why)| (path.clone(), format!("it has a label of a newer version of Millpond ({why})"))));
    if let Some(examined) = examined {
        let late = found.iter().filter(|path| !examined.contains(path));
        left.extend(late.map(|path| (path.clone(), "it was not there when the locks of the pool were read".to_owned())));
        let own = |path: &PathBuf| record.paths().any(|own| own == path);
        left.extend(scan.silent.iter().filter(|silent| own(&silent.path)).map(|silent| (silent.path.clone(), silent.to_string())));
        let unreadable = scan.unreadable.iter().filter(|(path, _)| own(path));
        left.extend(unreadable.map(|(path, why)| (path.clone(), format!("it cannot be read: {why}"))));
    }
    left
}
