//! `fuse-speed`: measures a volume as a file of a mount, against a raw image that
//! qemu-storage-daemon exports over FUSE, and a mount of memory alone. The load is fio with
//! asynchronous direct I/O, like that of a loop device and of QEMU.

use super::{Media, Setup};
use crate::load::{PASSES, READ_PASSES, WARM_UP};
use crate::peer::{Aio, Contender, Millpond, POOL, memory_mount};
use crate::process::{Daemon, Workspace, cpu_time, find_tool, run_tool};
use crate::report::{Goal, Results};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const CEILING: &str = "ceiling";
const CONTENDERS: [&str; 5] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-raw-native", CEILING];
const PEERS: [&str; 2] = ["qsd-raw", "qsd-raw-native"];
const SIZE: u64 = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
/// Name, fio's `rw` and `bs`, and requests in flight. Small requests come after large ones, as in
/// `nbd-speed`.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("1m randread q4", "randread", "1m", "4"),
    ("1m randwrite q4", "randwrite", "1m", "4"),
    ("64k randread q8", "randread", "64k", "8"),
    ("64k randwrite q8", "randwrite", "64k", "8"),
    ("4k randread q32", "randread", "4k", "32"),
    ("4k randwrite q32", "randwrite", "4k", "32"),
    ("4k randread q1", "randread", "4k", "1"),
    ("4k randwrite q1", "randwrite", "4k", "1"),
];

fn fio(file: &Path, rw: &str, bs: &str, depth: &str, more: &[String]) -> Result<Value> {
    let mut args: Vec<String> =
        ["--name=x", "--ioengine=libaio", "--direct=1", "--allow_file_create=0", "--output-format=json"].map(str::to_owned).into();
    args.extend([format!("--filename={}", file.display()), format!("--rw={rw}"), format!("--bs={bs}"), format!("--iodepth={depth}")]);
    args.extend_from_slice(more);
    let text = run_tool("fio", &args)?;
    let report: Value = serde_json::from_str(&text).context("fio printed no JSON")?;
    report.pointer("/jobs/0").cloned().context("fio reports no job")
}

/// Measures all cases on one file.
fn measure(setup: &Setup, results: &mut Results, rep: usize, name: &str, file: &Path, pid: u32) -> Result<()> {
    let size = format!("--size={}", setup.size_or(SIZE));
    for (kind, block, depth, passes) in [("write", "1m", "4", PASSES.0), ("randwrite", "64k", "8", PASSES.1), ("write", "1m", "4", 1)] {
        fio(file, kind, block, depth, &[size.clone(), format!("--loops={passes}")]).with_context(|| format!("filling {name}"))?;
    }
    fio(file, "randread", "64k", "8", &[size.clone(), format!("--loops={READ_PASSES}")]).with_context(|| format!("reading {name}"))?;
    for (case, rw, bs, depth) in CASES {
        let seed = format!("--randseed={}", setup.seed_of(rep));
        let more = |secs: f64| {
            let time = format!("--runtime={}", secs.max(1.0).ceil());
            [size.clone(), seed.clone(), time, "--time_based".to_owned(), "--norandommap".to_owned()]
        };
        // a run of its own: fio's ramp_time would count the server's CPU time, but not the requests
        fio(file, rw, bs, depth, &more(WARM_UP)).with_context(|| format!("{case} on {name}"))?;
        let before = cpu_time(pid)?;
        let job = fio(file, rw, bs, depth, &more(setup.secs)).with_context(|| format!("{case} on {name}"))?;
        let used = cpu_time(pid)?.saturating_sub(before);
        let side = if *rw == "randread" { "read" } else { "write" };
        let figure =
            |key: &str| job.pointer(&format!("/{side}/{key}")).and_then(Value::as_f64).with_context(|| format!("fio says no {key}"));
        results.add(rep, name, case, "iops", figure("iops")?);
        results.add(rep, name, case, "p50_us", figure("clat_ns/percentile/50.000000")? / 1000.0);
        results.add(rep, name, case, "p99_us", figure("clat_ns/percentile/99.000000")? / 1000.0);
        results.add(rep, name, case, "server_cpu_us", used.as_secs_f64() * 1e6 / figure("total_ios")?.max(1.0));
    }
    Ok(())
}

