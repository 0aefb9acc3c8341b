//! Publications: snapshots in a target of their own, from which any number of pools clone.
//!
//! A publication is a [`Record`](crate::Record) with an id, and is made, read and verified as a backup is.

use millpond_api::names::SnapshotName;
use millpond_images::copy::CopyProgress;

use crate::pin::in_words;
use crate::prune::{Pruned, prune_if};
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
/// With `force` the record goes also if it, or another one, cannot be read, or pools have clones that read
/// it. What another one needs is not known if that one cannot be read, so all chunks stay then.
///
/// # Errors
/// [`BackupError::NotThere`]; [`BackupError::Unreadable`] and [`BackupError::Pinned`] without `force`;
/// those of [`prune`](crate::prune()).
pub fn unpublish(
    target: &Target,
    name: &SnapshotName,
    (dry, force): (bool, bool),
    progress: &CopyProgress,
) -> Result<Unpublished, BackupError> {
    let publication = match target.record(name) {
        Err(error) if error.is_damage() && force => None,
        Err(error) if error.is_damage() => return Err(target.unreadable(name, &error)),
        record => record?.publication,
    };
    let check = || match publication.as_deref().filter(|_| !force).map_or(Ok(Vec::new()), |id| target.pins(id))? {
        pins if pins.is_empty() => Ok(()),
        pins => Err(BackupError::Pinned { of: target.purpose(), name: name.to_string(), pools: in_words(&pins) }),
    };
    let names = std::slice::from_ref(name);
    let done = match prune_if(target, names, dry, progress, check) {
        // it has deleted nothing
        Err(unread @ BackupError::Unreadable { .. }) if force => {
            if !dry {
                let lock = target.store().lock(true, &progress.stop)?;
                lock.check()?;
                target.delete_records(names)?;
            }
            Unpublished { pruned: Pruned::default(), kept: Some(unread) }
        }
        pruned => Unpublished { pruned: pruned?, kept: None },
    };
    if let Some(id) = publication.filter(|_| !dry) {
        target.delete_pins(&id)?;
    }
    Ok(done)
}
