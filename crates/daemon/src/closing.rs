//! End of a pool's service: a clean close, or giving the pool up when closing exceeds a limit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::{ApiError, EventKind, PoolExport, Severity};
use millpond_block::MemberId;
use millpond_engine::{JobKind, LabelsInForce};
use tokio::time::{Instant, sleep, timeout};

use super::attached;
use super::devices::remembered_path;
use super::events::Happened;
use super::locks::{Deadlines, PoolLock};
use super::service::Daemon;
use super::shard::{SILENCE, ShardError, ShardHandle};
use super::state::{InForce, PoolRecord};

/// Time between two looks at a pool that closes.
const LOOK: Duration = Duration::from_millis(500);
/// How long file systems may take to be unmounted. What is still mounted then ends with its pool.
const UNMOUNT: Duration = Duration::from_secs(5);

/// How the service of a pool has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The last checkpoint is written.
    Clean,
    /// The pool has ended without a clean close, for this reason.
    Unclean(String),
    /// Like `Unclean`, and the kernel still has operations on its devices: they stay locked until
    /// it has finished them.
    InUse(String),
}

impl Ending {
    /// Returns why the pool was not closed cleanly.
    fn reason(&self) -> Option<String> {
        match self {
            Ending::Clean => None,
            Ending::Unclean(why) => Some(why.clone()),
            Ending::InUse(why) => Some(format!(
                "{why}; the kernel still has operations of its devices, which stay in use by this daemon until these end: reconnect the device, or restart the host"
            )),
        }
    }
}

/// A pool that was given up while the kernel had operations on its devices.
pub(super) struct LeftBehind {
    name: String,
    id: String,
    devices: Vec<PathBuf>,
    shard: ShardHandle,
}

/// Ends a shard: closes its pool and, with `bounded`, gives the pool up when a limit has passed.
/// The idle limit counts from the last operation that a device completed.
async fn end(shard: &ShardHandle, deadlines: &Deadlines, bounded: bool) -> Ending {
    let begun = Instant::now();
    let (mut moved, mut seen) = (begun, progress(shard).await);
    let closing = shard.shutdown();
    tokio::pin!(closing);
    let why = loop {
        tokio::select! {
            closed = &mut closing => match closed {
                Ok(()) => return Ending::Clean,
                // another command has given the pool up meanwhile
                Err(ShardError::Gone) => break "it was stopped while it was being closed".to_owned(),
                Err(error) => return Ending::Unclean(error.to_string()),
            },
            () = sleep(LOOK) => {}
        }
        let now = progress(shard).await;
        if now.is_some() && now != seen {
            (moved, seen) = (Instant::now(), now);
        }
        if bounded && moved.elapsed() >= deadlines.idle {
            break format!("its devices have ended no operation for {} s", deadlines.idle.as_secs());
        }
        if bounded && begun.elapsed() >= deadlines.close {
            break format!("it did not close within {} s", deadlines.close.as_secs());
        }
    };
    shard.abandon();
    match timeout(deadlines.last, shard.ended()).await {
        Ok(()) => Ending::Unclean(why),
        Err(_) => Ending::InUse(why),
    }
}

/// Returns the number of operations that the devices of a pool have completed; `None` when its
/// thread does not answer.
async fn progress(shard: &ShardHandle) -> Option<u64> {
    let status = timeout(LOOK, shard.status()).await.ok()?.ok()?;
    let loads = status.devices.iter().flatten().map(|device| device.load);
    Some(loads.map(|load| load.reads + load.writes + load.flushes + load.discards).sum())
}

impl Daemon {
    /// Closes a pool and releases its devices; their paths are remembered for the next import. With
    /// `force`, clients are disconnected, and a pool that cannot be closed is given up: nothing
    /// acknowledged is lost, the next import replays the log.
    ///
    /// # Errors
    /// Without `force`, when clients are connected, or the pool could not be closed (it is out of
    /// service all the same).
    pub async fn export_pool(&self, name: &str, force: bool) -> Result<PoolExport, ApiError> {
        let before = if force { self.connected(name).await } else { Vec::new() };
        let _pool = if force { self.lock_by_force(name).await? } else { self.lock_pool(name).await? };
        let here = self.registry().pools.contains_key(name);
        if !here {
            return self.exported_already(name, force);
        }
        if !force {
            self.refuse_clients(name, "export").await?;
        }
        self.note_errors_of(name).await;
        let ending = self.close_pool(name, force).await;
        self.retire(name, &ending);
        self.save()?;
        self.share_read_cache();
        if let Some(why) = ending.reason() {
            let message = format!("pool '{name}' was not closed cleanly: {why}");
            self.report(Happened::to_pool(EventKind::PoolNotClosed, name, message));
        }
        self.report_ended_exports(name);
        self.tell(EventKind::PoolExported, name);
        match ending.reason() {
            Some(why) if !force => Err(ApiError::internal(format!("pool '{name}' was not closed cleanly: {why}"))),
            reason => {
                let in_use = matches!(ending, Ending::InUse(_));
                Ok(PoolExport { name: name.to_owned(), clean: reason.is_none(), reason, disconnected: before, in_use })
            }
        }
    }

