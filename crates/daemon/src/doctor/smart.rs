//! Wear and self-assessment of disks, from `smartctl --json` if it is installed.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Places of the program.
const PROGRAMS: [&str; 3] = ["/usr/sbin/smartctl", "/sbin/smartctl", "/usr/local/sbin/smartctl"];
/// Kinds of devices without a report of their own.
const VIRTUAL: [&str; 7] = ["dm-", "loop", "md", "zram", "nbd", "ublkb", "ram"];
/// Limit of one call: a disk that sleeps is not woken.
const LIMIT: Duration = Duration::from_secs(20);
/// Most bytes that are read.
const MOST: u64 = 1 << 20;
/// Percentage of the rated endurance from which a disk is worn.
const WORN: u64 = 90;

/// The report of a disk about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// In good order, with some facts.
    Good(String),
    /// Worn or failing.
    Bad {
        /// The disk expects to fail.
        failing: bool,
        /// Reasons.
        facts: String,
    },
    /// No report, for this reason.
    NotReadable(String),
}

/// Reads the report of a disk, by its name in sysfs such as `sda`. Waits for the program, at most
/// 20 s.
pub fn read(root: &Path, disk: &str) -> Health {
    if let Some(kind) = VIRTUAL.into_iter().find(|kind| disk.starts_with(kind)) {
        return Health::NotReadable(format!("{disk} is a virtual device ({}); look at the disks below it", kind.trim_end_matches('-')));
    }
    let program = PROGRAMS.into_iter().map(|path| root.join(path.trim_start_matches('/'))).find(|path| path.exists());
    let Some(program) = program else {
        return Health::NotReadable("smartctl is not installed (package smartmontools)".to_owned());
    };
    match run(&program, &format!("/dev/{disk}")) {
        Ok(text) => judge(&text),
        Err(why) => Health::NotReadable(why),
    }
}

fn run(program: &Path, device: &str) -> Result<Vec<u8>, String> {
    let mut child = Command::new(program)
        .args(["--json", "-a", "-n", "standby", device])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("smartctl cannot be run: {error}"))?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        // an error leaves a text that is no JSON
        let _ = stdout.map(|stdout| stdout.take(MOST).read_to_end(&mut text));
        text
    });
    let end = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            // exit codes are bits for conditions that the text has, too
            Ok(Some(_)) => return reader.join().map_err(|_| "smartctl's output cannot be read".to_owned()),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                // a program that waits for a hung disk ends when the kernel lets it
                let _ = child.kill();
                return Err(format!("smartctl has not ended within {} s", LIMIT.as_secs()));
            }
            Err(error) => return Err(format!("smartctl cannot be waited for: {error}")),
        }
    }
}

/// Judges the output of `smartctl --json -a`.
pub fn judge(text: &[u8]) -> Health {
    let Ok(report) = serde_json::from_slice::<Value>(text) else {
        return Health::NotReadable("smartctl's output is no JSON".to_owned());
    };
    let passed = report["smart_status"]["passed"].as_bool();
    let nvme = &report["nvme_smart_health_information_log"];
    let used = nvme["percentage_used"].as_u64().or_else(|| report["endurance_used"]["current_percent"].as_u64());
    let (mut reasons, mut facts) = (Vec::new(), Vec::new());
    if passed == Some(false) {
        reasons.push("it expects to fail (SMART status)".to_owned());
    }
    if let Some(used) = used {
        let fact = format!("{used} % of its endurance used");
        if used >= WORN { reasons.push(fact) } else { facts.push(fact) }
    }
    if let Some(warning) = nvme["critical_warning"].as_u64().filter(|bits| *bits != 0) {
        reasons.push(format!("critical warning 0x{warning:02x}"));
    }
    let spare = (nvme["available_spare"].as_u64(), nvme["available_spare_threshold"].as_u64());
    if let (Some(left), Some(least)) = spare
        && left < least
    {
        reasons.push(format!("{left} % of its spare blocks are left"));
    }
    if let Some(errors) = nvme["media_errors"].as_u64().filter(|errors| *errors > 0) {
        reasons.push(format!("{errors} media errors"));
    }
    for row in report["ata_smart_attributes"]["table"].as_array().into_iter().flatten() {
        let raw = row["raw"]["value"].as_u64().unwrap_or(0);
        match (row["id"].as_u64(), raw) {
            (Some(197), 1..) => reasons.push(format!("{raw} sectors that cannot be read")),
            (Some(198), 1..) => reasons.push(format!("{raw} sectors that can be neither read nor corrected")),
            _ => {}
        }
    }
    if let Some(hours) = report["power_on_time"]["hours"].as_u64() {
        facts.push(format!("{hours} hours on"));
    }
    if !reasons.is_empty() {
        return Health::Bad { failing: passed == Some(false), facts: reasons.join(", ") };
    }
    match passed {
        None if used.is_none() => {
            let messages = report["smartctl"]["messages"].as_array().into_iter().flatten();
            let why = messages.filter_map(|message| message["string"].as_str()).next().unwrap_or("the disk has no SMART report");
            Health::NotReadable(why.chars().map(|character| if character.is_control() { ' ' } else { character }).take(200).collect())
        }
        _ => Health::Good(if facts.is_empty() { "in good order by its own report".to_owned() } else { facts.join(", ") }),
    }
}
