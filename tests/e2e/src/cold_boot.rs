//! A guest that boots from a publication of which its host has nothing, and once more from what the first
//! boot fetched. Each answer of the store takes 20 ms more than on this machine, as from a server near by; the
//! guest is emulated, so its processor takes most of the time.

use super::bucket::Store;
use super::bucket_proxy::Proxy;
use super::debian::{Machine, Tree};
use super::guest::nbd_disk;
use super::publish::{Images, TARGET, credentials, metric};
use super::send_receive::host;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::guest::Kernel;
use millpond_lab::load::Endpoint;
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::report::median;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const PACKAGES: &str = "systemd,systemd-sysv,udev,dbus,kmod,openssh-server,python3";
const ROOT_BYTES: u64 = 768 << 20;
const MEMORY: u32 = 768;
const BOOTS: usize = 5;
const LATENCY: Duration = Duration::from_millis(20);
/// Prints the sectors that were read from the disk, when the system has started.
const SCRIPT: &str = "#!/bin/sh
systemctl start ssh
python3 -c 'import json, urllib.request'
set -- $(cat /sys/block/vda/stat)
echo \"BOOTED $3\"
";
/// Most times of a warm boot that a cold one may take, and bytes that may come from the store, compressed, for
/// each one read.
const LIMITS: (f64, f64) = (1.25, 1.5);

struct Boot {
    secs: f64,
    /// Bytes that the guest has read.
    read: f64,
}

fn boot(machine: &Machine<'_>, host: &Millpond, dir: &Path, volume: &str) -> Result<Boot> {
    let socket = dir.join("boot.sock");
    host.cli(&["export", "nbd", volume, "--unix", &socket.display().to_string()])?;
    let begin = Instant::now();
    let mut guest = machine.boot(dir, &nbd_disk(&Endpoint::unix(&socket, volume))?)?;
    let sectors = guest.expect("BOOTED ")?;
    let secs = begin.elapsed().as_secs_f64();
    guest.finish()?;
    host.cli(&["unexport", volume, "--force"])?;
    Ok(Boot { secs, read: sectors.parse::<f64>().with_context(|| sectors.clone())? * 512.0 })
}

/// The name of the base in the pool.
fn base(host: &Millpond) -> Result<String> {
    let listed = host.json(&["list"])?;
    let names = listed.as_array().into_iter().flatten().filter_map(|row| row["name"].as_str().map(str::to_owned));
    names.into_iter().find(|name| name.starts_with("tank/publication-")).with_context(|| Value::to_string(&listed))
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.dir().to_owned();
    let tree = match Tree::bootstrap(&dir, "cold-boot", PACKAGES) {
        Ok(tree) => tree,
        Err(error) => {
            println!("SKIPPED cold-boot: no clean Debian tree: {error:#}");
            return Ok(());
        }
    };
    let kernel = Kernel::find()?;
    let machine = Machine { kernel: &kernel, root: ROOT_BYTES, memory: MEMORY, options: Vec::new() };
    let root = tree.image(&dir, ROOT_BYTES, SCRIPT)?;
    let store = Store::start(subject, "versitygw")?;
    let images = Images::of(&store);
    let (mut here, mut there) = (host(&subject.file("here"))?, host(&subject.file("there"))?);
    here.cli(&["import-image", &root.display().to_string(), "tank/gold"])?;
    here.cli(&["snapshot", "tank/gold@v1"])?;
    images.run(&here, &["pool", "publish", "tank/gold@v1", TARGET])?;
    here.stop()?;
    fs::remove_file(&root)?;
    let proxy = Proxy::start(store.address)?;
    proxy.delay(LATENCY);
    let images = images.behind(&proxy);
    let (words, keys) = (format!("{TARGET}#gold@v1"), credentials(&dir)?);
    let fetched = || metric(&there, "millpond_pool_base_fetched_bytes_total");
    let (mut cold, mut warm, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..BOOTS {
        for name in ["tank/cold", "tank/warm"] {
            images.run(&there, &["clone", &words, name, "--credentials", &keys])?;
        }
        let (kept, (requests, sent)) = (fetched().unwrap_or(0), proxy.sent());
        let first = boot(&machine, &there, &dir, "tank/cold")?;
        let (kept, (requests, sent)) = (fetched()? - kept, (proxy.sent().0 - requests, proxy.sent().1 - sent));
        let second = boot(&machine, &there, &dir, "tank/warm")?;
        let mib = |bytes: f64| bytes / 1048576.0;
        println!(
            "boot {round}: cold {:.1} s, warm {:.1} s; {:.0} MiB read, {:.0} MiB fetched by {requests} requests of {:.0} MiB",
            first.secs,
            second.secs,
            mib(first.read),
            mib(kept as f64),
            mib(sent as f64)
        );
        cold.push(first.secs);
        warm.push(second.secs);
        shares.push(sent as f64 / first.read);
        there.cli(&["destroy", "-y", "-R", &base(&there)?])?;
    }
    there.stop()?;
    let middle = |values: &[f64]| median(values).context("no boot");
    let (times, share) = (middle(&cold)? / middle(&warm)?, middle(&shares)?);
    println!("cold {:.1} s, warm {:.1} s: {times:.2} times; {share:.2} bytes came for each one read", middle(&cold)?, middle(&warm)?);
    ensure!(times <= LIMITS.0, "a cold boot takes {times:.2} times as long as a warm one");
    ensure!(share <= LIMITS.1, "for a cold boot {share:.2} bytes come for each one read");
    Ok(())
}
