//! The trait that all contenders share, and the list of them.

use super::{Ceiling, ImageFormat, Millpond, Nbdkit, Plugin, Qsd, millpond_binary};
use crate::load::Endpoint;
use crate::process::find_tool;
use anyhow::{Result, bail};
use std::path::Path;

/// A server of one virtual disk over NBD. Started in a directory of its own; ends when dropped.
pub trait Contender {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// Makes a disk of `size` bytes in `dir` and serves it.
    fn start(&mut self, dir: &Path, size: u64) -> Result<()>;

    /// Where its disk is.
    fn endpoint(&self) -> Result<Endpoint>;

    /// Process id of the server.
    fn pid(&self) -> Result<u32>;

    /// Freezes the disk's present state under a name.
    fn snapshot(&mut self, _name: &str) -> Result<()> {
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
pub const PEERS: [&str; 8] = ["millpond", "qsd-raw", "qsd-qcow2", "qsd-qcow2-128k", "qsd-chain", "nbdkit-file", "nbdkit-memory", "ceiling"];

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
        "nbdkit-file" | "nbdkit-memory" => {
            needs(&["nbdkit"])?;
            Box::new(if name == "nbdkit-file" { Nbdkit::new(Plugin::File) } else { Nbdkit::new(Plugin::Memory) })
        }
        _ => bail!("unknown contender '{name}'; there are {}", PEERS.join(", ")),
    })
}
