//! What happened: each event is a line of the log, is given to those who listen and to the command of `on_event`, and is remembered.
//!
//! The last events are in memory, and in a file of the state directory, one JSON object a line, so that they outlive a restart. The file is
//! bounded and is not flushed: it is a record for people, nothing depends on it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use tokio::sync::broadcast;

use super::hook::HookQueue;
use super::service::Daemon;
use crate::api::{Event, Severity};
use crate::instant;

mod kinds;
#[cfg(test)]
mod tests;

/// The file in the state directory.
const FILE: &str = "events.jsonl";
/// Events remembered.
const KEPT: usize = 1000;
/// Lines of the file at most; then it is written anew with those that are remembered.
const LINES: usize = 2 * KEPT;
/// Events kept for a listener that is slow; older ones are dropped for it.
const BACKLOG: usize = 256;
/// Longest message in characters.
const LONGEST: usize = 2000;

/// Something to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    kind: &'static str,
    severity: Option<Severity>,
    subject: String,
    pool: Option<String>,
    device: Option<String>,
    message: String,
}

impl Happened {
    /// To a pool.
    pub(super) fn to_pool(kind: &'static str, pool: &str, message: impl Into<String>) -> Happened {
        Happened { kind, severity: None, subject: pool.to_owned(), pool: Some(pool.to_owned()), device: None, message: message.into() }
    }

    /// To a device of a pool.
    pub(super) fn to_device(kind: &'static str, pool: &str, device: &str, message: impl Into<String>) -> Happened {
        Happened { subject: device.to_owned(), device: Some(device.to_owned()), ..Happened::to_pool(kind, pool, message) }
    }

    /// About something else of the pool.
    pub(super) fn about(self, subject: impl Into<String>) -> Happened {
        Happened { subject: subject.into(), ..self }
    }

    /// With another severity than events of its kind have.
    pub(super) fn at(self, severity: Severity) -> Happened {
        Happened { severity: Some(severity), ..self }
    }

    /// Its kind.
    #[cfg(test)]
    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// In words.
    #[cfg(test)]
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// How much it matters.
    pub(super) fn severity(&self) -> Severity {
        self.severity.unwrap_or_else(|| kinds::severity(self.kind))
    }

    fn into_event(self) -> Event {
        let severity = self.severity();
        Event {
            time: instant::now(),
            severity,
            event: self.kind.to_owned(),
            subject: self.subject,
            pool: self.pool,
            device: self.device,
            message: one_line(&self.message),
        }
    }
}

/// Events up to now, and those that come.
pub(super) struct EventLog {
    remembered: Mutex<Remembered>,
    listeners: broadcast::Sender<Event>,
}

struct Remembered {
    recent: VecDeque<Event>,
    /// The file, open for appending, as long as it can be written.
    file: Option<File>,
    path: PathBuf,
    lines: usize,
    hook: Option<HookQueue>,
}

impl EventLog {
    /// With what the file in `dir` holds, and what events are handed to.
    pub(super) fn open(dir: &Path, hook: Option<HookQueue>) -> EventLog {
        let mut remembered = Remembered { recent: VecDeque::new(), file: None, path: dir.join(FILE), lines: 0, hook };
        if let Err(error) = remembered.load() {
            tracing::warn!(%error, file = %remembered.path.display(), "earlier events are not known, and later ones are not kept over a restart");
        }
        EventLog { remembered: Mutex::new(remembered), listeners: broadcast::channel(BACKLOG).0 }
    }

    /// Remembers an event and gives it to those who wait for it.
    fn record(&self, event: Event) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.add(&event);
        if let Some(hook) = &mut remembered.hook {
            hook.hand_over(&event);
        }
        // Nobody listening is no error. Sent under the lock: whoever looks back and listens misses none and gets none twice.
        let _ = self.listeners.send(event);
    }

    /// Events since a time that are remembered, none without one; and those from now on.
    fn listen(&self, since: Option<Timestamp>) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = remembered.recent.iter().filter(|event| since.is_some_and(|since| event.time >= since));
        (wanted.cloned().collect(), self.listeners.subscribe())
    }
}

impl Remembered {
    fn load(&mut self) -> io::Result<()> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let whole = text.is_empty() || text.ends_with(b"\n");
        let mut sound = whole;
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.lines += 1;
            match serde_json::from_slice(line) {
                Ok(event) => self.keep(event),
                // what a crash cut off
                Err(_) => sound = false,
            }
        }
        if sound && self.lines < LINES {
            self.file = Some(File::options().create(true).append(true).open(&self.path)?);
            return Ok(());
        }
        self.write_anew()
    }

    fn keep(&mut self, event: Event) {
        if self.recent.len() >= KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
    }

    fn add(&mut self, event: &Event) {
        self.keep(event.clone());
        let written = match &mut self.file {
            None => return,
            Some(_) if self.lines >= LINES => self.write_anew(),
            Some(file) => {
                self.lines += 1;
                file.write_all(&line(event))
            }
        };
        if let Err(error) = written {
            tracing::warn!(%error, file = %self.path.display(), "events are not kept over a restart any more");
            self.file = None;
        }
    }

    /// Replaces the file by what is remembered.
    fn write_anew(&mut self) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut file = File::create(&temporary)?;
        let all: Vec<u8> = self.recent.iter().flat_map(line).collect();
        file.write_all(&all)?;
        fs::rename(&temporary, &self.path)?;
        self.lines = self.recent.len();
        self.file = Some(file);
        Ok(())
    }
}

/// An event as a line of the file.
fn line(event: &Event) -> Vec<u8> {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A message without line ends and other control characters, and of a bounded length.
fn one_line(message: &str) -> String {
    message.chars().map(|character| if character.is_control() { ' ' } else { character }).take(LONGEST).collect()
}

/// The pool that a subject belongs to: `POOL`, `POOL/VOL@SNAP`, `POOL: more`, or an export's `ID POOL/VOL`.
fn pool_of(kind: &str, subject: &str) -> Option<String> {
    let name = if kind.starts_with("export.") { subject.split_once(' ')?.1 } else { subject };
    let named = ["pool.", "volume.", "snapshot.", "export.", "host.", "device.limited", "renamed", "destroyed"]
        .iter()
        .any(|start| kind.starts_with(start));
    let pool = name.split(['/', '@', ':', ' ']).next()?;
    (named && !pool.is_empty()).then(|| pool.to_owned())
}

impl Daemon {
    /// Reports an event whose kind says all that there is to say of its subject.
    pub(super) fn tell(&self, kind: &'static str, subject: impl Into<String>) {
        let subject = subject.into();
        let message = format!("{}: {subject}", kinds::words(kind));
        log(kinds::severity(kind), kind, &one_line(&subject));
        let happened = Happened { kind, severity: None, pool: pool_of(kind, &subject), device: None, subject, message };
        self.events.record(happened.into_event());
    }

    /// Reports an event.
    pub(super) fn report(&self, happened: Happened) {
        log(happened.severity(), happened.kind, &one_line(&happened.message));
        self.events.record(happened.into_event());
    }

    /// Events since a time that are remembered, none without one; and those from now on.
    pub fn listen_since(&self, since: Option<Timestamp>) -> (Vec<Event>, broadcast::Receiver<Event>) {
        self.events.listen(since)
    }
}

fn log(severity: Severity, kind: &str, message: &str) {
    match severity {
        Severity::Info => tracing::info!("{kind} {message}"),
        Severity::Warning => tracing::warn!("{kind} {message}"),
        Severity::Error => tracing::error!("{kind} {message}"),
    }
}
