//! Layouts and classes of devices, as requests give them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Layout of segments over the devices of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LayoutSpec {
    /// Each segment on one device.
    Linear,
    /// Each segment striped over `width` devices in pieces of `unit` bytes.
    Stripe {
        /// Number of devices per segment.
        width: u16,
        /// Bytes on one device before the next device is used.
        unit: u32,
    },
    /// Each segment complete on each of `copies` devices.
    Mirror {
        /// Number of copies.
        copies: u16,
    },
    /// Each segment striped over `width` devices in pieces of `unit` bytes, of which `parity`
    /// devices may be missing.
    Parity {
        /// Number of devices per segment.
        width: u16,
        /// Number of devices that may be missing: 1 or 2.
        parity: u8,
        /// Bytes on one device before the next device is used.
        unit: u32,
    },
}

impl LayoutSpec {
    /// Returns the number of devices that a segment can lose without loss of data.
    pub fn spare(self) -> u16 {
        match self {
            LayoutSpec::Linear | LayoutSpec::Stripe { .. } => 0,
            LayoutSpec::Mirror { copies } => copies.saturating_sub(1),
            LayoutSpec::Parity { parity, .. } => u16::from(parity),
        }
    }
}

/// Purpose of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassSpec {
    /// All data that no other class takes.
    #[default]
    Data,
    /// Map nodes, checkpoint objects and small writes.
    Special,
    /// Recent writes, until they are moved to class data.
    Log,
    /// Copies of blocks that are read more than once.
    Cache,
    /// Replacement for a device that is lost; empty until then.
    Spare,
}

impl ClassSpec {
    /// Returns the name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ClassSpec::Data => "data",
            ClassSpec::Special => "special",
            ClassSpec::Log => "log",
            ClassSpec::Cache => "cache",
            ClassSpec::Spare => "spare",
        }
    }
}
