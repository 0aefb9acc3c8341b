//! Exports: making, listing, restoring and ending them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use millpond_api::names::Name;
use millpond_api::{
    Access, ApiError, CreateExport, CreateNbd, CreateVhostUser, EventKind, Export, ExportClient, ExportKind, ExportState, ExportVolume,
    NbdLimits, TlsMode,
};
use millpond_engine::{PoolState, SnapshotId, Target, VolumeId};

use super::attached::{self, Clients};
use super::look::PoolLook;
use super::receiving;
use super::service::{Daemon, ExportEntry};
use super::shard::{ExportId, ExportInfo, ImageLoad, NbdExport, ShardHandle, SocketAccess, VhostUserExport};
use super::state::{ExportRecord, Protocol, Served};
use crate::hint;
use millpond_api::instant;

mod nbd;
mod transient;

pub(super) use transient::Unused;

pub use nbd::{check_limits as check_nbd_limits, reachable, tcp_address};

#[cfg(test)]
mod tests;

/// Longest path of a unix socket in bytes: `sun_path` without its NUL.
const MAX_SOCKET_PATH: usize = 107;
/// Default number of queues of a guest over vhost-user. QEMU makes one for each virtual processor
/// and fails when the number is too low; an unused queue costs nothing.
const QUEUES: u16 = 64;
/// Most queues of a guest: the protocol numbers them in a byte.
const MAX_QUEUES: u16 = 256;

impl From<Served> for Target {
    fn from(served: Served) -> Target {
        match served {
            Served::Volume(id) => Target::Head(VolumeId(id)),
            Served::Snapshot(id) => Target::Snapshot(SnapshotId(id)),
        }
    }
}

impl From<Target> for Served {
    fn from(target: Target) -> Served {
        match target {
            Target::Head(id) => Served::Volume(id.0),
            Target::Snapshot(id) => Served::Snapshot(id.0),
        }
    }
}

impl Daemon {
    /// Returns every export, by id.
    ///
    /// # Errors
    /// None.
    pub async fn exports(&self) -> Result<Vec<Export>, ApiError> {
        Ok(self.list_exports(&self.look().await))
    }

    /// Returns the exports as of a look at the pools.
    pub(super) fn list_exports(&self, looks: &[PoolLook]) -> Vec<Export> {
        let answers = || looks.iter().filter_map(|look| Some((&look.record.name, look.answer()?)));
        // a shard that ended in between serves no exports
        let live: HashMap<u64, &ExportInfo> = answers().flat_map(|(_, look)| &look.exports).map(|info| (info.id.0, info)).collect();
        let stopped: HashMap<&String, String> =
            answers().filter_map(|(name, look)| Some((name, stopped(&look.status.pool.state)?))).collect();
        let in_service = |pool: &String| looks.iter().any(|look| look.record.name == *pool && look.in_service());
        let registry = self.registry();
        let listed = registry.exports.values().map(|entry| {
            let mut export = view(entry, live.get(&entry.record.id).copied());
            let pool = &entry.record.pool;
            match stopped.get(pool) {
                Some(why) if export.state == ExportState::Online => {
                    export.state = ExportState::Stopped;
                    export.reason = Some(format!("pool '{pool}' is stopped: {why}; writes fail, reads are answered where possible"));
                }
                _ if export.state != ExportState::Online && export.reason.is_none() => {
                    export.reason = Some(match in_service(pool) {
                        true => format!("pool '{pool}' does not answer"),
                        false => format!("pool '{pool}' is not in service"),
                    });
                }
                _ => {}
            }
            export
        });
        let mut all: Vec<Export> = listed.collect();
        drop(registry);
        for export in
            all.iter_mut().filter(|export| export.kind == ExportKind::Fuse && export.reason.is_none() && !self.is_mounted(export.id))
        {
            export.state = ExportState::Unavailable;
            export.reason = Some(format!("it was unmounted; run 'millpond unexport {}' and export it again", export.id));
        }
        all
    }

