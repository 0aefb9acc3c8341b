//! Description of the machine, so that readers can judge the figures.

use crate::peer::millpond_binary;
use crate::process::{find_tool, run_command, run_tool};
use crate::report::Scene;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Describes the machine and its programs. `command` is the command line of the run.
pub fn look(command: String, directory: &Path) -> Scene {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("unknown processor", |(_, m)| m);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    let tools = [
        ("qemu-storage-daemon", "--version"),
        ("nbdkit", "--version"),
        ("fio", "--version"),
        ("ioping", "-v"),
        ("mkfs.xfs", "-V"),
        ("btrfs", "--version"),
    ];
    let ours = millpond_binary().ok().and_then(|path| run_command(Command::new(path).arg("--version")).ok());
    let ours = ours.map(|text| text.trim().to_owned());
    let theirs = tools.iter().filter(|(tool, _)| find_tool(tool).is_some()).map(|(tool, flag)| version(tool, flag));
    Scene {
        command,
        cpu: model.to_owned(),
        cpus: thread::available_parallelism().map_or(1, usize::from),
        memory: kib.unwrap_or(0) * 1024,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        directory: directory.display().to_string(),
        versions: ours.into_iter().chain(theirs).collect(),
    }
}

fn version(tool: &str, flag: &str) -> String {
    let text = run_tool(tool, &[flag]).unwrap_or_default();
    text.lines().next().unwrap_or(tool).to_owned()
}

/// Measures how long the machine pauses by itself: a loop on each processor reads the clock for two
/// seconds. Returns a description.
pub fn pauses() -> String {
    const LOOK: Duration = Duration::from_secs(2);
    let look = || {
        let begin = Instant::now();
        let (mut last, mut longest, mut long) = (begin, Duration::ZERO, 0);
        while last - begin < LOOK {
            let now = Instant::now();
            longest = longest.max(now - last);
            long += u32::from(now - last > Duration::from_millis(1));
            last = now;
        }
        (longest, long)
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let threads: Vec<_> = (0..cpus).map(|_| thread::spawn(look)).collect();
    let seen: Vec<(Duration, u32)> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
    let (longest, long) = (seen.iter().map(|s| s.0).max().unwrap_or_default(), seen.iter().map(|s| s.1).sum::<u32>());
    format!(
        "the machine paused by itself {long} times for more than 1 ms in {} s on {cpus} processors, at most {longest:.1?}",
        LOOK.as_secs()
    )
}

/// The current time, RFC 3339 in UTC to the second.
pub fn now() -> String {
    jiff::Timestamp::now().round(jiff::Unit::Second).map_or_else(|_| String::new(), |now| now.to_string())
}

/// Measures for a second which share of the processors other programs and other virtual machines
/// use. Returns a description, or `None` if the share is too small to disturb.
pub fn others() -> Option<String> {
    const TOO_MUCH: f64 = 0.05;
    let before = processors()?;
    thread::sleep(Duration::from_secs(1));
    let after = processors()?;
    let all = (after.all - before.all).max(1.0);
    let (busy, stolen) = ((after.busy - before.busy) / all, (after.stolen - before.stolen) / all);
    let words = format!(
        "in the second before it began, other programs used {:.0} % of the processors, other machines {:.0} %",
        busy * 100.0,
        stolen * 100.0
    );
    Some(words).filter(|_| busy + stolen > TOO_MUCH)
}

/// Clock ticks of all processors together since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processors {
    /// All ticks.
    pub all: f64,
    /// Ticks in which a program ran.
    pub busy: f64,
    /// Ticks that the hypervisor gave to other virtual machines.
    pub stolen: f64,
}

/// Reads /proc/stat; `None` if the kernel does not provide it.
pub fn processors() -> Option<Processors> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    let [user, nice, system, idle, wait, irq, soft, stolen, ..] = ticks.as_slice() else { return None };
    let busy = user + nice + system + irq + soft;
    Some(Processors { all: busy + idle + wait + stolen, busy, stolen: *stolen })
}

/// Syncs and drops the kernel's file caches, so that reads are cold; false if that is not permitted
/// (not root).
pub fn drop_caches() -> bool {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3\n").is_ok()
}
