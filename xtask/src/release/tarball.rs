//! The tarball with a static program, for systems without Debian's packages.

use super::licences::Licences;
use super::programs::Programs;
use super::{Options, Staging, epoch, output, pack};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of the repository and their paths in the tarball.
const FILES: [(&str, &str); 8] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("docs/install.md", "install.md"),
    ("packaging/millpond.toml", "etc/millpond/millpond.toml"),
    ("packaging/systemd/millpond.service", "systemd/millpond.service"),
    ("packaging/systemd/millpond.socket", "systemd/millpond.socket"),
    ("packaging/systemd/sysusers.conf", "systemd/sysusers.d/millpond.conf"),
];

/// Builds the tarball; returns its path.
///
/// # Errors
/// A build fails, or the program is linked dynamically.
pub fn tarball(root: &Path, options: &Options) -> Result<PathBuf> {
    let programs = Programs::linked_statically(root, options)?;
    fs::create_dir_all(&options.out).with_context(|| format!("making {}", options.out.display()))?;
    let staging = Staging::new(&options.out, "tarball")?;
    let name = format!("millpond-{}-x86_64-linux", options.version);
    programs.install("millpond", &staging, &format!("{name}/bin/millpond"))?;
    programs.write_help(&staging, &format!("{name}/share"), false)?;
    for (from, to) in FILES {
        staging.copy(&root.join(from), &format!("{name}/{to}"), 0o644)?;
    }
    staging.copy(&root.join("packaging/systemd/tmpfiles.conf"), &format!("{name}/systemd/tmpfiles.d/millpond.conf"), 0o644)?;
    let licences = Licences::of_programs(root)?.texts();
    staging.write(&format!("{name}/LICENSES-OF-CRATES"), 0o644, licences.as_bytes())?;
    let archive = options.out.join(format!("{name}.tar"));
    pack(staging.path(), &archive, &epoch(root)?)?;
    output(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&archive))?;
    Ok(archive.with_extension("tar.gz"))
}
