//! A client of the QEMU guest agent, which freezes the file systems of a guest. Source: QEMU's
//! docs/interop/qemu-ga-ref.
//!
//! The agent answers one client at a time, in order, and its channel keeps answers that an earlier
//! client did not read. So each conversation begins with `guest-sync-delimited` and a number that
//! was never used before; everything up to its answer is skipped.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_api::instant;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

/// Longest line of an answer in bytes. A guest is not trusted: it may send without end.
const MOST_LINE: usize = 64 << 10;
/// Most bytes that are skipped before the answer to the first command.
const MOST_SKIPPED: usize = 1 << 20;
/// Byte before a command that ends whatever the agent has read so far, and before the answer to
/// `guest-sync-delimited`.
const SENTINEL: u8 = 0xff;
/// Longest reason of the agent that is passed on, in characters.
const MOST_REASON: usize = 200;

/// Reason why a guest was not frozen or thawed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    /// No guest listens: there is no socket, or QEMU has ended.
    #[error("no guest listens there: {0}")]
    NoGuest(io::Error),
    /// The socket cannot be used.
    #[error("cannot use it: {0}")]
    Socket(io::Error),
    /// The agent does not answer in time: it does not run in the guest, or another program has its
    /// channel.
    #[error(
        "no answer to {command} within {seconds} s; check that the agent runs in the guest, and that no other program, such as libvirt, uses its channel"
    )]
    Silent {
        /// Command without an answer.
        command: &'static str,
        /// Time limit.
        seconds: u64,
    },
    /// QEMU has closed the connection.
    #[error("the connection ended during {0}")]
    Ended(&'static str),
    /// The answer is no JSON, or too long.
    #[error("the answer to {0} makes no sense")]
    Garbage(&'static str),
    /// The agent refuses.
    #[error("the agent refuses {command}: {reason}")]
    Refused {
        /// Refused command.
        command: &'static str,
        /// The agent's reason.
        reason: String,
    },
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "return")]
    value: Option<Value>,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    desc: String,
}

/// A connection to an agent.
pub(super) struct Agent {
    stream: UnixStream,
    /// Bytes that were read and not used.
    rest: Vec<u8>,
}

impl Agent {
    /// Connects. Nothing is sent yet.
    ///
    /// # Errors
    /// [`AgentError::NoGuest`] or [`AgentError::Socket`].
    pub(super) async fn connect(path: &Path) -> Result<Agent, AgentError> {
        let connected = UnixStream::connect(path).await;
        let stream = connected.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AgentError::NoGuest(e),
            _ => AgentError::Socket(e),
        })?;
        Ok(Agent { stream, rest: Vec::new() })
    }

    /// Skips everything that earlier commands and clients left.
    ///
    /// # Errors
    /// When the agent does not answer within `limit`, or with something else.
    pub(super) async fn sync(&mut self, limit: Duration) -> Result<(), AgentError> {
        const COMMAND: &str = "guest-sync-delimited";
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // numbers of earlier daemons are smaller; the agent takes 63 bits
        let id = instant::to_millis(instant::now()).wrapping_mul(1024) + COUNT.fetch_add(1, Ordering::Relaxed) % 1024;
        let id = id & (u64::MAX >> 1);
        let line = serde_json::json!({ "execute": COMMAND, "arguments": { "id": id } });
        let (end, mut skipped) = (Instant::now() + limit, 0);
        self.send(&[&[SENTINEL][..], line.to_string().as_bytes(), b"\n"].concat(), COMMAND, end, limit).await?;
        loop {
            let line = self.line(COMMAND, end, limit).await?;
            skipped += line.len();
            let answer = line.iter().rposition(|byte| *byte == SENTINEL).and_then(|at| line.get(at + 1..));
            let answer: Option<Answer> = answer.and_then(|answer| serde_json::from_slice(answer).ok());
            if answer.and_then(|answer| answer.value).and_then(|value| value.as_u64()) == Some(id) {
                return Ok(());
            }
            if skipped > MOST_SKIPPED {
                return Err(AgentError::Garbage(COMMAND));
            }
        }
    }

    /// Runs a command without arguments; returns its result. Call [`Agent::sync`] before.
    ///
    /// # Errors
    /// When the agent refuses, does not answer within `limit`, or answers something else.
    pub(super) async fn run(&mut self, command: &'static str, limit: Duration) -> Result<Value, AgentError> {
        let end = Instant::now() + limit;
        let line = serde_json::json!({ "execute": command });
        self.send(&[line.to_string().as_bytes(), b"\n"].concat(), command, end, limit).await?;
        let line = self.line(command, end, limit).await?;
        let answer: Answer = serde_json::from_slice(&line).map_err(|_| AgentError::Garbage(command))?;
        match (answer.value, answer.error) {
            (Some(value), None) => Ok(value),
            (_, Some(problem)) => {
                let reason = problem.desc.chars().filter(|c| !c.is_control()).take(MOST_REASON).collect();
                Err(AgentError::Refused { command, reason })
            }
            (None, None) => Err(AgentError::Garbage(command)),
        }
    }

    async fn send(&mut self, bytes: &[u8], command: &'static str, end: Instant, limit: Duration) -> Result<(), AgentError> {
        match timeout_at(end, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(AgentError::Ended(command)),
            Err(_) => Err(AgentError::Silent { command, seconds: limit.as_secs() }),
        }
    }

    /// Reads a line, without its end.
    async fn line(&mut self, command: &'static str, end: Instant, limit: Duration) -> Result<Vec<u8>, AgentError> {
        loop {
            if let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=at).collect();
                line.pop();
                return Ok(line);
            }
            if self.rest.len() > MOST_LINE {
                return Err(AgentError::Garbage(command));
            }
            match timeout_at(end, self.stream.read_buf(&mut self.rest)).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0) | Err(_)) => return Err(AgentError::Ended(command)),
                Err(_) => return Err(AgentError::Silent { command, seconds: limit.as_secs() }),
            }
        }
    }
}
