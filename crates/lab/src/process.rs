//! Programs that the lab runs: tools that end by themselves, servers that the lab stops, and
//! figures of processes from /proc.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Finds a program in PATH or in the directories of system tools.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Runs a program to its end and returns its output.
///
/// # Errors
/// It is not installed, or it failed; with the end of its output.
pub fn run_tool<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String> {
    let path = find_tool(program).with_context(|| format!("{program} is not installed"))?;
    run_command(Command::new(path).args(args))
}

/// Runs a prepared command to its end and returns its output.
///
/// # Errors
/// It cannot be started, or it failed; with the end of its output.
pub fn run_command(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {:?}", command.get_program()))?;
    if !output.status.success() {
        let words = [output.stdout, output.stderr].concat();
        bail!("{command:?}: {}: {}", output.status, tail(&String::from_utf8_lossy(&words), 800));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns about the last `limit` bytes of a text.
pub fn tail(text: &str, limit: usize) -> &str {
    let from = text.len().saturating_sub(limit);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[from..].trim()
}

/// Waits until `ready` returns true; returns the time taken.
///
/// # Errors
/// It did not within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<Duration> {
    let begin = Instant::now();
    while !ready() {
        if begin.elapsed() > limit {
            bail!("{what}: not within {limit:?}");
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(begin.elapsed())
}

/// A server process that is stopped on drop.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a server; its output is appended to `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Daemon> {
        let out = File::options().create(true).append(true).open(log).with_context(|| format!("opening {}", log.display()))?;
        Daemon::spawn_with(command, Stdio::null(), out.into(), log)
    }

    /// Starts a server with the given standard input and output; its standard error is appended to
    /// `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn_with(command: &mut Command, input: Stdio, output: Stdio, log: &Path) -> Result<Daemon> {
        let name = command.get_program().to_string_lossy().into_owned();
        let errors = File::options().create(true).append(true).open(log).with_context(|| format!("opening {}", log.display()))?;
        let child = command.stdin(input).stdout(output).stderr(errors).spawn().with_context(|| format!("starting {name}"))?;
        Ok(Daemon { name, child, log: log.to_owned() })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until `ready` returns true; returns the time taken.
    ///
    /// # Errors
    /// The server ended, or was not ready within `limit`; with the end of its log.
    pub fn wait_ready(&mut self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<Duration> {
        let begin = Instant::now();
        while !ready() {
            if !self.is_running() || begin.elapsed() > limit {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{} is not ready after {:?}: {}", self.name, begin.elapsed(), tail(&log, 800));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(begin.elapsed())
    }

    /// Sends SIGKILL and waits for the end.
    ///
    /// # Errors
    /// The process cannot be signalled.
    pub fn kill9(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        Ok(())
    }

    /// Sends SIGTERM and waits for the end; returns the exit status.
    ///
    /// # Errors
    /// It does not end within `limit`; then it is killed.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("an impossible process id")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("ending {}", self.name))?;
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begin.elapsed() > limit {
                self.kill9()?;
                bail!("{} did not end within {limit:?} of SIGTERM", self.name);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.terminate(Duration::from_secs(10));
        }
    }
}

/// CPU time used by a process with all its threads; resolution 10 ms.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |index: usize| after_name.split_whitespace().nth(index).and_then(|f| f.parse::<u64>().ok());
    let ticks = field(11).zip(field(12)).map(|(user, system)| user + system).context("/proc/PID/stat is not as known")?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Resident bytes of a process, without pages of shared-memory files that it has mapped.
pub fn memory(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Ok(1024 * (field("RssAnon:").unwrap_or(0) + field("RssFile:").unwrap_or(0)))
}

/// Runs `what`; returns its result and the peak of [`memory`] of a process meanwhile, sampled fifty
/// times a second.
pub fn with_peak_memory<T>(pid: u32, what: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(memory(pid).unwrap_or(0));
                thread::sleep(Duration::from_millis(20));
            }
            peak.max(memory(pid).unwrap_or(0))
        });
        let done = what();
        over.store(true, Ordering::Relaxed);
        let peak = watch.join().unwrap_or(0);
        Ok((done?, peak))
    })
}

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub struct Workspace(PathBuf);

impl Workspace {
    /// Makes the empty directory `parent/millpond-lab-PID-N-name`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(parent: &Path, name: &str) -> Result<Workspace> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("millpond-lab-{}-{number}-{name}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("clearing {}", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Workspace(path))
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