fn ours(setup: &Setup, results: &mut Results, rep: usize, name: &str) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, name)?;
    let mut millpond = Millpond::named(name)?;
    millpond.start(workspace.path(), setup.size_or(SIZE))?;
    let dir = millpond.device().with_file_name("mnt");
    millpond.cli(&["export", "fuse", POOL, &dir.display().to_string()])?;
    let measured = measure(setup, results, rep, name, &dir.join("disk"), millpond.pid()?);
    millpond.stop()?;
    measured
}

fn theirs(setup: &Setup, results: &mut Results, rep: usize, name: &str) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, name)?;
    let aio = if name == "qsd-raw-native" { Aio::Native } else { Aio::Uring };
    let place = |name: &str| -> PathBuf { workspace.path().join(name) };
    let (image, export) = (place("raw.img"), place("export.img"));
    File::create_new(&image)?.set_len(setup.size_or(SIZE)).context("sizing the image")?;
    File::create_new(&export)?;
    let mut command = Command::new(find_tool("qemu-storage-daemon").context("qemu-storage-daemon is not installed")?);
    command.arg("--blockdev").arg(format!("driver=file,node-name=file,filename={},cache.direct=on,aio={}", image.display(), aio.name()));
    command.args(["--blockdev", "driver=raw,node-name=raw,file=file", "--export"]);
    command.arg(format!("type=fuse,id=export,node-name=raw,mountpoint={},writable=on", export.display()));
    let mut daemon = Daemon::spawn(&mut command, &place("qsd.log"))?;
    let ready = || std::fs::metadata(&export).is_ok_and(|meta| meta.len() > 0);
    daemon.wait_ready(PATIENCE, ready)?;
    let measured = measure(setup, results, rep, name, &export, daemon.pid());
    daemon.terminate(PATIENCE)?;
    measured
}

/// A mount whose file is memory, served by this program.
fn ceiling(setup: &Setup, results: &mut Results, rep: usize) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, CEILING)?;
    let mount = workspace.path().join("mnt");
    std::fs::create_dir(&mount)?;
    let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
    command.args([CEILING, "--mount", "--size", &setup.size_or(SIZE).to_string()]).arg(&mount);
    let mut daemon = Daemon::spawn(&mut command, &workspace.path().join("ceiling.log"))?;
    let file = mount.join(memory_mount::FILE);
    let measured = daemon.wait_ready(PATIENCE, || file.exists()).and_then(|_| measure(setup, results, rep, CEILING, &file, daemon.pid()));
    // its program ends with the mount
    let unmounted = run_tool("umount", &["--lazy", &mount.display().to_string()]);
    daemon.terminate(PATIENCE)?;
    measured.and(unmounted.map(|_| ()))
}

pub fn run(setup: &Setup, results: &mut Results) -> Result<()> {
    if find_tool("fio").is_none() {
        results.leave_out("fio is not installed");
        return Ok(());
    }
    let names = setup.contenders(&CONTENDERS, results);
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            // rotate the order, so that no target is always first
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            let measured = match name.as_str() {
                CEILING => ceiling(setup, results, rep),
                name if Millpond::is_named(name) => ours(setup, results, rep, name),
                name => theirs(setup, results, rep, name),
            };
            measured.with_context(|| name.clone())?;
        }
    }
    if setup.media == Media::Shm {
        for case in ["4k randread q32", "4k randwrite q32"] {
            results.goal(case, "iops", "millpond", Goal::times_of(CEILING, 0.8));
        }
        for (case, peer) in ["4k randread q32", "4k randwrite q32"].into_iter().flat_map(|case| PEERS.map(|peer| (case, peer))) {
            results.goal(case, "iops", "millpond", Goal::times_of(peer, 2.5));
        }
    }
    Ok(())
}
