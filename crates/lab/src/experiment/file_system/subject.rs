//! A target with the guest that uses its disk.

use super::super::Setup;
use crate::guest::{Guest, Mapper};
use crate::load::FileSet;
use crate::peer::{Contender, Drives, Millpond, Qsd, millpond_binary};
use crate::process::Workspace;
use anyhow::{Context, Result};
use std::path::Path;

/// LVM's snapshots in the guest, on the disk of `qsd-raw`.
pub const LVM: &str = "lvm-in-guest";
/// The same, and Millpond, on a simulated hard disk.
pub const LVM_HDD: &str = "lvm-in-guest, hard disk";
pub const OURS_HDD: &str = "millpond, hard disk";
const HDD: &str = "mn08aca14t";

/// A target, and the guest that uses its disk.
pub struct Subject {
    // fields are dropped in this order: the guest has the disk open
    pub guest: Guest,
    pub contender: Box<dyn Contender>,
    mapper: Mapper,
    _drives: Option<Drives>,
    pub workspace: Workspace,
}

/// Sizes in bytes.
struct Sizes {
    filesystem: u64,
    disk: u64,
    pool: u64,
    /// Most bytes that a peer's image and its overlays take.
    image: u64,
}

fn mapper_of(name: &str) -> Mapper {
    if [LVM, LVM_HDD].contains(&name) { Mapper::Snapshots } else { Mapper::None }
}

fn sizes(setup: &Setup, name: &str, count: u64) -> Sizes {
    let files = FileSet::bytes(count);
    let filesystem = setup.size.unwrap_or((files * 5 / 4 + (128 << 20)) >> 20 << 20);
    // the origin, and a store for each of two snapshots
    let disk = if mapper_of(name) == Mapper::Snapshots { 3 * filesystem } else { filesystem };
    Sizes { filesystem, disk, pool: disk + 5 * files + (1 << 30), image: disk + 4 * files }
}

impl Subject {
    /// Checks that the data of a simulated hard disk fits into memory.
    ///
    /// # Errors
    /// It does not.
    pub fn check_hard_disk(setup: &Setup, name: &str, count: u64) -> Result<()> {
        let sizes = sizes(setup, name, count);
        let memory = Setup { dir: "/dev/shm".into(), ..setup.clone() };
        memory.need(if name == OURS_HDD { sizes.pool } else { sizes.disk })
    }

    /// Starts a target with room for the rounds of `count` files, and its guest.
    ///
    /// # Errors
    /// It does not start.
    pub fn open(setup: &Setup, name: &str, count: u64) -> Result<Subject> {
        let (sizes, mapper) = (sizes(setup, name, count), mapper_of(name));
        let (workspace, drives, contender) = if [LVM_HDD, OURS_HDD].contains(&name) {
            let workspace = Workspace::new(&setup.dir, "hard-disk")?;
            let bytes = if name == OURS_HDD { sizes.pool } else { sizes.disk };
            let drives = Drives::start(workspace.path(), &[format!("{HDD}={}", bytes >> 20 << 20)])?;
            let drive = drives.files().pop().context("no drive")?;
            let contender = on_drive(name, workspace.path(), &drive, sizes.disk)?;
            (workspace, Some(drives), contender)
        } else {
            setup.need(if Millpond::is_named(name) { sizes.pool } else { sizes.image })?;
            let server = if mapper == Mapper::Snapshots { "qsd-raw" } else { name };
            let (workspace, contender) = setup.open_with_pool(server, sizes.disk, sizes.pool)?.into_parts();
            (workspace, None, contender)
        };
        let guest = Guest::boot(workspace.path(), &contender.endpoint()?, sizes.filesystem, mapper)?;
        Ok(Subject { guest, contender, mapper, _drives: drives, workspace })
    }

    /// Takes a snapshot by the server, or by the guest's device mapper.
    ///
    /// # Errors
    /// It failed.
    pub fn snapshot(&mut self, number: usize) -> Result<()> {
        match self.mapper {
            Mapper::None => self.contender.snapshot(&format!("round{number}")),
            Mapper::Snapshots => self.guest.take(number),
        }
    }

    /// Ends the guest, then the server.
    ///
    /// # Errors
    /// The guest does not end cleanly.
    pub fn off(self) -> Result<()> {
        self.guest.off()
    }
}

fn on_drive(name: &str, dir: &Path, drive: &Path, size: u64) -> Result<Box<dyn Contender>> {
    if name == OURS_HDD {
        let mut millpond = Millpond::new(millpond_binary()?);
        millpond.start_with(dir, &[drive.display().to_string()], size)?;
        return Ok(Box::new(millpond));
    }
    let mut server = Qsd::on("qsd-raw", drive);
    server.start(dir, size)?;
    Ok(Box::new(server))
}
