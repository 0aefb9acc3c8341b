//! Records: one small file for each backup, and one for the result of its last verification.
//!
//! A record is a line of JSON and a line with its SHA-256.

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use millpond_api::identity::SnapshotIdentity;
use millpond_api::names::SnapshotName;
use millpond_api::{VolumeCache, VolumeCompression, VolumeSector};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{BackupError, ChunkId, Purpose};

/// Folder of the results of verifications.
pub(crate) const VERIFIED: &str = "verified";
/// Version of the format.
pub(crate) const FORMAT: u32 = 1;

/// A backup or a publication. Fields that a reader does not know are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the format.
    pub format: u32,
    /// Name of the snapshot, `pool/volume@snapshot`.
    pub name: String,
    /// Its identity, by which the next backup finds it in the pool.
    pub identity: SnapshotIdentity,
    /// Its description.
    #[serde(default)]
    pub description: String,
    /// When it was taken.
    pub created: Timestamp,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Sector profile of the volume.
    pub sector: VolumeSector,
    /// Cache mode of the volume.
    pub cache: VolumeCache,
    /// Compression of the volume.
    pub compression: VolumeCompression,
    /// Name of the host that made it.
    #[serde(default)]
    pub host: String,
    /// When it was complete.
    pub made: Timestamp,
    /// Name of the backup from which it took what did not change.
    #[serde(default)]
    pub base: Option<String>,
    /// Bytes that were read from the volume.
    pub read: u64,
    /// Bytes that the target got for it.
    pub stored: u64,
    /// Chunk with the ids of its pages.
    pub root: ChunkId,
    /// Random name of a publication, 32 hexadecimal digits; none of a backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<String>,
}

impl Record {
    /// Version of the format that this crate writes.
    pub const FORMAT: u32 = FORMAT;

    /// Name of the record of a backup in the target.
    pub(crate) fn path(folder: &str, name: &SnapshotName) -> String {
        format!("{folder}/{}/{}/{}.json", name.of.pool, name.of.volume, name.snapshot)
    }

    /// Returns the name of the backup whose record has this name; none for other files.
    pub(crate) fn name_of(path: &str) -> Option<SnapshotName> {
        let (pool, rest) = path.split_once('/')?.1.split_once('/')?;
        let (volume, file) = rest.split_once('/')?;
        format!("{pool}/{volume}@{}", file.strip_suffix(".json")?).parse().ok()
    }

    /// Checks what a reader relies on.
    ///
    /// # Errors
    /// [`BackupError`].
    pub(crate) fn check(self, of: Purpose, path: &str) -> Result<Record, BackupError> {
        if self.format != FORMAT {
            return Err(BackupError::Newer(path.to_owned()));
        }
        let agrees = Record::name_of(path).is_some_and(|name| name.to_string() == self.name);
        let wrong = |why: &str| Err(BackupError::Damaged { of, name: path.to_owned(), why: why.to_owned() });
        if !agrees || self.size == 0 || self.size > of.largest_volume() {
            return wrong("its name or size makes no sense");
        }
        if self.publication.is_some() != (of == Purpose::Publications) {
            return wrong("it is of another kind of target");
        }
        Ok(self)
    }
}

/// Result of the last verification of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// When it ended.
    pub at: Timestamp,
    /// Ranges of the volume that cannot be restored: offset and length in bytes.
    pub damaged: Vec<(u64, u64)>,
}

/// Returns the text of a record.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // types of this crate always encode
    let mut text = serde_json::to_string(record).unwrap_or_default();
    let sum = digest(&SHA256, text.as_bytes());
    text.push('\n');
    sum.as_ref().iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
    text.push('\n');
    text.into_bytes()
}

/// Reads the text of a record.
///
/// # Errors
/// [`BackupError::Damaged`].
pub(crate) fn decode<T: DeserializeOwned>(of: Purpose, text: &[u8], name: &str) -> Result<T, BackupError> {
    let wrong = |why: &str| BackupError::Damaged { of, name: name.to_owned(), why: why.to_owned() };
    let text = std::str::from_utf8(text).map_err(|_| wrong("it is no text"))?;
    let (line, sum) = text.split_once('\n').ok_or_else(|| wrong("it is cut"))?;
    let own: String = digest(&SHA256, line.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if sum.trim_end() != own {
        return Err(wrong("its checksum is another one"));
    }
    serde_json::from_str(line).map_err(|_| wrong("it is of another form"))
}
