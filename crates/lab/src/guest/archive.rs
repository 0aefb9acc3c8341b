//! Writer for "newc" cpio archives, which Linux accepts as initramfs (kernel docs:
//! driver-api/early-userspace/buffer-format).

use std::collections::BTreeSet;

/// An archive under construction.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds a file and its parent directories. `path` is relative; `mode` is that of `chmod`.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, 0o100_000 | mode, content);
    }

    /// Adds an empty directory and its parent directories.
    pub fn directory(&mut self, path: &str) {
        self.parents(path);
        if self.directories.insert(path.to_owned()) {
            self.entry(path, 0o040_755, &[]);
        }
    }

    /// Returns the complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        let ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
        for end in ends {
            let parent = path[..end].to_owned();
            if self.directories.insert(parent.clone()) {
                self.entry(&parent, 0o040_755, &[]);
            }
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("no file of the initramfs is that large");
        let name_size = u32::try_from(name.len() + 1).expect("a short name");
        // inode, mode, uid, gid, links, mtime, size, device major and minor, rdev major and minor,
        // name size, check
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
