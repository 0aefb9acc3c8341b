//! A server on disks whose power can be cut.

use super::super::Setup;
use crate::peer::{CacheMode, Contender, DISK, Millpond, POOL, QemuNbd, VolatileDisk, millpond_binary};
use crate::process::Workspace;
use anyhow::{Context, Result};

/// Size in bytes of a disk of a pool; all disks are sparse.
const DISK_BYTES: u64 = 1 << 30;
/// Bytes of an overlay's disk beyond the size of the overlay, for its tables.
const TABLES: u64 = 16 << 20;

/// Layout of a pool and number of its disks.
pub struct Layout {
    /// Keyword of the layout.
    pub name: &'static str,
    disks: usize,
}

/// All layouts.
pub const LAYOUTS: [Layout; 5] = [
    Layout { name: "linear", disks: 1 },
    Layout { name: "mirror", disks: 2 },
    Layout { name: "stripe", disks: 2 },
    Layout { name: "parity1", disks: 3 },
    Layout { name: "parity2", disks: 4 },
];

/// A server and its disks. Fields are dropped in order: the server, its disks, then their
/// directory.
pub struct Harness {
    server: Box<dyn Contender>,
    disks: Vec<VolatileDisk>,
    _workspace: Workspace,
}

impl Harness {
    /// Starts a server of `size` bytes on disks of its own.
    ///
    /// # Errors
    /// A disk or the server does not start.
    pub fn start(setup: &Setup, name: &str, layout: Option<&Layout>, mode: CacheMode, size: u64) -> Result<Harness> {
        let workspace = Workspace::new(&setup.dir, "loss")?;
        let dir = workspace.path();
        let Some(layout) = layout else {
            let overlay = name == "qemu-nbd-overlay";
            let place = dir.join("disk");
            std::fs::create_dir_all(&place).context("making the disk's directory")?;
            if overlay {
                // made in a file, where an overlay may grow; the device is then large enough for it
                QemuNbd::make_overlay(&VolatileDisk::medium(&place), dir, size)?;
            }
            let disk = VolatileDisk::start(&place, if overlay { size + TABLES } else { size })?;
            let mut server = QemuNbd::new(overlay).with_cache(mode).with_image(&disk.path());
            server.start(dir, size)?;
            return Ok(Harness { server: Box::new(server), disks: vec![disk], _workspace: workspace });
        };
        let disks: Result<Vec<_>> = (0..layout.disks).map(|n| VolatileDisk::start(&dir.join(format!("disk{n}")), DISK_BYTES)).collect();
        let disks = disks?;
        let mut millpond = Millpond::new(millpond_binary()?);
        millpond.start_empty(dir)?;
        let mut words = vec!["pool".to_owned(), "create".into(), POOL.into(), layout.name.into()];
        words.extend(disks.iter().map(|disk| disk.path().display().to_string()));
        millpond.cli(&words)?;
        millpond.cli(&["create", DISK, "-L", &size.to_string(), "--cache", mode.name()])?;
        millpond.export(DISK)?;
        Ok(Harness { server: Box::new(millpond), disks, _workspace: workspace })
    }

    /// Returns the server.
    pub fn server(&mut self) -> &mut dyn Contender {
        self.server.as_mut()
    }

    /// Cuts the power. The server is killed first, so that nothing is acknowledged after the cut,
    /// and nothing becomes stable between its death and that of its disks.
    ///
    /// # Errors
    /// A process cannot be killed.
    pub fn power_off(&mut self) -> Result<()> {
        self.server.kill9()?;
        self.disks.iter_mut().try_for_each(VolatileDisk::power_off)
    }

    /// Restores the power.
    ///
    /// # Errors
    /// A disk or the server does not start.
    pub fn power_on(&mut self) -> Result<()> {
        self.disks.iter_mut().try_for_each(VolatileDisk::power_on)?;
        self.server.restart().context("starting the server after the power cut")
    }
}
