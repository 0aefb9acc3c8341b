//! Layouts and classes of devices, as requests give them, and the layout of a pool in answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Layout of segments over the devices of a group, as requests give it. Other kinds are refused;
/// answers have [`PoolLayout`] and [`DeviceLayout`](crate::DeviceLayout).
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

/// Layout of segments over the devices of a pool, in answers. A later daemon may have other kinds,
/// which a client keeps as it read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PoolLayout {
    /// Layout that requests can give, too.
    Known(LayoutSpec),
    /// Layout of a kind, or with fields, that this version does not know.
    Other(OtherLayout),
}

/// Layout that this version does not know, as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherLayout {
    /// Word of the kind.
    pub kind: String,
    /// The other fields of the layout.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl From<LayoutSpec> for PoolLayout {
    fn from(layout: LayoutSpec) -> PoolLayout {
        PoolLayout::Known(layout)
    }
}

/// Purpose of devices, only in requests. Other words are refused; answers have
/// [`DeviceClass`](crate::DeviceClass).
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
