//! Exports over FUSE: a pool as a mounted directory.

use std::path::{Path, PathBuf};

use millpond_api::{Access, ApiError, CreateFuse};

use super::locks::blocking;
use super::mount::{Mounted, mount};
use super::service::Daemon;
use super::shard::{ExportId, ExportInfo, FuseExport, ShardHandle};
use super::state::{ExportRecord, Protocol};

/// Default permissions of files.
const MODE: u16 = 0o600;

impl Daemon {
    /// Checks a request for a FUSE export, and returns the record to remember.
    pub(super) fn fuse_record(&self, id: u64, request: &CreateFuse) -> Result<(ShardHandle, ExportRecord), ApiError> {
        let shard = self.shard(&request.pool)?;
        let dir = real_path(Path::new(&request.dir))?;
        let inside = |path: &Path| path.starts_with(&dir);
        if inside(self.dir.path()) || inside(&self.options.socket) {
            return Err(ApiError::invalid(format!("the daemon needs files in {}; give another directory", dir.display())));
        }
        self.reserve_addresses(id, Some(&dir), None)?;
        let access = request.access;
        if let Some(mode) = access.mode.filter(|mode| mode & !0o666 != 0) {
            return Err(ApiError::usage(format!("mode {mode:04o} is more than reading and writing; give one like 0640")));
        }
        let (pool, name) = (request.pool.clone(), request.pool.clone());
        Ok((shard, ExportRecord { id, pool, name, readonly: false, protocol: Protocol::Fuse { dir, access } }))
    }

    /// Mounts the directory, and has the shard serve it.
    pub(super) async fn start_fuse(
        &self,
        shard: &ShardHandle,
        record: &ExportRecord,
        dir: &Path,
        access: &Access,
    ) -> Result<ExportInfo, ApiError> {
        let (dir, pool, allow_other) = (dir.to_owned(), record.pool.clone(), access.allow_other);
        // Not on this thread: the file system of `dir` may take any time to answer.
        let (mut mounted, device) = blocking(move || mount(&dir, &pool, allow_other)).await?;
        let uid = access.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let gid = access.gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
        let mode = access.mode.unwrap_or(MODE);
        let export = FuseExport { id: ExportId(record.id), name: record.name.clone(), device, uid, gid, mode };
        match shard.export_fuse(export).await {
            Ok(info) => {
                self.mounts().insert(record.id, mounted);
                Ok(info)
            }
            Err(error) => {
                // The mount is not served, so it cannot be in use.
                let _ = blocking(move || mounted.unmount(true)).await;
                Err(error.into())
            }
        }
    }

    /// Unmounts an export. With `lazy`, open files are served until they are closed.
    ///
    /// # Errors
    /// When files are open and `lazy` is false.
    pub(super) async fn end_fuse(&self, id: u64, lazy: bool) -> Result<(), ApiError> {
        let taken = self.mounts().remove(&id);
        let Some(mut mounted) = taken else { return Ok(()) };
        let (mounted, ended) = blocking(move || {
            let ended = mounted.unmount(lazy);
            Ok((mounted, ended))
        })
        .await?;
        if ended.is_err() {
            self.mounts().insert(id, mounted);
        }
        ended
    }

    /// Unmounts the exports of a pool, or of all pools; lazily where files are open. Acknowledged
    /// data is not lost by that; processes with open files get ENOTCONN when the pool is closed.
    pub(super) async fn end_fuses(&self, pool: Option<&str>) {
        let chosen = |name: &str| pool.is_none_or(|pool| pool == name);
        let ids: Vec<u64> = {
            let registry = self.registry();
            registry.exports.values().filter(|entry| chosen(&entry.record.pool)).map(|entry| entry.record.id).collect()
        };
        for id in ids {
            if let Err(error) = self.end_fuse(id, false).await {
                tracing::warn!(export = id, %error, "cannot unmount; unmounting lazily");
                if let Err(error) = self.end_fuse(id, true).await {
                    tracing::error!(export = id, %error, "cannot unmount; the guard process unmounts it when the daemon ends");
                }
            }
        }
    }

    /// True while the mount of a FUSE export is still there.
    pub(super) fn is_mounted(&self, id: u64) -> bool {
        self.mounts().get(&id).is_some_and(Mounted::is_there)
    }
}

/// Returns the path as the table of mounts names it. The last part may be missing, or a dead mount.
fn real_path(dir: &Path) -> Result<PathBuf, ApiError> {
    let shown = dir.display();
    let (Some(parent), Some(name), true) = (dir.parent(), dir.file_name(), dir.is_absolute()) else {
        return Err(ApiError::usage(format!("'{shown}' is not an absolute path of a directory; give one")));
    };
    let parent = parent.canonicalize().map_err(|e| ApiError::not_found(format!("the directory of {shown}: {e}; create it first")))?;
    let path = parent.join(name);
    match path.read_link() {
        Ok(_) => path.canonicalize().map_err(|e| ApiError::not_found(format!("{shown} does not exist: {e}; give a directory"))),
        Err(_) => Ok(path),
    }
}