    /// Starts serving a volume or snapshot; clients can connect on return. With `kept`, the export
    /// is restored after a restart.
    ///
    /// # Errors
    /// When an address cannot be used, or other machines could reach it and the request does not
    /// allow that.
    pub async fn create_export(&self, request: &CreateExport, kept: bool) -> Result<Export, ApiError> {
        let _pool = self.lock_pool(request.pool()).await?;
        let reserved = self.reserve_export();
        let id = reserved.id;
        let (shard, mut record) = match request {
            CreateExport::Nbd(request) => {
                let during = format!("cannot export '{}'", request.name);
                self.nbd_record(id, request).await.map_err(|e| e.during(&during))?
            }
            CreateExport::VhostUser(request) => {
                let during = format!("cannot export '{}'", request.name);
                self.vhost_user_record(id, request).await.map_err(|e| e.during(&during))?
            }
            CreateExport::Fuse(request) => {
                let during = format!("cannot export '{}'", request.pool);
                self.fuse_record(id, request).map_err(|e| e.during(&during))?
            }
        };
        let info = self.start(&shard, &record).await.map_err(|e| e.during(format!("cannot export '{}'", record.name)))?;
        if let Protocol::Nbd { tcp, .. } = &mut record.protocol {
            *tcp = info.tcp.map(|address| address.to_string());
        }
        let receive = matches!(request, CreateExport::Nbd(request) if request.receive);
        let entry = || ExportEntry { receive, ..ExportEntry::new(record.clone(), kept) };
        self.registry().exports.insert(id, entry());
        if let Err(error) = self.save() {
            self.registry().exports.remove(&id);
            // The record is not saved, so the export ends: the client gets an error.
            let _ = self.end_fuse(id, true).await;
            let _ = shard.unexport(ExportId(id)).await;
            return Err(error);
        }
        self.watches().expect_export(id);
        self.tell(EventKind::ExportCreated, format!("{id} {}", record.name));
        Ok(view(&entry(), Some(&info)))
    }

    /// Checks a request for an NBD export, and returns the record to remember.
    async fn nbd_record(&self, id: u64, request: &CreateNbd) -> Result<(ShardHandle, ExportRecord), ApiError> {
        let name: Name = request.name.parse()?;
        let (shard, target) = self.find_target(&name).await?;
        if !request.receive {
            receiving::refuse_head(&shard, &name, target).await?;
        }
        if !request.readonly && !request.force {
            self.refuse_second_writer(name.pool(), target)?;
        }
        nbd::check_limits(&request.limits)?;
        let tls = request.tls.as_ref().map(nbd::tls_record).transpose()?;
        let open = request.insecure || tls.as_ref().is_some_and(|tls| tls.mode == TlsMode::Require);
        let tcp = request.tcp.as_deref().map(|text| nbd::tcp_address(text, open)).transpose().map_err(ApiError::from)?;
        let unix = match (&request.unix, tcp) {
            (Some(path), _) => Some(PathBuf::from(path)),
            (None, Some(_)) => None,
            (None, None) if request.transient => Some(self.beside_control(&format!("transient-{id}.sock"))),
            (None, None) => Some(self.default_socket(&name, id, "sock")),
        };
        if let Some(path) = &unix {
            check_socket(path)?;
        }
        self.reserve_addresses(id, unix.as_deref(), tcp)?;
        let record = ExportRecord {
            id,
            pool: name.pool().to_owned(),
            name: name.to_string(),
            readonly: request.readonly || matches!(target, Target::Snapshot(_)),
            protocol: Protocol::Nbd {
                served: target.into(),
                unix,
                tcp: tcp.map(|address| address.to_string()),
                access: request.access,
                tls,
                limits: request.limits,
            },
        };
        Ok((shard, record))
    }

    /// Checks a request for an export over vhost-user, and returns the record to remember.
    async fn vhost_user_record(&self, id: u64, request: &CreateVhostUser) -> Result<(ShardHandle, ExportRecord), ApiError> {
        let name: Name = request.name.parse()?;
        let (shard, target) = self.find_target(&name).await?;
        receiving::refuse_head(&shard, &name, target).await?;
        if !request.readonly && !request.force {
            self.refuse_second_writer(name.pool(), target)?;
        }
        let unix = request.unix.as_ref().map_or_else(|| self.default_socket(&name, id, "vhost.sock"), PathBuf::from);
        check_socket(&unix)?;
        self.reserve_addresses(id, Some(&unix), None)?;
        let queues = request.queues.unwrap_or(QUEUES);
        if queues == 0 || queues > MAX_QUEUES {
            return Err(ApiError::usage(format!("a guest cannot have {queues} queues; give 1 to {MAX_QUEUES}")));
        }
        let record = ExportRecord {
            id,
            pool: name.pool().to_owned(),
            name: name.to_string(),
            readonly: request.readonly || matches!(target, Target::Snapshot(_)),
            protocol: Protocol::VhostUser { served: target.into(), unix, access: request.access, queues, promised: false },
        };
        Ok((shard, record))
    }

