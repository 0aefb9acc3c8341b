//! Locks for changes: one lock per pool, and reservations of commands in progress.
//!
//! INV-LOCK-1, the order of locks, from the outside in:
//! 0. The import of one pool (`importing` of its entry), by the daemon itself or by a command.
//! 1. The lock of one pool, by its name ([`Daemon::lock_pool`]). A command holds it to its end,
//!    including waits for the pool's shard. Its holder waits neither for a second pool lock nor for
//!    the shard of another pool. A name without a pool has a lock, too: creating or importing a
//!    pool takes the lock of its name, which reserves the name.
//! 2. `saving`: the order in which states are written ([`Daemon::save`]).
//! 3. The registry, the mounts, the table of pool locks, the policies, the events and the last look
//!    at pools, one at a time, for a read or a change in memory.
//!
//! Only the locks 0 and 1 are held across an await. Things that pools share (ids and addresses of
//! exports, devices of new members) are reserved in the registry before the first wait for a shard
//! or a device, and stay reserved until the command has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use millpond_api::{ApiError, ErrorKind};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::service::Daemon;

/// Limits on the daemon's waits for events that may never come.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Wait for the previous command on the same pool. After it, the later command is refused and
    /// has changed nothing.
    pub turn: Duration,
    /// Wait for the answers of pools in a look. After it, the result shows the others without the
    /// silent ones.
    pub look: Duration,
    /// Time of a command. After it, the client is informed that the command goes on.
    pub command: Duration,
    /// While a pool is closed, longest time in which its devices complete no operation.
    pub idle: Duration,
    /// Time that a pool may take to close.
    pub close: Duration,
    /// Wait for the kernel to finish the operations of a pool that was given up.
    pub last: Duration,
    /// Longest time in which the target of a policy takes no byte of what is sent. A receive takes none while it reads
    /// back the data since its last progress, at most 4 GiB: less than 7 minutes at 10 MiB/s.
    pub send: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        // the waits of a daemon that stops are together shorter than the 90 seconds after which
        // systemd kills a service that does not stop
        Deadlines {
            turn: seconds(30),
            look: seconds(2),
            command: seconds(60),
            idle: seconds(15),
            close: seconds(55),
            last: seconds(5),
            send: seconds(600),
        }
    }
}

/// Locks of pools, by name: those that are held or waited for.
pub(super) type PoolLocks = BTreeMap<String, Arc<tokio::sync::Mutex<()>>>;

/// The right to change one pool.
pub(super) struct PoolLock {
    _guard: OwnedMutexGuard<()>,
    /// Another command held it when it was requested: earlier observations may not be true any
    /// more.
    pub(super) waited: bool,
}

/// Reservations of commands in progress.
#[derive(Default)]
pub(super) struct Reserved {
    devices: BTreeSet<PathBuf>,
    /// Addresses of exports: a path in the file system, a TCP address.
    exports: BTreeMap<u64, (Option<PathBuf>, Option<SocketAddr>)>,
}

impl Reserved {
    /// Returns the export being made that has one of these addresses.
    pub(super) fn has(&self, unix: Option<&Path>, tcp: Option<SocketAddr>) -> Option<u64> {
        let same = |(path, address): &(Option<PathBuf>, Option<SocketAddr>)| {
            (unix.is_some() && path.as_deref() == unix) || (tcp.is_some() && *address == tcp)
        };
        self.exports.iter().find(|(_, taken)| same(taken)).map(|(id, _)| *id)
    }
}

/// Id and addresses of an export that is being made.
pub(super) struct ExportReserved<'a> {
    daemon: &'a Daemon,
    pub(super) id: u64,
}

impl Drop for ExportReserved<'_> {
    fn drop(&mut self) {
        let mut registry = self.daemon.registry();
        registry.reserved.exports.remove(&self.id);
        // an id that was never shown is free for the next export
        if !registry.exports.contains_key(&self.id) && registry.next_export == self.id + 1 {
            registry.next_export = self.id;
        }
    }
}

/// Devices that a command is about to add to a pool.
pub(super) struct DevicesReserved<'a> {
    daemon: &'a Daemon,
    paths: Vec<PathBuf>,
}

