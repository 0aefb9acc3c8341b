//! The command of `on_event`: run once for each event, one at a time, on a thread of its own.
//!
//! The daemon never waits for it: what does not fit into the queue is left out, what takes too long is killed, and either is a line of the log.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::api::{Event, Severity};

#[cfg(test)]
mod tests;

/// Events that wait for the command at most.
const QUEUE: usize = 64;

/// What is run, for what, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Absolute path and arguments.
    pub command: Vec<String>,
    /// Events of at least this severity.
    pub severity: Severity,
    /// Then it is killed.
    pub timeout: Duration,
}

/// The way of events to the command. The thread ends some time after this is dropped, when it has done what was queued.
pub(super) struct HookQueue {
    queue: SyncSender<Event>,
    severity: Severity,
    /// Events left out since the last that was not.
    left_out: u64,
}

impl HookQueue {
    /// Starts the thread.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn start(hook: Hook) -> io::Result<HookQueue> {
        let (queue, events) = sync_channel(QUEUE);
        let severity = hook.severity;
        thread::Builder::new().name("on-event".to_owned()).spawn(move || run(&hook, &events))?;
        Ok(HookQueue { queue, severity, left_out: 0 })
    }

    /// Queues an event, when it matters enough. Returns at once.
    pub(super) fn hand_over(&mut self, event: &Event) {
        if event.severity < self.severity {
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
            // its thread ends with this queue alone
            Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

fn run(hook: &Hook, events: &Receiver<Event>) {
    for event in events {
        if let Err(why) = run_once(hook, &event) {
            let command = hook.command.first().map(String::as_str).unwrap_or_default();
            tracing::warn!("on_event: {command}, run for {}: {why}", event.event);
        }
    }
}

/// Runs the command for one event.
fn run_once(hook: &Hook, event: &Event) -> Result<(), String> {
    let (program, arguments) = hook.command.split_first().ok_or("no command")?;
    let told = |what: &str, error: &dyn Display| format!("{what}: {error}");
    let variables = [
        ("KIND", event.event.as_str()),
        ("SEVERITY", event.severity.name()),
        ("POOL", event.pool.as_deref().unwrap_or_default()),
        ("DEVICE", event.device.as_deref().unwrap_or_default()),
        ("SUBJECT", event.subject.as_str()),
        ("MESSAGE", event.message.as_str()),
    ];
    let mut child = Command::new(program)
        .args(arguments)
        .envs(variables.map(|(name, value)| (format!("MILLPOND_EVENT_{name}"), value)))
        .env("MILLPOND_EVENT_TIME", event.time.to_string())
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| told("it cannot be run", &error))?;
    let json = serde_json::to_vec(event).map_err(|error| told("no JSON", &error));
    if let (Some(mut stdin), Ok(json)) = (child.stdin.take(), json) {
        // A pipe has room for more than an event is long, so this does not wait; a command need not read it.
        let _ = stdin.write_all(&json).and_then(|()| stdin.write_all(b"\n"));
    }
    match wait(&mut child, hook.timeout) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(ending(status)),
        Ok(None) => {
            kill(&mut child);
            Err(format!("it did not end within {} s, and was killed", hook.timeout.as_secs()))
        }
        Err(error) => {
            kill(&mut child);
            Err(told("it cannot be waited for, and was killed", &error))
        }
    }
}

/// Waits for the end of a process; nothing when it does not come in time.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return child.try_wait(),
            Ok(_) => return child.wait().map(Some),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills a process with those that it started in its group.
fn kill(child: &mut Child) {
    // It may have ended just now.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it ended by signal {signal}"),
        (None, None) => "it failed".to_owned(),
    }
}
