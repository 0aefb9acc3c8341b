//! The command of `on_event`: run once for each event, one at a time, on a thread of its own.
//!
//! The daemon never waits for the command: events that do not fit into the queue are left out, a
//! command that takes too long is killed, and the log has a line for either.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use millpond_api::{Event, Severity};

#[cfg(test)]
mod tests;

/// Most events that wait for the command.
const QUEUE: usize = 64;

/// How long the hook waits for the end of a command that it killed.
const KILL: Duration = Duration::from_secs(1);
/// While so many killed commands have not ended, no command is run.
const UNENDED: usize = 4;

/// A command, the events for which it runs, and its time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Absolute path and arguments.
    pub command: Vec<String>,
    /// Least severity of the events.
    pub severity: Severity,
    /// Time after which the command is killed.
    pub timeout: Duration,
}

/// Queue of events for the command. The thread ends some time after this is dropped, when it has
/// worked off the queue.
pub(super) struct HookQueue {
    queue: SyncSender<Event>,
    severity: Severity,
    /// Number of events left out since the last one that was queued.
    left_out: u64,
}

impl HookQueue {
    /// Starts the thread.
    ///
    /// When the host cannot start a thread.
    /// The host's.
    pub(super) fn start(hook: Hook) -> io::Result<HookQueue> {
        let (queue, events) = sync_channel(QUEUE);
        let severity = hook.severity;
        thread::Builder::new().name("on-event".to_owned()).spawn(move || run(&hook, &events))?;
        Ok(HookQueue { queue, severity, left_out: 0 })
    }

    /// Queues an event if its severity is high enough. Returns at once.
    pub(super) fn hand_over(&mut self, event: &Event) {
        if !event.severity.is_at_least(self.severity) {
            return;
        }
        match self.queue.try_send(event.clone()) {
            Ok(()) if self.left_out == 0 => {}
            Ok(()) => {
                tracing::warn!("on_event: the command was behind, {} events were left out", self.left_out);
                self.left_out = 0;
            }
            Err(TrySendError::Full(_)) => {
                if self.left_out == 0 {
                    tracing::warn!("on_event: the command is behind, events are left out");
                }
                self.left_out += 1;
            }
            // the thread ends only when this queue is dropped
            Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

fn run(hook: &Hook, events: &Receiver<Event>) {
    let mut killed = Killed::default();
    for event in events {
        if let Err(why) = run_once(hook, &event, &mut killed) {
            let command = hook.command.first().map(String::as_str).unwrap_or_default();
            tracing::warn!("on_event: {command}, run for {}: {why}", event.event);
        }
    }
}

/// Commands that were killed and have not ended: a command that waits for a hung device ends when
/// its system call returns.
#[derive(Default)]
pub(super) struct Killed(Vec<Child>);

impl Killed {
    /// Kills the process group of a command, and waits for the command's end within `limit`.
    fn kill(&mut self, mut child: Child, limit: Duration) {
        // the group may have ended just now
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        if !matches!(attend(&mut child, None, limit), Ok(Some(_))) {
            self.0.push(child);
        }
    }

    /// Forgets the commands that have ended. Does not wait.
    fn reap(&mut self) {
        self.0.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Runs the command for one event.
fn run_once(hook: &Hook, event: &Event, killed: &mut Killed) -> Result<(), String> {
    let values = [
        ("KIND", event.event.as_str()),
        ("SEVERITY", event.severity.as_str()),
        ("POOL", event.pool.as_deref().unwrap_or_default()),
        ("DEVICE", event.device.as_deref().unwrap_or_default()),
        ("SUBJECT", event.subject.as_str()),
        ("MESSAGE", event.message.as_str()),
    ];
    let mut variables = values.map(|(name, value)| (format!("MILLPOND_EVENT_{name}"), value.to_owned())).to_vec();
    variables.push(("MILLPOND_EVENT_TIME".to_owned(), event.time.to_string()));
    let mut json = serde_json::to_vec(event).map_err(|error| format!("no JSON: {error}"))?;
    json.push(b'\n');
    run_command(&hook.command, variables, json, hook.timeout, killed)
}

/// Runs a command with further variables and this standard input, and waits for its end; kills it
/// with its process group after `timeout`.
///
/// # Errors
/// The reason why it did not end with exit code 0.
pub(super) fn run_command(
    command: &[String],
    variables: Vec<(String, String)>,
    input: Vec<u8>,
    timeout: Duration,
    killed: &mut Killed,
) -> Result<(), String> {
    killed.reap();
    if killed.0.len() >= UNENDED {
        return Err(format!("it is left out: {UNENDED} earlier ones were killed and have not ended"));
    }
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let failure = |what: &str, error: &dyn Display| format!("{what}: {error}");
    let mut child = Command::new(program)
        .args(arguments)
        .envs(variables)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| failure("it cannot be run", &error))?;
    let input = child.stdin.take().map(|stdin| Input { stdin, left: input });
    match attend(&mut child, input, timeout) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(ending(status)),
        Ok(None) => {
            killed.kill(child, KILL);
            Err(format!("it did not end within {} s, and was killed", timeout.as_secs()))
        }
        Err(error) => {
            killed.kill(child, KILL);
            Err(failure("it cannot be waited for, and was killed", &error))
        }
    }
}

/// Standard input of a command, and the bytes that it has not taken yet.
struct Input {
    stdin: ChildStdin,
    left: Vec<u8>,
}

impl Input {
    /// Writes as much as the pipe takes. Returns false when nothing is left to write, or the
    /// command has closed its input.
    fn write(&mut self) -> bool {
        let written = self.stdin.write(&self.left);
        match written {
            Ok(count) => drop(self.left.drain(..count.min(self.left.len()))),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // a command need not read its input
            Err(_) => return false,
        }
        !self.left.is_empty()
    }
}

/// Gives a process its input and waits for its end; `None` when it does not end within `limit`.
fn attend(child: &mut Child, mut input: Option<Input>, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    if let Some(input) = &input {
        ioctl_fionbio(&input.stdin, true)?;
    }
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = vec![PollFd::new(&end, PollFlags::IN)];
        fds.extend(input.iter().map(|input| PollFd::new(&input.stdin, PollFlags::OUT)));
        let ready = match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let [ended, takes] = [0, 1].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
        if ready == 0 || ended {
            // reaps a process that has ended; returns None on a timeout
            return child.try_wait();
        }
        if takes && !input.as_mut().is_some_and(Input::write) {
            input = None;
        }
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it ended by signal {signal}"),
        (None, None) => "it failed".to_owned(),
    }
}
