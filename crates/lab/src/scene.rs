//! What the machine is, so that a figure can be judged by who did not see it measured.

use crate::process::{find_tool, run_tool};
use crate::report::Scene;
use std::fs;
use std::path::Path;

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
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
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
