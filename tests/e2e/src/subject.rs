//! The server under test.

use anyhow::{Context, Result};
use millpond_lab::load::Endpoint;
use millpond_lab::peer::{Contender, Millpond, make, millpond_binary};
use std::path::{Path, PathBuf};

/// Whether the target of this name can take snapshots.
pub fn has_snapshots(name: &str) -> bool {
    !matches!(name, "qsd-raw" | "nbdkit-file" | "nbdkit-memory")
}

/// A target in a directory of its own, with space for files of the test beside it.
pub struct Subject {
    server: Server,
    dir: PathBuf,
}

enum Server {
    Ours(Box<Millpond>),
    Theirs(Box<dyn Contender>),
}

impl Subject {
    /// Makes a target; starts nothing.
    pub fn new(name: &str, dir: &Path) -> Result<Subject> {
        // a read cache would hide what is on the devices
        let server = match name {
            "millpond" => Server::Ours(Box::new(Millpond::new(millpond_binary()?).without_read_cache())),
            name => Server::Theirs(make(name)?),
        };
        Ok(Subject { server, dir: dir.to_owned() })
    }

    /// The server under test.
    pub fn server(&mut self) -> &mut dyn Contender {
        match &mut self.server {
            Server::Ours(millpond) => millpond.as_mut(),
            Server::Theirs(contender) => contender.as_mut(),
        }
    }

    /// Millpond, for features that other servers do not have.
    pub fn millpond(&mut self) -> Result<&mut Millpond> {
        match &mut self.server {
            Server::Ours(millpond) => Ok(millpond),
            Server::Theirs(_) => anyhow::bail!("the subject is not millpond"),
        }
    }

    /// Starts the server on a new disk.
    pub fn start(&mut self, size: u64) -> Result<Endpoint> {
        let dir = self.dir.join("server");
        std::fs::create_dir_all(&dir).context("making the server's directory")?;
        self.server().start(&dir, size)?;
        self.server().endpoint()
    }

    /// Directory of the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path for a file of the test.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the end of every log in the server's directory.
    pub fn last_words(&self) -> String {
        let entries = std::fs::read_dir(self.dir.join("server")).into_iter().flatten().flatten();
        let logs = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "log"));
        logs.filter_map(|p| std::fs::read_to_string(p).ok()).map(|text| millpond_lab::process::tail(&text, 2000).to_owned()).collect()
    }
}
