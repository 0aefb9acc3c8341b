//! The list of experiments.

use super::{Setup, absent, cleaner, delete, flat, fuse_speed, kill9, nbd_speed, recovery, snap_under_load, sync, vhost_speed};
use crate::report::Results;
use anyhow::Result;

type Run = fn(&Setup, &mut Results) -> Result<()>;

/// An experiment: its name, what it shows, and how it is run.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// Letter of the article whose measurement it repeats, or `-`.
    pub article: &'static str,
    /// One line.
    pub about: &'static str,
    run: Run,
}

const fn new(name: &'static str, article: &'static str, about: &'static str, run: Run) -> Experiment {
    Experiment { name, article, about, run }
}

/// All of them.
pub const EXPERIMENTS: &[Experiment] = &[
    new("nbd-speed", "-", "IOPS and server CPU per request over NBD, against every peer", nbd_speed::run),
    new("fuse-speed", "-", "IOPS and server CPU per request of a file of a mount, against QEMU's", fuse_speed::run),
    new("vhost-speed", "-", "IOPS and server CPU per request over vhost-user, without a guest, against QEMU's", vhost_speed::run),
    new("sync-writes", "-", "4 KiB writes each followed by a flush, 16 in flight", sync::run),
    new("flat", "-", "speed and work with 0, 1,000 and 10,000 snapshots; old data under 100", flat::run_flat),
    new("snap-under-load", "-", "snapshot, rollback, clone latencies; first writes after a snapshot", snap_under_load::run_under_load),
    new("delete", "-", "destroying 10,000 snapshots, and what the guest notices", delete::run_delete),
    new("kill9", "-", "acknowledged writes lost by SIGKILL, against every peer", kill9::run_kill9),
    new("recovery", "-", "time to ready with 1 GiB of log; memory with 1 TiB", recovery::run_recovery),
    new("cleaner", "-", "write amplification at 80 % full", cleaner::run_cleaner),
    new("special", "C", "metadata and small blocks on a device class of their own", absent::special),
    new("lost-special", "C", "the pool after the loss of that class", absent::special),
    new("rewind", "C", "an import that goes back to an earlier checkpoint", absent::rewind),
    new("loss", "-", "what each cache mode loses when the power fails", absent::loss),
];

impl Experiment {
    /// True when it goes by this name.
    pub fn is_called(&self, name: &str) -> bool {
        const OLD: &[(&str, &str)] = &[("sync", "sync-writes")];
        self.name == name || OLD.contains(&(name, self.name))
    }

    /// Runs it; findings go to `results`.
    ///
    /// # Errors
    /// A contender failed in a way that leaves nothing to measure.
    pub fn run(&self, setup: &Setup, results: &mut Results) -> Result<()> {
        (self.run)(setup, results)
    }
}
