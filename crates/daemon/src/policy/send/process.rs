//! Child processes of sends. They end with the daemon: when it stops they are killed, and when it is
//! killed, `send` loses its connection and with it `receive` its input.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Most bytes of a list of snapshots: about a million of them.
const MOST_OUTPUT: u64 = 512 << 20;
/// How long a command that lists or destroys may take.
const SHORT: Duration = Duration::from_secs(120);
/// How long the second of two processes may take to end after the first has failed, or after both
/// were asked to end.
const AFTER: Duration = Duration::from_secs(60);
/// How long the last words of a process that has ended are waited for.
const WORDS: Duration = Duration::from_secs(2);
/// Time between two looks whether a send is still wanted.
const LOOK: Duration = Duration::from_secs(1);
/// Most characters of a line that are kept.
const LONGEST: usize = 500;

/// The last line that a process wrote, for lists.
pub(in crate::policy) type LastLine = Arc<Mutex<String>>;

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

/// Runs a command to its end; asks it to end when `is_wanted` becomes false.
///
/// # Errors
/// As [`piped`].
pub(super) async fn alone(command: &[String], shown: LastLine, is_wanted: impl Fn() -> bool) -> Result<(), String> {
    let mut running = Running::start(command, Stdio::null(), Stdio::null(), Some(shown))?;
    loop {
        tokio::select! {
            status = running.child.wait() => return match status {
                Ok(status) if status.success() => Ok(()),
                status => Err(running.reason(status).await),
            },
            () = tokio::time::sleep(LOOK) => if !is_wanted() {
                running.ask_to_end();
                let _ = timeout(AFTER, running.child.wait()).await;
                return Err("it is no longer wanted".to_owned());
            },
        }
    }
}

/// Runs two commands, the output of the first of which is the input of the second; asks both to end
/// when `is_wanted` becomes false.
///
/// # Errors
/// The last message of the one that failed first: the other one fails because of it.
pub(super) async fn piped(sender: &[String], receiver: &[String], shown: LastLine, is_wanted: impl Fn() -> bool) -> Result<(), String> {
    let (reader, writer) = io::pipe().map_err(|error| format!("no pipe: {error}"))?;
    let mut receiver = Running::start(receiver, reader.into(), Stdio::null(), None)?;
    let mut sender = Running::start(sender, Stdio::null(), writer.into(), Some(shown))?;
    let (mut ended, mut end): ([bool; 2], _) = ([false; 2], None);
    let mut failure: Option<String> = None;
    loop {
        tokio::select! {
            status = sender.child.wait(), if !ended[0] => {
                ended[0] = true;
                if !status.as_ref().is_ok_and(ExitStatus::success) && failure.is_none() {
                    failure = Some(sender.reason(status).await);
                }
            }
            status = receiver.child.wait(), if !ended[1] => {
                ended[1] = true;
                if !status.as_ref().is_ok_and(ExitStatus::success) && failure.is_none() {
                    failure = Some(receiver.reason(status).await);
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = tokio::time::Instant::now();
        if ended == [true; 2] || end.is_some_and(|end| end < now) {
            return failure.map_or(Ok(()), Err);
        }
        if failure.is_none() && !is_wanted() {
            failure = Some("it is no longer wanted".to_owned());
            [&sender, &receiver].iter().for_each(|running| running.ask_to_end());
        }
        if failure.is_some() {
            end = end.or(Some(now + AFTER));
        }
    }
}

#[cfg(test)]
mod tests;
