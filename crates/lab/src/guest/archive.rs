//! Writer for "newc" cpio archives, which Linux accepts as initramfs (kernel docs:
//! driver-api/early-userspace/buffer-format).

use super::Kernel;
use crate::process::run_tool;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

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

    /// Adds programs of this host, each with its path in the archive, and their libraries.
    ///
    /// # Errors
    /// A file cannot be read, or ldd failed.
    pub fn programs(&mut self, programs: &[(PathBuf, &str)]) -> Result<()> {
        let mut libraries: Vec<String> = Vec::new();
        for (path, name) in programs {
            for word in run_tool("ldd", &[path])?.split_whitespace().filter(|word| word.starts_with('/')) {
                let library = word.trim_end_matches(':').to_owned();
                if !libraries.contains(&library) {
                    libraries.push(library);
                }
            }
            self.file(name, 0o755, &fs::read(path).with_context(|| format!("reading {}", path.display()))?);
        }
        for library in libraries {
            self.file(library.trim_start_matches('/'), 0o755, &fs::read(&library).with_context(|| format!("reading {library}"))?);
        }
        Ok(())
    }

    /// Adds modules of a kernel below `modules`, so that their names sort as they have to be loaded.
    ///
    /// # Errors
    /// A module cannot be read.
    pub fn modules(&mut self, kernel: &Kernel, names: &[&str]) -> Result<()> {
        for (index, (name, content)) in kernel.modules(names)?.into_iter().enumerate() {
            self.file(&format!("modules/{index:02}-{}", name.split(".ko").next().unwrap_or(&name)), 0o644, &content);
        }
        Ok(())
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
