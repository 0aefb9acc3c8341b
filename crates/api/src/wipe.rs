//! Wiping: destroyed data is made unreadable on the devices.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Method by which unreferenced data is made unreadable, only in requests. Other words are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WipeMode {
    /// Discards the data. Devices that cannot discard are overwritten with zeroes.
    Discard,
    /// Overwrites the data with zeroes.
    #[default]
    Zero,
}

/// Request to make data unreadable that no volume or snapshot refers to any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WipePool {
    /// Method.
    #[serde(default)]
    pub mode: WipeMode,
    /// If true, stops the running wipe instead.
    #[serde(default)]
    pub stop: bool,
    /// If true, only reports the amount of work.
    #[serde(default)]
    pub dry_run: bool,
}

/// Work of a wipe, as far as it is known at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wiping {
    /// Bytes of live data that are moved, because they share segments with wiped data.
    pub moved_bytes: u64,
    /// Bytes that are overwritten or discarded, on each copy.
    pub erased_bytes: u64,
}