impl Drop for DevicesReserved<'_> {
    fn drop(&mut self) {
        let mut registry = self.daemon.registry();
        registry.reserved.devices.retain(|path| !self.paths.contains(path));
    }
}

impl Daemon {
    /// Takes the lock of a pool, or of a name for a pool to be.
    ///
    /// # Errors
    /// When another command does not end within [`Deadlines::turn`]; nothing was changed.
    pub(super) async fn lock_pool(&self, name: &str) -> Result<PoolLock, ApiError> {
        let deadline = self.options.deadlines.turn;
        timeout(deadline, self.wait_for_pool(name)).await.map_err(|_| {
            let message = format!(
                "another command on pool '{name}' has not ended within {} s, so nothing was changed; see 'millpond pool status {name}', try again later, or give the pool up with 'millpond pool export {name} --force'",
                deadline.as_secs()
            );
            ApiError::busy(message)
        })
    }

    /// Like [`Daemon::lock_pool`] for the daemon's own work, without a limit.
    pub(super) async fn wait_for_pool(&self, name: &str) -> PoolLock {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            // a lock that only the table refers to is neither held nor waited for
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(name.to_owned()).or_default())
        };
        match Arc::clone(&lock).try_lock_owned() {
            Ok(guard) => PoolLock { _guard: guard, waited: false },
            Err(_) => PoolLock { _guard: lock.lock_owned().await, waited: true },
        }
    }

    /// Reserves the next id of an export. An id that an export had is never used again.
    pub(super) fn reserve_export(&self) -> ExportReserved<'_> {
        let mut registry = self.registry();
        let id = registry.next_export;
        registry.next_export += 1;
        registry.reserved.exports.insert(id, (None, None));
        drop(registry);
        ExportReserved { daemon: self, id }
    }

    /// Reserves addresses for an export that is being made.
    ///
    /// # Errors
    /// When the control socket or another export has one of them.
    pub(super) fn reserve_addresses(&self, id: u64, unix: Option<&Path>, tcp: Option<SocketAddr>) -> Result<(), ApiError> {
        if unix == Some(self.options.socket.as_path()) {
            return Err(ApiError::invalid("that is the control socket; give another path"));
        }
        // with port 0 the system chooses a port for each
        let tcp = tcp.filter(|address| address.port() != 0);
        let text = tcp.map(|address| address.to_string());
        let mut registry = self.registry();
        for entry in registry.exports.values() {
            let record = &entry.record;
            let same_path = unix.is_some() && record.protocol.path().map(PathBuf::as_path) == unix;
            if same_path || (text.is_some() && record.protocol.tcp() == text.as_ref()) {
                let message = format!("export {} has that address; give another one or run 'millpond unexport {}'", record.id, record.id);
                return Err(ApiError::new(ErrorKind::Exists, message));
            }
        }
        if let Some(other) = registry.reserved.has(unix, tcp) {
            let message = format!("export {other}, which is being made, has that address; give another one");
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        registry.reserved.exports.insert(id, (unix.map(Path::to_owned), tcp));
        Ok(())
    }

    /// Reserves devices that are to become members of a pool: no other command adds them, formats
    /// them or removes their files meanwhile.
    ///
    /// # Errors
    /// When another command has one of them.
    pub(super) fn reserve_devices<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Result<DevicesReserved<'_>, ApiError> {
        let wanted: BTreeSet<PathBuf> = paths.map(PathBuf::from).collect();
        let mut registry = self.registry();
        if let Some(taken) = wanted.iter().find(|path| registry.reserved.devices.contains(*path)) {
            let message = format!("another command is about to use {}; give another device, or wait for it", taken.display());
            return Err(ApiError::busy(message));
        }
        registry.reserved.devices.extend(wanted.iter().cloned());
        drop(registry);
        Ok(DevicesReserved { daemon: self, paths: wanted.into_iter().collect() })
    }
}

/// Runs work that may wait for a device or file system on another thread, because this one serves
/// all clients.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|e| ApiError::internal(e.to_string()))?
}
