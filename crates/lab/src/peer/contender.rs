//! The trait that all contenders share, and the list of them.

use super::loop_mount::{can_mount, knows_filesystem};
use super::{Ceiling, ImageFormat, Millpond, Nbdkit, Plugin, QemuNbd, Qsd, Reflink, millpond_binary};
use crate::load::Endpoint;
use crate::process::{find_tool, run_tool};
use anyhow::{Result, anyhow, bail};
use std::path::{Path, PathBuf};

/// A server of one virtual disk over NBD. Started in a directory of its own; ends when dropped.
pub trait Contender {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// Makes a disk of `size` bytes in `dir` and serves it.
    fn start(&mut self, dir: &Path, size: u64) -> Result<()>;

    /// Where its disk is.
    fn endpoint(&self) -> Result<Endpoint>;

    /// The same disk as a file: of a FUSE mount, or of the filesystem that it lies in anyway. It may not be at its endpoint any more.
    fn file(&mut self) -> Result<PathBuf> {
        bail!("{} is no file", self.name())
    }

    /// Our control socket.
    fn control_socket(&self) -> Option<PathBuf> {
        None
    }

    /// Process id of the server.
    fn pid(&self) -> Result<u32>;

    /// Freezes the disk's present state under a name.
    fn snapshot(&mut self, _name: &str) -> Result<()> {
        bail!("{} has no snapshots", self.name())
    }

    /// Deletes all snapshots that were taken; returns when the data of none is needed any more, or when that goes on by itself.
    fn delete_snapshots(&mut self) -> Result<()> {
        bail!("{} has no snapshots", self.name())
    }

    /// Makes the disk what the snapshot holds; clients connect again afterwards.
    fn rollback(&mut self, _name: &str) -> Result<()> {
        bail!("{} has no rollback", self.name())
    }

    /// SIGKILL.
    fn kill9(&mut self) -> Result<()>;

    /// Starts it again on what is in its directory, after [`Contender::kill9`].
    fn restart(&mut self) -> Result<()>;

    /// Ends it cleanly.
    fn stop(&mut self) -> Result<()>;
}

/// Names of all contenders, ours first.
pub const PEERS: [&str; 14] = [
    "millpond",
    "qsd-raw",
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

/// The contender of this name, or the reason why it cannot run here.
///
/// # Errors
/// The name is unknown, or its program is not there.
pub fn make(name: &str) -> Result<Box<dyn Contender>> {
    let needs = |tools: &[&str]| -> Result<()> {
        match tools.iter().find(|tool| find_tool(tool).is_none()) {
            Some(tool) => bail!("{tool} is not installed"),
            None => Ok(()),
        }
    };
    Ok(match name {
        "millpond" => Box::new(Millpond::new(millpond_binary()?).allocated()),
        "ceiling" => Box::new(Ceiling::default()),
        "qsd-raw" | "qsd-qcow2" | "qsd-qcow2-128k" | "qsd-chain" => {
            needs(&["qemu-storage-daemon", "qemu-img"])?;
            Box::new(match name {
                "qsd-raw" => Qsd::new("qsd-raw", ImageFormat::Raw),
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
