//! Errors of targets and backups.

use std::io;

use crate::Purpose;

/// Reason why a target did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is nothing of this name.
    #[error("{0} is not there")]
    Missing(String),
    /// The directory or the network answered with an error.
    #[error("cannot {0}: {1}")]
    Io(String, io::Error),
    /// Others use it.
    #[error("{0}")]
    Busy(String),
    /// It was asked to stop while it waited for others.
    #[error("interrupted")]
    Stopped,
    /// This program stood still for so long that others count it as ended.
    #[error("this command stood still for too long, and others may have changed the target since; run it again")]
    Late,
}

impl StoreError {
    /// Returns a function that says what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
        let what = what.into();
        move |error| StoreError::Io(what, error)
    }
}

/// Reason why a backup was not made, read, checked or pruned.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target's.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory or prefix has other things.
    #[error("it is not empty, and has no {0}; give an empty directory or prefix")]
    NotATarget(Purpose),
    /// It is a target of this other purpose.
    #[error("it has {0}, and can keep nothing else; give another directory or prefix")]
    Other(Purpose),
    /// Only a target that is there may be used.
    #[error("it has no {0} yet; is it mounted? '{maker}' prepares it for them", maker = .0.maker())]
    Empty(Purpose),
    /// A newer version wrote it.
    #[error("{0} was written by a newer version; use that")]
    Newer(String),
    /// Something in the target is not as it was written.
    #[error("{name} is damaged: {why}; '{}' finds all that is", .of.verifier())]
    Damaged {
        /// Purpose of the target.
        of: Purpose,
        /// Name in the target.
        name: String,
        /// The reason.
        why: String,
    },
    /// A backup that stays cannot be read, so what it needs is not known.
    #[error("the {} '{name}' cannot be read ({why}); delete it by its name with '{}', then make it again", .of.one(), .of.deleter())]
    Unreadable {
        /// Purpose of the target.
        of: Purpose,
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// There is no backup of this name.
    #[error("there is no {} '{name}'; '{}' shows all", .of.one(), .of.lister())]
    NotThere {
        /// Purpose of the target.
        of: Purpose,
        /// Its name.
        name: String,
    },
    /// It is not the one any more that this command found.
    #[error("the {} '{name}' was changed or deleted meanwhile; run it again", .of.one())]
    Changed {
        /// Purpose of the target.
        of: Purpose,
        /// Its name.
        name: String,
    },
    /// There is another backup of this name.
    #[error("there is a {} '{name}' of another snapshot; rename the snapshot", .of.one())]
    Exists {
        /// Purpose of the target.
        of: Purpose,
        /// Its name.
        name: String,
    },
    /// Pools have clones that read it.
    #[error("clones in {pools} read the {} '{name}' when they need it; for pools that are gone give --force", .of.one())]
    Pinned {
        /// Purpose of the target.
        of: Purpose,
        /// Its name.
        name: String,
        /// The pools.
        pools: String,
    },
    /// Another target is in the place of the one that was opened.
    #[error("another target is there now; is the right disk mounted?")]
    OtherTarget,
    /// The volume is larger than the records of such a target can be.
    #[error("the volume is larger than {} TiB", .0.largest_volume() >> 40)]
    TooLarge(Purpose),
    /// The volume cannot be read at this byte.
    #[error("cannot read the volume at byte {0}: {1}; see the daemon's messages")]
    Source(u64, io::Error),
    /// It was asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl BackupError {
    /// True for an error that says that a file of the target is not as it was written, or cannot be read
    /// for good; false for one that may pass.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            BackupError::Damaged { .. } => true,
            BackupError::Store(StoreError::Io(_, error)) => {
                error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) || error.kind() == io::ErrorKind::InvalidData
            }
            _ => false,
        }
    }
}
