//! The list of experiments.

use super::{Setup, cleaner, delete, flat, fuse_speed, kill9, nbd_speed, recovery, snap_under_load, sync, vhost_speed};
use crate::report::Results;
use anyhow::Result;

/// An experiment: its name, what it shows, and how it is run.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    run: fn(&Setup, &mut Results) -> Result<()>,
}

/// All of them.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "nbd-speed", about: "IOPS and server CPU per request over NBD, against every peer", run: nbd_speed::run },
    Experiment { name: "fuse-speed", about: "IOPS and server CPU per request of a file of a mount, against QEMU's", run: fuse_speed::run },
    Experiment {
        name: "vhost-speed",
        about: "IOPS and server CPU per request over vhost-user, without a guest, against QEMU's",
        run: vhost_speed::run,
    },
    Experiment { name: "sync", about: "4 KiB writes each followed by a flush, 16 in flight", run: sync::run },
    Experiment { name: "flat", about: "speed and work with 0, 1,000 and 10,000 snapshots; old data under 100", run: flat::run_flat },
    Experiment {
        name: "snap-under-load",
        about: "snapshot, rollback, clone latencies; first writes after a snapshot",
        run: snap_under_load::run_under_load,
    },
    Experiment { name: "delete", about: "destroying 10,000 snapshots, and what the guest notices", run: delete::run_delete },
    Experiment { name: "kill9", about: "acknowledged writes lost by SIGKILL, against every peer", run: kill9::run_kill9 },
    Experiment { name: "recovery", about: "time to ready with 1 GiB of log; memory with 1 TiB", run: recovery::run_recovery },
    Experiment { name: "cleaner", about: "write amplification at 80 % full", run: cleaner::run_cleaner },
];

impl Experiment {
    /// Runs it; findings go to `results`.
    ///
    /// # Errors
    /// A contender failed in a way that leaves nothing to measure.
    pub fn run(&self, setup: &Setup, results: &mut Results) -> Result<()> {
        (self.run)(setup, results)
    }
}
