//! The list of experiments.

use super::{
    Setup, aged_reads, beside_jobs, cache_mode, cdm, cleaner, clone_storm, defaults, delete, evacuate, file_system, fill, flat, fuse_speed,
    kill9, loss, lost_special, nbd_speed, parity, read_share, recovery, rewind, scrub, sectors, snap_under_load, snapshot_timeline,
    snapshots, special, stripe, sync, vhost_speed, watch,
};
use crate::report::Results;
use anyhow::Result;

type Run = fn(&Setup, &mut Results) -> Result<()>;

/// An experiment: name, description and function.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// Letter of the article whose measurement is repeated, or `-`.
    pub article: &'static str,
    /// Description in one line.
    pub about: &'static str,
    run: Run,
}

const fn new(name: &'static str, article: &'static str, about: &'static str, run: Run) -> Experiment {
    Experiment { name, article, about, run }
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    new("nbd-speed", "-", "IOPS and server CPU per request over NBD, against every peer", nbd_speed::run),
    new("fuse-speed", "-", "IOPS and server CPU per request of a file of a mount, against QEMU's", fuse_speed::run),
    new("vhost-speed", "-", "IOPS and server CPU per request over vhost-user, without a guest, against QEMU's", vhost_speed::run),
    new("sync-writes", "-", "4 KiB writes each followed by a flush, 16 in flight", sync::run),
    new("flat", "-", "speed and work with 0, 1,000 and 10,000 snapshots; old data under 100", flat::run_flat),
    new(
        "defaults",
        "-",
        "a sparse file and no settings beside a file written in full: writes, pauses, ten snapshots",
        defaults::run_defaults,
    ),
    new("snap-under-load", "-", "snapshot, rollback, clone latencies; first writes after a snapshot", snap_under_load::run_under_load),
    new("snapshots", "A", "IOPS against 0 to 10,000 snapshots: reads under them, first writes after the newest", snapshots::run_snapshots),
    new("snapshot-timeline", "B", "a load over time while ten snapshots come, stay and go", snapshot_timeline::run_timeline),
    new("fs-create", "A", "files of 100 KB created on a filesystem on the disk", file_system::run_create),
    new("fs-update", "A", "the same files rewritten with 0, 1 and 2 snapshots", file_system::run_update),
    new("read-share", "B", "8 KiB at random, from reads alone to writes alone", read_share::run_read_share),
    new("cdm", "C", "the profile of CrystalDiskMark 8, by fio", cdm::run_cdm),
    new("stripe", "D", "four devices of 50 MB/s: linear and stripes of five sizes", stripe::run_stripe),
    new("cachemode", "E", "the five cache modes over FUSE, NBD and vhost-user", cache_mode::run_cache_mode),
    new("sectors", "C", "512-byte, emulated and 4 KiB sectors", sectors::run_sectors),
    new("evacuate", "C", "a device leaves the pool while a load runs", evacuate::run_evacuate),
    new(
        "beside-jobs",
        "-",
        "latencies of a guest while the pool is scrubbed, a device is replaced, and one is removed",
        beside_jobs::run_beside_jobs,
    ),
    new(
        "aged-reads",
        "-",
        "large reads of a volume overwritten at random, with and without snapshots, beside a raw image",
        aged_reads::run_aged_reads,
    ),
    new("clone-storm", "-", "many clones of one disk, in time and space; some under load", clone_storm::run_clone_storm),
    new("fill", "-", "a pool that gets full, and what works at 100 %", fill::run_fill),
    new("monitor", "A", "processors, memory, disks and counters each second, with 0, 1 and 2 snapshots", watch::run_monitor),
    new("delete", "-", "destroying 10,000 snapshots, and what the guest notices", delete::run_delete),
    new("kill9", "-", "acknowledged writes lost by SIGKILL, against every peer", kill9::run_kill9),
    new("recovery", "-", "time to ready with 1 GiB of log; memory with 1 TiB", recovery::run_recovery),
    new("cleaner", "-", "write amplification at 80 % full", cleaner::run_cleaner),
    new("loss", "E", "acknowledged writes lost when client, server or power go, in all cache modes", loss::run_loss),
    new("parity", "-", "random writes on six hard disks with two parities, against read-modify-write", parity::run_parity),
    new("scrub", "-", "bytes that a scrub reads and checks per second, beside what one processor copies", scrub::run_scrub),
    new("special", "C", "files on a hard disk, their metadata and small ones on an SSD", special::run_special),
    new("lost-special", "C", "the pool after the loss of that class", lost_special::run_lost_special),
    new("rewind", "C", "an import that goes back to an earlier checkpoint", rewind::run_rewind),
];

impl Experiment {
    /// Whether `name` is the name of the experiment, or an old name of it.
    pub fn is_called(&self, name: &str) -> bool {
        const OLD: &[(&str, &str)] = &[("sync", "sync-writes")];
        self.name == name || OLD.contains(&(name, self.name))
    }

    /// Runs the experiment and adds its findings to `results`.
    ///
    /// # Errors
    /// A target failed so that nothing can be measured.
    pub fn run(&self, setup: &Setup, results: &mut Results) -> Result<()> {
        (self.run)(setup, results)
    }
}
