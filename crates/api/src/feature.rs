//! Features of the format of a pool.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to turn on the features that a pool lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpgradePool {
    /// If true, only reports the features.
    #[serde(default)]
    pub dry_run: bool,
}

/// A feature that this version knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolFeature {
    /// Name of the feature.
    pub name: String,
    /// First version that knows it.
    pub since: String,
    /// True if the pool has it: its newest label names it.
    pub on: bool,
    /// True if it may be used: both labels of every device name it.
    pub in_force: bool,
    /// True if the pool gets it by itself, such as with its first cache device, and not by an
    /// upgrade.
    pub automatic: bool,
    /// The feature in one sentence.
    pub meaning: String,
    /// Loss for older versions, in one sentence.
    pub closes: String,
}

/// Features of a pool after a request, or before it if that was a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolUpgrade {
    /// Name of the pool.
    pub name: String,
    /// Version of the format of its labels.
    pub format: u16,
    /// All features that this version knows.
    pub features: Vec<PoolFeature>,
    /// Names of the features that the request turns on.
    pub turned_on: Vec<String>,
}
