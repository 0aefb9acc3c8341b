//! Free space of the file systems that hold pool files. A pool on a nearly full file system gives
//! back free space, and takes none ahead.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millpond_api::EventKind;
use rustix::fs::{FileType, stat, statvfs};
use tokio::time::sleep;

use super::events::Happened;
use super::host_calls::PATIENCE;
use super::service::Daemon;
use super::shard::{ShardHandle, Unseen};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// A file system with less than this percentage free is nearly full.
const SHORT_PART: u64 = 10;

impl Daemon {
    /// Informs pools when the file systems of their files are nearly full, as long as the daemon
    /// lives.
    pub(super) async fn watch_room(self: Arc<Daemon>) {
        let mut short: BTreeSet<String> = BTreeSet::new();
        loop {
            sleep(LOOK).await;
            let shards = self.shards();
            short.retain(|name| shards.iter().any(|(known, _)| known == name));
            // look at all pools at once: a device that hangs delays only the look at its own pool
            let found = join_all(shards.iter().map(|(_, shard)| self.least_room(shard))).await;
            for ((name, shard), found) in shards.into_iter().zip(found) {
                let Ok(full) = found else { continue };
                // set at each look: a pool that was imported anew does not know it
                shard.set_short(full.is_some());
                let why = full.as_ref().map(|(path, left)| format!("the filesystem below {} has {left} % left", path.display()));
                self.conditions.set_short(&name, why.clone());
                match why {
                    Some(what) if short.insert(name.clone()) => {
                        let message = format!("{what}; free up space there, or move the pool: its free space is released at once");
                        self.report(Happened::to_pool(EventKind::HostNearlyFull, &name, message));
                    }
                    None if short.remove(&name) => {
                        let message = format!("the filesystems below pool '{name}' have free space again");
                        self.report(Happened::to_pool(EventKind::HostHasRoom, &name, message));
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Daemon {
    /// Returns a device of a pool whose file system is nearly full, and the percentage that is
    /// free.
    ///
    /// # Errors
    /// When the pool does not answer.
    async fn least_room(&self, shard: &ShardHandle) -> Result<Option<(PathBuf, u64)>, Unseen> {
        let look = shard.look(self.options.deadlines.look).await?;
        let paths: Vec<&PathBuf> = look.status.devices.iter().flatten().map(|host| &host.path).collect();
        // a device that does not answer says nothing about free space
        let left = join_all(paths.iter().map(|path| self.calls.call(path, PATIENCE, percent_left))).await;
        let mut left = paths.into_iter().zip(left).filter_map(|(path, left)| Some((path.clone(), left.ok()??)));
        Ok(left.find(|(_, left)| *left < SHORT_PART))
    }
}

/// Returns the free percentage of the file system of a file; `None` for block devices.
fn percent_left(path: &Path) -> Option<u64> {
    let file = FileType::from_raw_mode(stat(path).ok()?.st_mode) == FileType::RegularFile;
    let space = file.then(|| statvfs(path).ok()).flatten()?;
    (space.f_bavail * 100).checked_div(space.f_blocks)
}

#[cfg(test)]
mod tests {
    //! Free space.

    use super::percent_left;

    #[test]
    fn files_have_room_and_what_is_no_file_says_nothing() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(percent_left(file.path()).is_some_and(|left| left <= 100));
        assert_eq!(percent_left("/dev/null".as_ref()), None);
        assert_eq!(percent_left("/nowhere".as_ref()), None);
    }
}
