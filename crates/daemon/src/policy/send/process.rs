//! Child processes of sends. They end with the daemon: when it stops they are killed, and when it is
//! killed, `send` loses its connection and with it `receive` its input.

use std::fmt;
use std::io::{self, PipeReader, PipeWriter};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use millpond_api::instant::show_span;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Most bytes of a list of snapshots: about a million of them.
const MOST_OUTPUT: u64 = 512 << 20;
/// How long a command that lists or destroys may take.
const SHORT: Duration = Duration::from_secs(120);
/// How long the second of two processes may take to end after the first has failed, or after both
/// were asked to end.
const AFTER: Duration = Duration::from_secs(60);
/// How long the last words of a process that has ended are waited for.
const WORDS: Duration = Duration::from_secs(2);
/// Bytes, and CPU time in ticks of the kernel (a hundred per second), that count as work. A process that
/// only reports every second that it waits uses 70 KiB and 180 ticks in 20 minutes.
const WORK: (u64, u64) = (1 << 20, 1000);
/// Time between two looks whether a send is still wanted.
const LOOK: Duration = Duration::from_secs(1);
/// Most bytes that are moved from one pipe to another at once: those of a pipe.
const MOVED: usize = 1 << 16;
/// Most characters of a line that are kept.
const LONGEST: usize = 500;

/// The last line that a process wrote, for lists.
pub(in crate::policy) type LastLine = Arc<Mutex<String>>;

/// Reason why a send has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SendFailure {
    /// A process ended with an error, or cannot be run. Try again later.
    Failed(String),
    /// The receiver took no byte for that time although there were some, or did not end after the
    /// last one, and was ended: the target does not answer. Look at it; the send is tried again later.
    Hung(Duration),
    /// A backup did nothing for that time, and was ended, likewise.
    Idle(Duration),
}

impl From<String> for SendFailure {
    fn from(why: String) -> SendFailure {
        SendFailure::Failed(why)
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendFailure::Failed(why) => f.write_str(why),
            SendFailure::Hung(limit) => {
                write!(f, "the target took no data for {}, so the send was ended; see whether it answers", show_span(limit.as_secs()))
            }
            SendFailure::Idle(limit) => {
                write!(f, "the backup did nothing for {}, so it was ended; see whether the target answers", show_span(limit.as_secs()))
            }
        }
    }
}

/// A process, and the reading of its messages.
struct Running {
    child: Child,
    messages: JoinHandle<String>,
}

impl Running {
    fn start(command: &[String], stdin: Stdio, stdout: Stdio, shown: Option<LastLine>) -> Result<Running, String> {
        let (program, arguments) = command.split_first().ok_or("no command")?;
        let child = Command::new(program)
            .args(arguments)
            .env_remove("NOTIFY_SOCKET")
            .stdin(stdin)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.map_err(|error| format!("'{program}' cannot be run: {error}"))?;
        let stderr = child.stderr.take();
        let messages = tokio::spawn(async move {
            match stderr {
                Some(stderr) => last_line(stderr, shown).await,
                None => String::new(),
            }
        });
        Ok(Running { child, messages })
    }

    /// Returns why the process failed: its last message.
    async fn reason(&mut self, status: io::Result<ExitStatus>) -> String {
        let said = timeout(WORDS, &mut self.messages).await.ok().and_then(Result::ok).unwrap_or_default();
        let said = said.strip_prefix("millpond: ").unwrap_or(&said).to_owned();
        match status {
            _ if !said.is_empty() => said,
            Ok(status) => format!("it ended with {status}"),
            Err(error) => format!("it cannot be waited for: {error}"),
        }
    }

    fn ask_to_end(&self) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        // it may have ended just now
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
}

