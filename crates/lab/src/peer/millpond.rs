//! Millpond, driven by its command line like by a script outside the project.

use super::{Contender, Control, Counters};
use crate::load::{Client, Endpoint};
use crate::process::{Daemon, find_tool, run_command};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Maximum wait for a daemon to start or stop, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Finds the `millpond` to measure: `MILLPOND_BIN`, else one near this program, else one in PATH.
///
/// # Errors
/// There is none.
pub fn millpond_binary() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("MILLPOND_BIN") {
        let path = PathBuf::from(named);
        if !path.is_file() {
            bail!("MILLPOND_BIN names {}, which is not there", path.display());
        }
        return Ok(path);
    }
    let own = std::env::current_exe().context("the path of this program")?;
    // for target/release/millpond-lab and target/release/deps/e2e-…, it is in the same or the
    // parent directory
    let near = own.ancestors().skip(1).take(2).map(|dir| dir.join("millpond")).find(|p| p.is_file());
    near.or_else(|| find_tool("millpond"))
        .context("no millpond binary; build it with `cargo build --release -p millpond` or name it in MILLPOND_BIN")
}

/// A daemon with a pool `lab` in one file, and the exported volume `lab/disk`.
#[derive(Debug)]
pub struct Millpond {
    binary: PathBuf,
    dir: PathBuf,
    size: u64,
    pool_bytes: Option<u64>,
    preparation: Preparation,
    daemon: Option<Daemon>,
    settings: Vec<String>,
    /// PATH of the daemon; none: that of this process.
    path: Option<OsString>,
}

/// Preparation of a pool's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preparation {
    /// Sparse, as `FILE:SIZE` makes it.
    Sparse,
    /// Full of zeroes, and the pool releases none of its space.
    Written,
}

/// Name of the pool that [`Millpond`] makes.
pub const POOL: &str = "lab";
/// Name of its first volume.
pub const DISK: &str = "lab/disk";

impl Millpond {
    /// Describes a daemon as a user gets it: without configuration, with a pool in a sparse file of
    /// four times the size of the volume and 256 MiB. Starts nothing.
    pub fn new(binary: PathBuf) -> Millpond {
        Millpond {
            binary,
            dir: PathBuf::new(),
            size: 0,
            pool_bytes: None,
            preparation: Preparation::Sparse,
            daemon: None,
            settings: Vec::new(),
            path: None,
        }
    }

    /// Whether [`Millpond::named`] knows the name.
    pub fn is_named(name: &str) -> bool {
        matches!(name, "millpond" | "millpond-tuned")
    }

    /// Describes the contender `millpond` or `millpond-tuned`.
    ///
    /// # Errors
    /// The name is neither, or there is no program.
    pub fn named(name: &str) -> Result<Millpond> {
        let millpond = Millpond::new(millpond_binary()?);
        match name {
            "millpond" => Ok(millpond),
            "millpond-tuned" => Ok(millpond.tuned()),
            _ => bail!("'{name}' is no Millpond"),
        }
    }

    /// Sets the size of the pool in bytes.
    pub fn with_pool_bytes(mut self, bytes: u64) -> Millpond {
        self.pool_bytes = Some(bytes);
        self
    }

    /// Makes the pool's file full of zeroes first, like a disk with all its sectors, or a raw image
    /// that was filled once. In memory, the first access to a page costs a virtual machine up to 10
    /// us, fifteen times a write to an existing page; on a disk, a flush after a write to a hole
    /// waits for the file system's journal. These costs would dominate the figures of a growing
    /// pool. For the same reason the pool keeps the space of its file when it is idle.
    pub fn written(self) -> Millpond {
        Millpond { preparation: Preparation::Written, ..self }.with_setting("discard = \"never\"")
    }

    /// Leaves out the read cache in memory.
    pub fn without_read_cache(mut self) -> Millpond {
        self.set_read_cache(0);
        self
    }

    /// Applies the settings that make a pool fast on fast media: a file that was written in full, and
    /// no read cache. It is the contender `millpond-tuned`.
    pub fn tuned(self) -> Millpond {
        self.written().without_read_cache()
    }

