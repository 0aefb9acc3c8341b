//! Removes the labels from the devices of a pool that is destroyed: from all that are present, even
//! when one of them fails. A pool that is not in service is examined first.

use std::path::PathBuf;
use std::time::Duration;

use millpond_api::{ApiError, ErrorKind, LeftDevice};
use millpond_block::DeviceSlot;
use millpond_engine::Aim;
use tokio::time::timeout;

use super::closing::Ending;
use super::destroy_pool::{Doomed, Examined, needs_newer, refuse_read_only};
use super::import::How;
use super::labels::{self, Wiped};
use super::pools::parse_id;
use super::refusal::describe;
use super::scan::{Scan, newer};
use super::service::Daemon;
use super::shard::ShardHandle;
use super::state::PoolRecord;

/// How long a device may take to lose its label.
const PATIENCE: Duration = Duration::from_secs(30);
/// Reason why a device of a destroyed pool keeps its label.
const NOT_EXAMINED: &str = "the pool did not use it when its locks were read";

impl Daemon {
    /// Checks that a pool that is not in service may be destroyed, and reads its content. A pool is
    /// only forgotten if none of its devices is there: it has no content, and no device loses its
    /// label.
    ///
    /// # Errors
    /// When another host holds it, a newer version wrote one of its labels or turned on features that
    /// this one lacks, a device does not answer, the devices found may not have the newest state, its
    /// snapshots are locked, or it cannot be opened to find that out (INV-HOLD-2).
    pub(super) async fn examine_to_destroy(&self, name: &str) -> Result<Doomed, ApiError> {
        let during = format!("cannot destroy pool '{name}'");
        let refused = |why: String| ApiError::new(ErrorKind::Unavailable, why).during(&during);
        let record = self.registry().pools.get(name).map(|entry| entry.record.clone());
        let record = record.ok_or_else(|| ApiError::internal(format!("pool '{name}' has no record")))?;
        let id = parse_id(&record.id);
        let scan = self.scan(record.paths().cloned().chain(labels::host_devices()).collect()).await;
        if let Some((path, .., why)) = scan.foreign.iter().find(|(_, of, ..)| Some(*of) == id) {
            return Err(refused(newer(path, why)));
        }
        let Some(found) = scan.pools.iter().find(|pool| Some(pool.id) == id) else {
            return match unread(&record, &scan).first() {
                Some((path, why)) => Err(refused(format!("{}: {why}; check it, or export the pool to forget it", path.display()))),
                None => Ok(Doomed::default()),
            };
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
        if let Some(path) = found.unread_claims.first() {
            let why = "its claim cannot be read, so another host may have the pool; import the pool, and destroy it then";
            return Err(refused(format!("{}: {why}", path.display())));
        }
        // without the labels that were in service here, a device that cannot be read may have newer ones
        if let (None, Some((path, why))) = (record.remembered(), unread(&record, &scan).first()) {
            return Err(refused(format!("{}: {why}; check it, or take it away", path.display())));
        }
        // an older state, or one side of several, may lack the locks of the others
        let (remembered, evidence) = (record.remembered(), self.evidence(found));
        if let Err(refusal) = self.rules().check(remembered.as_ref(), &evidence) {
            return Err(refused(describe(&refusal, &record, &found.sides, &found.foreign)));
        }
        let unreadable = |why: String| {
            refused(format!(
                "it cannot be read whether its snapshots are locked ({why}); bring all its devices back, or export it and overwrite them \
                 with 'millpond pool create -f'"
            ))
        };
        let how = How::reading(Aim::Newest).requiring(evidence.expected(remembered.as_ref()));
        let shard = self.open(found, &how).await.map_err(|failed| unreadable(failed.error.message))?;
        let patience = self.options.deadlines.idle;
        let silent = || unreadable(format!("its devices have not answered for {} s", patience.as_secs()));
        let doomed = timeout(patience, examined(name, &shard)).await.unwrap_or_else(|_| Err(silent()));
        match self.end_reading(&record, shard).await {
            Ending::Clean => doomed,
            Ending::Unclean(why) | Ending::InUse(why) => Err(doomed.err().unwrap_or_else(|| unreadable(why))),
        }
    }

    /// Overwrites the labels on the `examined` devices of a pool, where they were read. Returns the
    /// devices that keep their labels: absent ones, those that the pool did not use, and those of newer
    /// versions.
    ///
    /// # Errors
    /// When the label of one of these devices cannot be overwritten; those of the others are
    /// overwritten all the same.
    pub(super) async fn take_labels(&self, record: &PoolRecord, examined: &[Examined]) -> Result<Vec<LeftDevice>, ApiError> {
        let name = &record.name;
        let id = parse_id(&record.id).ok_or_else(|| ApiError::internal(format!("pool '{name}' has no valid id")))?;
        let remembered: Vec<PathBuf> = record.paths().cloned().collect();
        let scan = self.scan(remembered.iter().cloned().chain(labels::host_devices()).collect()).await;
        let pool = scan.pools.iter().find(|pool| pool.id == id);
        let found = pool.map(labels::Labelled::devices).unwrap_or_default();
        let mut left = left(record, &scan, &found, examined);
        let kept: Vec<PathBuf> = left.iter().map(|(path, _)| path.clone()).collect();
        let is_left = |path: &PathBuf| kept.contains(path);
        let (mut failed, mut others) = (Vec::new(), Vec::new());
        for (path, device) in examined.iter().filter(|(path, _)| !is_left(path)) {
            let device = *device;
            match self.calls.call(path, PATIENCE, move |path| labels::wipe(path, id, |found| found == device)).await {
                Ok(Ok(Wiped::Done)) => {}
                Ok(Ok(Wiped::Other(_))) => others.push((path.clone(), NOT_EXAMINED.to_owned())),
                Ok(Err(error)) => failed.push(format!("{}: {error}", path.display())),
                Err(silent) => failed.push(silent.to_string()),
            }
        }
        left.extend(others);
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
fn left(record: &PoolRecord, scan: &Scan, found: &[PathBuf], examined: &[Examined]) -> Vec<(PathBuf, String)> {
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
    // a device with features that writers have to know may be one that the pool did without
    let unknown = pool.into_iter().flat_map(|pool| &pool.unknown);
    left.extend(unknown.map(|(path, unknown)| (path.clone(), format!("it has a label of a newer version of Millpond (needs {unknown})"))));
    let is_examined = |path: &PathBuf| examined.iter().any(|(read, _)| read == path);
    let is_in = |left: &[(PathBuf, String)], path: &PathBuf| left.iter().any(|(known, _)| known == path);
    let unused: Vec<&PathBuf> = found.iter().filter(|path| !is_examined(path) && !is_in(&left, path)).collect();
    left.extend(unused.into_iter().map(|path| (path.clone(), NOT_EXAMINED.to_owned())));
    // those of the pool are tried all the same
    left.extend(unread(record, scan).into_iter().filter(|(path, _)| !is_examined(path)));
    left
}

/// Returns the devices at the remembered paths that could not be read, and why.
fn unread(record: &PoolRecord, scan: &Scan) -> Vec<(PathBuf, String)> {
    let own = |path: &PathBuf| record.paths().any(|own| own == path);
    let silent = scan.silent.iter().map(|silent| (silent.path.clone(), format!("it has not answered for {} s", silent.silent.as_secs())));
    let unreadable = scan.unreadable.iter().map(|(path, why)| (path.clone(), format!("it cannot be read: {why}")));
    silent.chain(unreadable).filter(|(path, _)| own(path)).collect()
}

/// Reads the content of a pool that was opened to be read, and which devices it was read from. All
/// devices that were found answered.
///
/// # Errors
/// When a device did not answer, snapshots are locked, or the pool has stopped.
async fn examined(name: &str, shard: &ShardHandle) -> Result<Doomed, ApiError> {
    let status = shard.status().await?;
    let at = |slot: DeviceSlot| status.host(slot).map(|host| host.path.clone());
    if let Some(slot) = shard.unanswered().await?.first() {
        let device = at(*slot).map_or_else(|| format!("device {slot}"), |path| path.display().to_string());
        let why = format!("cannot destroy pool '{name}': {device} did not answer when the locks of the pool were read; check it");
        return Err(ApiError::new(ErrorKind::Unavailable, why));
    }
    Doomed::of(name, shard).await
}
