//! A directory as target.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::{Lock, Store};
use crate::StoreError;

/// Folder of files that are being written. Commands that were killed leave files there, which a command
/// that has the target alone deletes.
const INCOMING: &str = "incoming";
/// File whose lock is that of the target.
const LOCK: &str = "lock";
/// File that changes with every command that has the target alone.
const GENERATION: &str = "generation";
/// How long a command waits for others.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(200);

/// A directory.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Directories with entries that a power cut could undo.
    unsettled: Mutex<BTreeSet<PathBuf>>,
    patience: Duration,
}

impl Directory {
    /// Uses this directory, which must exist.
    pub fn new(root: &Path) -> Directory {
        Directory { root: root.to_owned(), unsettled: Mutex::new(BTreeSet::new()), patience: PATIENCE }
    }

    /// Waits at most so long for others.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Directory {
        Directory { patience, ..self }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn note(&self, dir: &Path) {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.to_owned());
    }

    /// Makes a directory and those above it, below the root.
    fn make(&self, dir: &Path) -> io::Result<()> {
        // a link could lead out of the target
        if dir.symlink_metadata().is_ok_and(|about| about.is_dir()) {
            return Ok(());
        }
        let Some(parent) = dir.parent().filter(|_| dir != self.root) else { return Err(io::ErrorKind::NotFound.into()) };
        self.make(parent)?;
        match fs::create_dir(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => self.note(parent),
        }
        Ok(())
    }

    /// Writes the file under another name first; its content is on the medium before it gets its own.
    /// With `new`, it does not get it from another file, and false is returned.
    fn write(&self, path: &Path, content: &[u8], new: bool) -> io::Result<bool> {
        let incoming = self.root.join(INCOMING);
        self.make(&incoming)?;
        let dir = path.parent().unwrap_or(&self.root);
        self.make(dir)?;
        // another command may have made the directories
        dir.ancestors().take_while(|above| above.starts_with(&self.root)).for_each(|above| self.note(above));
        let mut file = tempfile::Builder::new().prefix("part-").tempfile_in(&incoming)?;
        file.as_file_mut().write_all(content)?;
        file.as_file().sync_data()?;
        let named = if new { name_new(file, path)? } else { file.persist(path).map(|_| true).map_err(|e| e.error)? };
        // a settle meanwhile may have passed over it
        self.note(dir);
        Ok(named)
    }

    fn walk(&self, dir: &Path, each: &mut dyn FnMut(String, u64)) -> io::Result<()> {
        if dir.symlink_metadata().is_ok_and(|about| !about.is_dir()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no directory of a target"));
        }
        let entries = match fs::read_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        self.note(dir);
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            // of a new file system
            if path == self.root.join("lost+found") {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.walk(&path, each)?;
            } else if let Some(name) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) {
                match entry.metadata() {
                    Ok(about) => each(name.to_owned(), about.len()),
                    // another command deleted it
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Deletes what killed commands left; the caller has the target alone.
    fn tidy(&self) -> io::Result<()> {
        let mut left = Vec::new();
        self.walk(&self.root.join(INCOMING), &mut |name, _| left.push(name))?;
        let own = |name: &&String| name.strip_prefix(INCOMING).is_some_and(|file| file.starts_with("/part-"));
        left.iter().filter(own).try_for_each(|name| fs::remove_file(self.path(name)))
    }
}

impl Store for Directory {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path(name);
        self.write(&path, content, false).map(drop).map_err(StoreError::io(format!("write {}", path.display())))
    }

    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool, StoreError> {
        let path = self.path(name);
        let written = self.write(&path, content, true).map_err(StoreError::io(format!("write {}", path.display())))?;
        Ok(written || self.get(name, content.len() as u64).is_ok_and(|there| there == content))
    }

    fn get(&self, name: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let path = self.path(name);
        let of = |error| StoreError::Io(format!("read {}", path.display()), error);
        let file = match open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(StoreError::Missing(path.display().to_string())),
            file => file.map_err(of)?,
        };
        let mut content = Vec::new();
        file.take(most + 1).read_to_end(&mut content).map_err(of)?;
        if content.len() as u64 > most {
            return Err(of(io::Error::new(io::ErrorKind::InvalidData, "it is longer than any file of a target")));
        }
        Ok(content)
    }

    fn has(&self, name: &str) -> Result<bool, StoreError> {
        let path = self.path(name);
        // opened, because a network file system may remember entries that are gone
        match open(&path) {
            Ok(_) => {
                path.parent().into_iter().for_each(|dir| self.note(dir));
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(StoreError::Io(format!("look at {}", path.display()), e)),
        }
    }

    fn list(&self, folder: &str, each: &mut dyn FnMut(String, u64)) -> Result<(), StoreError> {
        let dir = self.path(folder);
        self.walk(&dir, each).map_err(StoreError::io(format!("list {}", dir.display())))
    }

    fn delete(&self, names: &[String]) -> Result<(), StoreError> {
        for name in names {
            let path = self.path(name);
            match fs::remove_file(&path) {
                Ok(()) => path.parent().into_iter().for_each(|dir| self.note(dir)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(StoreError::Io(format!("delete {}", path.display()), e)),
            }
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), StoreError> {
        let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        let dirs = std::mem::take(&mut *unsettled);
        drop(unsettled);
        for dir in &dirs {
            if let Err(e) = File::open(dir).and_then(|dir| dir.sync_all()) {
                let of = StoreError::Io(format!("make {} durable", dir.display()), e);
                self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).extend(dirs);
                return Err(of);
            }
        }
        Ok(())
    }

    fn lock(&self, alone: bool, stop: &AtomicBool) -> Result<Box<dyn Lock>, StoreError> {
        let path = self.path(LOCK);
        let of = |error| StoreError::Io(format!("lock {}", path.display()), error);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(of)?;
        let how = if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        let end = Instant::now() + self.patience;
        loop {
            match flock(&file, how) {
                Ok(()) => break,
                Err(rustix::io::Errno::AGAIN) if stop.load(Relaxed) => return Err(StoreError::Stopped),
                Err(rustix::io::Errno::AGAIN) if Instant::now() < end => thread::sleep(LOOK),
                Err(rustix::io::Errno::AGAIN) => {
                    let who = if alone {
                        "other commands use it; try again when they have ended"
                    } else {
                        "a prune is at work; try again when it has ended"
                    };
                    return Err(StoreError::Busy(who.to_owned()));
                }
                Err(e) => return Err(of(e.into())),
            }
        }
        let generation = self.path(GENERATION);
        if alone {
            self.tidy().map_err(of)?;
            let new = format!("{} {}", std::process::id(), millpond_api::instant::now().as_nanosecond());
            self.write(&generation, new.as_bytes(), false).map_err(of)?;
            self.settle()?;
        }
        let seen = read(&generation).map_err(of)?;
        Ok(Box::new(Locked { file, generation, seen }))
    }
}

/// Gives a written file its name, unless another one has it; then returns false.
fn name_new(file: tempfile::NamedTempFile, path: &Path) -> io::Result<bool> {
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // a file system that cannot do this in one step, such as exFAT
        Err(e) if matches!(e.error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => {
            if path.symlink_metadata().is_ok() {
                return Ok(false);
            }
            e.file.persist(path).map(|_| true).map_err(|e| e.error)
        }
        Err(e) => Err(e.error),
    }
}

/// Opens a plain file. Links could lead out of the target, and a pipe would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it is no plain file");
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::LOOP) => return Err(wrong()),
        file => File::from(file?),
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(wrong()) }
}

/// Reads the generation; nothing where there was no prune yet.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    match open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        file => drop(file?.take(256).read_to_end(&mut content)?),
    }
    Ok(content)
}

/// The lock file; the system unlocks it when it is closed, also by the death of the program.
///
/// A server of files ends the locks of a host that it does not hear from, and some file systems lock on
/// one host alone. So every command that is alone leaves another generation before it deletes anything,
/// and the others look at it.
struct Locked {
    file: File,
    generation: PathBuf,
    seen: Vec<u8>,
}

impl Lock for Locked {
    fn check(&self) -> Result<(), StoreError> {
        let now = read(&self.generation).map_err(StoreError::io(format!("read {}", self.generation.display())))?;
        if now == self.seen { Ok(()) } else { Err(StoreError::Late) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // closing it unlocks, too
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