    /// Adds a line to the daemon's configuration.
    pub fn with_setting(mut self, line: &str) -> Millpond {
        self.settings.push(line.to_owned());
        self
    }

    /// Sets the PATH in which the daemon finds programs.
    pub fn with_path(mut self, path: OsString) -> Millpond {
        self.path = Some(path);
        self
    }

    /// Sets the size of the read cache in bytes, from the next launch on.
    pub fn set_read_cache(&mut self, bytes: u64) {
        self.settings.retain(|line| !line.starts_with("read_cache"));
        self.settings.push(format!("read_cache = \"{bytes}\""));
    }

    /// Path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// Prepares `millpond ARGS` for this daemon; starts nothing.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("MILLPOND_SOCKET", self.control_socket()).args(args);
        command
    }

    /// Runs `millpond ARGS` for this daemon and returns its output.
    ///
    /// # Errors
    /// The command failed; with its message.
    pub fn cli<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String> {
        run_command(&mut self.command(args))
    }

    /// Runs `millpond ARGS --format json` and returns the parsed output.
    ///
    /// # Errors
    /// The command failed or printed no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.cli(&[args, &["--format", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("millpond {args:?} printed no JSON"))
    }

    /// Opens a connection to the control socket.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn control(&self) -> Result<Control> {
        Control::connect(&self.control_socket())
    }

    /// Reads the pool's counters.
    ///
    /// # Errors
    /// The daemon does not answer, or a counter is missing.
    pub fn counters(&self) -> Result<Counters> {
        Counters::of(&self.control()?.get(&format!("/v1/pools/{POOL}"))?)
    }

    /// Exports a volume or snapshot on a unix socket in the daemon's directory.
    ///
    /// # Errors
    /// The command failed.
    pub fn export(&self, name: &str) -> Result<Endpoint> {
        let socket = self.socket_of(name);
        self.cli(&["export".as_ref(), "nbd".as_ref(), OsStr::new(name), "--force".as_ref(), "--unix".as_ref(), socket.as_os_str()])?;
        Ok(Endpoint::unix(&socket, name))
    }

    /// Exports like [`Millpond::export`]; also returns the id for `unexport`.
    ///
    /// # Errors
    /// The command failed, or the export is not listed.
    pub fn export_with_id(&self, name: &str) -> Result<(Endpoint, String)> {
        let endpoint = self.export(name)?;
        let list = self.json(&["exports"])?;
        let is_it = |e: &&Value| e.get("name").or_else(|| e.get("volume")).and_then(Value::as_str) == Some(name);
        let entry = list.as_array().into_iter().flatten().find(is_it).with_context(|| format!("{name} is not listed by exports"))?;
        let id = entry.get("id").context("an export without id")?;
        Ok((endpoint, id.as_str().map_or_else(|| id.to_string(), str::to_owned)))
    }

    /// Path of the file that is the pool's device.
    pub fn device(&self) -> PathBuf {
        self.dir.join("device0")
    }

    /// Starts the daemon on the data in its directory and waits until its pools are in service;
    /// returns the time taken.
    ///
    /// # Errors
    /// It ended, or was not ready within ten minutes.
    pub fn launch(&mut self) -> Result<Duration> {
        let socket = self.control_socket();
        let config = self.dir.join("config.toml");
        std::fs::write(&config, self.settings.join("\n")).context("writing the daemon's configuration")?;
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--socket").arg(&socket).arg("--state").arg(self.dir.join("state")).arg("--config").arg(config);
        command.envs(self.path.iter().map(|path| ("PATH", path)));
        let mut daemon = Daemon::spawn(&mut command, &self.dir.join("millpond.log"))?;
        let status = || Control::connect(&socket).and_then(|mut control| control.get("/v1/status"));
        let took = daemon.wait_ready(PATIENCE, || status().is_ok_and(|status| status["ready"] == true))?;
        self.daemon = Some(daemon);
        Ok(took)
    }

    /// Starts a daemon in `dir` without a pool.
    ///
    /// # Errors
    /// Those of [`Millpond::launch`].
    pub fn start_empty(&mut self, dir: &Path) -> Result<()> {
        self.dir = dir.to_owned();
        std::fs::create_dir_all(dir.join("state")).context("making the state directory")?;
        self.launch().map(|_| ())
    }

    /// Starts a daemon in `dir` with a pool of these devices, given as arguments of `pool create`,
    /// and exports a volume of `size` bytes.
    ///
    /// # Errors
    /// Those of [`Millpond::launch`], or the pool cannot be made.
    pub fn start_with(&mut self, dir: &Path, devices: &[String], size: u64) -> Result<()> {
        self.size = size;
        self.start_empty(dir)?;
        let words = ["pool", "create", POOL].map(str::to_owned);
        self.cli(&[&words[..], devices].concat())?;
        self.cli(&["create", DISK, "-L", &size.to_string()])?;
        self.export(DISK).map(|_| ())
    }

    /// Waits until the disk is available after a restart.
    ///
    /// # Errors
    /// It is not within ten minutes.
    pub fn wait_export(&mut self) -> Result<()> {
        // A successful connect is not enough: right after a kill, the kernel may still have the
        // dead listener.
        let endpoint = self.endpoint()?;
        let daemon = self.daemon.as_mut().context("not running")?;
        daemon.wait_ready(PATIENCE, || Client::connect(&endpoint, 1, 512, false).is_ok()).map(|_| ())
    }

    fn socket_of(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}.sock", name.replace(['/', '@'], "-")))
    }
}

