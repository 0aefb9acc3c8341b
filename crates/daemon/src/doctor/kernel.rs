//! Kernel features, limits of the process, and services of the host.

use super::{Check, CheckState, Host};

/// io_uring with multishot accept.
const LEAST: (u32, u32) = (6, 0);
/// Descriptors that a daemon with many clients and devices needs.
const FILES: u64 = 65_536;
/// Files that time services make while the clock is synchronised, or while they run.
const TIME_SERVICES: [&str; 5] =
    ["/run/systemd/timesync/synchronized", "/run/chrony", "/run/chronyd.pid", "/run/ntpd.pid", "/run/openntpd.pid"];

pub fn checks(host: &Host) -> Vec<Check> {
    vec![version(host), io_uring(host), open_files(host), fuse(host), machine_id(host), clock(host)]
}

fn version(host: &Host) -> Check {
    let Ok(release) = host.read("/proc/sys/kernel/osrelease") else {
        return Check::unknown("kernel", "version", "/proc/sys/kernel/osrelease cannot be read");
    };
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(|word| word.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match found >= LEAST {
        true => Check::ok("kernel", "version", release),
        false => {
            let (major, minor) = LEAST;
            let found = format!("{release} is older than {major}.{minor}, and lacks parts of io_uring");
            Check::new("kernel", "version", CheckState::Fail, found, "install a newer kernel")
        }
    }
}

fn io_uring(host: &Host) -> Check {
    let remedy = "sysctl kernel.io_uring_disabled=0, and the same line in /etc/sysctl.d";
    match host.read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        // older kernels have no such setting
        Ok("0") | Err(_) => Check::ok("io_uring", "kernel.io_uring_disabled", "io_uring may be used"),
        Ok("1") => {
            let found = "only processes with CAP_SYS_ADMIN and one group may use io_uring";
            Check::new("io_uring", "kernel.io_uring_disabled", CheckState::Warn, found, remedy)
        }
        Ok(value) => {
            let found = format!("{value}: io_uring is off, and no pool can be served");
            Check::new("io_uring", "kernel.io_uring_disabled", CheckState::Fail, found, remedy)
        }
    }
}

fn open_files(host: &Host) -> Check {
    let process = host.pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let who = if host.pid.is_some() { "the daemon" } else { "this shell" };
    let limits = host.read(format!("/proc/{process}/limits"));
    let line = limits.as_ref().ok().and_then(|text| text.lines().find(|line| line.starts_with("Max open files")));
    // columns: name, soft limit, hard limit, unit; the daemon raises the soft limit by itself
    let Some(hard) = line.and_then(|line| line.split_whitespace().nth(4)) else {
        return Check::unknown("open-files", who, "the limit cannot be read");
    };
    let enough = hard == "unlimited" || hard.parse::<u64>().is_ok_and(|hard| hard >= FILES);
    match enough {
        true => Check::ok("open-files", who, format!("up to {hard} descriptors")),
        false => Check::new(
            "open-files",
            who,
            CheckState::Warn,
            format!("up to {hard} descriptors: clients beyond that are refused"),
            "LimitNOFILE=524288 in the daemon's unit, or 'ulimit -n' before its start",
        ),
    }
}

fn fuse(host: &Host) -> Check {
    if !host.at("/dev/fuse").exists() {
        let found = "/dev/fuse does not exist: 'export fuse' does not work";
        return Check::new("fuse", "/dev/fuse", CheckState::Warn, found, "modprobe fuse; without use for mounts, ignore this");
    }
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"].into_iter().find(|path| host.at(path).exists());
    match helper {
        Some(path) => Check::ok("fuse", "/dev/fuse", format!("with {path}")),
        None => {
            let found = "fusermount3 is missing: only root can mount pools";
            Check::new("fuse", "fusermount3", CheckState::Warn, found, "install the package fuse3; without use for mounts, ignore this")
        }
    }
}

fn machine_id(host: &Host) -> Check {
    let valid = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match host.read("/etc/machine-id").ok().filter(valid) {
        Some(_) => Check::ok("machine-id", "/etc/machine-id", "it identifies this host in claims"),
        None => Check::new(
            "machine-id",
            "/etc/machine-id",
            CheckState::Warn,
            "there is none: a random id in the state directory identifies this host",
            "systemd-machine-id-setup, or host_id in the daemon's configuration",
        ),
    }
}

fn clock(host: &Host) -> Check {
    match TIME_SERVICES.into_iter().find(|path| host.at(path).exists()) {
        Some(path) => Check::ok("clock", "time service", format!("found {path}")),
        None => Check::new(
            "clock",
            "time service",
            CheckState::Warn,
            "no time service was found: expiry and locks of snapshots follow a clock that may be wrong",
            "install chrony or enable systemd-timesyncd, unless the hypervisor sets the clock",
        ),
    }
}