/// Reads to the end; returns the last line.
async fn last_line(mut from: impl AsyncRead + Unpin, shown: Option<LastLine>) -> String {
    let (mut buffer, mut line, mut last) = ([0; 4096], Vec::new(), String::new());
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        for byte in buffer.iter().take(read) {
            match byte {
                b'\n' | b'\r' if line.is_empty() => {}
                b'\n' | b'\r' => {
                    last = text(&line);
                    line.clear();
                    if let Some(shown) = &shown {
                        shown.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&last);
                    }
                }
                _ if line.len() < 4 * LONGEST => line.push(*byte),
                _ => {}
            }
        }
        if read == 0 {
            return if line.is_empty() { last } else { text(&line) };
        }
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect()
}

/// Runs a short command; returns its output.
///
/// # Errors
/// The last line of its messages, or why it does not end.
pub(super) async fn output(command: &[String]) -> Result<Vec<u8>, String> {
    let mut running = Running::start(command, Stdio::null(), Stdio::piped(), None)?;
    let stdout = running.child.stdout.take();
    let run = async {
        let mut bytes = Vec::new();
        if let Some(stdout) = stdout {
            let read = stdout.take(MOST_OUTPUT).read_to_end(&mut bytes).await;
            read.map_err(|error| format!("its output cannot be read: {error}"))?;
        }
        match running.child.wait().await {
            Ok(status) if status.success() => Ok(bytes),
            status => Err(running.reason(status).await),
        }
    };
    timeout(SHORT, run).await.unwrap_or_else(|_| Err(format!("the target does not answer within {} s", SHORT.as_secs())))
}

/// Runs a command to its end; asks it to end when `is_wanted` becomes false, or when it did nothing for
/// the time `limit`.
///
/// # Errors
/// The last message of the command, or why it was ended.
pub(super) async fn alone(command: &[String], shown: LastLine, limit: Duration, is_wanted: impl Fn() -> bool) -> Result<(), SendFailure> {
    let mut running = Running::start(command, Stdio::null(), Stdio::null(), Some(shown))?;
    let mut progress = Progress::new(limit);
    loop {
        tokio::select! {
            status = running.child.wait() => return match status {
                Ok(status) if status.success() => Ok(()),
                status => Err(running.reason(status).await.into()),
            },
            () = tokio::time::sleep(LOOK) => {}
        }
        let worked = running.child.id().and_then(worked);
        let failure = match progress.is_hung(worked.unwrap_or(0), worked.is_none(), Instant::now()) {
            true => Some(SendFailure::Idle(limit)),
            false => (!is_wanted()).then(|| "it is no longer wanted".to_owned().into()),
        };
        if let Some(failure) = failure {
            running.ask_to_end();
            // a process that waits for a directory of a server that is away does not even end when it is killed
            let _ = timeout(AFTER, running.child.wait()).await;
            return Err(failure);
        }
    }
}

/// Returns the work of a process so far, in units of [`WORK`] (Linux, `proc_pid_stat(5)`, `proc_pid_io(5)`);
/// nothing where the host does not show it.
fn worked(pid: u32) -> Option<u64> {
    let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let number = |text: &str| text.parse().unwrap_or(0);
    // the name is in parentheses, and may have any characters; user and system time are fields 14 and 15
    let ticks: u64 = read("stat")?.rsplit(')').next().into_iter().flat_map(str::split_ascii_whitespace).skip(11).take(2).map(number).sum();
    // through system calls, of files and pipes
    let bytes: u64 = read("io")?.lines().filter_map(|line| line.split_once("char: ")).map(|(_, bytes)| number(bytes)).sum();
    Some(bytes / WORK.0 + ticks / WORK.1)
}

/// State of the moving of bytes from one pipe to another.
#[derive(Debug, Default)]
struct Moves {
    bytes: AtomicU64,
    /// True while the sender is waited for, and not the receiver.
    starved: AtomicBool,
}

