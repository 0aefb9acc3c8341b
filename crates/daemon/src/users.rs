//! Users of a directory tree: processes with files of it open, and loop devices on them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Most users that are named.
const MOST: usize = 5;

/// Returns the names of some users of files in `dir`, so that people can find them.
pub fn of(dir: &Path) -> Vec<String> {
    let mut users = BTreeSet::new();
    for device in entries("/sys/block") {
        let backing = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file"));
        if backing.is_ok_and(|path| Path::new(path.trim_end()).starts_with(dir)) {
            users.insert(format!("/dev/{device}"));
        }
    }
    for pid in entries("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        let inside = |link: String| fs::read_link(link).is_ok_and(|path| path.starts_with(dir));
        let mut files = entries(&format!("/proc/{pid}/fd")).into_iter().map(|fd| format!("/proc/{pid}/fd/{fd}"));
        if inside(format!("/proc/{pid}/cwd")) || inside(format!("/proc/{pid}/root")) || files.any(inside) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            users.insert(format!("{} (process {pid})", name.trim_end()));
        }
    }
    users.into_iter().take(MOST).collect()
}

fn entries(dir: &str) -> Vec<String> {
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    found.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