    /// Stops serving; received requests are answered before the connections close. With `lazy`,
    /// open files of a mount are served until they are closed; with `force` they are not served any more.
    ///
    /// # Errors
    /// When there is no such export, clients are connected without `force`, or files of a mount are
    /// open without `lazy` and `force`.
    pub async fn unexport(&self, id: u64, lazy: bool, force: bool) -> Result<(), ApiError> {
        let record = || {
            let record = self.registry().exports.get(&id).map(|entry| entry.record.clone());
            record.ok_or_else(|| ApiError::not_found(format!("no export {id}; see 'millpond exports'")))
        };
        let _pool = self.lock_pool(&record()?.pool).await?;
        let record = record()?;
        let during = format!("cannot end export {id}");
        // unmounting fails while files are open, and that refusal names the processes
        let mount = matches!(record.protocol, Protocol::Fuse { .. });
        if !force
            && !mount
            && let Ok(shard) = self.shard(&record.pool)
        {
            // a shard that does not answer serves no clients
            let connected = attached::to(&shard, Clients::Export(id)).await.unwrap_or_default();
            attached::refuse(&connected, "shut the guest down").map_err(|e| e.during(&during))?;
        }
        self.end_export(&record, lazy, force).await.map_err(|e| e.during(during))
    }

    /// Ends an export; the caller holds the lock of its pool.
    pub(super) async fn end_export(&self, record: &ExportRecord, lazy: bool, force: bool) -> Result<(), ApiError> {
        let id = record.id;
        self.end_fuse(id, lazy || force).await?;
        // A lazily detached mount is served until the kernel reports that no file is open any more.
        let left = lazy && !force && matches!(record.protocol, Protocol::Fuse { .. });
        if !left && let Ok(shard) = self.shard(&record.pool) {
            match shard.unexport(ExportId(id)).await {
                Ok(()) | Err(super::shard::ShardError::NoExport(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.registry().exports.remove(&id);
        self.save()?;
        self.tell(EventKind::ExportRemoved, format!("{id} {}", record.name));
        Ok(())
    }

    /// Starts the remembered exports of a pool that has just come into service. An export that
    /// fails keeps the reason.
    pub(super) async fn restore_exports(&self, pool: &str) {
        let Ok(shard) = self.shard(pool) else { return };
        self.set_restoring(pool, true);
        let of_pool = |entry: &&ExportEntry| entry.record.pool == pool;
        let records: Vec<ExportRecord> = self.registry().exports.values().filter(of_pool).map(|entry| entry.record.clone()).collect();
        for record in records {
            let started = self.start(&shard, &record).await;
            if let Err(error) = &started {
                // an event reports it when it stays so
                tracing::debug!(export = record.id, name = record.name, %error, "not served");
            }
            if started.is_ok() {
                self.watches().expect_export(record.id);
            }
            if let Some(entry) = self.registry().exports.get_mut(&record.id) {
                entry.trouble = started.err().map(|error| error.to_string());
            }
        }
        self.set_restoring(pool, false);
    }

    fn set_restoring(&self, pool: &str, restoring: bool) {
        self.registry().pools.get_mut(pool).into_iter().for_each(|entry| entry.restoring = restoring);
    }

    /// Refuses a second writable export: two guests that write to one disk destroy its file system,
    /// unless that is made for it.
    fn refuse_second_writer(&self, pool: &str, target: Target) -> Result<(), ApiError> {
        let served = Served::from(target);
        let registry = self.registry();
        let writable = |record: &ExportRecord| record.pool == pool && record.protocol.served() == Some(served) && !record.readonly;
        let ids: Vec<String> =
            registry.exports.values().filter(|entry| writable(&entry.record)).map(|entry| entry.record.id.to_string()).collect();
        if !matches!(target, Target::Head(_)) || ids.is_empty() {
            return Ok(());
        }
        Err(ApiError::busy(format!(
            "export {} lets clients write to it already, and two guests that write to one disk destroy its file system; end that one, give --readonly, or --force when the guests share it knowingly",
            ids.join(" and ")
        )))
    }

    /// Returns the exports that serve a target, by rising id.
    pub(super) fn serving(&self, pool: &str, target: Target) -> Vec<ExportRecord> {
        let served = Served::from(target);
        let registry = self.registry();
        let found = registry.exports.values().filter(|entry| entry.record.pool == pool && entry.record.protocol.served() == Some(served));
        found.map(|entry| entry.record.clone()).collect()
    }

    /// Returns an export that serves a target, if there is one.
    pub(super) fn serves(&self, pool: &str, target: Target) -> Option<u64> {
        self.serving(pool, target).first().map(|record| record.id)
    }

    /// Call before a volume's cache mode becomes a laxer one. Saves, durably, that guests over
    /// vhost-user may have been promised that there is no write cache. Such guests do not flush;
    /// their drivers read the feature once, and a front end that connects again need not ask.
    ///
    /// # Errors
    /// When it cannot be saved.
    pub(super) async fn keep_promises(&self, pool: &str, shard: &ShardHandle, target: Target) -> Result<(), ApiError> {
        let mut changed = false;
        for entry in self.registry().exports.values_mut().filter(|entry| entry.record.pool == pool) {
            if let Protocol::VhostUser { served, promised, .. } = &mut entry.record.protocol
                && Target::from(*served) == target
            {
                changed |= !*promised;
                *promised = true;
            }
        }
        if changed {
            self.save()?;
        }
        Ok(shard.keep_promises(target).await?)
    }

    /// Renames the exports of a volume or snapshot that was renamed.
    pub(super) fn rename_exports(&self, old: &Name, new: &Name) -> Result<(), ApiError> {
        let (old, new) = (old.to_string(), new.to_string());
        let mut changed = false;
        for entry in self.registry().exports.values_mut() {
            let record = &mut entry.record;
            if record.name == old {
                record.name.clone_from(&new);
                changed = true;
            } else if let Some(rest) = record.name.strip_prefix(&old).filter(|rest| rest.starts_with('@')) {
                record.name = format!("{new}{rest}");
                changed = true;
            }
        }
        if changed { self.save() } else { Ok(()) }
    }

    /// Has a shard serve a remembered export.
    async fn start(&self, shard: &ShardHandle, record: &ExportRecord) -> Result<ExportInfo, ApiError> {
        match &record.protocol {
            Protocol::Nbd { served, unix, tcp, access, tls, limits } => {
                let parse = |text: &String| text.parse().map_err(|_| ApiError::invalid(format!("'{text}' is not an address")));
                let tcp = tcp.as_ref().map(parse).transpose()?;
                let export = NbdExport {
                    id: ExportId(record.id),
                    name: record.name.clone(),
                    description: format!("millpond {}", record.name),
                    target: (*served).into(),
                    unix: unix.clone(),
                    access: socket_access(access),
                    tcp,
                    read_only: record.readonly,
                    tls: tls.as_ref().map(nbd::tls_offer).transpose()?,
                    limits: nbd::limits_in_force(limits, &self.options.nbd),
                    inherited: self.options.inherited.sockets(unix.as_deref(), tcp),
                };
                Ok(shard.export_nbd(export).await?)
            }
            Protocol::VhostUser { served, unix, access, queues, promised } => {
                let export = VhostUserExport {
                    id: ExportId(record.id),
                    name: record.name.clone(),
                    target: (*served).into(),
                    unix: unix.clone(),
                    access: socket_access(access),
                    queues: *queues,
                    read_only: record.readonly,
                    promised: *promised,
                };
                Ok(shard.export_vhost_user(export).await?)
            }
            Protocol::Fuse { dir, access } => self.start_fuse(shard, record, dir, access).await,
        }
    }

    /// Returns the socket of an export for which the user gave no address: beside the control
    /// socket, named after the target.
    fn default_socket(&self, name: &Name, id: u64, ending: &str) -> PathBuf {
        let plain = self.beside_control(&format!("{}.{ending}", name.to_string().replace('/', ".")));
        let registry = self.registry();
        let taken = registry.exports.values().any(|entry| entry.record.protocol.path() == Some(&plain))
            || registry.reserved.has(Some(&plain), None).is_some();
        if taken || plain == self.options.socket { self.beside_control(&format!("export-{id}.{ending}")) } else { plain }
    }

    /// Returns a path beside the control socket.
    fn beside_control(&self, file: &str) -> PathBuf {
        self.options.socket.parent().unwrap_or(Path::new("/")).join(file)
    }
}

/// Returns why a pool is stopped; `None` when it is not.
fn stopped(state: &PoolState) -> Option<String> {
    match state {
        PoolState::Faulted(fault) => Some(hint::fault(fault)),
        _ => None,
    }
}

fn socket_access(access: &Access) -> SocketAccess {
    SocketAccess { uid: access.uid, gid: access.gid, mode: access.mode }
}

fn check_socket(path: &Path) -> Result<(), ApiError> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(ApiError::usage(format!("'{shown}' is not an absolute path; give an absolute path")));
    }
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        return Err(ApiError::invalid(format!(
            "{shown} has {length} characters, a unix socket's path at most {MAX_SOCKET_PATH}; give a shorter one with --unix"
        )));
    }
    match path.parent() {
        Some(parent) if parent.is_dir() => Ok(()),
        _ => Err(ApiError::not_found(format!("the directory of {shown} does not exist; create it first"))),
    }
}

fn view(entry: &ExportEntry, live: Option<&ExportInfo>) -> Export {
    let record = &entry.record;
    let path = record.protocol.path().map(|path| path.display().to_string());
    let tcp = record.protocol.tcp();
    let addresses: Vec<&str> = path.iter().chain(tcp).map(String::as_str).collect();
    let unix = path.clone().filter(|_| !matches!(record.protocol, Protocol::Fuse { .. }));
    let (uris, tls, limits) = match &record.protocol {
        Protocol::Nbd { tls, limits, .. } => {
            (nbd::uris(unix.as_deref(), record.protocol.tcp().map(String::as_str), tls.as_ref()), tls.as_ref(), *limits)
        }
        Protocol::VhostUser { .. } | Protocol::Fuse { .. } => (Vec::new(), None, NbdLimits::default()),
    };
    let client = |client: &super::shard::ClientInfo| ExportClient {
        peer: client.peer.clone(),
        since: instant::from_millis(client.since.0),
        tls: client.tls.clone(),
        io: client.counters,
    };
    let connections: Vec<ExportClient> = live.iter().flat_map(|info| &info.clients).map(client).collect();
    Export {
        id: record.id,
        kind: record.protocol.kind(),
        name: record.name.clone(),
        address: addresses.join(","),
        uris,
        tcp: tcp.cloned(),
        readonly: record.readonly,
        receive: entry.receive,
        tls: tls.map(nbd::tls_view),
        limits,
        access: match &record.protocol {
            Protocol::Nbd { access, .. } | Protocol::VhostUser { access, .. } | Protocol::Fuse { access, .. } => *access,
        },
        queues: match &record.protocol {
            Protocol::VhostUser { queues, .. } => Some(*queues),
            Protocol::Nbd { .. } | Protocol::Fuse { .. } => None,
        },
        state: if live.is_some() { ExportState::Online } else { ExportState::Unavailable },
        reason: if live.is_some() { None } else { entry.trouble.clone() },
        clients: connections.len() as u64,
        connections,
        io: live.map(|info| info.counters).unwrap_or_default(),
        volumes: live.iter().flat_map(|info| &info.images).map(|image| volume_view(record, image)).collect(),
        unix,
    }
}

/// Returns a file of a mount as the API shows it.
fn volume_view(record: &ExportRecord, image: &ImageLoad) -> ExportVolume {
    let ImageLoad { volume, snapshot, open, counters } = image;
    let (name, file) = match snapshot {
        None => (format!("{}/{volume}", record.pool), volume.clone()),
        Some(snapshot) => (format!("{}/{volume}@{snapshot}", record.pool), format!(".snapshots/{volume}/{snapshot}")),
    };
    let address = record.protocol.path().map(|dir| dir.join(file).display().to_string()).unwrap_or_default();
    ExportVolume { name, address, readonly: record.readonly || snapshot.is_some(), clients: *open, io: *counters }
}
