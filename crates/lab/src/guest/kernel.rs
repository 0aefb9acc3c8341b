//! The guest's kernel and its modules, as Debian's linux-image-cloud-amd64 installs them.

use crate::process::find_tool;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel image and its modules.
pub struct Kernel {
    /// Path of the kernel image.
    pub image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// Finds the newest installed kernel; prefers the cloud flavour, which boots fastest.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn find() -> Result<Kernel> {
        Kernel::find_below(Path::new("/"))
    }

    /// Finds the newest kernel that is installed in the system below a directory.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn find_below(root: &Path) -> Result<Kernel> {
        let (boot, modules) = (root.join("boot"), root.join("lib/modules"));
        let entries = fs::read_dir(&boot).context("no /boot; install linux-image-cloud-amd64")?;
        let mut found: Vec<(bool, String)> = entries
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
            .filter(|version| modules.join(version).join("modules.dep").is_file())
            .map(|version| (version.contains("cloud"), version))
            .collect();
        found.sort();
        let (_, version) = found.pop().context("no kernel with modules in /boot; install linux-image-cloud-amd64")?;
        let image = boot.join(format!("vmlinuz-{version}"));
        fs::File::open(&image).with_context(|| format!("{} cannot be read; run as root", image.display()))?;
        Ok(Kernel { image, modules: modules.join(version) })
    }

    /// Returns the named modules and their dependencies, in loading order. Names that are no
    /// module, for example because they are built in, are skipped.
    ///
    /// # Errors
    /// A module cannot be read.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let table = fs::read_to_string(self.modules.join("modules.dep")).context("reading modules.dep")?;
        let mut order: Vec<&str> = Vec::new();
        for name in names {
            let is_it = |path: &str| path.rsplit('/').next().and_then(|file| file.split('.').next()) == Some(name);
            let Some((path, needs)) = table.lines().filter_map(|l| l.split_once(':')).find(|(path, _)| is_it(path)) else { continue };
            for module in needs.split_whitespace().rev().chain([path]) {
                if !order.contains(&module) {
                    order.push(module);
                }
            }
        }
        order.into_iter().map(|path| Ok((path.rsplit('/').next().unwrap_or(path).to_owned(), self.read(path)?))).collect()
    }

    /// Reads a module and decompresses it: newer versions of Debian compress modules, and the
    /// guest's loader cannot.
    fn read(&self, module: &str) -> Result<Vec<u8>> {
        let path = self.modules.join(module);
        let tool = match path.extension().and_then(|e| e.to_str()) {
            Some("xz") => "xz",
            Some("zst") => "zstd",
            Some("gz") => "gzip",
            _ => return fs::read(&path).with_context(|| format!("reading {}", path.display())),
        };
        let program = find_tool(tool).with_context(|| format!("{tool} is not installed"))?;
        let output = Command::new(program).arg("-dc").arg(&path).output().with_context(|| format!("starting {tool}"))?;
        ensure!(output.status.success(), "{tool} cannot unpack {}", path.display());
        Ok(output.stdout)
    }
}