    /// Reports the exports that ended because the user exported their pool.
    fn report_ended_exports(&self, name: &str) {
        let ended: Vec<(u64, String)> = {
            let registry = self.registry();
            let of_pool = registry.exports.values().filter(|export| export.record.pool == name);
            of_pool.map(|export| (export.record.id, export.record.name.clone())).collect()
        };
        for (id, served) in ended {
            self.watches().expect_stop(id);
            let message = format!("export {id} ({served}) is not served: pool '{name}' is exported");
            self.report(Happened::to_pool(EventKind::ExportStopped, name, message).about(format!("{id} {served}")).at(Severity::Info));
        }
    }

    /// Takes the lock of a pool. A command that holds it for longer than the idle limit counts as
    /// hung: the pool is given up, which ends that command.
    async fn lock_by_force(&self, name: &str) -> Result<PoolLock, ApiError> {
        if let Ok(lock) = timeout(self.options.deadlines.idle, self.wait_for_pool(name)).await {
            return Ok(lock);
        }
        if let Ok(shard) = self.shard(name) {
            tracing::warn!(pool = name, "another command does not end; the pool is stopped without a clean close");
            shard.abandon();
        }
        self.lock_pool(name).await
    }

    /// Answers an export of a pool that is not in service. With `force` that is a success when the
    /// pool is known: a command that hung may have ended it just now.
    fn exported_already(&self, name: &str, force: bool) -> Result<PoolExport, ApiError> {
        let registry = self.registry();
        if !force || !registry.known.iter().any(|record| record.name == name) {
            return Err(ApiError::not_found(format!("no pool '{name}'; see 'millpond pool list'")));
        }
        let in_use = registry.left.iter().any(|left| left.name == name && !left.shard.has_ended());
        let reason = Some("it was exported before this command".to_owned());
        Ok(PoolExport { name: name.to_owned(), clean: false, reason, disconnected: Vec::new(), in_use })
    }

    /// Returns the devices that the search for pools skips, because they do not answer.
    pub(super) fn unanswering(&self) -> Vec<PathBuf> {
        let mut registry = self.registry();
        registry.left.retain(|left| !left.shard.has_ended());
        registry.left.iter().flat_map(|left| left.devices.iter().cloned()).collect()
    }

    /// Ends a shard that only read a pool, within the limits of a close by force. Remembers devices
    /// that the kernel still uses.
    pub(super) async fn end_reading(&self, record: &PoolRecord, shard: ShardHandle) -> Ending {
        let ending = end(&shard, &self.options.deadlines, true).await;
        if matches!(ending, Ending::InUse(_)) {
            let devices = record.paths().cloned().collect();
            self.registry().left.push(LeftBehind { name: record.name.clone(), id: record.id.clone(), devices, shard });
        }
        ending
    }

    /// Moves a pool to the known ones, and remembers devices that the kernel still uses.
    pub(super) fn retire(&self, name: &str, ending: &Ending) {
        let mut registry = self.registry();
        if let Some(entry) = registry.pools.remove(name) {
            if let (Ending::InUse(_), Ok(shard)) = (ending, entry.shard) {
                let devices = entry.record.paths().cloned().collect();
                registry.left.push(LeftBehind { name: name.to_owned(), id: entry.record.id.clone(), devices, shard });
            }
            registry.known.retain(|known| known.id != entry.record.id);
            registry.known.push(entry.record);
        }
        let of_pool = registry.exports.values_mut().filter(|export| export.record.pool == name);
        of_pool.for_each(|export| export.trouble = Some(format!("pool '{name}' is exported")));
    }

    /// Refuses to import a pool that was given up while the kernel had operations on its devices
    /// and has not finished them.
    pub(super) fn refuse_left_behind(&self, wanted: &str) -> Result<(), ApiError> {
        let mut registry = self.registry();
        registry.left.retain(|left| !left.shard.has_ended());
        let Some(left) = registry.left.iter().find(|left| left.name == wanted || left.id == wanted) else { return Ok(()) };
        let devices: Vec<String> = left.devices.iter().map(|path| path.display().to_string()).collect();
        Err(ApiError::busy(format!(
            "pool '{}' was stopped without a clean close, and the kernel still has operations of its devices ({}); reconnect the device and try again, or restart the host",
            left.name,
            devices.join(", ")
        )))
    }

