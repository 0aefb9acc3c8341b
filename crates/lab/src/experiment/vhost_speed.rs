//! `vhost-speed`: measures a volume as a virtio disk over vhost-user, against a raw image that
//! qemu-storage-daemon exports over vhost-user. The load is a front end without a guest
//! ([`crate::load::vhost`]), whose own cost is small compared with that of the servers.

use super::{Media, Setup};
use crate::load::{self, Endpoint, LoadSpec, Mix};
use crate::peer::{Aio, Contender, DISK, Millpond};
use crate::process::{Daemon, Workspace, cpu_time, find_tool};
use crate::report::{Goal, Results};
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const CONTENDERS: [&str; 4] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-raw-native"];
const PEERS: [&str; 2] = ["qsd-raw", "qsd-raw-native"];
const SIZE: u64 = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests per second of SPDK's lvol on an aio file, which polls all the time, as measured with two
/// processors on another machine.
const OF_SPDK: [(&str, f64); 2] = [("4k randread q32", 440_000.0), ("4k randwrite q32", 364_000.0)];

/// Name, load, and whether the front end polls its queue. Reads before small writes come first;
/// then, as on disks in use, reads after them.
fn cases() -> Vec<(&'static str, LoadSpec, bool)> {
    let random = LoadSpec::random;
    vec![
        ("4k randread q32, fresh", random(Mix::Read, 4096, 32), true),
        ("4k randwrite q32", random(Mix::Write, 4096, 32), true),
        ("4k randread q32", random(Mix::Read, 4096, 32), true),
        ("4k randread q1", random(Mix::Read, 4096, 1), true),
        ("4k randwrite q1", random(Mix::Write, 4096, 1), true),
        ("4k randread q1, asleep", random(Mix::Read, 4096, 1), false),
        ("4k randwrite q1, asleep", random(Mix::Write, 4096, 1), false),
        ("4k randread q32, asleep", random(Mix::Read, 4096, 32), false),
        ("4k randwrite q32, asleep", random(Mix::Write, 4096, 32), false),
    ]
}

/// Measures all cases on the disk behind a socket.
fn measure(setup: &Setup, results: &mut Results, rep: usize, name: &str, socket: &Path, pid: u32) -> Result<()> {
    load::precondition(&Endpoint::vhost_user(socket, false)).with_context(|| format!("filling {name}"))?;
    for (case, spec, poll) in cases() {
        let spec = LoadSpec { secs: setup.secs, ramp: load::WARM_UP, seed: setup.seed_of(rep), ..spec };
        let before = cpu_time(pid)?;
        let result = load::run(&Endpoint::vhost_user(socket, poll), &spec).with_context(|| format!("{case} on {name}"))?;
        let used = cpu_time(pid)?.saturating_sub(before);
        ensure!(result.errors == 0, "{name} refused {} requests", result.errors);
        let latency = if result.read.count > 0 { result.read } else { result.write };
        results.add(rep, name, case, "iops", result.iops);
        results.add(rep, name, case, "p50_us", latency.p50_us);
        results.add(rep, name, case, "p99_us", latency.p99_us);
        results.add(rep, name, case, "server_cpu_us", used.as_secs_f64() * 1e6 / result.total_ops.max(1) as f64);
        results.add(rep, name, case, "client_cpu_us", result.client_cpu_us);
    }
    Ok(())
}

fn ours(setup: &Setup, results: &mut Results, rep: usize, name: &str) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, name)?;
    let mut millpond = Millpond::named(name)?;
    millpond.start(workspace.path(), setup.size_or(SIZE))?;
    let socket = millpond.device().with_file_name("disk.vu");
    let words = ["export", "vhost-user", DISK, "--force", "--unix"].map(OsStr::new);
    millpond.cli(&[&words[..], &[socket.as_os_str()]].concat())?;
    let measured = measure(setup, results, rep, name, &socket, millpond.pid()?);
    millpond.stop()?;
    measured
}

fn theirs(setup: &Setup, results: &mut Results, rep: usize, name: &str) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, name)?;
    let aio = if name == "qsd-raw-native" { Aio::Native } else { Aio::Uring };
    let place = |name: &str| -> PathBuf { workspace.path().join(name) };
    let (image, socket) = (place("raw.img"), place("disk.vu"));
    File::create_new(&image)?.set_len(setup.size_or(SIZE))?;
    let mut command = Command::new(find_tool("qemu-storage-daemon").context("qemu-storage-daemon is not installed")?);
    command.args(["--object", "iothread,id=thread", "--blockdev"]);
    command.arg(format!("driver=file,node-name=file,filename={},cache.direct=on,aio={}", image.display(), aio.name()));
    command.args(["--blockdev", "driver=raw,node-name=raw,file=file", "--export"]);
    let export = "type=vhost-user-blk,id=export,node-name=raw,writable=on,iothread=thread,addr.type=unix";
    command.arg(format!("{export},addr.path={}", socket.display()));
    let mut daemon = Daemon::spawn(&mut command, &place("qsd.log"))?;
    daemon.wait_ready(PATIENCE, || socket.exists())?;
    let measured = measure(setup, results, rep, name, &socket, daemon.pid());
    daemon.terminate(PATIENCE)?;
    measured
}

pub fn run(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&CONTENDERS, results);
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            // rotate the order, so that no target is always first
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            let measurement = if Millpond::is_named(name) { ours } else { theirs };
            measurement(setup, results, rep, name).with_context(|| name.clone())?;
        }
    }
    if setup.media == Media::Shm {
        for (case, least) in OF_SPDK {
            results.goal(case, "iops", "millpond", Goal::AtLeast(least));
        }
        for peer in PEERS {
            for case in ["4k randread q32", "4k randwrite q32"] {
                results.goal(case, "iops", "millpond", Goal::times_of(peer, 3.0));
            }
            for case in ["4k randread q1", "4k randwrite q1"] {
                results.goal(case, "iops", "millpond", Goal::times_of(peer, 1.67));
            }
        }
    }
    Ok(())
}
