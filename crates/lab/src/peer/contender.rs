//! The trait of all targets of measurements, and their list.

use super::loop_mount::{can_mount, knows_filesystem};
use super::{Aio, Ceiling, ImageFormat, Millpond, Nbdkit, Plugin, QemuNbd, Qsd, Reflink};
use crate::load::Endpoint;
use crate::process::{find_tool, run_tool};
use anyhow::{Result, anyhow, bail};
use std::path::{Path, PathBuf};

/// A server of one virtual disk over NBD, in a directory of its own. Dropping it stops the server.
pub trait Contender {
    /// Name in tables.
    fn name(&self) -> &'static str;

    /// Makes a disk of `size` bytes in `dir` and serves it.
    fn start(&mut self, dir: &Path, size: u64) -> Result<()>;

    /// Address of the disk.
    fn endpoint(&self) -> Result<Endpoint>;

    /// Returns the disk as a file: of a FUSE mount, or the image itself. Afterwards the disk may no
    /// longer be served at its endpoint.
    fn file(&mut self) -> Result<PathBuf> {
        bail!("{} is no file", self.name())
    }

    /// Returns the disk as a vhost-user device. Afterwards the disk may no longer be served at its
    /// endpoint.
    fn vhost_user(&mut self) -> Result<Endpoint> {
        bail!("{} is no vhost-user device", self.name())
    }

    /// Millpond's control socket; `None` for peers.
    fn control_socket(&self) -> Option<PathBuf> {
        None
    }

    /// Process id of the server.
    fn pid(&self) -> Result<u32>;

    /// Takes a snapshot of the disk.
    fn snapshot(&mut self, _name: &str) -> Result<()> {
        bail!("{} has no snapshots", self.name())
    }

    /// Deletes all snapshots. On return the space is free: overlays are merged, dead blocks
    /// reclaimed.
    fn delete_snapshots(&mut self) -> Result<()> {
        bail!("{} has no snapshots", self.name())
    }

    /// Rolls the disk back to a snapshot; clients must reconnect.
    fn rollback(&mut self, _name: &str) -> Result<()> {
        bail!("{} has no rollback", self.name())
    }

    /// Kills the server by SIGKILL.
    fn kill9(&mut self) -> Result<()>;

    /// Restarts the server with the data in its directory, after [`Contender::kill9`].
    fn restart(&mut self) -> Result<()>;

    /// Stops the server cleanly.
    fn stop(&mut self) -> Result<()>;
}

/// Names of all targets, Millpond first.
pub const PEERS: [&str; 16] = [
    "millpond",
    "millpond-tuned",
    "qsd-raw",
    "qsd-raw-native",
    "qsd-qcow2",
    "qsd-qcow2-128k",
    "qsd-chain",
    "qemu-nbd-raw",
    "qemu-nbd-overlay",
    "nbdkit-file",
    "nbdkit-memory",
    "xfs-reflink",
    "btrfs-reflink",
    "lvm-snapshot",
    "zfs-zvol",
    "ceiling",
];

/// Makes the target of this name; starts nothing.
///
/// # Errors
/// The name is unknown, or the target cannot run here; with the reason.
pub fn make(name: &str) -> Result<Box<dyn Contender>> {
    let needs = |tools: &[&str]| -> Result<()> {
        match tools.iter().find(|tool| find_tool(tool).is_none()) {
            Some(tool) => bail!("{tool} is not installed"),
            None => Ok(()),
        }
    };
    Ok(match name {
        "millpond" | "millpond-tuned" => Box::new(Millpond::named(name)?),
        "ceiling" => Box::new(Ceiling::default()),
        "qsd-raw" | "qsd-raw-native" | "qsd-qcow2" | "qsd-qcow2-128k" | "qsd-chain" => {
            needs(&["qemu-storage-daemon", "qemu-img"])?;
            Box::new(match name {
                "qsd-raw" => Qsd::new("qsd-raw", ImageFormat::Raw),
                "qsd-raw-native" => Qsd::new("qsd-raw-native", ImageFormat::Raw).with_aio(Aio::Native),
                "qsd-qcow2" => Qsd::new("qsd-qcow2", ImageFormat::Qcow2),
                "qsd-qcow2-128k" => Qsd::new("qsd-qcow2-128k", ImageFormat::Qcow2Subclusters),
                _ => Qsd::new("qsd-chain", ImageFormat::Chain),
            })
        }
        "qemu-nbd-raw" | "qemu-nbd-overlay" => {
            needs(&["qemu-nbd", "qemu-img"])?;
            Box::new(QemuNbd::new(name == "qemu-nbd-overlay"))
        }
        "nbdkit-file" | "nbdkit-memory" => {
            needs(&["nbdkit"])?;
            Box::new(if name == "nbdkit-file" { Nbdkit::new(Plugin::File) } else { Nbdkit::new(Plugin::Memory) })
        }
        "xfs-reflink" | "btrfs-reflink" => {
            needs(&["qemu-storage-daemon", "qemu-img", "losetup", "mount"])?;
            let (name, kind) = if name == "xfs-reflink" { ("xfs-reflink", "xfs") } else { ("btrfs-reflink", "btrfs") };
            needs(&[if kind == "xfs" { "mkfs.xfs" } else { "mkfs.btrfs" }])?;
            can_mount()?;
            knows_filesystem(kind)?;
            Box::new(Reflink::new(name, kind))
        }
        "lvm-snapshot" => {
            needs(&["lvcreate", "dmsetup"])?;
            run_tool("dmsetup", &["targets"]).map_err(|_| anyhow!("this kernel has no device mapper (`dmsetup targets` fails)"))?;
            bail!("the lab does not drive LVM yet")
        }
        "zfs-zvol" => {
            needs(&["zfs", "zpool"])?;
            bail!("the lab does not drive ZFS yet")
        }
        _ => bail!("unknown contender '{name}'; there are {}", PEERS.join(", ")),
    })
}
