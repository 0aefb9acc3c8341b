//! Starts daemons and runs commands against them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_millpond");
/// Time limit for states that must be reached. It is long, because the machine may have other work.
const PATIENCE: Duration = Duration::from_secs(600);
/// Name of the daemon's configuration file, if a test has one.
const CONFIG: &str = "millpond.toml";

/// Result of a command.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ended {
    /// Parses the JSON document on standard output.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the problems on standard output of `status --check`, except the free space of the
    /// machine that runs the tests.
    pub fn problems(&self) -> String {
        self.out.split_inclusive('\n').filter(|line| !line.contains("the filesystem below")).collect()
    }

    /// Returns the lines on standard error, except the warning on machines whose temporary files
    /// are in memory.
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.err.lines().filter(|line| !line.contains("on a filesystem in memory (tmpfs)"))
    }

    /// Asserts success without output on standard error.
    pub fn ok(self) -> Ended {
        assert!(self.code == 0 && self.lines().next().is_none(), "{self:?}");
        self
    }

    /// Asserts success with only progress on standard error.
    pub fn waited(self) -> Ended {
        let is_progress = |line: &str| line.ends_with(" done") || line.contains(" done, ");
        assert!(self.code == 0 && self.lines().all(is_progress), "{self:?}");
        self
    }

    /// Asserts a refusal: the exit code, and one error line that contains a word.
    pub fn refused(self, code: i32, word: &str) -> Ended {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.starts_with("millpond: ") && self.err.lines().count() == 1, "{self:?}");
        assert!(self.err.contains(word), "'{word}' is not in {self:?}");
        assert!(self.out.is_empty(), "{self:?}");
        self
    }
}

impl Ended {
    /// Asserts a failure of a program that also writes messages: the exit code, and a last error
    /// line that contains a word.
    pub fn one_line(self, code: i32, word: &str) {
        assert_eq!(self.code, code, "{self:?}");
        let last = self.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("millpond: ") && last.contains(word), "{self:?}");
    }
}

/// Returns a command without the environment variables that would change its target.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words).env_remove("MILLPOND_SOCKET").env_remove("MILLPOND_LOG").stdin(Stdio::null());
    command
}

/// Runs a command to completion.
pub fn run(mut command: Command) -> Ended {
    let output = command.output().expect("the program runs");
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// A child that is killed when the test ends.
pub struct Running(pub Child);

impl Running {
    /// Starts a command and discards its output.
    pub fn start(mut command: Command) -> Running {
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().expect("the program starts"))
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for the end and returns the exit code; -1 after a signal.
    pub fn wait(&mut self) -> i32 {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("waits") {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < end, "it does not end");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // the child may have ended already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Daemon with its directory.
pub struct Daemon {
    running: Option<Running>,
    dir: TempDir,
    /// Limit of open files.
    descriptors: Option<u64>,
}

impl Daemon {
    /// Starts a daemon and waits until it answers.
    pub fn start() -> Daemon {
        let mut daemon = Daemon::new();
        daemon.restart();
        daemon
    }

    fn new() -> Daemon {
        Daemon { running: None, dir: tempfile::tempdir().expect("a temporary directory"), descriptors: None }
    }

    /// Starts a daemon with a limit of open files.
    pub fn with_descriptors(limit: u64) -> Daemon {
        let mut daemon = Daemon { descriptors: Some(limit), ..Daemon::new() };
        daemon.restart();
        daemon
    }

    /// Starts a daemon with this configuration file.
    pub fn with_config(text: &str) -> Daemon {
        let mut daemon = Daemon::new();
        std::fs::write(daemon.path(CONFIG), text).expect("a configuration file");
        daemon.restart();
        daemon
    }

    /// Starts a daemon with the pool `tank` on a file.
    pub fn with_pool() -> Daemon {
        let daemon = Daemon::start();
        let device = format!("{}:512M", daemon.text("tank.img"));
        daemon.run(&["pool", "create", "tank", &device]).ok();
        daemon
    }

    /// Returns a path in the daemon's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a path in the daemon's directory as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> String {
        self.text("run/control.sock")
    }

    /// Starts the daemon, which does not run, and waits until it answers.
    pub fn restart(&mut self) {
        assert!(self.running.is_none());
        let (socket, state, config) = (self.socket(), self.text("state"), self.text(CONFIG));
        let mut words = vec!["serve", "--socket", &socket, "--state", &state];
        if self.path(CONFIG).exists() {
            words.extend(["--config", &config]);
        }
        let mut serve = command(&words);
        if let Some(limit) = self.descriptors {
            serve = Command::new("sh");
            serve.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\""), PROGRAM]).args(&words).stdin(Stdio::null());
        }
        // programs of the test come before those of the host
        if self.path("bin").exists() {
            let path = std::env::var("PATH").unwrap_or_default();
            serve.env("PATH", format!("{}:{path}", self.text("bin")));
        }
        self.running = Some(Running::start(serve));
        self.run(&["status", "--wait", &PATIENCE.as_secs().to_string()]);
    }

    /// Stops the daemon with a signal and returns the exit code; -1 if the signal ended it.
    pub fn stop(&mut self, signal: &str) -> i32 {
        let mut running = self.running.take().expect("it runs");
        running.signal(signal);
        running.wait()
    }

    /// Sends a signal without waiting.
    pub fn signal(&self, name: &str) {
        self.running.as_ref().expect("it runs").signal(name);
    }

    /// Waits for the end and returns the exit code; -1 if a signal ended it.
    pub fn ended(&mut self) -> i32 {
        self.running.take().expect("it runs").wait()
    }

    /// Starts a command on this daemon without waiting.
    pub fn begin(&self, words: &[&str]) -> Running {
        let mut command = command(words);
        command.env("MILLPOND_SOCKET", self.socket()).current_dir(self.dir.path());
        Running::start(command)
    }

    /// Runs a command on this daemon.
    pub fn run(&self, words: &[&str]) -> Ended {
        let mut command = command(words);
        command.env("MILLPOND_SOCKET", self.socket()).current_dir(self.dir.path());
        run(command)
    }

    /// Runs a command on this daemon with JSON output, which is returned.
    pub fn json(&self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        words.extend(["--format", "json"]);
        self.run(&words).json()
    }

    /// Runs a command with one JSON object a line, which are returned.
    pub fn json_lines(&self, words: &[&str]) -> Vec<Value> {
        let mut words = words.to_vec();
        words.extend(["--format", "json"]);
        let ended = self.run(&words).ok();
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Returns the content of a volume or snapshot.
    pub fn content(&self, name: &str) -> Vec<u8> {
        assert_eq!(self.run(&["export-image", name, "content.raw", "--force"]).code, 0, "{name}");
        std::fs::read(self.path("content.raw")).expect("read")
    }

    /// Exports a volume or snapshot on a unix socket and returns the path of the socket.
    pub fn export(&self, name: &str, socket: &str) -> PathBuf {
        self.run(&["export", "nbd", name, "--unix", &self.text(socket)]).ok();
        self.path(socket)
    }
}

/// Returns the sorted keys of an object.
pub fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Returns the value of one key of every object in an array.
pub fn each<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().expect("an array").iter().map(|entry| entry[key].as_str().expect("text")).collect()
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Returns true if a file or socket exists.
pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
