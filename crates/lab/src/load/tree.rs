//! A tree of files of many sizes, like a home directory: most files are small, most bytes are in
//! large files.

use super::Rng;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Median size in bytes of log-normal sizes, whose mean over many files is 150 KiB.
const MEDIAN: f64 = 24.0 * 1024.0;
const SPREAD: f64 = 1.914;
/// Files per directory.
const PER_DIRECTORY: u64 = 16;
const LARGEST: f64 = 16.0 * 1024.0 * 1024.0;
const PIECE: usize = 1 << 20;

/// A tree of files below a directory.
#[derive(Clone, Debug)]
pub struct Tree {
    dir: PathBuf,
    sizes: Vec<usize>,
    pool: Vec<u8>,
}

impl Tree {
    /// Describes `count` files; creates nothing. The seed determines sizes and contents.
    pub fn new(dir: &Path, count: u64, seed: u64) -> Tree {
        let mut rng = Rng::new(seed);
        let mut pool = vec![0; 2 * PIECE];
        rng.fill(&mut pool);
        let sizes = (0..count).map(|_| size(&mut rng)).collect();
        Tree { dir: dir.to_owned(), sizes, pool }
    }

    /// Total bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.sizes.iter().map(|size| *size as u64).sum()
    }

    /// Writes every file and waits until the file system is synced.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self) -> Result<()> {
        for (number, size) in (0..).zip(&self.sizes) {
            let path = self.path(number);
            if let Some(dir) = path.parent().filter(|_| number % PER_DIRECTORY == 0) {
                fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
            }
            let mut file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
            self.pieces(number, *size)
                .try_for_each(|piece| file.write_all(piece))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let root = File::open(&self.dir).context("opening the directory")?;
        rustix::fs::syncfs(&root).context("waiting for the filesystem to write everything")
    }

    /// Reads the size of every file, like `find -size`; returns the number of files.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn find(&self) -> Result<usize> {
        let (mut found, mut directories) = (0, vec![self.dir.clone()]);
        while let Some(dir) = directories.pop() {
            for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
                let entry = entry?;
                let about = entry.metadata().with_context(|| format!("looking at {}", entry.path().display()))?;
                if about.is_dir() {
                    directories.push(entry.path());
                } else {
                    found += 1;
                }
            }
        }
        Ok(found)
    }

    /// Reads and verifies every file.
    ///
    /// # Errors
    /// A file cannot be read, or has other content.
    pub fn read(&self) -> Result<()> {
        let mut buffer = vec![0; PIECE];
        for (number, size) in (0..).zip(&self.sizes) {
            let path = self.path(number);
            let mut file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
            for piece in self.pieces(number, *size) {
                let place = buffer.get_mut(..piece.len()).context("a piece that is too long")?;
                file.read_exact(place).with_context(|| format!("reading {}", path.display()))?;
                ensure!(place == piece, "{} does not hold what was written", path.display());
            }
        }
        Ok(())
    }

    /// Two levels of directories: sixteen files in each, and sixteen of these directories in each
    /// at the top, so that no directory is large.
    fn path(&self, number: u64) -> PathBuf {
        let directory = number / PER_DIRECTORY;
        self.dir.join(format!("{:03x}/{:02x}/f{number:07}", directory / 16, directory % 16))
    }

    fn pieces(&self, number: u64, size: usize) -> impl Iterator<Item = &[u8]> {
        let from = (number as usize * 512) % PIECE;
        (0..size).step_by(PIECE).map(move |at| &self.pool[from..from + PIECE.min(size - at)])
    }
}

/// Returns a random size of a file.
fn size(rng: &mut Rng) -> usize {
    // the sum of twelve uniform numbers is close enough to a normal distribution
    let normal: f64 = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
    (MEDIAN * (normal * SPREAD).exp()).clamp(1.0, LARGEST) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Workspace;

    #[test]
    fn the_mean_is_that_of_the_article() {
        let tree = Tree::new(Path::new("/"), 50_000, 3);
        let mean = tree.bytes() as f64 / 50_000.0 / 1024.0;
        assert!((120.0..165.0).contains(&mean), "{mean} KiB");
    }

    #[test]
    fn what_is_written_is_found_and_read() {
        let dir = Workspace::new(&std::env::temp_dir(), "tree").unwrap();
        let tree = Tree::new(dir.path(), 40, 1);
        tree.write().unwrap();
        assert_eq!(tree.find().unwrap(), 40);
        tree.read().unwrap();
        fs::write(tree.path(39), vec![0; tree.sizes[39]]).unwrap();
        assert!(tree.read().is_err());
    }
}