impl Contender for Millpond {
    fn name(&self) -> &'static str {
        if self.preparation == Preparation::Written { "millpond-tuned" } else { "millpond" }
    }

    fn start(&mut self, dir: &Path, size: u64) -> Result<()> {
        self.size = size;
        self.start_empty(dir)?;
        let bytes = self.pool_bytes.unwrap_or(4 * size + (256 << 20));
        let mut device = self.device().display().to_string();
        if self.preparation == Preparation::Written {
            let mut file = File::create_new(self.device()).context("making the pool's file")?;
            std::io::copy(&mut std::io::repeat(0).take(bytes), &mut file).context("filling the pool's file with zeros")?;
        } else {
            device += &format!(":{bytes}");
        }
        self.cli(&["pool", "create", POOL, &device])?;
        self.cli(&["create", DISK, "-L", &size.to_string()])?;
        self.export(DISK).map(|_| ())
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::unix(&self.socket_of(DISK), DISK))
    }

    fn file(&mut self) -> Result<PathBuf> {
        let mount = self.dir.join("mnt");
        self.cli(&["export", "fuse", POOL, &mount.display().to_string()])?;
        Ok(mount.join(DISK.trim_start_matches(POOL).trim_start_matches('/')))
    }

    fn vhost_user(&mut self) -> Result<Endpoint> {
        let socket = self.dir.join("disk.vu");
        let words = ["export", "vhost-user", DISK, "--force", "--unix"].map(OsStr::new);
        self.cli(&[&words[..], &[socket.as_os_str()]].concat())?;
        Ok(Endpoint::vhost_user(&socket, false))
    }

    fn control_socket(&self) -> Option<PathBuf> {
        Some(Millpond::control_socket(self))
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("not running")?.pid())
    }

    fn snapshot(&mut self, name: &str) -> Result<()> {
        self.cli(&["snapshot", &format!("{DISK}@{name}")]).map(|_| ())
    }

    fn delete_snapshots(&mut self) -> Result<()> {
        self.cli(&["destroy", "-y", "--wait", &format!("{DISK}@%")]).map(|_| ())
    }

    fn rollback(&mut self, name: &str) -> Result<()> {
        self.cli(&["rollback", "--force", &format!("{DISK}@{name}")]).map(|_| ())
    }

    fn kill9(&mut self) -> Result<()> {
        self.daemon.take().context("not running")?.kill9()
    }

    fn restart(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_export()
    }

    fn stop(&mut self) -> Result<()> {
        match self.daemon.take() {
            Some(mut daemon) => daemon.terminate(PATIENCE).map(|_| ()),
            None => Ok(()),
        }
    }
}
