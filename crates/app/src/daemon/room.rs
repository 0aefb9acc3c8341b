//! Whether what holds the pools' files has room left. A pool on a filesystem that is nearly full gives back what it can, and takes nothing ahead.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::fs::{FileType, stat, statvfs};
use tokio::time::sleep;

use super::events::Happened;
use super::host_calls::PATIENCE;
use super::service::Daemon;
use super::shard::{ShardHandle, Unseen};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// A filesystem with less than such a part free is nearly full.
const SHORT_PART: u64 = 10;

impl Daemon {
    /// Tells pools when what holds their files runs full, for as long as the daemon lives.
    pub(super) async fn watch_room(self: Arc<Daemon>) {
        let mut short: BTreeSet<String> = BTreeSet::new();
        loop {
            sleep(LOOK).await;
            let shards = self.shards();
            short.retain(|name| shards.iter().any(|(known, _)| known == name));
            // all at once: a device that hangs delays the look at its own pool alone
            let found = join_all(shards.iter().map(|(_, shard)| self.least_room(shard))).await;
            for ((name, shard), found) in shards.into_iter().zip(found) {
                let Ok(full) = found else { continue };
                // told again each time: a pool that was imported anew does not know
                shard.set_short(full.is_some());
                match full {
                    Some((path, left)) if short.insert(name.clone()) => {
                        let what = format!("the filesystem below {} has {left} % left", path.display());
                        let message = format!("{what}; make room there, or move the pool: its free space is given back at once");
                        self.report(Happened::to_pool("host.nearly-full", &name, message));
                    }
                    None if short.remove(&name) => {
                        let message = format!("the filesystems below pool '{name}' have room again");
                        self.report(Happened::to_pool("host.has-room", &name, message));
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Daemon {
    /// A device of a pool whose filesystem is nearly full, and the percentage that is left.
    ///
    /// # Errors
    /// When the pool does not answer.
    async fn least_room(&self, shard: &ShardHandle) -> Result<Option<(PathBuf, u64)>, Unseen> {
        let look = shard.look(self.options.deadlines.look).await?;
        let paths: Vec<&PathBuf> = look.status.devices.iter().flatten().map(|host| &host.path).collect();
        // one that does not answer says nothing of room
        let left = join_all(paths.iter().map(|path| self.calls.call(path, PATIENCE, percent_left))).await;
        let mut left = paths.into_iter().zip(left).filter_map(|(path, left)| Some((path.clone(), left.ok()??)));
        Ok(left.find(|(_, left)| *left < SHORT_PART))
    }
}

/// Percent of the filesystem below a file that is left for it; nothing for block devices.
fn percent_left(path: &Path) -> Option<u64> {
    let file = FileType::from_raw_mode(stat(path).ok()?.st_mode) == FileType::RegularFile;
    let space = file.then(|| statvfs(path).ok()).flatten()?;
    (space.f_bavail * 100).checked_div(space.f_blocks)
}

#[cfg(test)]
mod tests {
    //! What is left.

    use super::percent_left;

    #[test]
    fn files_have_room_and_what_is_no_file_says_nothing() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(percent_left(file.path()).is_some_and(|left| left <= 100));
        assert_eq!(percent_left("/dev/null".as_ref()), None);
        assert_eq!(percent_left("/nowhere".as_ref()), None);
    }
}