/// Moves everything from one pipe to another on a thread of its own. It ends with the end of the
/// input, or when nothing reads the output: with the processes, which say why.
fn relay(from: PipeReader, to: PipeWriter) -> io::Result<Arc<Moves>> {
    let moves = Arc::new(Moves::default());
    let noted = Arc::clone(&moves);
    thread::Builder::new().name("send".to_owned()).spawn(move || {
        loop {
            noted.starved.store(true, Ordering::Relaxed);
            let there = poll(&mut [PollFd::new(&from, PollFlags::IN)], None);
            noted.starved.store(false, Ordering::Relaxed);
            match there.and_then(|_| splice(&from, None, &to, None, MOVED, SpliceFlags::empty())) {
                Ok(0) => break,
                Ok(bytes) => drop(noted.bytes.fetch_add(bytes as u64, Ordering::Relaxed)),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
    })?;
    Ok(moves)
}

/// Two processes, the output of the first of which is the input of the second.
struct Piped {
    sender: Running,
    receiver: Running,
    /// The bytes that go from one to the other.
    moves: Arc<Moves>,
}

impl Piped {
    fn start(sender: &[String], receiver: &[String], shown: LastLine) -> Result<Piped, String> {
        let no_pipe = |error| format!("no pipe: {error}");
        let ((from_sender, sent), (received, to_receiver)) = (io::pipe().map_err(no_pipe)?, io::pipe().map_err(no_pipe)?);
        let receiver = Running::start(receiver, received.into(), Stdio::null(), None)?;
        let sender = Running::start(sender, Stdio::null(), sent.into(), Some(shown))?;
        let moves = relay(from_sender, to_receiver).map_err(|error| format!("no thread: {error}"))?;
        Ok(Piped { sender, receiver, moves })
    }

    fn ask_to_end(&self) {
        [&self.sender, &self.receiver].iter().for_each(|running| running.ask_to_end());
    }
}

/// The last time at which a process was seen to make progress, or to have nothing to do: a sender may
/// read for long before it has something for the receiver.
struct Progress {
    limit: Duration,
    moved: u64,
    since: Instant,
}

impl Progress {
    fn new(limit: Duration) -> Progress {
        Progress { limit, moved: 0, since: Instant::now() }
    }

    /// Takes what the process has done so far; returns true when there was nothing new for too long.
    fn is_hung(&mut self, moved: u64, starved: bool, now: Instant) -> bool {
        if moved != self.moved || starved {
            (self.moved, self.since) = (moved, now);
        }
        now.duration_since(self.since) >= self.limit
    }
}

/// Runs two commands, the output of the first of which is the input of the second; asks both to end
/// when `is_wanted` becomes false, or when the receiver takes no byte for the time `limit`.
///
/// # Errors
/// The last message of the one that failed first: the other one fails because of it.
pub(super) async fn piped(
    (sender, receiver): (&[String], &[String]),
    shown: LastLine,
    limit: Duration,
    is_wanted: impl Fn() -> bool,
) -> Result<(), SendFailure> {
    let mut both = Piped::start(sender, receiver, shown)?;
    let mut progress = Progress::new(limit);
    let (mut ended, mut end): ([bool; 2], _) = ([false; 2], None);
    let mut failure: Option<SendFailure> = None;
    loop {
        tokio::select! {
            status = both.sender.child.wait(), if !ended[0] => {
                ended[0] = true;
                if !status.as_ref().is_ok_and(ExitStatus::success) && failure.is_none() {
                    failure = Some(both.sender.reason(status).await.into());
                }
            }
            status = both.receiver.child.wait(), if !ended[1] => {
                ended[1] = true;
                if !status.as_ref().is_ok_and(ExitStatus::success) && failure.is_none() {
                    failure = Some(both.receiver.reason(status).await.into());
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = Instant::now();
        if ended == [true; 2] || end.is_some_and(|end| end < now) {
            return failure.map_or(Ok(()), Err);
        }
        if failure.is_none() {
            let (moved, starved) = (both.moves.bytes.load(Ordering::Relaxed), both.moves.starved.load(Ordering::Relaxed));
            failure = match progress.is_hung(moved, starved, now) {
                true => Some(SendFailure::Hung(limit)),
                false => (!is_wanted()).then(|| "it is no longer wanted".to_owned().into()),
            };
            if failure.is_some() {
                both.ask_to_end();
            }
        }
        if failure.is_some() {
            end = end.or(Some(now + AFTER));
        }
    }
}

#[cfg(test)]
mod tests;
