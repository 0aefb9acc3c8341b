//! Parameters of experiments: directory, sizes, repetitions, targets.

use crate::peer::{Contender, Millpond, make, millpond_binary};
use crate::process::Workspace;
use crate::report::Results;
use crate::units::show_size;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where pools and images live. Everybody's lie on the same filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Media {
    /// /dev/shm: memory, where the cost of software shows.
    Shm,
    /// /var/tmp, or what `--disk-dir` says: a disk.
    Disk,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Kind of the medium.
    pub media: Media,
    /// Directory on this medium.
    pub dir: PathBuf,
    /// Number of repetitions.
    pub reps: usize,
    /// Number of repetitions of measurements that take long at any scale: guests, seeking drives,
    /// phases of seconds. One at a small scale, unless specified.
    pub long_reps: usize,
    /// Seconds of a measurement.
    pub secs: f64,
    /// Size of the volume in bytes; by default the experiment's own.
    pub size: Option<u64>,
    /// Factor for counts and durations of long experiments.
    pub scale: f64,
    /// Targets to measure; empty for the experiment's own list.
    pub peers: Vec<String>,
    /// Seed of the first repetition; later ones add a multiple of 1000.
    pub seed: u64,
}

impl Setup {
    /// Size of the volume in bytes: the requested size, else the usual one scaled down, at least 64
    /// MiB.
    pub fn size_or(&self, usual: u64) -> u64 {
        const LEAST: u64 = 64 << 20;
        const GRAIN: u64 = 16 << 20;
        let scaled = (usual as f64 * self.scale.min(1.0)) as u64 / GRAIN * GRAIN;
        self.size.unwrap_or(scaled.max(LEAST.min(usual)))
    }

    /// Size in bytes of a volume or pool that must not be scaled.
    pub fn fixed_size_or(&self, usual: u64) -> u64 {
        self.size.unwrap_or(usual)
    }

    /// Scales a count, with a minimum of `least`.
    pub fn scaled(&self, count: u64, least: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(least)
    }

    /// Returns the seed of a repetition.
    pub fn seed_of(&self, rep: usize) -> u64 {
        self.seed + rep as u64 * 1000
    }

    /// Returns the targets of an experiment that can run here; the reasons of the rest are recorded
    /// in `results`.
    pub fn contenders(&self, usual: &[&str], results: &mut Results) -> Vec<String> {
        let wanted = usual.iter().filter(|name| self.peers.is_empty() || self.peers.iter().any(|p| p == *name));
        let mut able = Vec::new();
        for name in wanted {
            match make(name) {
                Ok(_) => able.push((*name).to_owned()),
                Err(reason) => results.skip(name, &format!("{reason:#}")),
            }
        }
        able
    }

    /// Checks that `bytes` fit into the directory.
    ///
    /// # Errors
    /// They do not; with a remedy.
    pub fn need(&self, bytes: u64) -> Result<()> {
        let place = rustix::fs::statvfs(&self.dir).with_context(|| format!("looking at {}", self.dir.display()))?;
        let free = place.f_bavail.saturating_mul(place.f_frsize);
        anyhow::ensure!(
            bytes <= free,
            "{} are needed in {}, which has {} free; take a smaller --scale, or --media disk --disk-dir DIR",
            show_size(bytes),
            self.dir.display(),
            show_size(free)
        );
        Ok(())
    }

    /// Starts a target on a new disk.
    ///
    /// # Errors
    /// It does not start.
    pub fn open(&self, name: &str, size: u64) -> Result<Open> {
        let workspace = Workspace::new(&self.dir, name)?;
        let mut contender = make(name)?;
        contender.start(workspace.path(), size).with_context(|| format!("starting {name}"))?;
        Ok(Open { contender, workspace })
    }

    /// Starts a target on a new disk; `pool_bytes` is the size of the pool if it is a Millpond.
    ///
    /// # Errors
    /// It does not start.
    pub fn open_with_pool(&self, name: &str, size: u64, pool_bytes: u64) -> Result<Open> {
        if !Millpond::is_named(name) {
            return self.open(name, size);
        }
        let (workspace, millpond) = self.begin_millpond(Millpond::named(name)?.with_pool_bytes(pool_bytes), size)?.into_parts();
        Ok(Open { contender: Box::new(millpond), workspace })
    }

    /// Starts Millpond as a user gets it, with a pool of `pool_bytes` bytes and these lines of
    /// configuration.
    ///
    /// # Errors
    /// It does not start.
    pub fn open_millpond(&self, size: u64, pool_bytes: u64, settings: &[&str]) -> Result<OpenMillpond> {
        let millpond = Millpond::new(millpond_binary()?).with_pool_bytes(pool_bytes);
        self.begin_millpond(settings.iter().fold(millpond, |millpond, line| millpond.with_setting(line)), size)
    }

    /// Starts Millpond like [`Setup::open_millpond`], with a pool's file that was written in full
    /// ([`Millpond::written`]).
    ///
    /// # Errors
    /// It does not start, or there is not enough space.
    pub fn open_millpond_written(&self, size: u64, pool_bytes: u64) -> Result<OpenMillpond> {
        self.begin_millpond(Millpond::new(millpond_binary()?).with_pool_bytes(pool_bytes).written(), size)
    }

    fn begin_millpond(&self, mut millpond: Millpond, size: u64) -> Result<OpenMillpond> {
        let workspace = Workspace::new(&self.dir, "millpond")?;
        millpond.start(workspace.path(), size).context("starting millpond")?;
        Ok(OpenMillpond { millpond, workspace })
    }
}

/// A running target and its directory. Both are removed on drop, the server first.
pub struct Open {
    /// The server.
    pub contender: Box<dyn Contender>,
    workspace: Workspace,
}

impl Open {
    /// Returns the directory and the server, in this order, so that the server is dropped first
    /// when bound so.
    pub fn into_parts(self) -> (Workspace, Box<dyn Contender>) {
        (self.workspace, self.contender)
    }
}

impl OpenMillpond {
    /// Returns the directory and the server, in this order, so that the server is dropped first
    /// when bound so.
    pub fn into_parts(self) -> (Workspace, Millpond) {
        (self.workspace, self.millpond)
    }
}

/// A running Millpond and its directory. Both are removed on drop, the server first.
pub struct OpenMillpond {
    /// The server.
    pub millpond: Millpond,
    workspace: Workspace,
}