    /// Ends the shard of a pool, if it has one; with `bounded`, within limits. Reports devices that
    /// the pool gave up meanwhile: no later look sees them.
    pub(super) async fn close_pool(&self, name: &str, bounded: bool) -> Ending {
        let (shard, before) = match self.registry().pools.get_mut(name) {
            Some(entry) => {
                // its exports end because the pool closes
                entry.closing = true;
                (entry.shard.clone().ok(), entry.record.in_force.clone())
            }
            None => (None, None),
        };
        let unmounted = timeout(UNMOUNT, self.end_fuses(Some(name)));
        if unmounted.await.is_err() {
            tracing::warn!(pool = name, "a file system is not unmounted yet; it ends with the pool");
        }
        let Some(shard) = shard else { return Ending::Clean };
        // a removal that ends now takes devices out of the labels, too
        let status = timeout(LOOK, shard.status()).await.ok().and_then(Result::ok);
        let removes = status.is_some_and(|status| status.pool.jobs.iter().any(|job| job.kind == JobKind::Remove));
        let ending = end(&shard, &self.options.deadlines, bounded).await;
        if !removes && let (Some(before), Some(after)) = (before, shard.labels().borrow().clone()) {
            self.report_given_up(name, &before, &after);
        }
        ending
    }

    /// Reports the devices that were up to date before a pool closed and are not afterwards.
    fn report_given_up(&self, name: &str, before: &InForce, after: &LabelsInForce) {
        let Some((id, paths)) = self.registry().pools.get(name).map(|entry| (entry.record.id.clone(), entry.record.devices.clone())) else {
            return;
        };
        for member in given_up(before, after) {
            let device = remembered_path(&paths, member).unwrap_or_else(|| format!("device {member}"));
            if !self.watches().is_unwell(&id, &device) {
                let message = format!("device {device} of pool '{name}' failed while the pool was closed, and is out of date");
                self.report(Happened::to_device(EventKind::DeviceFailed, name, &device, message));
            }
        }
    }

    /// Returns the clients of a pool, and the processes that have files of its mounts open.
    pub(super) async fn connected(&self, name: &str) -> Vec<String> {
        let Ok(shard) = self.shard(name) else { return Vec::new() };
        // a shard that does not answer serves no client that could be asked to disconnect
        let Ok(look) = shard.look(SILENCE).await else { return Vec::new() };
        let mut connected: Vec<String> = look.exports.iter().flat_map(attached::clients).collect();
        for file in shard.open_files().await.unwrap_or_default() {
            connected.push(format!("export {} (mount): process {} has a file open", file.export, file.pid));
        }
        connected
    }

    /// Closes every pool, all at once: ends exports, writes the last checkpoints, releases devices.
    /// A pool that does not close is given up, so that the daemon ends within a limit.
    ///
    /// # Errors
    /// One line naming the pools that were not closed cleanly; they have ended all the same.
    pub async fn close(&self) -> Outcome {
        let errors = self.note_last_errors(&self.look().await);
        let names: Vec<String> = self.shards().into_iter().map(|(name, _)| name).collect();
        let endings = join_all(names.iter().map(|name| self.close_pool(name, true))).await;
        let endings: BTreeMap<&String, Ending> = names.iter().zip(endings).collect();
        let mut failed: Vec<String> =
            endings.iter().filter_map(|(name, ending)| Some(format!("pool '{name}': {}", ending.reason()?))).collect();
        // a device may have been given up at the very end
        if (self.note_all_labels() || errors)
            && let Err(error) = self.save()
        {
            failed.push(format!("which devices are up to date is not remembered: {}", error.message));
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "not closed cleanly: {}; nothing acknowledged is lost, the next import replays the log",
            failed.join("; ")
        )))
    }

    /// Refuses a command that would disconnect clients.
    pub(super) async fn refuse_clients(&self, name: &str, verb: &str) -> Result<(), ApiError> {
        match self.connected(name).await {
            connected if connected.is_empty() => Ok(()),
            connected => Err(refusal(name, verb, &connected)),
        }
    }
}

/// Returns the members that have all acknowledged data according to `before`, but not to `after`.
fn given_up<'a>(before: &'a InForce, after: &'a LabelsInForce) -> impl Iterator<Item = MemberId> + 'a {
    let is_current = |member: &MemberId| after.current.iter().any(|(current, _)| current == member);
    before.current.keys().copied().map(MemberId).filter(move |member| !is_current(member))
}

/// Returns a refusal that names the connected clients and what to do.
fn refusal(name: &str, verb: &str, connected: &[String]) -> ApiError {
    let way = match verb {
        "export" => format!("or disconnect them with 'millpond pool export {name} --force'"),
        _ => "see 'millpond exports'".to_owned(),
    };
    ApiError::busy(format!("cannot {verb} pool '{name}': {}; end them first, {way}", attached::connected_clients(connected)))
}

#[cfg(test)]
mod tests;
