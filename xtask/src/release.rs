//! Releases: a Debian package, a static tarball, and an OCI image.
//!
//! All three are reproducible from a commit: times in them are the commit's, or those of
//! `SOURCE_DATE_EPOCH`.

mod deb;
mod image;
mod licences;
mod programs;
mod staging;
mod tarball;

use staging::Staging;

pub use deb::deb;
pub use image::image;
pub use tarball::tarball;

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the three commands.
pub struct Options {
    /// Version of the release; of the Debian package with its revision.
    pub version: String,
    /// Directory for the result.
    pub out: PathBuf,
    /// Directory with programs that were built before; otherwise they are built with the profile
    /// `release`.
    pub built: Option<PathBuf>,
}

impl Options {
    /// Parses the words after the name of the command.
    ///
    /// # Errors
    /// An unknown option, or one without its value.
    pub fn parse(root: &Path, words: &[&str]) -> Result<Options> {
        let mut options = Options { version: env!("CARGO_PKG_VERSION").to_owned(), out: root.join("target/packages"), built: None };
        for pair in words.chunks(2) {
            match pair {
                ["--version", version] => (*version).clone_into(&mut options.version),
                ["--out", dir] => options.out = std::path::absolute(dir).with_context(|| format!("the directory {dir}"))?,
                ["--built", dir] => options.built = Some(PathBuf::from(dir)),
                [word, ..] => bail!("'{word}' is no option, or lacks its value; see `cargo xtask --help`"),
                [] => {}
            }
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".+~-".contains(c);
        let digit_first = options.version.starts_with(|c: char| c.is_ascii_digit());
        ensure!(digit_first && options.version.chars().all(is_plain), "'{}' is no version; give one like 0.1.0", options.version);
        Ok(options)
    }
}

/// Returns the time for all files of a release, in seconds since 1970.
fn epoch(root: &Path) -> Result<String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => Ok(seconds),
        Err(_) => output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root)).map(|text| text.trim().to_owned()),
    }
}

/// Runs a command and returns its standard output.
fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8(output.stdout).with_context(|| format!("the output of {program}"))
}

/// Packs the contents of a directory, owned by root, in the order of their names.
fn pack(dir: &Path, archive: &Path, epoch: &str) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]).arg(format!("--mtime=@{epoch}"));
    output(tar.arg("-C").arg(dir).arg("-cf").arg(archive).arg(".")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words_with_values() {
        let parse = |words: &[&str]| Options::parse(Path::new("/r"), words);
        let options = parse(&["--version", "0.2.0-1", "--built", "/b"]).expect("valid");
        assert_eq!((options.version.as_str(), options.built.as_deref()), ("0.2.0-1", Some(Path::new("/b"))));
        assert_eq!(options.out, Path::new("/r/target/packages"));
        for wrong in [&["--version"][..], &["--version", "v1"], &["--version", "1 2"], &["--nope", "x"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
