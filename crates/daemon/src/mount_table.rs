//! The table of mounts, from `/proc/self/mountinfo` (Linux, `Documentation/filesystems/proc.rst`).
//! Reading it calls no file system, so a file system whose server is dead cannot block it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Device number, `major:minor`.
    pub number: String,
    pub fs_type: String,
}

/// Returns the mounts on a directory; the last one is visible.
///
/// # Errors
/// When the table cannot be read.
pub fn mounts_on(dir: &Path) -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?, dir))
}

fn parse(table: &[u8], dir: &Path) -> Vec<MountEntry> {
    let entry = |line: &[u8]| {
        // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS
        let mut words = line.split(|byte| *byte == b' ');
        let number = words.nth(2)?;
        let place = unescape(words.nth(1)?);
        if place.as_bytes() != dir.as_os_str().as_bytes() {
            return None;
        }
        let fs_type = words.skip_while(|word| *word != b"-").nth(1)?;
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        Some(MountEntry { number: text(number), fs_type: text(fs_type) })
    };
    table.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

/// Decodes blanks and backslashes, which the table has as three octal digits.
fn unescape(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_directory() {
        let table = b"22 1 0:20 / /proc rw shared:2 - proc proc rw\n\
            40 1 0:41 / /mnt/a\\040b rw,nosuid - fuse.millpond tank rw,user_id=0\n\
            41 40 0:42 / /mnt/a\\040b rw shared:1 master:2 - ext4 /dev/x rw\nrubbish\n";
        let found = parse(table, Path::new("/mnt/a b"));
        let entry = |number: &str, fs_type: &str| MountEntry { number: number.to_owned(), fs_type: fs_type.to_owned() };
        assert_eq!(found, [entry("0:41", "fuse.millpond"), entry("0:42", "ext4")]);
        assert_eq!(parse(table, Path::new("/mnt")), []);
        assert!(mounts_on(Path::new("/proc")).is_ok_and(|found| found.iter().any(|entry| entry.fs_type == "proc")));
    }
}
