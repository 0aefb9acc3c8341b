//! The programs of a release, and files that they write themselves: manual pages and completions.

use super::{Options, Staging, output};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Target of the static programs.
pub const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";
/// All programs that are installed.
const PROGRAMS: [&str; 2] = ["millpond", "millpond-lab"];

/// The programs.
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Builds the programs, or finds those of `options.built`.
    pub fn for_host(root: &Path, options: &Options) -> Result<Programs> {
        Programs::get(root, options, None, &PROGRAMS)
    }

    /// Builds the static program, or finds that of `options.built`.
    pub fn linked_statically(root: &Path, options: &Options) -> Result<Programs> {
        let programs = Programs::get(root, options, Some(STATIC_TARGET), &PROGRAMS[..1])?;
        let program = programs.path(PROGRAMS[0]);
        let headers = output(Command::new("readelf").args(["--program-headers", "--dynamic"]).arg(&program))?;
        ensure!(!headers.contains("INTERP") && !headers.contains("(NEEDED)"), "{} is linked dynamically", program.display());
        Ok(programs)
    }

    fn get(root: &Path, options: &Options, target: Option<&str>, names: &[&str]) -> Result<Programs> {
        let dir = match &options.built {
            Some(dir) => dir.clone(),
            None => build(root, target, names)?,
        };
        for name in names {
            ensure!(dir.join(name).is_file(), "{} is missing; build it first", dir.join(name).display());
        }
        Ok(Programs { dir })
    }

    /// Returns the path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Copies a program without its symbols.
    pub fn install(&self, name: &str, staging: &Staging, to: &str) -> Result<()> {
        staging.copy(&self.path(name), to, 0o755)?;
        let strip = ["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"];
        output(Command::new("strip").args(strip).arg(staging.path().join(to))).map(drop)
    }

    /// Has the program write its completions and manual pages into `share`, for example
    /// `usr/share`. Manual pages are compressed if `compress` is set.
    pub fn write_help(&self, staging: &Staging, share: &str, compress: bool) -> Result<()> {
        let program = self.path(PROGRAMS[0]);
        for (shell, name) in [
            ("bash", "bash-completion/completions/millpond"),
            ("zsh", "zsh/vendor-completions/_millpond"),
            ("fish", "fish/vendor_completions.d/millpond.fish"),
        ] {
            let script = output(Command::new(&program).args(["completions", shell]))?;
            staging.write(&format!("{share}/{name}"), 0o644, script.as_bytes())?;
        }
        let pages = Staging::new(staging.path().parent().context("a directory above")?, "man")?;
        output(Command::new(&program).arg("man").arg(pages.path()))?;
        for name in pages.files()? {
            let text = fs::read(pages.path().join(&name)).with_context(|| format!("reading {}", name.display()))?;
            let to = format!("{share}/man/man1/{}", name.display());
            if compress {
                staging.write_compressed(&format!("{to}.gz"), &text)?;
            } else {
                staging.write(&to, 0o644, &text)?;
            }
        }
        Ok(())
    }
}

/// Builds programs with the profile `release`; returns their directory.
fn build(root: &Path, target: Option<&str>, names: &[&str]) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked"]).current_dir(root);
    cargo.args(names.iter().flat_map(|name| ["-p", name]));
    let mut dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    if let Some(target) = target {
        // Debian's musl-tools; the C parts of dependencies are compiled with it
        cargo.args(["--target", target]).env("CC_x86_64_unknown_linux_musl", "musl-gcc");
        dir.push(target);
    }
    let status = cargo.status().context("starting cargo")?;
    let hint = target.map(|target| format!("; it needs `rustup target add {target}` and Debian's musl-tools")).unwrap_or_default();
    ensure!(status.success(), "cargo build: {status}{hint}");
    Ok(dir.join("release"))
}
