//! Removes the labels from the devices of a pool that is destroyed: from all that are present, even
//! when one of them fails.

use std::path::PathBuf;
use std::time::Duration;

use millpond_api::{ApiError, ErrorKind, LeftDevice};

use super::labels;
use super::pools::parse_id;
use super::scan::newer;
use super::service::Daemon;
use super::state::PoolRecord;

/// How long a device may take to lose its label.
const PATIENCE: Duration = Duration::from_secs(30);

impl Daemon {
    /// Refuses to destroy a pool that is not in service because another host holds it, or because a
    /// newer version wrote one of its labels.
    pub(super) async fn refuse_others(&self, name: &str) -> Result<(), ApiError> {
        let record = self.registry().pools.get(name).filter(|entry| entry.shard.is_err()).map(|entry| entry.record.clone());
        let Some(record) = record else { return Ok(()) };
        let (id, me) = (parse_id(&record.id), self.options.tuning.holder.as_ref().map(|holder| holder.host));
        let scan = self.scan(record.paths().cloned().chain(labels::host_devices()).collect()).await;
        if let Some((path, .., why)) = scan.foreign.iter().find(|(_, of, ..)| Some(*of) == id) {
            let why = ApiError::new(ErrorKind::Unavailable, newer(path, why));
            return Err(why.during(format!("cannot destroy pool '{name}'")));
        }
        let claims = scan.pools.into_iter().filter(|pool| Some(pool.id) == id).filter_map(|pool| pool.claim);
        match claims.into_iter().find(|claim| !claim.released && Some(claim.holder.host) != me) {
            Some(claim) => Err(ApiError::busy(format!(
                "pool '{name}' was not closed by host '{}'; destroy it there, or take it over first with 'millpond pool import {name} --force'",
                claim.holder.name
            ))),
            None => Ok(()),
        }
    }

    /// Overwrites the labels on all devices of a pool that are present, at whatever path. Returns
    /// the absent devices.
    ///
    /// # Errors
    /// When the label of a present device cannot be overwritten, or is of a newer version; those of
    /// the others are overwritten all the same.
    pub(super) async fn take_labels(&self, record: &PoolRecord) -> Result<Vec<LeftDevice>, ApiError> {
        let name = &record.name;
        let id = parse_id(&record.id).ok_or_else(|| ApiError::internal(format!("pool '{name}' has no valid id")))?;
        let remembered: Vec<PathBuf> = record.paths().cloned().collect();
        let scan = self.scan(remembered.iter().cloned().chain(labels::host_devices()).collect()).await;
        let pool = scan.pools.iter().find(|pool| pool.id == id);
        let found = pool.map(labels::Labelled::devices).unwrap_or_default();
        let absent = |path: &PathBuf| scan.absent.contains(path);
        let foreign = scan.foreign.iter().filter(|(_, of, ..)| *of == id).map(|(path, ..)| path);
        let elsewhere = found.iter().chain(foreign).filter(|path| !remembered.contains(path));
        let mut failed = Vec::new();
        for path in remembered.iter().filter(|path| !absent(path)).chain(elsewhere) {
            let wiped = self.calls.call(path, PATIENCE, move |path| labels::wipe(path, id, |_| true)).await;
            match wiped {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => failed.push(format!("{}: {error}", path.display())),
                Err(silent) => failed.push(silent.to_string()),
            }
        }
        // a device that has moved was found at its new path
        let moved = |at: usize| pool.is_some_and(|pool| pool.members.get(at).is_some_and(Option::is_some));
        let members = record.devices.iter().enumerate().filter(|(at, _)| !moved(*at)).map(|(_, path)| path);
        let gone = members.chain(&record.replacements).filter(|path| absent(path));
        let left = gone.map(|path| LeftDevice { path: path.display().to_string(), reason: "the device is not there".to_owned() });
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
