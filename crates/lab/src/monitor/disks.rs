//! Counters of disks, from /proc/diskstats.

use rustix::fs::{major, minor, stat};
use std::fs;
use std::path::{Path, PathBuf};

const SECTOR: f64 = 512.0; // unit of /proc/diskstats, whatever the device's sector size

/// Disks that are counted.
#[derive(Clone, Debug)]
pub enum Disks {
    /// All disks of the machine, without partitions and devices on top of other disks, so that
    /// nothing is counted twice.
    All,
    /// The disk or partition below the file system of this directory; none if it is in memory.
    Below(PathBuf),
}

/// Counters of disks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Completed reads.
    pub reads: f64,
    /// Completed writes.
    pub writes: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub write_bytes: f64,
    /// Sum of the milliseconds that requests took.
    pub wait_millis: f64,
    /// Milliseconds in which requests were in flight, of the busiest disk.
    pub busy_millis: f64,
}

impl Disks {
    /// Reads the counters; `None` if there is no such disk.
    pub fn read(&self) -> Option<Traffic> {
        let text = fs::read_to_string("/proc/diskstats").ok()?;
        match self {
            Disks::All => sum(&text, |words| is_whole(words[2])),
            Disks::Below(dir) => {
                let device = stat(dir).ok()?.st_dev;
                let number = [major(device), minor(device)].map(|number| number.to_string());
                sum(&text, |words| words[..2] == [number[0].as_str(), number[1].as_str()])
            }
        }
    }
}

fn is_whole(name: &str) -> bool {
    let above = ["loop", "dm-", "md", "ram", "zram"].iter().any(|prefix| name.starts_with(prefix));
    !above && Path::new("/sys/block").join(name).exists()
}

/// Adds the lines that are wanted by their words.
fn sum(text: &str, wanted: impl Fn(&[&str]) -> bool) -> Option<Traffic> {
    let mut all: Option<Traffic> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() < 13 || !wanted(&words) {
            continue;
        }
        let figure = |index: usize| words.get(index).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        let sum = all.get_or_insert_default();
        sum.reads += figure(3);
        sum.writes += figure(7);
        sum.read_bytes += figure(5) * SECTOR;
        sum.write_bytes += figure(9) * SECTOR;
        sum.wait_millis += figure(6) + figure(10);
        sum.busy_millis = sum.busy_millis.max(figure(12));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_by_number() {
        let text = "   8  0 sda 10 0 80 5 20 0 160 40 0 30 45 0 0\n   8 16 sdb 1 0 8 1 2 0 16 4 0 99 5 0 0\n";
        let one = sum(text, |words| words[..2] == ["8", "0"]).unwrap();
        let expected =
            Traffic { reads: 10.0, writes: 20.0, read_bytes: 40_960.0, write_bytes: 81_920.0, wait_millis: 45.0, busy_millis: 30.0 };
        assert_eq!(one, expected);
        let both = sum(text, |_| true).unwrap();
        assert_eq!((both.writes, both.busy_millis), (22.0, 99.0));
        assert_eq!(sum(text, |_| false), None, "a file system in memory has no disk");
    }
}
