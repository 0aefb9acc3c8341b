//! Pins: notes in a target that a pool has clones which read a publication.
//!
//! A pin is durable before the first clone is made, and stays until the publication is deleted with force:
//! a rewind of the pool brings the clones back. Programs that know no pins would delete a publication with
//! them, so the first pin is written after the head has a format that they refuse.

use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use millpond_api::names::SnapshotName;
use serde::{Deserialize, Serialize};

use crate::{BackupError, Target, record};

/// Folder of the pins: `pins/PUBLICATION/POOL`, by their ids.
const PINS: &str = "pins";

/// A pool that reads a publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Id of the pool.
    pub pool_id: String,
    /// Name of the pool at that time.
    pub pool: String,
    /// Name of the host at that time.
    pub host: String,
    /// When it was written.
    pub created: Timestamp,
}

impl Target {
    /// Writes a pin of a publication, durably. Two of the same pool are one.
    ///
    /// # Errors
    /// [`BackupError::Changed`] if the publication is not the one with this id any more, the store's.
    pub fn pin(&self, name: &SnapshotName, publication: &str, pin: &Pin, stop: &AtomicBool) -> Result<(), BackupError> {
        // no unpublish is between its look for pins and its end
        let lock = self.share(stop)?;
        if self.record(name)?.publication.as_deref() != Some(publication) {
            return Err(BackupError::Changed { of: self.purpose(), name: name.to_string() });
        }
        self.raise()?;
        lock.check()?;
        self.store().put(&format!("{PINS}/{publication}/{}", pin.pool_id), &record::encode(pin))?;
        Ok(self.store().settle()?)
    }

    /// Returns the pins of a publication. Of one that cannot be read, only the id of the pool is known.
    ///
    /// # Errors
    /// The store's.
    pub fn pins(&self, publication: &str) -> Result<Vec<Pin>, BackupError> {
        let paths = self.pin_paths(publication)?;
        let read = |path: &String| {
            let text = self.store().get(path, crate::target::RECORD).ok();
            let pin = text.and_then(|text| record::decode::<Pin>(self.purpose(), &text, path).ok());
            let id = path.rsplit('/').next().unwrap_or_default().to_owned();
            pin.unwrap_or(Pin { pool_id: id, pool: String::new(), host: String::new(), created: Timestamp::UNIX_EPOCH })
        };
        Ok(paths.iter().map(read).collect())
    }

    /// Deletes the pins of a publication that is deleted.
    pub(crate) fn delete_pins(&self, publication: &str) -> Result<(), BackupError> {
        self.store().delete(&self.pin_paths(publication)?)?;
        Ok(self.store().settle()?)
    }

    fn pin_paths(&self, publication: &str) -> Result<Vec<String>, BackupError> {
        let mut paths = Vec::new();
        self.store().list(&format!("{PINS}/{publication}"), &mut |path, _| paths.push(path))?;
        paths.sort();
        Ok(paths)
    }
}

/// Returns the pools of pins in words.
pub(crate) fn in_words(pins: &[Pin]) -> String {
    let word = |pin: &Pin| match pin.pool.as_str() {
        "" => format!("pool {}", pin.pool_id),
        pool => format!("pool '{pool}' of host {}", pin.host),
    };
    pins.iter().map(word).collect::<Vec<_>>().join(", ")
}
