//! Publications: snapshots in a target of their own, from which any number of pools clone.
//!
//! A publication is a [`Record`](crate::Record) with an id, and is made, read and verified as a backup is.

use millpond_api::names::SnapshotName;
use millpond_images::copy::CopyProgress;

use crate::prune::{Pruned, prune};
use crate::{BackupError, Target};

/// Result of [`unpublish`], or of its dry run.
#[derive(Debug, Default)]
pub struct Unpublished {
    /// Chunks that no publication names any more.
    pub pruned: Pruned,
    /// Reason why no chunk was deleted. The next one deletes them.
    pub kept: Option<BackupError>,
}

/// Deletes a publication, durably, and then all chunks that no other one names; with `dry`, only counts
/// them. No other command uses the target meanwhile.
///
/// With `force` the record goes also if it, or another one, cannot be read. What another one needs is then
/// not known, so all chunks stay.
///
/// # Errors
/// [`BackupError::NotThere`]; [`BackupError::Unreadable`] without `force`; those of [`prune`].
pub fn unpublish(
    target: &Target,
    name: &SnapshotName,
    (dry, force): (bool, bool),
    progress: &CopyProgress,
) -> Result<Unpublished, BackupError> {
    match target.record(name) {
        Err(error) if error.is_damage() && force => {}
        Err(error) if error.is_damage() => return Err(target.unreadable(name, &error)),
        record => drop(record?),
    }
    let names = std::slice::from_ref(name);
    match prune(target, names, dry, progress) {
        // it has deleted nothing
        Err(unread @ BackupError::Unreadable { .. }) if force => {
            if !dry {
                let lock = target.store().lock(true, &progress.stop)?;
                lock.check()?;
                target.delete_records(names)?;
            }
            Ok(Unpublished { pruned: Pruned::default(), kept: Some(unread) })
        }
        pruned => Ok(Unpublished { pruned: pruned?, kept: None }),
    }
}
