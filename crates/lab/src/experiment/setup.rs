//! What an experiment is told: where, how large, how often, against whom.

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
    /// Where.
    pub media: Media,
    /// Directory on that medium.
    pub dir: PathBuf,
    /// Repetitions.
    pub reps: usize,
    /// Repetitions of what takes long at any scale: guests, drives that seek, phases of seconds. One for a look, unless it was said.
    pub long_reps: usize,
    /// Seconds of one measurement.
    pub secs: f64,
    /// Bytes of the volume, unless an experiment needs its own.
    pub size: Option<u64>,
    /// Counts and durations of long experiments are multiplied by this.
    pub scale: f64,
    /// Contenders to take; empty = the experiment's own list.
    pub peers: Vec<String>,
    /// First seed; each repetition takes the next.
    pub seed: u64,
}

impl Setup {
    /// Size of the volume: what was asked for, else the usual one scaled down, at least 64 MiB.
    pub fn size_or(&self, usual: u64) -> u64 {
        const LEAST: u64 = 64 << 20;
        const GRAIN: u64 = 16 << 20;
        let scaled = (usual as f64 * self.scale.min(1.0)) as u64 / GRAIN * GRAIN;
        self.size.unwrap_or(scaled.max(LEAST.min(usual)))
    }

    /// Size of a volume or pool that has to be as large as it is.
    pub fn fixed_size_or(&self, usual: u64) -> u64 {
        self.size.unwrap_or(usual)
    }

    /// A count scaled, at least `least`.
    pub fn scaled(&self, count: u64, least: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(least)
    }

    /// Seed of a repetition.
    pub fn seed_of(&self, rep: usize) -> u64 {
        self.seed + rep as u64 * 1000
    }

    /// The contenders of an experiment that can run here; the others are noted with the reason.
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

    /// Makes sure that this much fits into the directory.
    ///
    /// # Errors
    /// It does not, and what to do.
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

    /// Starts a contender on a fresh disk.
    ///
    /// # Errors
    /// It did not start.
    pub fn open(&self, name: &str, size: u64) -> Result<Open> {
        let workspace = Workspace::new(&self.dir, name)?;
        let mut contender = make(name)?;
        contender.start(workspace.path(), size).with_context(|| format!("starting {name}"))?;
        Ok(Open { contender, workspace })
    }

    /// Starts Millpond with a pool of this many bytes, sparse.
    ///
    /// # Errors
    /// It did not start.
    pub fn open_millpond(&self, size: u64, pool_bytes: u64, settings: &[&str]) -> Result<OpenMillpond> {
        let millpond = Millpond::new(millpond_binary()?).with_pool_bytes(pool_bytes);
        self.begin_millpond(settings.iter().fold(millpond, |millpond, line| millpond.with_setting(line)), size)
    }

    /// As [`Setup::open_millpond`], with all of the pool's file there ([`Millpond::allocated`]).
    ///
    /// # Errors
    /// It did not start, or there is not so much room.
    pub fn open_millpond_allocated(&self, size: u64, pool_bytes: u64) -> Result<OpenMillpond> {
        self.begin_millpond(Millpond::new(millpond_binary()?).with_pool_bytes(pool_bytes).allocated(), size)
    }

    fn begin_millpond(&self, mut millpond: Millpond, size: u64) -> Result<OpenMillpond> {
        let workspace = Workspace::new(&self.dir, "millpond")?;
        millpond.start(workspace.path(), size).context("starting millpond")?;
        Ok(OpenMillpond { millpond, workspace })
    }
}

/// A running contender and its directory; both vanish with this, the server first.
pub struct Open {
    /// The server.
    pub contender: Box<dyn Contender>,
    workspace: Workspace,
}

impl Open {
    /// The directory and the server: bound in this order, the server goes first.
    pub fn into_parts(self) -> (Workspace, Box<dyn Contender>) {
        (self.workspace, self.contender)
    }
}

impl OpenMillpond {
    /// The directory and the server: bound in this order, the server goes first.
    pub fn into_parts(self) -> (Workspace, Millpond) {
        (self.workspace, self.millpond)
    }
}

/// A running Millpond and its directory; both vanish with this, the server first.
pub struct OpenMillpond {
    /// The server.
    pub millpond: Millpond,
    workspace: Workspace,
}
