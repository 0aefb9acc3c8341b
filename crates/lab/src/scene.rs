//! What the machine is, so that a figure can be judged by who did not see it measured.

use crate::process::{find_tool, run_tool};
use crate::report::Scene;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Looks around. `command` is what was typed.
pub fn look(command: String, directory: &Path) -> Scene {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("unknown processor", |(_, m)| m);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    let tools = [("qemu-storage-daemon", "--version"), ("nbdkit", "--version"), ("fio", "--version")];
    Scene {
        command,
        cpu: model.to_owned(),
        cpus: thread::available_parallelism().map_or(1, usize::from),
        memory: kib.unwrap_or(0) * 1024,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        directory: directory.display().to_string(),
        versions: tools.iter().filter(|(tool, _)| find_tool(tool).is_some()).map(|(tool, flag)| version(tool, flag)).collect(),
    }
}

fn version(tool: &str, flag: &str) -> String {
    let text = run_tool(tool, &[flag]).unwrap_or_default();
    text.lines().next().unwrap_or(tool).to_owned()
}

/// How long the machine pauses by itself: on each processor a loop looks at the clock for two seconds. In words.
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
