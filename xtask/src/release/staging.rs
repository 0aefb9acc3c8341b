//! A directory with the files of a release, as they are installed.

use super::output;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory; it is removed on drop.
pub struct Staging {
    dir: PathBuf,
}

impl Staging {
    /// Makes an empty directory below `parent`.
    pub fn new(parent: &Path, name: &str) -> Result<Staging> {
        let dir = parent.join(format!(".{name}.{}", std::process::id()));
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).with_context(|| format!("making {}", dir.display()))?;
        Ok(Staging { dir })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Writes a file and the directories above it.
    pub fn write(&self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        self.directory(Path::new(name).parent().unwrap_or(Path::new("")))?;
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).with_context(|| format!("writing {}", path.display()))
    }

    /// Copies a file.
    pub fn copy(&self, from: &Path, name: &str, mode: u32) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.write(name, mode, &content)
    }

    /// Writes a file that is compressed with gzip, without a time in it.
    pub fn write_compressed(&self, name: &str, content: &[u8]) -> Result<()> {
        let plain = name.trim_end_matches(".gz");
        self.write(plain, 0o644, content)?;
        output(Command::new("gzip").args(["-9", "-n", "-f"]).arg(self.dir.join(plain))).map(drop)
    }

    /// Makes a directory and those above it, with mode 0755.
    fn directory(&self, name: &Path) -> Result<()> {
        let above: Vec<&Path> = name.ancestors().filter(|dir| !dir.as_os_str().is_empty()).collect();
        for dir in above.into_iter().rev().map(|dir| self.dir.join(dir)).filter(|dir| !dir.is_dir()) {
            fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(())
    }

    /// Returns the paths of all files, relative to the directory, sorted.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let (mut files, mut dirs) = (Vec::new(), vec![self.dir.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
                let path = entry?.path();
                if path.is_dir() { dirs.push(path) } else { files.push(path.strip_prefix(&self.dir)?.to_owned()) }
            }
        }
        files.sort();
        Ok(files)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
