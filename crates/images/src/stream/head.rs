//! The head of a stream: which snapshots it has, and on which one it builds.

use std::collections::BTreeSet;

use jiff::Timestamp;
use millpond_api::identity::{SnapshotIdentity, is_reserved};
use millpond_api::names::SnapshotName;
use millpond_api::{Snapshot, VolumeCache, VolumeCompression, VolumeSector};
use serde::{Deserialize, Serialize};

use super::frame::StreamError;

/// Granularity of sizes and offsets in bytes.
pub(super) const BLOCK: u64 = 4096;
/// Largest size of a volume in a stream, in bytes: offsets can be added to without overflow.
const MAX_SIZE: u64 = 1 << 60;

/// A snapshot in a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSnapshot {
    /// Identity.
    pub identity: SnapshotIdentity,
    /// The part of the name after `@`.
    pub name: String,
    /// Time when it was taken.
    pub created: Timestamp,
    /// Description.
    #[serde(default)]
    pub description: String,
    /// Size of the volume in bytes.
    pub size: u64,
}

impl StreamSnapshot {
    /// Returns a snapshot as a stream has it; `None` when it is part of an incomplete receive.
    pub fn of(snapshot: &Snapshot) -> Option<StreamSnapshot> {
        let name = snapshot.name.rsplit_once('@')?.1.to_owned();
        let identity = snapshot.identity.clone().filter(|_| !is_reserved(&name))?;
        Some(StreamSnapshot { identity, name, created: snapshot.created, description: snapshot.description.clone(), size: snapshot.size })
    }
}

/// The head of a stream. Fields that a reader does not know are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamHead {
    /// Name of the volume where it was sent, `pool/volume`.
    pub volume: String,
    /// Its sector profile.
    pub sector: VolumeSector,
    /// Its cache mode.
    pub cache: VolumeCache,
    /// Its compression.
    pub compression: VolumeCompression,
    /// The snapshot on which the first one builds; none in a full stream.
    #[serde(default)]
    pub base: Option<StreamSnapshot>,
    /// The snapshots, oldest first; at least one.
    pub snapshots: Vec<StreamSnapshot>,
}

impl StreamHead {
    /// Checks names, sizes and identities.
    ///
    /// # Errors
    /// [`StreamError::Head`] with the reason.
    pub fn check(&self) -> Result<(), StreamError> {
        let wrong = |reason: String| Err(StreamError::Head(reason));
        if self.snapshots.is_empty() {
            return wrong("it has no snapshots".to_owned());
        }
        let (mut names, mut identities) = (BTreeSet::new(), BTreeSet::new());
        for snapshot in self.base.iter().chain(&self.snapshots) {
            let parsed: Result<SnapshotName, _> = format!("pool/volume@{}", snapshot.name).parse();
            let same = |name: SnapshotName| name.snapshot == snapshot.name;
            if !parsed.is_ok_and(same) || is_reserved(&snapshot.name) {
                return wrong(format!("'{}' is no name of a snapshot", snapshot.name.escape_debug()));
            }
            if snapshot.size == 0 || !snapshot.size.is_multiple_of(BLOCK) || snapshot.size > MAX_SIZE {
                return wrong(format!("snapshot '{}' has {} bytes", snapshot.name, snapshot.size));
            }
            if !identities.insert(&snapshot.identity) || !names.insert(&snapshot.name) {
                return wrong(format!("snapshot '{}' is in it twice", snapshot.name));
            }
        }
        Ok(())
    }

    /// Returns the snapshot on which the one at `index` builds.
    pub fn base_of(&self, index: usize) -> Option<&StreamSnapshot> {
        match index.checked_sub(1) {
            Some(before) => self.snapshots.get(before),
            None => self.base.as_ref(),
        }
    }
}
