//! Replacement of a device, and the names of devices.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::device::{Device, DeviceSpec};
use super::pool::Pool;
use crate::size::Size;

/// Request to replace a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplaceDevice {
    /// Id, path or serial number of the old device, as listed. A value that matches two devices is
    /// refused.
    pub old: String,
    /// The new device.
    pub new: DeviceSpec,
    /// If true, accepts a device that contains data.
    #[serde(default)]
    pub force: bool,
    /// If true, checks everything and changes nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Names of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceNamed {
    /// Id of the device; empty if it does not belong to a pool yet.
    #[serde(default)]
    pub id: String,
    /// Path; empty if the device is missing.
    pub path: String,
    /// Last known path of a missing device.
    #[serde(default)]
    pub was: Option<String>,
    /// Serial number of the disk; null for files and for disks without one.
    #[serde(default)]
    pub serial: Option<String>,
    /// Size in bytes; 0 if not known.
    #[serde(default)]
    pub size: u64,
}

impl DeviceNamed {
    /// Returns the names of a device of a pool.
    pub fn of(device: &Device) -> DeviceNamed {
        let Device { id, path, serial, was, size, .. } = device.clone();
        // a missing device has no path
        let path = if was.is_some() || path == id { String::new() } else { path };
        DeviceNamed { id, path, was, serial, size }
    }
}

impl fmt::Display for DeviceNamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match (self.path.as_str(), &self.was) {
            ("", Some(was)) => format!("which was {was}"),
            ("", None) => "which is missing".to_owned(),
            (path, _) => path.to_owned(),
        };
        let serial = self.serial.as_ref().map(|serial| format!("serial {serial}"));
        let size = (self.size > 0).then(|| Size(self.size).to_string());
        let details = serial.into_iter().chain(size).collect::<Vec<_>>().join(", ");
        let details = if details.is_empty() { details } else { format!(" ({details})") };
        if self.id.is_empty() { write!(f, "{at}{details}") } else { write!(f, "{} {at}{details}", self.id) }
    }
}

/// Result of `pool replace`, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replacement {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// The device that is replaced.
    pub old: DeviceNamed,
    /// The replacement.
    pub new: DeviceNamed,
    /// True if the replacement is a spare of the pool.
    #[serde(default)]
    pub spare: bool,
}

#[cfg(test)]
mod tests {
    //! Names of devices in text form.
    use super::*;

    #[test]
    fn a_device_is_called_by_all_that_is_known_of_it() {
        let mut device =
            DeviceNamed { id: "1f0a93c4".into(), path: "/dev/sdb".into(), serial: Some("S1".into()), size: 1 << 30, was: None };
        assert_eq!(device.to_string(), "1f0a93c4 /dev/sdb (serial S1, 1G)");
        device = DeviceNamed { path: String::new(), was: Some("/dev/sdb".into()), ..device };
        assert_eq!(device.to_string(), "1f0a93c4 which was /dev/sdb (serial S1, 1G)");
        device = DeviceNamed { was: None, serial: None, size: 0, ..device };
        assert_eq!(device.to_string(), "1f0a93c4 which is missing");
        device = DeviceNamed { id: String::new(), path: "/a".into(), size: 4096, ..device };
        assert_eq!(device.to_string(), "/a (4K)");
    }
}
