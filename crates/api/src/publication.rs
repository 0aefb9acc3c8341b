//! Clones of publications, and the volumes through which they read.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::volume::{VolumeCache, VolumeCompression, VolumeSector};

/// The source of the blocks of a base, a volume whose blocks are fetched when they are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct BaseSource {
    /// Version of this form.
    pub format: u32,
    /// Directory, or `s3://BUCKET/PREFIX`.
    pub target: String,
    /// Options of a bucket, `NAME=VALUE` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Path of a file with credentials, if they are not in the environment of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// Random name of the target, 32 hexadecimal digits.
    pub target_id: String,
    /// Random name of the publication, 32 hexadecimal digits.
    pub publication: String,
    /// Name of the publication: `pool/volume@snapshot`.
    pub name: String,
    /// Name of the chunk with the list of all others, 64 hexadecimal digits.
    pub root: String,
}

impl BaseSource {
    /// Version of the form that this program writes, and the only one that it reads.
    pub const FORMAT: u32 = 1;

    /// Returns the words for it: `TARGET#POOL/VOL@SNAP`.
    pub fn words(&self) -> String {
        format!("{}#{}", self.target, self.name)
    }

    /// Returns true if the blocks come from the same publication at the same address.
    pub fn is_same(&self, other: &BaseSource) -> bool {
        (&self.target_id, &self.publication, &self.root) == (&other.target_id, &other.publication, &other.root)
            && (&self.target, &self.options, &self.credentials) == (&other.target, &other.options, &other.credentials)
    }
}

/// A publication that was found in its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundPublication {
    /// The source that a base of it gets.
    pub source: BaseSource,
    /// Bytes that are fetched at a time.
    pub unit: u32,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Sector profile of the volume.
    pub sector: VolumeSector,
    /// Cache mode of the volume.
    pub cache: VolumeCache,
    /// Compression of the volume.
    pub compression: VolumeCompression,
}

/// Request for a clone of a publication whose blocks are fetched when they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClonePublication {
    /// `pool/volume` to create.
    pub name: String,
    /// The target: an absolute directory, or `s3://BUCKET/PREFIX`.
    pub target: String,
    /// The publication: `volume@snapshot` or `pool/volume@snapshot`.
    pub publication: String,
    /// Options of a bucket, `NAME=VALUE` each.
    #[serde(default)]
    pub options: Vec<String>,
    /// Absolute path of a file with credentials; by default those of the daemon's environment.
    #[serde(default)]
    pub credentials: Option<String>,
    /// If true, only reports the result of the request.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of a clone of a publication, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClonedPublication {
    /// `pool/volume` that was created.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// The base through which it reads: `pool/volume`.
    pub base: String,
    /// True if the base was created, too.
    pub new_base: bool,
    /// The source of the blocks of the base.
    pub source: BaseSource,
}

/// Request to fetch the blocks of a base from another address, because its target has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebase {
    /// The base: `pool/volume`.
    pub name: String,
    /// The target: an absolute directory, or `s3://BUCKET/PREFIX`.
    pub target: String,
    /// Options of a bucket, `NAME=VALUE` each.
    #[serde(default)]
    pub options: Vec<String>,
    /// Absolute path of a file with credentials; by default those of the daemon's environment.
    #[serde(default)]
    pub credentials: Option<String>,
    /// If true, only checks the target and reports the result of the request.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of a change of the address of a base, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebased {
    /// The base: `pool/volume`.
    pub name: String,
    /// The source of its blocks before.
    pub before: BaseSource,
    /// The source of its blocks from now on.
    pub source: BaseSource,
}
