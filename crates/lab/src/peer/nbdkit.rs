//! nbdkit with its file plugin (a raw file through the page cache) or its memory plugin.

use super::Contender;
use crate::load::Endpoint;
use crate::process::{Daemon, find_tool};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// nbdkit's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// A sparse raw file.
    File,
    /// Memory of the server.
    Memory,
}

/// An nbdkit server.
#[derive(Debug)]
pub struct Nbdkit {
    plugin: Plugin,
    dir: PathBuf,
    size: u64,
    daemon: Option<Daemon>,
}

impl Nbdkit {
    /// Describes a server; starts nothing.
    pub fn new(plugin: Plugin) -> Nbdkit {
        Nbdkit { plugin, dir: PathBuf::new(), size: 0, daemon: None }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    fn launch(&mut self) -> Result<()> {
        let socket = self.socket();
        if socket.exists() {
            std::fs::remove_file(&socket).context("removing the old socket")?;
        }
        let mut command = Command::new(find_tool("nbdkit").context("nbdkit is not installed")?);
        command.args(["--foreground", "--exportname", "disk", "--unix"]).arg(&socket);
        match self.plugin {
            Plugin::File => command.arg("file").arg(self.dir.join("disk.img")),
            Plugin::Memory => command.args(["memory", &self.size.to_string()]),
        };
        let mut daemon = Daemon::spawn(&mut command, &self.dir.join("nbdkit.log"))?;
        daemon.wait_ready(Duration::from_secs(20), || UnixStream::connect(&socket).is_ok())?;
        self.daemon = Some(daemon);
        Ok(())
    }
}

impl Contender for Nbdkit {
    fn name(&self) -> &'static str {
        match self.plugin {
            Plugin::File => "nbdkit-file",
            Plugin::Memory => "nbdkit-memory",
        }
    }

    fn start(&mut self, dir: &Path, size: u64) -> Result<()> {
        (self.dir, self.size) = (dir.to_owned(), size);
        if self.plugin == Plugin::File {
            File::create(dir.join("disk.img")).and_then(|f| f.set_len(size)).context("making the image")?;
        }
        self.launch()
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::unix(&self.socket(), "disk"))
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("not running")?.pid())
    }

    fn kill9(&mut self) -> Result<()> {
        self.daemon.take().context("not running")?.kill9()
    }

    fn restart(&mut self) -> Result<()> {
        self.launch()
    }

    fn stop(&mut self) -> Result<()> {
        match self.daemon.take() {
            Some(mut daemon) => daemon.terminate(Duration::from_secs(20)).map(|_| ()),
            None => Ok(()),
        }
    }
}
