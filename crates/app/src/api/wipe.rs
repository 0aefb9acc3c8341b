//! Wiping: what was destroyed is made unreadable on the devices.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How what nothing refers to any more is made unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WipeMode {
    /// The devices are asked to discard it; what cannot is overwritten.
    Discard,
    /// It is overwritten with zeroes.
    #[default]
    Zero,
}

/// Asks for what nothing refers to any more to be made unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WipePool {
    /// In which way.
    #[serde(default)]
    pub mode: WipeMode,
    /// End the wipe that runs instead.
    #[serde(default)]
    pub stop: bool,
    /// Only say what it would do.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a wipe does, as far as is known when it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wiping {
    /// Bytes that are moved, because they live beside what is wiped.
    pub moved_bytes: u64,
    /// Bytes that are overwritten or discarded, on each copy.
    pub erased_bytes: u64,
}
