//! A load of files: many files of 100 KB, a hundred per directory, created and then rewritten in
//! place, round after round.

use super::{Latency, Rng};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

/// Size of a file in bytes.
pub const FILE_BYTES: usize = 102_400;
/// Files per directory.
pub const FILES_PER_DIRECTORY: u64 = 100;

/// Content of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// This byte, repeated.
    Byte(u8),
    /// Incompressible: random bytes of this seed, another part of them in each file.
    Random(u64),
}

/// Result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Seconds until all files were on the disk.
    pub secs: f64,
    /// Files written per second.
    pub files_s: f64,
    /// Latency of opening, writing and closing a file.
    pub latency: Latency,
    /// Requests to the guest's disk meanwhile, if they were counted.
    #[serde(default)]
    pub disk: Option<DiskUse>,
}

/// Requests to a disk during a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskUse {
    /// Mean milliseconds of a request.
    pub await_ms: f64,
    /// Writes per second.
    pub writes_s: f64,
    /// Bytes written per second.
    pub write_bytes_s: f64,
}

/// A set of files below a directory.
#[derive(Clone, Debug)]
pub struct FileSet {
    dir: PathBuf,
    count: u64,
}

impl FileSet {
    /// Describes `count` files below `dir`; creates nothing.
    pub fn new(dir: &Path, count: u64) -> FileSet {
        FileSet { dir: dir.to_owned(), count }
    }

    /// Total bytes of `count` files.
    pub fn bytes(count: u64) -> u64 {
        count * FILE_BYTES as u64
    }

    /// Writes every file once, creating it if missing, and waits until the file system is synced.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, content: Content) -> Result<Round> {
        let pool = content.pool();
        let mut samples = Vec::with_capacity(usize::try_from(self.count)?);
        let begin = Instant::now();
        for number in 0..self.count {
            let path = self.path(number);
            if let Some(dir) = path.parent().filter(|_| number % FILES_PER_DIRECTORY == 0) {
                fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
            }
            let before = Instant::now();
            let mut file = File::options()
                .create(true)
                .write(true)
                .truncate(false)
                .open(&path)
                .with_context(|| format!("opening {}", path.display()))?;
            file.write_all(piece(&pool, number)).with_context(|| format!("writing {}", path.display()))?;
            drop(file);
            samples.push(before.elapsed().as_secs_f64() * 1e6);
        }
        let root = File::open(&self.dir).context("opening the directory")?;
        rustix::fs::syncfs(&root).context("waiting for the filesystem to write everything")?;
        let secs = begin.elapsed().as_secs_f64();
        Ok(Round { secs, files_s: self.count as f64 / secs.max(1e-9), latency: Latency::of_samples(&samples), disk: None })
    }
}

impl FileSet {
    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("d{:05}/f{number:07}", number / FILES_PER_DIRECTORY))
    }

    /// Reads every file and compares it with its content.
    ///
    /// # Errors
    /// A file cannot be read, or has other content.
    pub fn check(&self, content: Content) -> Result<()> {
        let pool = content.pool();
        for number in 0..self.count {
            let path = self.path(number);
            let found = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            ensure!(found == piece(&pool, number), "{} does not hold what was written", path.display());
        }
        Ok(())
    }
}

impl FromStr for Content {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Content> {
        if let Some(seed) = text.strip_prefix("random:") {
            return Ok(Content::Random(seed.parse().context("a seed is a number")?));
        }
        let byte = u8::from_str_radix(text, 16).with_context(|| format!("'{text}' is neither a byte as ff nor random:SEED"))?;
        Ok(Content::Byte(byte))
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Byte(byte) => write!(f, "{byte:02x}"),
            Content::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

impl Content {
    /// Bytes of twice the size of a file; each file uses a part of them.
    fn pool(self) -> Vec<u8> {
        let mut pool = vec![0; 2 * FILE_BYTES];
        match self {
            Content::Byte(byte) => pool.fill(byte),
            Content::Random(seed) => Rng::new(seed).fill(&mut pool),
        }
        pool
    }
}

fn piece(pool: &[u8], number: u64) -> &[u8] {
    let from = (number as usize * 512) % FILE_BYTES;
    &pool[from..from + FILE_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Workspace;

    #[test]
    fn a_round_rewrites_every_file_in_place() {
        let dir = Workspace::new(&std::env::temp_dir(), "files").unwrap();
        let files = FileSet::new(dir.path(), 150);
        files.write(Content::Byte(0)).unwrap();
        let round = files.write(Content::Byte(0x55)).unwrap();
        assert_eq!(round.latency.count, 150);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert_eq!(fs::read(dir.path().join("d00001/f0000149")).unwrap(), vec![0x55; FILE_BYTES]);
        for content in [Content::Byte(0xa), Content::Random(7)] {
            assert_eq!(content.to_string().parse::<Content>().unwrap(), content);
        }
        assert!(files.check(Content::Byte(0x55)).is_ok() && files.check(Content::Byte(0)).is_err());
        files.write(Content::Random(1)).unwrap();
        files.check(Content::Random(1)).unwrap();
        let (one, other) = (fs::read(dir.path().join("d00000/f0000000")).unwrap(), fs::read(dir.path().join("d00000/f0000001")).unwrap());
        assert_ne!(one, other, "each file holds another piece");
    }
}
